"""Workers of version 0.1 and of this version on one store, while this version migrates it; leases of ended owners."""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import SessionInUseError
from outrider.sessions.leases import current_process, has_ended_here
from outrider.sessions.records import ProcessIdentity, StoredSession
from outrider.sessions.store import Store
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart
from tests.fault.processes import ROOT

FIRST_RELEASE = "e22f191"
# Runs with the code of version 0.1: appends messages to a separate session until its standard input is closed.
OLD_WORKER = """
import asyncio, sys
from outrider.sessions.records import StoredSession
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart

def open_store(kind, place, schema):
    if kind == "sqlite":
        from outrider.sessions.sqlite_store import SqliteStore
        return SqliteStore(place)
    from outrider.sessions.postgres_store import PostgresStore
    return PostgresStore(place, schema=schema)

async def main(kind, place, schema):
    async with open_store(kind, place, schema) as store:
        session = await store.create(StoredSession(title="old"))
        print(session.id, flush=True)
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        number = 0
        while not ended.done():
            message = Message("user", [TextPart(f"old {number}")], time=MessageTime(1))
            message.join(session.id)
            await store.append(session.id, [message])
            number += 1
            await asyncio.sleep(0.005)
        print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was in version 0.1, from the history of this repository."""
    packed = subprocess.run(["git", "archive", FIRST_RELEASE, "src"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip("the repository has no history of version 0.1")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


@contextlib.contextmanager
def old_worker(code: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OLD_WORKER, *arguments]
    environment = os.environ | {"PYTHONPATH": str(code)}
    with subprocess.Popen(
        command, env=environment, cwd=code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> tuple[str, str, str]:
    if request.param == "sqlite":
        return "sqlite", str(tmp_path / "sessions.db"), ""
    return "postgres", postgres_url, f"test_{new_id().replace('-', '')}"


@contextlib.asynccontextmanager
async def open_store(kind: str, address: str, schema: str) -> AsyncIterator[Any]:
    from outrider.stores import PostgresStore, SqliteStore

    async with SqliteStore(address) if kind == "sqlite" else PostgresStore(address, schema=schema) as store:
        yield store


def user_message(session_id: str, text: str) -> Message:
    message = Message("user", [TextPart(text)], time=MessageTime(now_ms()))
    message.join(session_id)
    return message


@pytest.mark.slow
async def test_a_worker_of_version_0_1_continues_while_and_after_this_version_migrates_the_store(place, old_code):
    with old_worker(old_code, *place) as old:
        session_id = (await asyncio.to_thread(old.stdout.readline)).strip()
        assert session_id, "the old worker did not start"
        async with open_store(*place) as store:  # migrates
            before = len((await store.load(session_id)).messages)
            own = await store.create(StoredSession(title="new", owner="ada"))
            for number in range(40):
                await store.append(own.id, [user_message(own.id, f"new {number}")])
                await asyncio.sleep(0.005)
            written = await asyncio.to_thread(old.communicate, "")
            assert old.returncode == 0
            messages = (await store.load(session_id)).messages
            assert [message.get_text_content() for message in messages] == [
                f"old {number}" for number in range(int(written[0]))
            ]
            assert len(messages) > before
            assert len((await store.load(own.id)).messages) == 40
            assert {found.session_id for found in await store.search("old")} == {session_id}


async def test_a_session_whose_owner_was_killed_on_this_machine_is_available_at_once(place):
    async with open_store(*place) as store:
        session = await store.create(StoredSession())
        await _acquire_in_killed_process(store, session.id)
        lease = await store.acquire(session.id, current_process())
        assert lease.token > 1


async def _acquire_in_killed_process(store: Store, session_id: str) -> None:
    """The lease of a process that has ended: a child is started only for its identity."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        here = current_process()
        owner = ProcessIdentity(
            id=new_id(), host=here.host, pid=child.pid, boot=here.boot, started=int(started), namespace=here.namespace
        )
        await store.acquire(session_id, owner)
        with pytest.raises(SessionInUseError):
            await store.acquire(session_id, current_process())
        child.kill()


async def test_a_session_of_a_living_owner_or_of_another_machine_stays_in_use(place):
    here = current_process()
    other_owner = ProcessIdentity(id=new_id(), host=here.host, pid=2**22 + 1, boot="another boot", namespace="")
    assert not has_ended_here(other_owner)
    async with open_store(*place) as store:
        session = await store.create(StoredSession())
        await store.acquire(session.id, here)
        with pytest.raises(SessionInUseError):
            await store.acquire(session.id, current_process())
