"""What a server says instead of an answer, as the error that it was there, with a remedy where one is known."""

import inspect
from typing import Any

import msgspec

from outrider import errors
from outrider.app.remote.place import VARIABLE, Place
from outrider.errors import ConfigurationError, NetworkError, OutriderError, ProviderError, ServerAwayError


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    details: dict[str, Any] = {}


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def refused(place: Place, status: int, raw: bytes) -> OutriderError:
    try:
        error = msgspec.json.decode(raw, type=_Refusal).error
    except (msgspec.DecodeError, ValueError):
        return no_server_of_ours(place)
    match status, error.type:
        case 401, _:
            return ConfigurationError(
                f"{place.url} does not take this token. It stands in the file that the server named when it began; "
                f"give it as {VARIABLE} in the environment, or with --token"
            )
        case 421, _:
            return ConfigurationError(
                f"{place.url}: the server does not go by that name. Use the address that it printed, "
                "or begin it with --name and this one"
            )
        case 404, "no_such_route":
            return another_version(place, "an older version")
        case _:
            details = {**error.details, "status": status}
            return named_error(error.type, error.message or f"the server answered {status}", **details)


def named_error(name: str, message: str, **details: Any) -> OutriderError:
    """The error of that name; one whose making takes more than words becomes a plain one."""
    kind = getattr(errors, name, None)
    if not (inspect.isclass(kind) and issubclass(kind, OutriderError)):
        return OutriderError(message, **details)
    if issubclass(kind, ProviderError):
        return kind(message)
    try:
        return kind(message, **details)
    except TypeError:
        return OutriderError(message, **details)


def unreachable(place: Place, error: OSError | NetworkError) -> OutriderError:
    """Nobody is there, or nobody who can be trusted."""
    if isinstance(error, NetworkError) and error.type == "certificate":
        return ConfigurationError(
            f"{error.message.partition('. ')[0]}. If it is the server's own, point SSL_CERT_FILE to its certificate"
        )
    reason = error.message if isinstance(error, NetworkError) else error.strerror or str(error) or "no answer in time"
    return ServerAwayError(
        f"no server answers at {place.url} ({reason}). Begin one with `outrider serve`; it prints its address"
    )


def no_server_of_ours(place: Place) -> OutriderError:
    return ConfigurationError(f"what answers at {place.url} is no Outrider server; `outrider serve` prints its address")


def another_version(place: Place, there: str, here: str = "") -> OutriderError:
    own = f", and this is {here}" if here else ""
    return ConfigurationError(
        f"{place.url} runs {there} of Outrider{own}: use the same one on both sides (pip install -U outrider), "
        "then begin the server anew"
    )
