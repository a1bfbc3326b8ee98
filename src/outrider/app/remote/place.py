"""Where a server is, and the token that it wants: both as people write them."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from outrider.app.config.folders import find_folders
from outrider.errors import ConfigurationError
from outrider.providers.transport.http1.address import Address

VARIABLE = "OUTRIDER_SERVER_TOKEN"
SOCKETS = ("http+unix", "unix")
_EXAMPLES = "http://127.0.0.1:8765, https://build.example:8443, or http+unix:///run/user/1000/outrider.sock"


class Place(msgspec.Struct, frozen=True):
    """`url` is what people read; a `socket` stands in the place of host and port. The token is in neither."""

    url: str
    address: Address
    token: str = ""
    socket: Path | None = None

    @property
    def is_here(self) -> bool:
        """Whether the server runs on this machine."""
        return self.socket is not None or is_loopback(self.address.host)


def place_of(url: str, *, token: str | None, environ: Mapping[str, str]) -> Place:
    """From what `outrider serve` prints. The token is the one that is given, the environment's, the one in the link
    for a browser, or, for a server of this machine, the one that it keeps in its file: that one goes nowhere else."""
    found = _socket(url) if url.partition(":")[0] in SOCKETS or url.startswith(("/", "~")) else _network(url)
    chosen = token or environ.get(VARIABLE, "").strip() or found.token
    if not chosen and found.is_here:
        chosen = _kept_token(find_folders(environ).data / "server" / "token")
    if not chosen:
        raise ConfigurationError(
            f"{found.url} wants a token: the one in the file that the server named when it began. "
            f"Give it as {VARIABLE} in the environment, or with --token"
        )
    return msgspec.structs.replace(found, token=chosen)


def _socket(url: str) -> Place:
    path = Path(urlsplit(url).path if ":" in url.partition("/")[0] else url).expanduser()
    if not path.is_absolute():
        raise ConfigurationError(f"the path of a socket is written in full, as in {_EXAMPLES.rpartition(' ')[2]}")
    return Place(f"http+unix://{path}", Address("http", "localhost", 80), socket=path)


def _network(url: str) -> Place:
    address = Address.of(url if "://" in url else f"http://{url}")
    place = urlsplit(url if "://" in url else f"http://{url}")
    if place.path not in ("", "/"):
        raise ConfigurationError(f"{url.partition('?')[0]} is not the address of a server; write it as {_EXAMPLES}")
    token = (parse_qs(place.query).get("token") or [""])[0]
    found = Place(f"{address.scheme}://{address.authority_with_port}", address, token)
    if not address.secure and not found.is_here:
        raise ConfigurationError(
            f"{found.url} would get the token over an open line: servers of other machines are reached by https"
        )
    return found


def _kept_token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
