"""Deprecated alias: import `PostgresStore` from `outrider.stores`. This path was public in version 0.1."""

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "PostgresStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import PostgresStore from outrider.stores instead of {__name__}", DeprecationWarning, stacklevel=2)
    return getattr(import_module("outrider.sessions.postgres.store"), name)
