"""Many processes on one file: no starvation, no lock errors, and one owner for each session."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from outrider.errors import SessionInUseError, StoreError, StoreUnavailableError
from outrider.sessions.leases import current_process
from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite import recovery as doctor
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.sqlite.writer import DatabaseWriter
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from tests.fault.processes import read_all_lines, read_line, send_newline, worker
from tests.fixtures.soak import SOAK

Record = Callable[[str, object], None]
PROCESSES = 16


def text_message(session_id: str, text: str) -> Message:
    message = Message("user", time=MessageTime(now_ms()), metadata={"text": text})
    message.join(session_id)
    return message


@pytest.mark.slow
async def test_sf_022_sixteen_processes_append_to_one_file_and_everybody_gets_a_turn(
    tmp_path: Path, record_property: Record
):
    path = tmp_path / "sessions.db"
    results = append_together(path)
    assert all("error" not in result for result in results)
    took = sorted(seconds for result in results for seconds in result["took"])
    counts = [len(result["took"]) for result in results]
    record_property(
        "figures",
        f"{PROCESSES} processes on one file: {len(took)} appends in 3 s ({min(counts)} to {max(counts)} each), "
        f"p50 {took[len(took) // 2] * 1000:.1f} ms, p99 {took[int(len(took) * 0.99)] * 1000:.1f} ms, "
        f"longest {took[-1] * 1000:.0f} ms, 0 lock errors",
    )
    await check_appended(path, results)
    assert max(counts) < 10 * min(counts)  # SQLite's own waiting is a lottery


def append_together(path: Path) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(worker("append", path, 3)) for _ in range(PROCESSES)]
        for child in children:
            assert "ready" in read_line(child)
        for child in children:
            send_newline(child)
        return [read_line(child) for child in children]


async def check_appended(path: Path, results: list[dict[str, Any]]) -> None:
    async with SqliteStore(path) as store:
        for result in results:
            loaded = await store.load(result["session"])
            assert len(loaded.messages[0].parts) == len(result["took"])
            assert loaded.session.seq == 2 + len(result["took"])
    assert doctor.check_file(path).is_healthy


async def test_sf_023_sixteen_processes_start_on_a_fresh_directory_and_all_start(
    tmp_path: Path, record_property: Record
):
    rounds = 3 if SOAK else 1
    for number in range(rounds):
        path = tmp_path / f"fresh-{number}" / "deep" / "sessions.db"
        with contextlib.ExitStack() as stack:
            at = time.time() + 1.5
            children = [stack.enter_context(worker("start", path, at)) for _ in range(PROCESSES)]
            reported = [read_all_lines(child) for child in children]
        assert [line for lines in reported for line in lines if "error" in line] == []
        async with SqliteStore(path) as store:
            assert len((await store.list()).sessions) == PROCESSES
    record_property("figures", f"{rounds} x {PROCESSES} processes on a fresh directory: 0 failed to start")


async def test_sf_024_a_writer_that_dies_with_the_lock_blocks_no_other_writer(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession(title="before"))
        with worker("hold_lock", path) as child:
            assert read_line(child) == {"held": True}
            waiting = asyncio.create_task(store.append(session.id, [text_message(session.id, "after")]))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            child.kill()
            await asyncio.wait_for(waiting, 30)
        assert (await store.get(session.id)).title == "before"


async def test_a_lock_that_is_held_for_ever_is_an_error_after_a_while(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store, contextlib.AsyncExitStack() as stack:
        session = await store.create(StoredSession(title="before"))

        def rename(title: str) -> Callable[[sqlite3.Connection], object]:
            return lambda db: db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session.id))

        writer = DatabaseWriter(path, lambda db: None, lock_seconds=0.2)
        stack.push_async_callback(writer.close)
        with worker("hold_lock", path) as child:
            read_line(child)
            with pytest.raises(StoreUnavailableError, match=r"held the lock for 0\.2 s"):
                await writer.run(rename("given up"))
        assert (await store.get(session.id)).title == "before"
        await writer.run(rename("later"))
        assert (await store.get(session.id)).title == "later"


async def test_sf_025_an_exception_inside_a_transaction_rolls_it_back_and_the_store_continues(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await store.create(StoredSession(title="kept"))

        def broken(db: sqlite3.Connection) -> None:
            db.execute("UPDATE sessions SET title = 'lost'")
            raise RuntimeError("in the middle")

        writer = DatabaseWriter(store.path, lambda db: None)
        with pytest.raises(RuntimeError):
            await writer.run(broken)
        with pytest.raises(StoreError):
            await writer.run(lambda db: db.execute("not even SQL"))
        await writer.run(lambda db: db.execute("UPDATE sessions SET title = title || ' too'"))
        await writer.close()
        assert (await store.get(session.id)).title == "kept too"
        await store.append(session.id, [text_message(session.id, "still here")])


async def test_sf_026_a_cancelled_write_leaves_no_transaction_open(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await store.create(StoredSession())
        for number in range(50):
            task = asyncio.create_task(store.append(session.id, [text_message(session.id, str(number))]))
            await asyncio.sleep(0 if number % 2 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.append(session.id, [text_message(session.id, "last")])
        loaded = await store.load(session.id)
        assert loaded.session.seq == 1 + len(loaded.messages)


async def test_a_large_fork_does_not_hold_up_the_event_loop(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await store.create(StoredSession())
        for _ in range(10):
            await store.append(session.id, [text_message(session.id, "x" * 500) for _ in range(1000)])
        forking = asyncio.create_task(store.fork(session.id))
        ticks = 0
        while not forking.done():
            await asyncio.sleep(0)
            ticks += 1
        assert (await forking).seq == 10_001
        assert ticks > 10


async def test_sf_021_an_owner_that_was_paused_past_its_lease_cannot_write_when_it_wakes(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession())
        with worker("own", path, session.id, 300) as child:
            assert read_line(child) == {"owner": True}
            send_newline(child)
            assert read_line(child) == {"wrote": True}
            os.kill(child.pid, signal.SIGSTOP)
            await asyncio.sleep(0.5)
            lease = await store.acquire(session.id, current_process())
            await store.append(session.id, [text_message(session.id, "second")], token=lease.token)
            os.kill(child.pid, signal.SIGCONT)
            send_newline(child)
            assert read_line(child) == {"wrote": False}
        assert len((await store.load(session.id)).messages) == 2


async def test_sf_021_an_owner_that_lives_and_whose_lease_lasts_is_the_only_one(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession())
        with worker("own", path, session.id) as child:
            assert read_line(child) == {"owner": True}
            with pytest.raises(SessionInUseError) as refused:
                await store.acquire(session.id, current_process())
            assert refused.value.details["pid"] == child.pid


async def test_a_dead_owner_is_no_owner(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession())
        with worker("own", path, session.id) as child:
            read_line(child)
            child.kill()
            child.wait()
            await store.acquire(session.id, current_process())
            rebooted = replace(current_process(), boot="another start of this machine")
            await store.acquire(session.id, rebooted, take_over=True)
            await store.acquire(session.id, current_process())
            reused = replace(current_process(), pid=os.getpid(), started=1)
            await store.acquire(session.id, reused, take_over=True)
            await store.acquire(session.id, current_process())


async def test_sf_028_a_lease_of_another_machine_holds_until_it_is_taken_over(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await store.create(StoredSession())
        other_owner = replace(current_process(), host="elsewhere", boot="theirs")
        await store.acquire(session.id, other_owner, ttl_ms=1)
        await asyncio.sleep(0.02)
        with pytest.raises(SessionInUseError, match="elsewhere"):
            await store.acquire(session.id, current_process())
        assert await store.clear() == 0
        await store.acquire(session.id, current_process(), take_over=True)


async def test_a_listener_learns_of_changes_by_another_process(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession())
        with worker("own", path, session.id) as child:
            read_line(child)
            async with contextlib.aclosing(store.changes(session.id, after=1)) as feed:
                waiting = asyncio.create_task(anext(feed))
                await asyncio.sleep(0.1)
                send_newline(child)
                change = await asyncio.wait_for(waiting, 30)
            assert change.message.session_id == session.id


async def test_a_second_store_of_one_process_leaves_the_first_its_locks(tmp_path: Path):
    """Otherwise a process that closes the file believes to be the last, and takes the log from under the first store:
    what that one writes next is lost."""
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as first:
        await first.create(StoredSession(title="before"))
        async with SqliteStore(path):
            pass
        with worker("start", path, time.time()) as child:
            theirs = read_line(child)["session"]
            child.wait(30)
        assert theirs in {session.id for session in (await first.list()).sessions}
        after = await first.create(StoredSession(title="after"))
    async with SqliteStore(path) as later:
        assert {theirs, after.id} <= {session.id for session in (await later.list()).sessions}
