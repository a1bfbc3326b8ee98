"""What the runtime says instead of an answer, as one typed error."""

from typing import Any

from outrider.errors import ContextOverflowError, InvalidRequestError, ProviderError, ServerError

_INVALID = 400


def as_provider_error(error: Exception) -> ProviderError:
    match error:
        case ProviderError():
            return error
        case ValueError():
            return InvalidRequestError(str(error))
        case _:
            return ServerError(f"the local model failed: {error}")


def refusal(said: dict[str, Any]) -> ProviderError:
    """Refusals come as {"error": {code, message, type}}."""
    message = str(said.get("message", said))
    kind = str(said.get("type", "")) or None
    if kind == "exceed_context_size_error":
        return ContextOverflowError(message, type=kind)
    if said.get("code") == _INVALID:
        return InvalidRequestError(message, status=_INVALID, type=kind)
    return ServerError(message, type=kind)
