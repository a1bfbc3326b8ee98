"""Exception hierarchy: every exception that Outrider raises.

OutriderError
├── PartValidationError       a part or message is invalid and was not stored (also a ValueError)
├── InvalidStateTransition    a tool call has no such transition from its current state
├── ToolFailure               raised by a tool; the call ends in error and the model reads the message
├── OutputUnavailableError    a run ended without a value of its output type; has the reason and the result
├── CallbackError             a function of the program failed, took too long or returned an invalid value
├── OutputMismatch            the answer is not a value of the requested type, even after a correction was requested
├── ListenerOverflow          a listener of the event stream is too far behind
├── ProviderError             a model API returned an error or the connection broke; has the provider's message
│   ├── AuthenticationError       401: the key is missing or wrong
│   ├── PermissionRefusedError    403: the key has no permission for this request
│   ├── NotFoundError             404: no such model or URL
│   ├── InvalidRequestError       400, 422: the API does not accept the request
│   │   └── ContextOverflowError      the prompt is longer than the model's context window
│   ├── ContentFilterError        the provider's filter stopped the prompt or the answer
│   ├── QuotaExceededError        402, or 429 because of an exhausted budget: a retry does not help
│   ├── RateLimitError            429: too many requests; a later retry helps
│   ├── OverloadedError           529, 503: the provider has no capacity at the moment
│   ├── ServerError               other 5xx
│   ├── NetworkError              no connection, or it was closed
│   │   └── StalledStreamError        the connection is open but no data arrives
│   └── MalformedAnswerError      the response does not follow the API's format
├── StoreError                a session could not be stored or loaded
│   ├── SessionNotFoundError      there is no such session, or it was deleted
│   ├── SessionInUseError         another process owns the session; details name the owner
│   ├── LeaseLostError            another process took over the session; nothing was written
│   ├── StorageFullError          the disk or the quota is full; nothing was written, a retry may help
│   ├── StoreUnavailableError     the store cannot be opened or written: permissions, network, a lock
│   ├── StoreVersionError         the store has the schema of a newer version; nothing was changed
│   └── StoreDamagedError         the database file is damaged
├── ServerAwayError           an Outrider server cannot be reached or closed the connection; a retry may help
├── WeightsError              the weights of a local model are missing or could not be downloaded
├── ProcessError              a command could not be started, or there is no such process
├── LimitReachedError         a limit on turns, time, tokens, cost or depth was reached; completed work is stored
└── ConfigurationError        an invalid name, setting or combination (also a ValueError)
"""

from typing import Any, Literal


class OutriderError(Exception):
    """Base class of all exceptions. `message` is the text; `details` has values that a program can use."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how a copy is made, for `pickle` and `copy`: without `__init__`, whose parameters differ by class. A
        process pool that cannot unpickle an error loses all of its workers."""
        return _create_error, (type(self), self.args), self.__dict__


def _create_error(cls: type[OutriderError], arguments: tuple[Any, ...]) -> OutriderError:
    return cls.__new__(cls, *arguments)


class PartValidationError(OutriderError, ValueError):
    """A part or message is invalid. `details["field"]` names the field that is missing or wrong, if there is one."""


class InvalidStateTransition(OutriderError):
    """A tool call has no such transition. `details`: current_status, attempted_status and valid_transitions."""

    def __init__(self, current_status: str, attempted_status: str, valid_transitions: tuple[str, ...]) -> None:
        allowed = " or ".join(valid_transitions) or "nothing: it has ended"
        super().__init__(
            f"a tool call cannot go from {current_status} to {attempted_status}; it can go to {allowed}",
            current_status=current_status,
            attempted_status=attempted_status,
            valid_transitions=list(valid_transitions),
        )


FailureReason = Literal["failed", "timeout", "rejected", "denied", "interrupted"]


class ToolFailure(OutriderError):
    """A tool raises this to end its call in error; the model reads the message.

    `reason` is `timeout` if the tool enforced a time limit, `rejected` if the user did not keep its outcome, `denied`
    if no user could be asked and `interrupted` if it is not known which effects the call had."""

    def __init__(self, message: str, *, reason: FailureReason = "failed", **details: Any) -> None:
        super().__init__(str(message), **details)  # functions of programs also pass exceptions and numbers
        self.reason: FailureReason = reason


class OutputMismatch(OutriderError):
    """The answer is not a value of the requested type; the message explains why and is sent to the model."""


class OutputUnavailableError(OutriderError):
    """A run ended without a value of its output type. `reason` is why it ended, `result` its RunResult; the text so far
    is `result.text`."""

    def __init__(self, message: str, *, reason: str, result: Any = None) -> None:
        super().__init__(message, reason=reason, result=result)
        self.reason = reason
        self.result = result


class CallbackError(OutriderError):
    """A function of the program failed, took too long or returned an invalid value. `callback` names it; the exception
    that it raised is the `__cause__`."""

    def __init__(self, callback: str, problem: str) -> None:
        super().__init__(f"{callback} {problem}", callback=callback, problem=problem)
        self.callback = callback
        self.problem = problem


class ListenerOverflow(OutriderError):
    """A listener was removed because it is too slow. `details["waiting"]` is the number of queued events."""


class ProviderError(OutriderError):
    """An error response of a model API, or a failed connection to it.

    `message` is the provider's text, `status` the HTTP status (None without a response), `type` the provider's name for
    the error, `retry_after` the delay in seconds that it requested. `retryable`: the same request may succeed later.
    """

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        type: str | None = None,
        retry_after: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.provider = provider
        self.status = status
        self.type = type
        self.retry_after = retry_after

    def __str__(self) -> str:
        where = " ".join(str(word) for word in (self.provider, self.status, self.type) if word)
        return f"{where}: {self.message}" if where else self.message


class AuthenticationError(ProviderError):
    """The key is missing, invalid or expired (401). Set another key."""


class PermissionRefusedError(ProviderError):
    """The key has no right to use the model (403)."""


class NotFoundError(ProviderError):
    """The API does not know the model or the path (404)."""


class InvalidRequestError(ProviderError):
    """The API rejected the request (400); repeating it does not help."""


class ContextOverflowError(InvalidRequestError):
    """The request is longer than the context of the model. A session compacts its history and repeats it."""


class ContentFilterError(ProviderError):
    """The vendor refused the content of the request or of the answer."""


class QuotaExceededError(ProviderError):
    """The account has no quota or credit left; another model of the list answers."""


class RateLimitError(ProviderError):
    """Too many requests (429); the request is repeated after the time that the vendor names."""

    retryable = True


class OverloadedError(ProviderError):
    """The vendor is overloaded (529, 503); the request is repeated, or another model of the list answers."""

    retryable = True


class ServerError(ProviderError):
    """The vendor failed (5xx); the request is repeated."""

    retryable = True


class NetworkError(ProviderError):
    """The server cannot be reached, or the connection broke; the request is repeated."""

    retryable = True


class StalledStreamError(NetworkError):
    """The model sent nothing for too long; the stream was cut and the request is repeated."""


class MalformedAnswerError(ProviderError):
    """The answer cannot be decoded; the request is repeated."""

    retryable = True


class StoreError(OutriderError):
    """The store rejected or could not execute an operation."""


class SessionNotFoundError(StoreError):
    """The store has no session with this id."""


class SessionInUseError(StoreError):
    """Another process or run uses the session. `details` has host and pid of the process and the time of its lease."""


class LeaseLostError(StoreError):
    """Another process has taken over the session, so this one may no longer write to it."""


class StorageFullError(StoreError):
    """The disk is full; nothing was lost. Free space and continue."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached or is locked."""


class StoreVersionError(StoreError):
    """The store was written by a newer version. `details`: the versions `found` and `supported`."""


class StoreDamagedError(StoreError):
    """The database is damaged; `outrider doctor --repair` repairs what can be repaired."""


class ServerAwayError(OutriderError):
    """An Outrider server cannot be reached, or closed the connection; a retry may help."""


class WeightsError(OutriderError):
    """The weights of a local model are missing or could not be downloaded."""


class ProcessError(OutriderError):
    """A command could not be started, or there is no such process."""


class LimitReachedError(OutriderError):
    """A limit of a run was reached. `details`: `limit` (its name), `maximum` and `reached`."""

    def __init__(self, limit: str, maximum: object, reached: object) -> None:
        super().__init__(
            f"the limit of {maximum} {limit} was reached ({reached})", limit=limit, maximum=maximum, reached=reached
        )
        self.limit = limit


class ConfigurationError(OutriderError, ValueError):
    """A setting or an argument is invalid; the message names it and says what is expected."""
