"""What a provider leaves open comes from the usual variables, and proxies from theirs."""

import pytest

from outrider.config.providers import has_hidden_colors, proxy_for, with_environment_defaults
from outrider.errors import ConfigurationError
from outrider.types.agents import Provider, ProviderKind
from tests.fixtures.cases import for_each


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("openai", "OPENAI_API_KEY"),
        ("openai-responses", "OPENAI_API_KEY"),
        ("google", "GEMINI_API_KEY"),
        ("google", "GOOGLE_API_KEY"),
    ],
)
def test_a_key_comes_from_the_vendor_s_variable(kind: ProviderKind, variable: str):
    assert with_environment_defaults(Provider("p", kind), {variable: " k \n"}).api_key == "k"


def test_an_address_comes_from_the_vendor_s_variable():
    found = with_environment_defaults(Provider("p", "openai", "k"), {"OPENAI_BASE_URL": "http://here/v1"})
    assert found.base_url == "http://here/v1"


def test_the_value_of_the_provider_applies():
    environ = {"OPENAI_API_KEY": "other", "OPENAI_BASE_URL": "http://other"}
    given = Provider("p", "openai", "k", "http://mine")
    assert with_environment_defaults(given, environ) == given


def test_a_missing_key_is_named_before_anything_is_sent():
    with pytest.raises(ConfigurationError, match="set GEMINI_API_KEY or GOOGLE_API_KEY"):
        with_environment_defaults(Provider("p", "google"), {"GEMINI_API_KEY": ""})


def test_a_server_of_one_s_own_may_need_no_key():
    assert with_environment_defaults(Provider("p", "openai", base_url="http://localhost:11434/v1"), {}).api_key is None


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_without_variables_the_way_is_direct(no_proxies: pytest.MonkeyPatch):
    assert proxy_for("https://models.test/v1") is None


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("https_proxy", "http://proxy:3128", "http://proxy:3128"),
        ("ALL_PROXY", "proxy:3128", "http://proxy:3128"),
        ("http_proxy", "http://proxy:3128", None),
    ],
)
def test_the_proxy_of_the_scheme_is_used(
    no_proxies: pytest.MonkeyPatch, variable: str, value: str, expected: str | None
):
    no_proxies.setenv(variable, value)
    assert proxy_for("https://models.test/v1") == expected


def test_addresses_may_be_excepted(no_proxies: pytest.MonkeyPatch):
    no_proxies.setenv("https_proxy", "http://proxy:3128")
    no_proxies.setenv("no_proxy", "models.test")
    assert proxy_for("https://models.test/v1") is None


def test_a_proxy_that_cannot_be_used_is_reported(no_proxies: pytest.MonkeyPatch):
    no_proxies.setenv("https_proxy", "socks5://proxy:1080")
    with pytest.raises(ConfigurationError, match="socks5"):
        proxy_for("https://models.test/v1")


@for_each(
    "environ, hidden",
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "screen.xterm"}, True),
        ({"TERM": "alacritty"}, True),
        ({"TERM": "xterm-ghostty"}, True),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, False),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-16color"}, False),
        ({"TERM": "linux"}, False),
        ({"TERM": "vt100"}, False),
        ({}, False),
    ],
)
def test_colors_that_the_name_of_a_terminal_does_not_state_are_used(environ: dict[str, str], *, hidden: bool):
    assert has_hidden_colors(environ) is hidden
