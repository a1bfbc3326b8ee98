"""The secret that every request carries: made at random, kept in a file that only its owner can read."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from outrider.errors import ConfigurationError

BYTES = 32
SHORTEST = 32  # characters


def keep_token(path: Path) -> str:
    """The token of this server, made on the first call; a file that others could read is refused."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        token = secrets.token_urlsafe(BYTES)
        file.write(token)
    return token


def read_token(path: Path) -> str:
    try:
        status, text = path.stat(), path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the server's token cannot be read from {path}: {error}") from error
    if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
        raise ConfigurationError(f"{path} can be read by others: remove it, and a new token is made")
    if len(text) < SHORTEST:
        raise ConfigurationError(f"{path} holds no token: remove it, and a new one is made")
    return text


def same(given: str, expected: str) -> bool:
    """In constant time, whatever was given."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def cookie_of(token: str) -> str:
    """What a browser keeps instead of the token: it opens this server's pages and says nothing about the token."""
    return hashlib.sha256(f"outrider cookie {token}".encode()).hexdigest()
