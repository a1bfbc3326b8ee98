"""Every exception that Outrider raises, on one screen.

OutriderError
├── PartValidationError       a part or message that may not be stored (also a ValueError)
├── InvalidStateTransition    a tool call was asked to make a move that its state does not have
├── ToolFailure               a tool's own way to say "this went wrong"; the model reads the text
├── OutputMismatch            an answer that is no value of the wanted type, also after it was to be mended
├── ListenerOverflow          a listener of the event stream fell too far behind
├── ProviderError             a model API refused or broke; carries the provider's own words
│   ├── AuthenticationError       401: the key is missing or wrong
│   ├── PermissionRefusedError    403: the key may not do this
│   ├── NotFoundError             404: no such model or address
│   ├── InvalidRequestError       400, 422: the API does not accept what was sent
│   │   └── ContextOverflowError      the prompt is longer than the model's context
│   ├── ContentFilterError        the provider's filter stopped the prompt or the answer
│   ├── QuotaExceededError        402, or 429 for want of money: waiting does not help
│   ├── RateLimitError            429: too many requests; waiting helps
│   ├── OverloadedError           529, 503: the provider has no capacity now
│   ├── ServerError               other 5xx
│   ├── NetworkError              no connection, or it broke
│   │   └── StalledStreamError        it stayed open and went silent
│   └── MalformedAnswerError      an answer that is not what the API promises
├── StoreError                a session could not be kept or read
│   ├── SessionNotFoundError      there is no such session (any more)
│   ├── SessionInUseError         another process owns the session; says who, and since when
│   ├── LeaseLostError            somebody else took the session over; nothing was written
│   ├── StorageFullError          the disk or the quota is full; nothing was written, trying again may help
│   ├── StoreUnavailableError     the store cannot be opened or written: permissions, network, a lock
│   ├── StoreVersionError         the store was written by a newer version; nothing was changed
│   └── StoreDamagedError         the store's own file is broken
├── ServerAwayError           an Outrider server cannot be reached, or hung up; it may come back
├── WeightsError              the weights of a local model are missing, or could not be fetched; says what to do
├── ProcessError              a command could not be started, or there is no such process
├── LimitReachedError         a bound on turns, time, tokens, money, depth was met; what was done is kept
└── ConfigurationError        a name, setting or combination that cannot work (also a ValueError)
"""

from typing import Any, Literal


class OutriderError(Exception):
    """Base of all. `details` holds what a program may want to look at."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class PartValidationError(OutriderError, ValueError):
    """`details["field"]` names the field that is missing or wrong, where one is to blame."""


class InvalidStateTransition(OutriderError):
    """`details` holds current_status, attempted_status and valid_transitions."""

    def __init__(self, current_status: str, attempted_status: str, valid_transitions: tuple[str, ...]) -> None:
        allowed = " or ".join(valid_transitions) or "nothing: it has ended"
        super().__init__(
            f"a tool call cannot go from {current_status} to {attempted_status}; it can go to {allowed}",
            current_status=current_status,
            attempted_status=attempted_status,
            valid_transitions=list(valid_transitions),
        )


class ToolFailure(OutriderError):
    """Raise it inside a tool; the call ends in error and the model reads the message.

    `reason` is timeout where the tool kept a time limit of its own."""

    def __init__(self, message: str, *, reason: Literal["failed", "timeout"] = "failed", **details: Any) -> None:
        super().__init__(message, **details)
        self.reason: Literal["failed", "timeout"] = reason


class OutputMismatch(OutriderError):
    """The text is not a value of the wanted type; the message tells the model why."""


class ListenerOverflow(OutriderError):
    """`details["waiting"]` says how many events were queued when the listener was let go."""


class ProviderError(OutriderError):
    """What a model API answered instead of an answer, in its own words.

    `status` is the HTTP status (None when there was none), `type` the provider's own name for the error,
    `retry_after` the seconds it asked to wait. `retryable` says whether the same request may succeed later.
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
    pass


class PermissionRefusedError(ProviderError):
    pass


class NotFoundError(ProviderError):
    pass


class InvalidRequestError(ProviderError):
    pass


class ContextOverflowError(InvalidRequestError):
    pass


class ContentFilterError(ProviderError):
    pass


class QuotaExceededError(ProviderError):
    pass


class RateLimitError(ProviderError):
    retryable = True


class OverloadedError(ProviderError):
    retryable = True


class ServerError(ProviderError):
    retryable = True


class NetworkError(ProviderError):
    retryable = True


class StalledStreamError(NetworkError):
    pass


class MalformedAnswerError(ProviderError):
    retryable = True


class StoreError(OutriderError):
    pass


class SessionNotFoundError(StoreError):
    pass


class SessionInUseError(StoreError):
    """`details` holds the owner's host and pid, and since when."""


class LeaseLostError(StoreError):
    pass


class StorageFullError(StoreError):
    pass


class StoreUnavailableError(StoreError):
    pass


class StoreVersionError(StoreError):
    """`details` holds found and supported."""


class StoreDamagedError(StoreError):
    pass


class ServerAwayError(OutriderError):
    pass


class WeightsError(OutriderError):
    pass


class ProcessError(OutriderError):
    pass


class LimitReachedError(OutriderError):
    """`details` holds limit (its name), maximum and reached."""

    def __init__(self, limit: str, maximum: object, reached: object) -> None:
        super().__init__(
            f"the limit of {maximum} {limit} was reached ({reached})", limit=limit, maximum=maximum, reached=reached
        )
        self.limit = limit


class ConfigurationError(OutriderError, ValueError):
    pass
