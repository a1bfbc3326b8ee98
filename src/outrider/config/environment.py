"""Reads API keys, base URLs and proxies from environment variables."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError
from outrider.permissions.redaction.redactor import Redactor, secret_values
from outrider.types.agents import Provider

_KEYS_BY_KIND: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_ADDRESSES_BY_KIND: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_BASE_URL",),
    "openai": ("OPENAI_BASE_URL",),
    "openai-responses": ("OPENAI_BASE_URL",),
    "google": ("GOOGLE_GEMINI_BASE_URL",),
}
_VENDOR_HOSTS: dict[str, tuple[str, ...]] = {
    "anthropic": ("anthropic.com",),
    "openai": ("openai.com",),
    "openai-responses": ("openai.com",),
    "google": ("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
}


class EnvironmentVariables(dict[str, str]):
    """Environment variables whose repr shows no values, because some of them hold API keys."""

    def __repr__(self) -> str:
        return f"Environment({len(self)} variables)"

    def __rich_repr__(self) -> Any:
        yield repr(self)


KEY_VARIABLES = frozenset(name for names in _KEYS_BY_KIND.values() for name in names)


def with_environment_defaults(provider: Provider, environ: Mapping[str, str] = os.environ) -> Provider:
    """Return the provider with a missing key or base URL filled in from the vendor's usual variables.

    A vendor address needs a key; a custom server may work without one. An empty string as key means no key, and the
    environment is not searched. Raises ConfigurationError if a required key is missing.
    """
    usual_key, usual_address = find_key_and_address(environ, provider.kind)
    key = usual_key if provider.api_key is None and provider.credentials is None else provider.api_key
    address = provider.base_url or usual_address
    if provider.kind in _KEYS_BY_KIND and not (
        key or address or provider.headers or provider.options or provider.credentials
    ):
        names = " or ".join(_KEYS_BY_KIND[provider.kind])
        raise ConfigurationError(f"the provider {provider.name!r} has no key: pass api_key, or set {names}")
    return msgspec.structs.replace(provider, api_key=key, base_url=address)


def find_key_and_address(environ: Mapping[str, str], kind: str) -> tuple[str | None, str | None]:
    """Return the key and the base URL from the usual environment variables of a provider kind."""
    return _first_value(environ, _KEYS_BY_KIND.get(kind, ())), _first_value(environ, _ADDRESSES_BY_KIND.get(kind, ()))


def key_variable_names(kind: str) -> tuple[str, ...]:
    return _KEYS_BY_KIND.get(kind, ())


def is_vendor_address(kind: str, address: str) -> bool:
    """Return whether a URL belongs to the vendor, so that the vendor's key may be sent to it."""
    url = urlsplit(address)
    host, domains = url.hostname or "", _VENDOR_HOSTS.get(kind, ())
    return url.scheme == "https" and any(host == domain or host.endswith(f".{domain}") for domain in domains)


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL from the usual variables (https_proxy, all_proxy, no_proxy …) or the system settings.
    Raises ConfigurationError for a proxy that is not an HTTP proxy."""
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # only macOS and Windows have system proxies, and that lookup is slower than an HTTP request
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(target.netloc):
        return None
    if "://" not in proxy:
        return f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        scheme = urlsplit(proxy).scheme
        raise ConfigurationError(f"{scheme} proxies are not supported; set an http proxy, or set no_proxy")
    return proxy


def _first_value(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return the PATH on which commands look for programs."""
    return environ.get("PATH", "")


def redactor_for(
    providers: Iterable[Provider], more: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> Redactor:
    """Build a redactor for the keys of these providers, the values in `more` and everything that matches a key
    format."""
    return Redactor.from_environment(
        environ, [*more, *(secret for provider in providers for secret in _provider_secrets(provider))]
    )


def _provider_secrets(provider: Provider) -> Iterable[str]:
    if provider.api_key:
        yield provider.api_key
    yield from secret_values(provider.headers or {})
    if password := urlsplit(provider.base_url or "").password:
        yield password


_LIGHT_COLORS = {"7", "15"}  # the two white tones of the 16 ANSI colors


def has_light_background(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether COLORFGBG, which many terminals set, names a light background; the default is dark."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_COLORS


# Terminals with 256 colors whose names do not say so. Most of them set COLORTERM, which SSH does not forward.
_COLOR_TERMINALS = ("alacritty", "contour", "foot", "ghostty", "konsole", "screen", "st", "tmux", "wezterm", "xterm")


def has_hidden_colors(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal has 256 colors although neither TERM nor COLORTERM says so, such as `xterm`."""
    name = environ.get("TERM", "").lower().removeprefix("xterm-").partition(".")[0]
    return not environ.get("COLORTERM") and name in _COLOR_TERMINALS
