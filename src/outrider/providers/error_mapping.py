"""What a refusal means: a provider's status, error type, code and words, mapped to one typed error."""

import re
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from outrider.errors import (
    AuthenticationError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    PermissionRefusedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from outrider.permissions.redaction.redactor import HIDDEN, hide_patterns
from outrider.providers.provider import HttpCall

_MESSAGE_CHARACTERS = 2_000

# Names that mean one thing wherever they appear. They are compared in lower case, words joined by "_".
_NAMES: dict[str, type[ProviderError]] = {
    "authentication_error": AuthenticationError,
    "invalid_api_key": AuthenticationError,
    "invalid_authentication": AuthenticationError,
    "unauthenticated": AuthenticationError,
    "unauthorized": AuthenticationError,
    "permission_error": PermissionRefusedError,
    "permission_denied": PermissionRefusedError,
    "forbidden": PermissionRefusedError,
    "unsupported_country_region_territory": PermissionRefusedError,
    "not_found_error": NotFoundError,
    "not_found": NotFoundError,
    "model_not_found": NotFoundError,
    "invalid_model": NotFoundError,
    "deploymentnotfound": NotFoundError,
    "context_length_exceeded": ContextOverflowError,
    "context_window_exceeded": ContextOverflowError,
    "model_context_window_exceeded": ContextOverflowError,
    "exceed_context_size_error": ContextOverflowError,
    "request_too_large": ContextOverflowError,
    "content_filter": ContentFilterError,
    "content_filter_error": ContentFilterError,
    "content_policy_violation": ContentFilterError,
    "responsibleaipolicyviolation": ContentFilterError,
    "cyber_policy": ContentFilterError,
    "bio_policy": ContentFilterError,
    "invalid_prompt": ContentFilterError,
    "insufficient_quota": QuotaExceededError,
    "insufficient_balance": QuotaExceededError,
    "insufficient_credits": QuotaExceededError,
    "billing_error": QuotaExceededError,
    "billing_hard_limit_reached": QuotaExceededError,
    "billing_not_active": QuotaExceededError,
    "payment_required": QuotaExceededError,
    "usage_limit_reached": QuotaExceededError,
    "usage_not_included": QuotaExceededError,
    "rate_limit_error": RateLimitError,
    "rate_limit_exceeded": RateLimitError,
    "rate_limited": RateLimitError,
    "too_many_requests": RateLimitError,
    "overloaded_error": OverloadedError,
    "overloaded": OverloadedError,
    "engine_overloaded": OverloadedError,
    "server_is_overloaded": OverloadedError,
    "service_unavailable": OverloadedError,
    "slow_down": OverloadedError,
    "unavailable": OverloadedError,
    "vector_store_timeout": ServerError,
}

# Names that some vendors use for nearly everything; they count only where the status says nothing.
_VAGUE_NAMES: dict[str, type[ProviderError]] = {
    "invalid_request_error": InvalidRequestError,
    "invalid_argument": InvalidRequestError,
    "failed_precondition": InvalidRequestError,
    "out_of_range": InvalidRequestError,
    "bad_request": InvalidRequestError,
    "validation_error": InvalidRequestError,
    "resource_exhausted": RateLimitError,
    "requests": RateLimitError,
    "tokens": RateLimitError,
}

_STATUSES: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    402: QuotaExceededError,
    403: PermissionRefusedError,
    404: NotFoundError,
    408: NetworkError,  # the server waited for us in vain
    409: ServerError,  # a lock on their side
    410: NotFoundError,
    413: ContextOverflowError,
    425: ServerError,
    429: RateLimitError,
    451: PermissionRefusedError,
    498: OverloadedError,  # Groq: flex capacity exceeded
    499: NetworkError,
    503: OverloadedError,
    529: OverloadedError,
}

# Texts and not patterns: compiling them takes 2 ms, and most programs are never refused anything.
_TOO_LONG = (
    r"(prompt|input|request|context|conversation|messages?)( (is|was|are))? too (long|large)"
    r"|(exceed\w*|longer than|larger than|greater than).{0,80}\bcontext\b"
    r"|(maximum|max|model'?s?) (context|prompt|input) (length|window|size)"
    r"|context (length|window|size)( is)? exceed|context\b.{0,12}\boverflow"
    r"|token count.{0,40}exceeds the (maximum|limit)|exceed\w*.{0,20}\btoken limit"
    r"|reduce the length of (the|your) (messages|prompt|input)"
    r"|too many (input |prompt )?tokens\b"
    r"|(inputs?|prompt) tokens?( length)? (limit|exceed)|inputs?` tokens.{0,40}must be <="
    r"|(prompt|input)( length)?( \d+)? exceeds\b.{0,20}\b(max\w*|limit)|range of input length"
    r"|(messages|input)(\[\d+\][\w.\[\]]*(content|text|output|arguments))?': string too long"
    r"|max_tokens must be at least 1, got -"  # what is left of the context for the answer
)
# The same words of something in the prompt, which a shorter conversation would not mend.
_PIECE_TOO_LONG = r"(prompt|input|request|conversation|messages?)\b.{0,60}\btoo (long|large)"
_NOT_THE_PROMPT = r"max_\w*tokens|'\S*\.(id|name|description)'|\b(image|picture|pdf|page|audio|video|file)s?\b"
# Larger than a whole minute's allowance: refused with 429 however long one waits.
_OVER_ALLOWANCE = "request too large"
_NO_MONEY = (
    r"(exceeded|out of|no|insufficient|exhausted).{0,30}\b(quota|credits?|balance|funds)\b"
    r"|(quota|credits?|balance|funds)\b.{0,30}\b(exceeded|exhausted|too low|insufficient|depleted|used up)"
    r"|(monthly|weekly|daily|spending|spend|usage|billing|hard) limit.{0,30}\b(reached|exceeded|hit)\b"
    r"|(reached|exceeded|hit).{0,30}\b(monthly|weekly|spending|spend|usage|billing) (limits?|cap)\b"
    r"|plan and billing|payment required|prepayment|unpaid"
)
# Allowances that fill up again by themselves, whatever else is said of a quota.
_FOR_A_WHILE = r"per[ _-]?(second|minute|min\b|hour)|(second|minute)s? quota"
_TRY_AGAIN = r"(?:try again|retry)(?: your request)? (?:in|after) ((?:\d+(?:\.\d+)? ?[a-z]+\s?)+)"
_SPAN = r"(\d+(?:\.\d+)?) ?(ms|milli|s|m|h)"
_SECONDS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FILTERED = (
    r"content (management |filtering |usage )?(policy|filter)|filtered due to"
    r"|blocked by (our )?(content|safety)|(violat|flagged).{0,60}\b(policy|policies|moderation|safety)"
    r"|safety (system|filter|reasons)"
)
_BAD_KEY = (
    r"(api|subscription)[ _-]?key\b.{0,60}\b(invalid|not valid|incorrect|expired|missing|not found)"
    r"|(invalid|incorrect|missing|expired|no)( or \w+)? (x-)?(api|subscription)[ _-]?key"
)
_NO_MODEL = (
    r"\bmodel\b.{0,160}\b(does not exist|not found|has been (retired|deprecated|decommissioned))"
    r"|(invalid|unknown|no such) model\b|not a valid model"
)


def refusal(
    message: str,
    *,
    status: int | None = None,
    type: str | None = None,
    code: str | int | None = None,
    headers: Mapping[str, str] | None = None,
    retry_after: float | None = None,
    below: str = "",
) -> ProviderError:
    """The error to raise. `status` is None for an error inside a stream; `type` and `code` are the
    provider's own. `retry_after` is a wait that the body asks for; otherwise the headers are read, then the words.
    `below` are the words of a provider behind this one, which may say more."""
    headers = headers or {}
    message = _words(message, status)
    waits = (retry_after, asked_wait(headers), _worded_wait(message))
    wait = next((wait for wait in waits if wait is not None), None)
    heard = f"{message}\n{below[:_MESSAGE_CHARACTERS]}" if below else message
    kind = _kind(heard, _effective(status, code), [_name(code), _name(type)], wait)
    error = kind(message, status=status, type=type or _worded(code), retry_after=wait)
    if code is not None:
        error.details["code"] = code
    should = headers.get("x-should-retry", "").lower()
    if should in ("true", "false"):
        error.retryable = should == "true"
    return error


def asked_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that the provider asked to wait, from retry-after-ms or either form of Retry-After.

    A date counts from the server's own clock where it tells the time; nonsense and the past are None."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value.partition(",")[0]) if value else None  # twice, where two gateways stand in the way
    if seconds is not None or not value:
        return seconds
    until, sent = _date(value), _date(headers.get("date"))
    if until is None:
        return None
    left = until - (sent if sent is not None else now if now is not None else time.time())
    return left if left > 0 else None


def _kind(message: str, status: int | None, names: list[str], wait: float | None) -> type[ProviderError]:
    """What is said most plainly counts most: a name that means one thing, then words, then the status."""
    named = next((_NAMES[name] for name in names if name in _NAMES), None)
    if named is RateLimitError and _says(message, _OVER_ALLOWANCE):
        return ContextOverflowError
    if named is not None:
        return named
    by_words = _by_words(message, status, wait)
    if by_words is not None:
        return by_words
    if status is not None and status in _STATUSES:
        return _STATUSES[status]
    for name in names:
        if name in _VAGUE_NAMES:
            return _VAGUE_NAMES[name]
    return InvalidRequestError if status is not None and status < 500 else ServerError


def _by_words(message: str, status: int | None, wait: float | None) -> type[ProviderError] | None:
    match status:
        case 400 | 402 | 403 | 429 | None if wait is None and _says_no_money(message):
            return QuotaExceededError
        case 429 if _says(message, _OVER_ALLOWANCE):
            return ContextOverflowError
        case 400 | 413 | 422 | 500 | None if _says_too_long(message):
            return ContextOverflowError
        case 400 | 403 | 422 | None if _says(message, _FILTERED):
            return ContentFilterError
        case 400 if _says(message, _BAD_KEY):
            return AuthenticationError
        case 400 | 422 if _says(message, _NO_MODEL):
            return NotFoundError
        case _:
            return None  # what a gateway's page says is about the gateway


def _says_no_money(message: str) -> bool:
    return _says(message, _NO_MONEY) and not _says(message, _FOR_A_WHILE)


def _says_too_long(message: str) -> bool:
    if _says(message, _TOO_LONG):
        return True
    return _says(message, _PIECE_TOO_LONG) and not _says(message, _NOT_THE_PROMPT)


def _says(message: str, meaning: str) -> bool:
    return re.search(meaning, message, re.IGNORECASE | re.DOTALL) is not None


def _effective(status: int | None, code: str | int | None) -> int | None:
    """An error inside a 200 stream often carries the status that it would have had as its code."""
    if status is not None and status >= 300:
        return status
    number = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    return number if 400 <= number < 600 else None


def _words(message: str, status: int | None) -> str:
    text = message.strip()
    if not text:
        return f"the provider answered with status {status} and no message" if status else "no message"
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}…"


def _worded(code: str | int | None) -> str | None:
    """A code that says what a type would say; a number repeats the status."""
    return code if isinstance(code, str) and not code.isdecimal() else None


def _name(value: str | int | None) -> str:
    return re.sub(r"[\s-]+", "_", value.strip().lower()) if isinstance(value, str) else ""


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else -1.0
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _worded_wait(message: str) -> float | None:
    """The seconds of `Please try again in 6m0s.`"""
    found = re.search(_TRY_AGAIN, message, re.IGNORECASE)
    spans = re.findall(_SPAN, found[1].lower()) if found else []
    return sum(float(number) * _SECONDS[unit] for number, unit in spans) if spans else None


def _date(value: str | None) -> float | None:
    """A time in one of the forms of HTTP, or in that of the newer standard; without a zone it is that of Greenwich."""
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime  # takes longer to load than all the rest of this

    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            found = read(value or "")
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError):
            continue
    return None


_SHORTEST = 8  # a shorter secret is part of too many words
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|signature", re.IGNORECASE)
_SCHEME = re.compile(r"^(bearer|basic|token)\s+", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a header or a query field of this name holds something that nobody else may know."""
    return _SECRET_NAME.search(name) is not None


def secrets_of(call: HttpCall) -> list[str]:
    """The keys that a call carries, longest first."""
    address = urlsplit(call.url)
    named = [*call.headers.items(), *parse_qsl(address.query)]
    found = {_SCHEME.sub("", value).strip() for name, value in named if is_secret(name)}
    found.add(address.password or "")
    return sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)


def without_secrets(text: str, call: HttpCall) -> str:
    """The text with this call's keys, and all that looks like a key, hidden."""
    for secret in secrets_of(call):
        text = text.replace(secret, HIDDEN)
    return hide_patterns(text)
