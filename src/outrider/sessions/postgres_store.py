"""Deprecated alias: import `PostgresStore` from `outrider.stores`. This path was public in version 0.1."""

from outrider._lazy import deprecated_names

__getattr__ = deprecated_names(
    __name__, {"PostgresStore": ("outrider.sessions.postgres.store", "PostgresStore")}, new_module="outrider.stores"
)
