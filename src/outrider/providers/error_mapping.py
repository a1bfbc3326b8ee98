"""Maps error responses of providers (status, type, code, message) to typed exceptions, and redacts keys in them."""

import re
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from outrider._lazy import lazy_pattern
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
from outrider.http.transport import HttpRequest
from outrider.permissions.redaction.redactor import HIDDEN_SECRET, is_secret_name, redact_patterns

_MESSAGE_CHARACTERS = 2_000

# Error names with one meaning at every vendor. They are compared in lower case with words joined by "_".
_ERROR_NAMES: dict[str, type[ProviderError]] = {
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

# Names that some vendors use for many errors; they apply only if neither message nor status is conclusive.
_GENERIC_ERROR_NAMES: dict[str, type[ProviderError]] = {
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

_ERROR_STATUSES: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    402: QuotaExceededError,
    403: PermissionRefusedError,
    404: NotFoundError,
    408: NetworkError,  # request timeout
    409: ServerError,  # a lock conflict on the server
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

# Strings, not compiled patterns: compiling takes 2 ms, and most programs never receive an error.
_PROMPT_TOO_LONG = (
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
    r"|max_tokens must be at least 1, got -"  # vLLM: the context has no room for an answer
)
# Weaker patterns: they may also refer to a single field or file, which a shorter conversation would not fix.
_INPUT_TOO_LONG = r"(prompt|input|request|conversation|messages?)\b.{0,60}\btoo (long|large)"
_SINGLE_FIELD_OR_FILE = r"max_\w*tokens|'\S*\.(id|name|description)'|\b(image|picture|pdf|page|audio|video|file)s?\b"
# The request exceeds the tokens of a whole minute: status 429, but waiting does not help.
_OVER_MINUTE_QUOTA = "request too large"
_QUOTA_EXHAUSTED = (
    r"(exceeded|out of|no|insufficient|exhausted).{0,30}\b(quota|credits?|balance|funds)\b"
    r"|(quota|credits?|balance|funds)\b.{0,30}\b(exceeded|exhausted|too low|insufficient|depleted|used up)"
    r"|(monthly|weekly|daily|spending|spend|usage|billing|hard) limit.{0,30}\b(reached|exceeded|hit)\b"
    r"|(reached|exceeded|hit).{0,30}\b(monthly|weekly|spending|spend|usage|billing) (limits?|cap)\b"
    r"|plan and billing|payment required|prepayment|unpaid"
)
# Rate limits that refill within an hour, although the message mentions a quota. The last one is Google's usual message.
_TEMPORARY_QUOTA = r"per[ _-]?(second|minute|min\b|hour)|(second|minute)s? quota|\(e\.g\. check quota\)"
_TRY_AGAIN = r"(?:try again|retry)(?: your request)? (?:in|after) ((?:\d+(?:\.\d+)? ?[a-z]+\s?)+)"
_TIME_SPAN = r"(\d+(?:\.\d+)?) ?(ms|milli|s|m(?!o)|h|d)"  # not months
_UNIT_SECONDS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CONTENT_FILTERED = (
    r"content (management |filtering |usage )?(policy|filter)|filtered due to"
    r"|blocked by (our )?(content|safety)|(violat|flagged).{0,60}\b(policy|policies|moderation|safety)"
    r"|safety (system|filter|reasons)"
)
_INVALID_KEY = (
    r"(api|subscription)[ _-]?key\b.{0,60}\b(invalid|not valid|incorrect|expired|missing|not found)"
    r"|(invalid|incorrect|missing|expired|no)( or \w+)? (x-)?(api|subscription)[ _-]?key"
)
_UNKNOWN_MODEL = (
    r"\bmodel\b.{0,160}\b(does not exist|not found|has been (retired|deprecated|decommissioned))"
    r"|(invalid|unknown|no such) model\b|not a valid model"
)


_TOOLS_REJECTED = (
    r"not support (tools|tool (use|call\w*)|function call\w*)|support tool use|tools? (is|are) not supported"
    r"|tool choice requires --enable-auto-tool-choice|tools param requires --jinja"
)


def rejects_tools(message: str) -> bool:
    """Whether an error message of a compatible server means that the model has no native tool calls."""
    return _matches(message, _TOOLS_REJECTED)


def build_provider_error(
    message: str,
    *,
    status: int | None = None,
    type: str | None = None,
    code: str | int | None = None,
    headers: Mapping[str, str] | None = None,
    retry_after: float | None = None,
    upstream_message: str = "",
) -> ProviderError:
    """Returns the exception for an error response.

    `status` is None for an error inside a stream; `type` and `code` are the provider's own. `retry_after` is the wait
    in seconds from the body; without it, the headers and then the message are searched for one. `upstream_message` is
    the message of the provider behind a gateway, which is often more specific.
    """
    headers = headers or {}
    message = _shorten_message(message, status)
    waits = (retry_after, parse_retry_after(headers), _wait_in_message(message))
    wait = next((wait for wait in waits if wait is not None), None)
    full_message = f"{message}\n{upstream_message[:_MESSAGE_CHARACTERS]}" if upstream_message else message
    kind = _classify_error(
        full_message, _effective_status(status, code), [_normalize_name(code), _normalize_name(type)], wait
    )
    error = kind(message, status=status, type=type or _code_as_type(code), retry_after=wait)
    if code is not None:
        error.details["code"] = code
    should_retry = headers.get("x-should-retry", "").lower()
    if should_retry in ("true", "false"):
        error.retryable = should_retry == "true"
    return error


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Returns the seconds to wait from retry-after-ms or Retry-After (seconds, a date, a Unix time or a time span such
    as `1m30s`), or None.

    A date is compared with the server's Date header if there is one; invalid and past values give None.
    """
    milliseconds = _parse_seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if not value:
        return _limit_reset(headers, now)
    seconds = _parse_seconds(value.partition(",")[0])  # two gateways may each add the header
    if seconds is not None and seconds < _EPOCH_SECONDS:
        return seconds
    wait = _reset_seconds(value.strip(), _current_time(headers, now))
    return wait if wait else None


# When a limit is used up, some vendors report when it is refilled instead of sending Retry-After: Anthropic as a time,
# OpenAI, Groq and others as a time span ("6m0s"), GitHub and OpenRouter as a Unix time.
_LIMIT_HEADERS = (
    "anthropic-ratelimit-requests",
    "anthropic-ratelimit-tokens",
    "anthropic-ratelimit-input-tokens",
    "anthropic-ratelimit-output-tokens",
    "x-ratelimit-{}-requests",
    "x-ratelimit-{}-tokens",
    "x-ratelimit",
)
_EPOCH_SECONDS, _EPOCH_MILLISECONDS = 1e9, 1e12
_MAX_RESET_CHARACTERS = 100  # matching time spans in a long row of digits takes quadratic time


def _limit_reset(headers: Mapping[str, str], now: float | None) -> float | None:
    """Returns the longest time until a limit that is used up is refilled, or None."""
    current = _current_time(headers, now)
    waits: list[float] = []
    for name in _LIMIT_HEADERS:
        remaining, reset = (name.format(word) if "{}" in name else f"{name}-{word}" for word in ("remaining", "reset"))
        if (
            headers.get(remaining, "").strip() == "0"
            and (wait := _reset_seconds(headers.get(reset), current)) is not None
        ):
            waits.append(wait)
    return max(waits, default=None)


def _current_time(headers: Mapping[str, str], now: float | None) -> float:
    """Returns the time of the server if it sent one, since clocks differ."""
    server_time = _parse_date(headers.get("date")) if headers.get("date") else None
    return server_time if server_time is not None else now if now is not None else time.time()


def _reset_seconds(value: str | None, now: float) -> float | None:
    if not value or len(value) > _MAX_RESET_CHARACTERS:
        return None
    number = _parse_seconds(value)
    if number is not None:
        reset_at = number / 1000 if number > _EPOCH_MILLISECONDS else number
        return max(reset_at - now, 0.0) if number > _EPOCH_SECONDS else number
    spans = re.findall(_TIME_SPAN, value) if value[:1].isdigit() and "-" not in value else []
    if spans:
        return sum(float(span) * _UNIT_SECONDS[unit] for span, unit in spans)
    reset_at = _parse_date(value)
    return max(reset_at - now, 0.0) if reset_at is not None else None


def _classify_error(message: str, status: int | None, names: list[str], wait: float | None) -> type[ProviderError]:
    """Selects the exception type by precision: specific error names, the message, the status, generic names."""
    by_name = next((_ERROR_NAMES[name] for name in names if name in _ERROR_NAMES), None)
    if by_name is RateLimitError and _matches(message, _OVER_MINUTE_QUOTA):
        return ContextOverflowError
    if by_name is not None:
        return by_name
    by_message = _classify_message(message, status, wait)
    if by_message is not None:
        return by_message
    if status is not None and status in _ERROR_STATUSES:
        return _ERROR_STATUSES[status]
    for name in names:
        if name in _GENERIC_ERROR_NAMES:
            return _GENERIC_ERROR_NAMES[name]
    return InvalidRequestError if status is not None and status < 500 else ServerError


def _classify_message(message: str, status: int | None, wait: float | None) -> type[ProviderError] | None:
    match status:
        case 400 | 402 | 403 | 429 | None if wait is None and _is_quota_message(message):
            return QuotaExceededError
        case 429 if _matches(message, _OVER_MINUTE_QUOTA):
            return ContextOverflowError
        case 400 | 413 | 422 | 500 | None if _is_overflow_message(message):
            return ContextOverflowError
        case 400 | 403 | 422 | None if _matches(message, _CONTENT_FILTERED):
            return ContentFilterError
        case 400 if _matches(message, _INVALID_KEY):
            return AuthenticationError
        case 400 | 422 if _matches(message, _UNKNOWN_MODEL):
            return NotFoundError
        case 404 | 500 | 501 if rejects_tools(message):
            return InvalidRequestError
        case _:
            return None  # messages with other statuses come from gateways and are not about the request


def _is_quota_message(message: str) -> bool:
    return _matches(message, _QUOTA_EXHAUSTED) and not _matches(message, _TEMPORARY_QUOTA)


def _is_overflow_message(message: str) -> bool:
    if _matches(message, _PROMPT_TOO_LONG):
        return True
    return _matches(message, _INPUT_TOO_LONG) and not _matches(message, _SINGLE_FIELD_OR_FILE)


def _matches(message: str, pattern: str) -> bool:
    return re.search(pattern, message, re.IGNORECASE | re.DOTALL) is not None


def _effective_status(status: int | None, code: str | int | None) -> int | None:
    """Returns the HTTP status; errors inside a stream with status 200 often have it in their code."""
    if status is not None and status >= 300:
        return status
    number = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    return number if 400 <= number < 600 else None


def _shorten_message(message: str, status: int | None) -> str:
    text = message.strip()
    if not text:
        return f"the provider returned status {status} without a message" if status else "no message"
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}…"


def _code_as_type(code: str | int | None) -> str | None:
    """Returns a textual code as the error type; a numeric code only repeats the status."""
    return code if isinstance(code, str) and not code.isdecimal() else None


def _normalize_name(value: str | int | None) -> str:
    return re.sub(r"[\s-]+", "_", value.strip().lower()) if isinstance(value, str) else ""


def _parse_seconds(value: str | None) -> float | None:
    try:
        number = float(value) if value else -1.0
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _wait_in_message(message: str) -> float | None:
    """Returns the seconds in a message such as `Please try again in 6m0s.`"""
    match = re.search(_TRY_AGAIN, message, re.IGNORECASE)
    spans = re.findall(_TIME_SPAN, match[1].lower()) if match else []
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in spans) if spans else None


def _parse_date(value: str | None) -> float | None:
    """Parses an HTTP date or an ISO 8601 time as a timestamp; a time without a zone is UTC."""
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime  # slow to import, so only when needed

    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(value or "")
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError):
            continue
    return None


_MIN_SECRET_LENGTH = 8  # shorter values occur inside ordinary words
_SCHEME = lazy_pattern(r"^(bearer|basic|token)\s+", re.IGNORECASE)


def request_secrets(request: HttpRequest) -> list[str]:
    """Returns the secrets in a request's headers and URL, longest first."""
    address = urlsplit(request.url)
    pairs = [*request.headers.items(), *parse_qsl(address.query)]
    secrets = {_SCHEME.sub("", value).strip() for name, value in pairs if is_secret_name(name)}
    secrets.add(address.password or "")
    return sorted((secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH), key=len, reverse=True)


def redact_secrets(text: str, request: HttpRequest) -> str:
    """Replaces the request's secrets, and text that looks like a key, with a placeholder."""
    for secret in request_secrets(request):
        text = text.replace(secret, HIDDEN_SECRET)
    return redact_patterns(text)
