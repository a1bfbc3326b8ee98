"""Converts error responses of Messages API servers and gateways to exceptions."""

from collections.abc import Mapping
from typing import Any, cast

from outrider.errors import ProviderError
from outrider.providers.error_mapping import build_provider_error
from outrider.providers.response_json import decode_error_body, format_json


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Converts a response with an error status to a ProviderError."""
    envelope = _decode_envelope(body)
    kind, message = _error_type_and_message(envelope)
    error = build_provider_error(message, status=status, type=kind, headers=headers)
    request_id = envelope.get("request_id") or headers.get("request-id")
    if request_id:
        error.details["request_id"] = request_id  # Anthropic's support asks for this id
    return error


def error_from_stream(error: Any) -> ProviderError:
    """Converts an error event inside a successful response to a ProviderError."""
    kind, message = _error_type_and_message({"error": error})
    code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return build_provider_error(message, type=kind, code=code if isinstance(code, int | str) else None)


def _decode_envelope(body: bytes) -> dict[str, Any]:
    value = decode_error_body(body)
    if isinstance(value, list) and value:  # Google's gateways wrap the error object in a list
        value = cast("list[Any]", value)[0]
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"error": value}


def _error_type_and_message(envelope: dict[str, Any]) -> tuple[str | None, str]:
    """Returns the error type, if any, and the message."""
    match envelope:
        case {"error": {"message": message, **rest}}:
            kind = rest.get("type") or rest.get("status")
        case {"error": str(message)} | {"message": message} | {"detail": message}:
            kind = None
        case _:
            kind, message = None, ""
    text = message if isinstance(message, str) else format_json(message) if message else ""
    return (kind if isinstance(kind, str) else None), text
