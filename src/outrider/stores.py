"""Public facade of the session stores: the `Store` protocol and its implementations, loaded when first used.

`PostgresStore` needs the `postgres` extra.
"""

from typing import TYPE_CHECKING, Any

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.sessions.memory_store import MemoryStore
    from outrider.sessions.postgres.store import PostgresStore
    from outrider.sessions.sqlite.store import SqliteStore
    from outrider.sessions.store import Store

__all__ = ["MemoryStore", "PostgresStore", "SqliteStore", "Store"]

_load_name, __dir__ = lazy_names(
    __name__,
    {
        "outrider.sessions.memory_store": "MemoryStore",
        "outrider.sessions.postgres.store": "PostgresStore",
        "outrider.sessions.sqlite.store": "SqliteStore",
        "outrider.sessions.store": "Store",
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _load_name(name)
    except ModuleNotFoundError as error:
        if name != "PostgresStore" or (error.name or "").startswith("outrider"):
            raise
        return _store_without_extra(error.name or "")


def _store_without_extra(missing: str) -> type:
    """Returns a class that cannot be used, so that `from outrider.stores import *` works without the extra."""
    from outrider.errors import ConfigurationError

    class PostgresStore:
        def __init__(self, *_: object, **__: object) -> None:
            raise ConfigurationError(
                f"PostgresStore needs the extra `postgres` ({missing} is missing): pip install 'outrider[postgres]'"
            )

    return PostgresStore
