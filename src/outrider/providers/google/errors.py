"""Converts Gemini error responses to exceptions, including the requested retry delay."""

from collections.abc import Mapping
from typing import Any, cast

from outrider.errors import ProviderError
from outrider.providers.error_mapping import build_provider_error, parse_retry_after
from outrider.providers.response_json import decode_error_body, format_json


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Converts a response with an error status to a ProviderError. A streaming request returns the error in a list."""
    return error_from_payload(decode_error_body(body), status=status, headers=headers)


def error_from_payload(
    payload: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Converts an error object, or an object or list that contains one, to a ProviderError. Errors inside a stream have
    no status."""
    while (inner := _inner_error(payload)) is not None:
        payload = inner
    fields: dict[str, Any] = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {"message": payload}
    message, kind, code = fields.get("message"), fields.get("status"), fields.get("code")
    return build_provider_error(
        message if isinstance(message, str) else format_json(payload),
        status=status,
        type=kind if isinstance(kind, str) else None,
        code=code if isinstance(code, str | int) else None,
        headers=headers,
        retry_after=_retry_delay(fields.get("details")),
    )


def _inner_error(payload: Any) -> Any:
    """Returns the nested error object, or None if `payload` is the error itself."""
    if isinstance(payload, list):
        return cast("list[Any]", payload)[0] if payload else None
    inner = cast("dict[str, Any]", payload).get("error") if isinstance(payload, dict) else None
    return cast("Any", inner) if isinstance(inner, dict) else None


def _retry_delay(details: Any) -> float | None:
    """Returns the seconds of a RetryInfo, whose value looks like `34.5s`."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str):
            return parse_retry_after({"retry-after": delay.removesuffix("s")})
    return None
