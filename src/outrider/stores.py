"""Public facade of the session stores: the `Store` protocol and its implementations, loaded when first used.

`PostgresStore` needs the `postgres` extra.
"""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.sessions.memory_store import MemoryStore
    from outrider.sessions.postgres.store import PostgresStore
    from outrider.sessions.sqlite.store import SqliteStore
    from outrider.sessions.store import Store

__all__ = ["MemoryStore", "PostgresStore", "SqliteStore", "Store"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.sessions.memory_store": "MemoryStore",
        "outrider.sessions.postgres.store": "PostgresStore",
        "outrider.sessions.sqlite.store": "SqliteStore",
        "outrider.sessions.store": "Store",
    },
)
