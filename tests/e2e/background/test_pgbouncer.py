"""Workers and clients connect through a real PgBouncer in transaction mode, which uses another connection for each
transaction."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import parse_qs, quote, urlsplit

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.sessions.postgres.store import PostgresStore
from outrider.sessions.records import MessageChange, StoredSession
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart
from tests.e2e.background.worker_group import Watched, watched
from tests.fixtures.postgres import fresh_database

PROGRAM = os.environ.get("OUTRIDER_TEST_PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="SKIPPED: pgbouncer is not installed (Debian: pgbouncer)")
SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
pool_mode = transaction
auth_type = any
default_pool_size = 3
max_client_conn = 100
unix_socket_dir = {folder}
listen_addr =
listen_port = 6432
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def pooled(postgres_url: str) -> Iterator[str]:
    """Yields the address of a new database through PgBouncer, with three server connections for all clients."""
    address = urlsplit(fresh_database(postgres_url))
    query = parse_qs(address.query)
    folder = Path("/tmp") / f"pgb-{os.getpid()}"  # the path of a socket is short
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    host, port = query.get("host", [address.hostname or ""])[0], query.get("port", [str(address.port or 5432)])[0]
    user = address.username or "postgres"
    settings = folder / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(host=host, port=port, user=user, folder=folder))
    # It refuses to run as root, and must be able to reach the socket of the server.
    options = {"user": Path(host).owner() if host.startswith("/") else "nobody"} if os.getuid() == 0 else {}
    child = subprocess.Popen([str(PROGRAM), "-q", str(settings)], stderr=subprocess.PIPE, **options)
    try:
        wait_for_socket(folder / ".s.PGSQL.6432", child)
        yield f"postgresql://{user}@{address.path}?host={quote(str(folder), safe='')}&port=6432"
    finally:
        child.terminate()
        child.wait(10)
        assert child.stderr is not None
        child.stderr.close()
        shutil.rmtree(folder)


def wait_for_socket(path: Path, child: subprocess.Popen[bytes]) -> None:
    end = monotonic() + 20
    while monotonic() < end and child.poll() is None:
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(str(path)) == 0:
                return
        sleep(0.05)
    assert child.stderr is not None
    raise AssertionError(f"pgbouncer does not accept connections: {child.stderr.read().decode()}")


@pytest.fixture
async def there(tmp_path: Path, pooled: str) -> AsyncIterator[Watched]:
    async with watched(tmp_path, pooled) as seen:
        yield seen


async def test_two_workers_execute_runs_once_and_take_over_from_a_killed_one(there: Watched):
    first, _ = there.workers.start()
    there.workers.start()
    runs = [await there.submit(f"4 steps of p{number}x") for number in range(8)]
    async with asyncio.timeout(90):
        while there.workers.count_effects().total() < 4:
            await asyncio.sleep(0.05)
        there.workers.kill(first)
        ended = [await there.jobs.wait_for_run(run.id, poll=0.2) for run in runs]
    assert not await there.faults(ended)
    assert not any(worker.status.is_pushed for worker in await there.jobs.list_workers()), "it cannot be notified"


async def test_sessions_can_be_followed_and_written_at_once(pooled: str):
    """Without prepared statements and settings of a connection: the next transaction has another one."""
    async with PostgresStore(pooled) as store, PostgresStore(pooled) as other:
        session = await store.create(StoredSession(id=new_id()))
        seen = set[str]()

        async def follow() -> None:
            async for change in other.changes(session.id):
                if isinstance(change, MessageChange):
                    seen.add(change.message.id)
                if len(seen) == 60:
                    return

        async def write(count: int) -> None:
            for _ in range(count):
                message = Message("user", [TextPart("hello")], time=MessageTime(now_ms()))
                message.join(session.id)
                await (store if count % 2 else other).append(session.id, [message])

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            for count in (9, 10, 20, 21):
                tasks.create_task(write(count))
        assert len((await store.load(session.id)).messages) == 60
