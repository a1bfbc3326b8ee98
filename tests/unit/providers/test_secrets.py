"""A key in an error response of a provider is redacted."""

from outrider.http.transport import HttpRequest
from outrider.providers.error_mapping import redact_secrets, request_secrets


def call(url: str = "https://x.test/v1", **headers: str) -> HttpRequest:
    return HttpRequest(url, {name.replace("_", "-"): value for name, value in headers.items()}, b"")


def test_the_keys_of_a_call_are_found_in_headers_and_address():
    found = request_secrets(
        call(
            "https://user:password-1@x.test/?key=query-key&v=1",
            authorization="Bearer header-key",
            x_portkey_api_key="other-key-1",
            content_type="application/json",
        )
    )
    assert sorted(found) == ["header-key", "other-key-1", "password-1", "query-key"]


def test_a_key_is_hidden_wherever_it_is_repeated():
    text = "bad header Authorization: Bearer my.own.key.1 (my.own.key.1)"
    assert redact_secrets(text, call(authorization="Bearer my.own.key.1")) == (
        "bad header Authorization: Bearer [hidden secret] ([hidden secret])"
    )


def test_text_that_looks_like_a_key_is_hidden_too():
    text = "Bearer sk-test-SECRET1234567890 and AIzaSyA1234567890123456789012 and sk-ant-api03-abcdefghijklmnop"
    hidden = redact_secrets(text, call())
    assert hidden == "Bearer [hidden secret] and [hidden secret] and [hidden secret]"


def test_what_a_provider_masked_itself_stays_readable():
    text = "Incorrect API key provided: sk-inval**************-key. The task sk-learn failed, bearer of news."
    assert redact_secrets(text, call()) == text


def test_a_short_secret_does_not_split_words():
    assert redact_secrets("the test failed", call(x_api_key="test")) == "the test failed"


def test_a_parameter_whose_name_only_contains_such_a_word_is_no_secret():
    url = "https://x.test/?author=a-long-name&keyboard=qwerty-layout&accessToken=a-real-secret"
    assert request_secrets(call(url, x_authority="cluster.local")) == ["a-real-secret"]
