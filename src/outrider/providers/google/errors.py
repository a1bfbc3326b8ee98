"""What Google's refusals say, and how long they ask to wait."""

from collections.abc import Mapping
from typing import Any, cast

from outrider.errors import ProviderError
from outrider.providers.error_mapping import asked_wait, refusal
from outrider.providers.response_json import said_in, shown


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """What an answer with an error status means; a streamed request is refused with a list."""
    return from_error(said_in(body), status=status, headers=headers)


def from_error(said: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> ProviderError:
    """An error object, or whatever holds one; inside a stream there is no status."""
    while (inner := _held(said)) is not None:
        said = inner
    fields: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {"message": said}
    message, kind, code = fields.get("message"), fields.get("status"), fields.get("code")
    return refusal(
        message if isinstance(message, str) else shown(said),
        status=status,
        type=kind if isinstance(kind, str) else None,
        code=code if isinstance(code, str | int) else None,
        headers=headers,
        retry_after=_asked_wait(fields.get("details")),
    )


def _held(said: Any) -> Any:
    """The error that this only holds, or None."""
    if isinstance(said, list):
        return cast("list[Any]", said)[0] if said else None
    inner = cast("dict[str, Any]", said).get("error") if isinstance(said, dict) else None
    return cast("Any", inner) if isinstance(inner, dict) else None


def _asked_wait(details: Any) -> float | None:
    """The seconds of a RetryInfo, written as `34.5s`."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str):
            return asked_wait({"retry-after": delay.removesuffix("s")})
    return None
