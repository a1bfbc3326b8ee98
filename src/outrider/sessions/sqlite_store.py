"""Deprecated alias: import `SqliteStore` from `outrider.stores`. This path was public in version 0.1."""

from outrider._lazy import deprecated_names

__getattr__ = deprecated_names(
    __name__, {"SqliteStore": ("outrider.sessions.sqlite.store", "SqliteStore")}, new_module="outrider.stores"
)
