"""Each error response is converted to an exception with a remedy."""

import pytest

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
from outrider.providers.error_mapping import build_provider_error, parse_retry_after
from tests.fixtures.cases import for_each


@for_each(
    ("status", "expected"),
    [
        (400, InvalidRequestError), (401, AuthenticationError), (402, QuotaExceededError),
        (403, PermissionRefusedError), (404, NotFoundError), (405, InvalidRequestError), (408, NetworkError),
        (409, ServerError), (413, ContextOverflowError), (422, InvalidRequestError), (429, RateLimitError),
        (500, ServerError), (502, ServerError), (503, OverloadedError), (504, ServerError), (529, OverloadedError),
    ],
)  # fmt: skip
def test_without_a_message_the_status_decides(status: int, expected: type[ProviderError]):
    error = build_provider_error("", status=status)
    assert type(error) is expected
    assert error.status == status
    assert str(status) in error.message


@for_each(
    ("status", "type_", "code", "message", "expected"),
    [
        (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided", AuthenticationError),
        (400, "INVALID_ARGUMENT", 400, "API key not valid. Please pass a valid API key.", AuthenticationError),
        (400, None, "invalid-argument", "Incorrect API key provided. You can obtain one.", AuthenticationError),
        (400, "invalid_request_error", None, "prompt is too long: 9 tokens > 8 maximum", ContextOverflowError),
        (400, "invalid_request_error", "context_length_exceeded", "too big", ContextOverflowError),
        (400, "invalid_request_error", None,
         "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
         ContextOverflowError),
        (400, "exceed_context_size_error", 400, "request exceeds the available context size", ContextOverflowError),
        (400, "INVALID_ARGUMENT", 400, "The input token count (9) exceeds the maximum number of tokens allowed (8).",
         ContextOverflowError),
        (400, None, None, "prompt too long; exceeded max context length by 5 tokens", ContextOverflowError),
        (400, None, None, "input length and `max_tokens` exceed context limit: 9 + 8 > 10", ContextOverflowError),
        (400, None, None, "This model's maximum prompt length is 8 but the request contains 9 tokens.",
         ContextOverflowError),
        (400, None, None, "Trying to keep the first 9 tokens when context the overflows.", ContextOverflowError),
        (422, None, None, "`inputs` tokens + `max_new_tokens` must be <= 8. Given: 9 `inputs` tokens",
         ContextOverflowError),
        (400, None, None, "invalid params, context window exceeds limit", ContextOverflowError),
        (400, None, None, "Your request exceeded model token limit: 8 (requested: 9)", ContextOverflowError),
        (400, None, "1261", "Prompt exceeds max length", ContextOverflowError),
        (400, None, None, "prompt token count of 9 exceeds the limit of 8", ContextOverflowError),
        (400, None, None, "Range of input length should be [1, 8]", ContextOverflowError),
        (400, None, None, "max_tokens must be at least 1, got -9", ContextOverflowError),
        (400, None, "string_above_max_length", "Invalid 'messages[1].content': string too long. Expected 8",
         ContextOverflowError),
        (400, None, "string_above_max_length", "Invalid 'messages[1].tool_calls[0].id': string too long. Expected 40",
         InvalidRequestError),
        (400, None, None, "Invalid request: max_tokens too large", InvalidRequestError),
        (400, None, None, "messages.0.content.1: the image is too large", InvalidRequestError),
        (410, None, None, "gone", NotFoundError),
        (451, None, None, "not here", PermissionRefusedError),
        (429, None, None, "Quota exceeded for metric: requests per minute. Ask for more.", RateLimitError),
        (429, None, None, "You exceeded your current quota, please check your plan. Please retry in 3.5s.",
         RateLimitError),
        (429, "tokens", "rate_limit_exceeded", "Request too large for m on tokens per min (TPM): Limit 3, Requested 5",
         ContextOverflowError),
        (429, "tokens", "rate_limit_exceeded", "Rate limit reached for m on tokens per min", RateLimitError),
        (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota", QuotaExceededError),
        (429, None, None, "Monthly usage limit reached. Resets in 16 days.", QuotaExceededError),
        (429, "RESOURCE_EXHAUSTED", 429, "You exceeded your current quota, please check your plan", QuotaExceededError),
        (400, "invalid_request_error", None, "Your credit balance is too low to access the API", QuotaExceededError),
        (400, "invalid_request_error", None, "You have reached your specified API usage limits.", QuotaExceededError),
        (403, None, None, "Insufficient balance", QuotaExceededError),
        (400, None, "content_filter", "The response was filtered", ContentFilterError),
        (400, None, None, "Your prompt was flagged as potentially violating our usage policy", ContentFilterError),
        (400, "invalid_request_error", "model_not_found", "The requested model 'x' does not exist.", NotFoundError),
        (400, None, 400, "x/y is not a valid model ID", NotFoundError),
        (400, "invalid_request_error", None, "Unsupported parameter: 'stop' is not supported with this model.",
         InvalidRequestError),
        (400, "invalid_request_error", None, "max_tokens: 99 > 64, the maximum for this model", InvalidRequestError),
        (500, "api_error", None, "Internal server error", ServerError),
        (None, "overloaded_error", None, "Overloaded", OverloadedError),
        (None, "invalid_request_error", None, "bad", InvalidRequestError),
        (None, "server_error", None, "x", ServerError),
        (None, None, 502, "Provider returned error", ServerError),
        (None, None, 400, "Token limit reached", InvalidRequestError),
        (200, None, 429, "slow down", RateLimitError),
        (None, None, None, "something new", ServerError),
    ],
)  # fmt: skip
def test_error_names_and_messages_override_the_status(
    status: int | None, type_: str | None, code: str | int | None, message: str, expected: type[ProviderError]
):
    error = build_provider_error(message, status=status, type=type_, code=code)
    assert type(error) is expected
    assert error.message == message


def test_the_message_of_an_upstream_provider_is_used():
    error = build_provider_error(
        "Provider returned error", status=400, upstream_message="This model's maximum context length is 8 tokens."
    )
    assert (type(error), error.message) == (ContextOverflowError, "Provider returned error")


def test_exhausted_with_a_time_to_come_back_is_a_rate_limit():
    error = build_provider_error(
        "You exceeded your current quota", status=429, type="RESOURCE_EXHAUSTED", retry_after=34
    )
    assert type(error) is RateLimitError
    assert error.retry_after == 34


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Rate limit reached. Please try again in 20ms. Visit us.", 0.02),
        ("Please try again in 6m0s.", 360),
        ("Please try again in 1h2m3.5s.", 3723.5),
        ("Please retry after 26 seconds.", 26),
        ("Please retry your request in 2 minutes", 120),
        ("Please try again later.", None),
        ("Please try again in a while.", None),
    ],
)
def test_the_wait_may_be_in_the_message(message: str, seconds: float | None):
    assert build_provider_error(message, status=429).retry_after == (
        None if seconds is None else pytest.approx(seconds)
    )
    assert build_provider_error(message, status=429, headers={"retry-after": "9"}).retry_after == 9


@pytest.mark.parametrize(("header", "retryable"), [("true", True), ("false", False), ("False", False)])
def test_the_provider_may_say_whether_asking_again_helps(header: str, retryable: bool):
    assert build_provider_error("", status=500, headers={"x-should-retry": header}).retryable is retryable


def test_a_page_of_a_gateway_is_cut_to_a_readable_length():
    assert len(build_provider_error("x" * 100_000, status=502).message) < 3000


@for_each(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9),
        ({"retry-after": "Thu, 01 Jan 1970 00:17:00 GMT"}, 20),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"}, 30),
        ({"retry-after": "Thu, 99 Foo 2026 00:00:30 GMT"}, None),
        ({"retry-after": "20, 20"}, 20),
        ({"retry-after": "30s"}, 30),
        ({"retry-after": "1m30s"}, 90),
        ({"retry-after": "500ms"}, 0.5),
        ({"retry-after": "2000000030", "date": "Wed, 18 May 2033 03:33:20 GMT"}, 30),
        ({"retry-after": "2000000030000", "date": "Wed, 18 May 2033 03:33:20 GMT"}, 30),
        ({"retry-after": "9" * 5_000}, None),
        ({"retry-after": "Thursday, 01-Jan-26 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"}, 30),
        ({"retry-after": "Thu Jan  1 00:17:00 1970"}, 20),
        ({"retry-after": "1970-01-01T00:17:00Z"}, 20),
    ],
)
def test_the_wait_is_read_in_every_form(headers: dict[str, str], seconds: float | None):
    assert parse_retry_after(headers, now=1000.0) == seconds


def test_a_number_is_no_type():
    numbered = build_provider_error("no", status=400, code=400)
    assert (numbered.type, numbered.details["code"]) == (None, 400)
    assert build_provider_error("no", status=400, code="invalid-argument").type == "invalid-argument"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1.5s"}, 1.5),
        ({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "1.5s"}, None),
        (
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "1970-01-01T00:17:00Z"},
            20.0,
        ),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "2000000000000"}, 2e9 - 1000),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}, None),
        ({"retry-after": "3", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "900"}, 3.0),
    ],
)
def test_the_wait_is_read_from_the_limit_that_is_used_up(headers: dict[str, str], seconds: float | None):
    assert parse_retry_after(headers, now=1000.0) == seconds


@pytest.mark.parametrize(
    ("message", "expected", "wait"),
    [
        ("Resource has been exhausted (e.g. check quota).", RateLimitError, None),
        ("Please try again in 7 days.", RateLimitError, 7 * 86_400),
        ("Please try again in 2 months.", RateLimitError, None),
        ("You exceeded your current quota, please check your plan and billing details.", QuotaExceededError, None),
    ],
)
def test_a_rate_limit_is_distinguished_from_an_exhausted_quota(
    message: str, expected: type[ProviderError], wait: float | None
):
    error = build_provider_error(message, status=429)
    assert (type(error), error.retry_after) == (expected, wait)


@pytest.mark.parametrize("end", ["", "x"])
def test_a_long_row_of_digits_is_no_time(end):
    assert parse_retry_after({"retry-after": "1" * 500_000 + end}) is None
