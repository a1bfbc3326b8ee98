"""What Google's refusals say, and how long they ask to wait."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from outrider.errors import ProviderError
from outrider.providers.refusals import refusal


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """What an answer with an error status means; a streamed request is refused with a list."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = {"message": body.decode(errors="replace")}
    return from_error(said, status=status, headers=headers)


def from_error(said: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> ProviderError:
    """An error object, or whatever holds one; inside a stream there is no status."""
    if isinstance(said, list) and said:
        return from_error(cast("list[Any]", said)[0], status=status, headers=headers)
    fields: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {"message": said}
    if isinstance(fields.get("error"), dict):
        return from_error(fields["error"], status=status, headers=headers)
    message, kind, code = fields.get("message"), fields.get("status"), fields.get("code")
    return refusal(
        message if isinstance(message, str) else msgspec.json.encode(said).decode(),
        status=status,
        type=kind if isinstance(kind, str) else None,
        code=code if isinstance(code, str | int) else None,
        headers=headers,
        retry_after=_asked_wait(fields.get("details")),
    )


def _asked_wait(details: Any) -> float | None:
    """The seconds of a RetryInfo, written as `34.5s`."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str):
            try:
                return float(delay.removesuffix("s"))
            except ValueError:
                return None
    return None
