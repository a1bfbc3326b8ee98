"""Stored logins of MCP servers: tokens and client registrations, in a file that only the user can read. This module
does not import the SDK."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.permissions.paths.containment import write_private_file


class StoredLogin(msgspec.Struct, omit_defaults=True):
    """The login at one server. The objects have the formats of OAuth's responses and metadata documents."""

    tokens: dict[str, Any] | None = None
    expires_at: float | None = None  # Unix time
    client: dict[str, Any] | None = None  # the registration of Outrider at the authorization server
    metadata: dict[str, Any] | None = None  # of the authorization server: where tokens are refreshed
    resource: dict[str, Any] | None = None  # of the MCP server: which authorization server it uses
    wanted_scope: str | None = None  # what a call needed that the tokens do not grant; the next login asks for it

    def secret_values(self) -> Iterator[str]:
        for source in (self.tokens or {}, self.client or {}):
            for name in ("access_token", "refresh_token", "id_token", "client_secret"):
                if isinstance(value := source.get(name), str) and value:
                    yield value


class LoginFile:
    """The logins of all servers, by URL. Several processes write the file: each write merges with what is stored, and
    the rename is atomic."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_login(self, url: str) -> StoredLogin:
        """Return the login at a server; an empty one if there is none."""
        return self._load().get(_login_key(url), StoredLogin())

    def write_login(self, url: str, login: StoredLogin | None) -> None:
        """Store the login at a server; None removes it."""
        logins = self._load()
        logins.pop(_login_key(url), None)
        if login is not None:
            logins[_login_key(url)] = login
        write_private_file(self.path, msgspec.json.encode(logins))

    def changed_at(self) -> int:
        """Return the time of the last write, in nanoseconds; 0 if there is no file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def _load(self) -> dict[str, StoredLogin]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, StoredLogin])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}


def _login_key(url: str) -> str:
    """Return the address without credentials, query and fragment: a login holds for a server, not for a request."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2].lower()}{address.path.rstrip('/')}"
