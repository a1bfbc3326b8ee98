"""Where a call goes: an address taken apart, in the forms that connections and requests need."""

import base64
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

import msgspec

from outrider.errors import ConfigurationError

_PORTS = {"http": 80, "https": 443}
_LONGEST_LABEL = 63
# Everything that may stand in a path or query as it is; a percent sign is the caller's own quoting.
_SAFE = "/%:@!$&'()*+,;=~-._?"


class Address(msgspec.Struct, frozen=True):
    """`credentials` are those that stood before the host, ready for a Basic authorization."""

    scheme: str
    host: str
    port: int
    target: str = "/"
    credentials: str = ""

    @classmethod
    @lru_cache(maxsize=64)  # a conversation calls one address again and again
    def of(cls, url: str) -> "Address":
        """Raises ConfigurationError for what cannot be called; what may be secret in it is not repeated."""
        shown = url.partition("?")[0]
        try:
            place = urlsplit(url.strip())
            port = place.port or _PORTS[place.scheme.lower()]
            host = _plain(place.hostname or "")
        except (KeyError, ValueError) as error:
            raise ConfigurationError(f"not an address that can be called: {shown}") from error
        if not host or any(char.isspace() for char in host):
            raise ConfigurationError(f"not an address that can be called: {shown}")
        query = f"?{place.query}" if place.query else ""
        target = quote(f"{place.path or '/'}{query}", safe=_SAFE)
        return cls(place.scheme.lower(), host, port, target, _basic(place.username, place.password))

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def authority_with_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def whole(self) -> str:
        """As a proxy wants it."""
        return f"{self.scheme}://{self.authority}{self.target}"


def _basic(user: str | None, password: str | None) -> str:
    if user is None and password is None:
        return ""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _plain(host: str) -> str:
    """In ASCII, as names are looked up. A name that is so already need not wait for a codec of all alphabets."""
    if not host.isascii():
        return host.encode("idna").decode()
    if host and not all(0 < len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split(".")):
        raise ValueError(host)
    return host
