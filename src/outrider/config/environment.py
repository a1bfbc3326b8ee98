"""What the environment says about providers: keys, addresses, proxies."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError
from outrider.permissions.redaction.redactor import Redactor, secret_values
from outrider.types.agents import Provider

_KEYS: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_ADDRESSES: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_BASE_URL",),
    "openai": ("OPENAI_BASE_URL",),
    "openai-responses": ("OPENAI_BASE_URL",),
}
_HOSTS: dict[str, tuple[str, ...]] = {
    "anthropic": ("anthropic.com",),
    "openai": ("openai.com",),
    "openai-responses": ("openai.com",),
    "google": ("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
}


class Environment(dict[str, str]):
    """Variables, some of which hold keys: they do not print themselves."""

    def __repr__(self) -> str:
        return f"Environment({len(self)} variables)"

    def __rich_repr__(self) -> Any:
        yield repr(self)


KEY_VARIABLES = frozenset(name for names in _KEYS.values() for name in names)


def filled_in(provider: Provider, environ: Mapping[str, str] = os.environ) -> Provider:
    """The provider with what it leaves open taken from the vendor's usual variables.

    The vendors' own addresses need a key; a server of one's own may do without. An empty key is none, and none is
    looked for."""
    usual_key, usual_address = found_in(environ, provider.kind)
    key = usual_key if provider.api_key is None else provider.api_key
    address = provider.base_url or usual_address
    if provider.kind in _KEYS and not (key or address or provider.headers or provider.options):
        names = " or ".join(_KEYS[provider.kind])
        raise ConfigurationError(f"the provider {provider.name!r} has no key: give api_key, or set {names}")
    return msgspec.structs.replace(provider, api_key=key, base_url=address)


def found_in(environ: Mapping[str, str], kind: str) -> tuple[str | None, str | None]:
    """The key and the address that the usual variables hold for a kind of provider."""
    return _first(environ, _KEYS.get(kind, ())), _first(environ, _ADDRESSES.get(kind, ()))


def variable_names(kind: str) -> tuple[str, ...]:
    return _KEYS.get(kind, ())


def is_vendor_address(kind: str, address: str) -> bool:
    """Whether an address is the vendor's own, where its usual key belongs."""
    place = urlsplit(address)
    host = place.hostname or ""
    return place.scheme == "https" and any(host == own or host.endswith(f".{own}") for own in _HOSTS.get(kind, ()))


def proxy_for(url: str) -> str | None:
    """The proxy that the usual variables (https_proxy, all_proxy, no_proxy …) or the system name for an address."""
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # elsewhere the system may name one; finding out takes longer than a call
    from urllib.request import getproxies, proxy_bypass

    place = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(place.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(place.netloc):
        return None
    if "://" not in proxy:
        return f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        scheme = urlsplit(proxy).scheme
        raise ConfigurationError(f"a proxy of the kind {scheme} cannot be used; name an http proxy, or set no_proxy")
    return proxy


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Where commands look for programs."""
    return environ.get("PATH", "")


def redactor_for(
    providers: Iterable[Provider], more: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> Redactor:
    """Hides these wherever they turn up, besides everything that looks like a key."""
    return Redactor.of_environment(environ, [*more, *(secret for provider in providers for secret in _of(provider))])


def _of(provider: Provider) -> Iterable[str]:
    if provider.api_key:
        yield provider.api_key
    yield from secret_values(provider.headers or {})
    if password := urlsplit(provider.base_url or "").password:
        yield password


_LIGHT = {"7", "15"}  # the two whites among the sixteen colours


def has_light_background(environ: Mapping[str, str] = os.environ) -> bool:
    """By COLORFGBG, which many terminals set; dark where nothing is said."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT
