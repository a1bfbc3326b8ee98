"""Which store keeps the sessions: a file of this user, or a server that many machines share."""

from pathlib import Path

from outrider.sessions.sqlite_store import SqliteStore
from outrider.sessions.store import Store


def store_at(file: Path, server: str | None = None) -> Store:
    """To be opened by the caller. `server` is postgresql://…"""
    if server is None:
        return SqliteStore(file)
    from outrider.sessions.postgres_store import PostgresStore

    return PostgresStore(server)
