"""What a refusal of the Messages API says, in any of the envelopes that its servers and gateways use."""

from collections.abc import Mapping
from typing import Any, cast

from outrider.errors import ProviderError
from outrider.providers.error_mapping import refusal
from outrider.providers.response_json import said_in, shown


def error_in_response(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """An answer with an error status."""
    envelope = _envelope(body)
    kind, message = _said(envelope)
    error = refusal(message, status=status, type=kind, headers=headers)
    request_id = envelope.get("request_id") or headers.get("request-id")
    if request_id:
        error.details["request_id"] = request_id  # what Anthropic's support asks for
    return error


def error_in_answer(error: Any) -> ProviderError:
    """An error inside an answer that had begun well."""
    kind, message = _said({"error": error})
    code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return refusal(message, type=kind, code=code if isinstance(code, int | str) else None)


def _envelope(body: bytes) -> dict[str, Any]:
    value = said_in(body)
    if isinstance(value, list) and value:  # Google's gateways wrap it in a list
        value = cast("list[Any]", value)[0]
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"error": value}


def _said(envelope: dict[str, Any]) -> tuple[str | None, str]:
    """The error's own name and words."""
    match envelope:
        case {"error": {"message": message, **rest}}:
            kind = rest.get("type") or rest.get("status")
        case {"error": str(message)} | {"message": message} | {"detail": message}:
            kind = None
        case _:
            kind, message = None, ""
    words = message if isinstance(message, str) else shown(message) if message else ""
    return (kind if isinstance(kind, str) else None), words
