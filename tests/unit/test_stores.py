"""The public module `outrider.stores` and the deprecated import paths of version 0.1."""

import subprocess
import sys
from importlib import import_module

import pytest

from outrider import stores
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store


def test_the_facade_offers_the_protocol_and_every_implementation():
    assert (stores.SqliteStore, stores.MemoryStore, stores.Store) == (SqliteStore, MemoryStore, Store)
    assert set(stores.__all__) <= set(dir(stores))
    with pytest.raises(AttributeError, match="no attribute 'RedisStore'"):
        stores.RedisStore  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_postgres_store_is_in_the_facade():
    pytest.importorskip("psycopg_pool")
    assert stores.PostgresStore.__name__ == "PostgresStore"


def test_importing_the_facade_loads_no_store():
    code = "import sys, outrider.stores; print([m for m in sys.modules if 'sqlite' in m or 'psycopg' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(("module", "name"), [("sqlite_store", "SqliteStore"), ("postgres_store", "PostgresStore")])
def test_the_old_path_works_and_warns(module: str, name: str):
    if name == "PostgresStore":
        pytest.importorskip("psycopg_pool")
    alias = import_module(f"outrider.sessions.{module}")
    with pytest.warns(DeprecationWarning, match=rf"use outrider\.stores\.{name}"):
        found = getattr(alias, name)
    assert found is getattr(stores, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        alias.other  # noqa: B018


def test_an_import_statement_of_the_old_path_warns():
    with pytest.warns(DeprecationWarning, match=r"outrider\.stores"):
        from outrider.sessions.sqlite_store import SqliteStore as OldStore
    assert OldStore is SqliteStore
