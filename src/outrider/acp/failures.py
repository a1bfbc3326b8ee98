"""What goes wrong, as errors of the protocol: a code that clients know, and words that people understand."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from acp import RequestError

from outrider.acp.telling.texts import valid
from outrider.errors import AuthenticationError, ConfigurationError, OutriderError, SessionNotFoundError

P = ParamSpec("P")
T = TypeVar("T")


def as_request_error(error: OutriderError) -> RequestError:
    return RequestError(_code(error), valid(str(error)), {"type": type(error).__name__})


def said_plainly(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The engine's errors become the protocol's; others are ours, and the SDK tells them as such."""

    @wraps(method)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except OutriderError as error:
            raise as_request_error(error) from error

    return whole


def _code(error: OutriderError) -> int:
    match error:
        case SessionNotFoundError():
            return -32002  # resource not found
        case ConfigurationError():
            return -32602  # invalid params
        case AuthenticationError():
            return -32000  # authentication required
        case _:
            return -32603  # internal error
