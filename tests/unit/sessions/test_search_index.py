"""Sessions are indexed for search once they are quiet, and before each search; the writer thread sleeps meanwhile."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outrider.sessions.database_files import file_system_type
from outrider.sessions.records import StoredSession
from outrider.sessions.rows.codec import AppendRequest, to_rows
from outrider.sessions.sqlite import writes
from outrider.sessions.sqlite.connection import connect_writer
from outrider.sessions.sqlite.recovery import open_file
from outrider.sessions.sqlite.search import INDEX_BATCH, LOOK_BACK_MS, QUIET_MS, IdleMaintenance
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.sqlite.writer import DatabaseWriter
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(path, clock=clock) as store:
        yield store


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    open_file(path, file_system_type)
    with closing(connect_writer(path)) as db:
        yield db


def message_of(session_id: str, *texts: str) -> Message:
    message = Message("user", [TextPart(text) for text in texts], time=MessageTime(1))
    message.join(session_id)
    return message


async def write(store: SqliteStore, text: str, session_id: str | None = None) -> str:
    session_id = session_id or (await store.create(StoredSession())).id
    await store.append(session_id, [message_of(session_id, text)])
    return session_id


def write_row(db: sqlite3.Connection, clock: Clock, *texts: str, session_id: str | None = None) -> str:
    """Writes as a store does, without a thread that runs maintenance."""
    session_id = session_id or writes.insert_session(db, StoredSession(), clock()).id
    rows = to_rows(session_id, [message_of(session_id, *texts)])
    writes.append_rows(db, AppendRequest(session_id, rows, None, draft=False, takes=()), clock())
    return session_id


def count_words(db: sqlite3.Connection) -> int:
    return db.execute("SELECT count(*) FROM words_docsize").fetchone()[0]


def is_empty(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM parts").fetchone()[0]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


def test_a_running_session_is_indexed_once_when_it_is_quiet(db: sqlite3.Connection, clock: Clock):
    maintain, statements = IdleMaintenance(clock), list[str]()
    session = write_row(db, clock, "first")
    for number in range(20):
        clock.now += QUIET_MS // 2
        write_row(db, clock, f"text {number}", session_id=session)
        db.set_trace_callback(statements.append)
        assert maintain(db) == QUIET_MS / 1000
        db.set_trace_callback(None)
    assert len(statements) == 20 * 2, "one query for sessions to index, and one for deleted sessions"
    assert not count_words(db)
    clock.now += QUIET_MS
    assert maintain(db) == 0
    assert count_words(db) == 21
    assert maintain(db) is None


def test_a_quiet_session_is_indexed_while_another_one_runs(db: sqlite3.Connection, clock: Clock):
    maintain = IdleMaintenance(clock)
    write_row(db, clock, "quiet")
    clock.now += QUIET_MS
    running = write_row(db, clock, "running")
    assert maintain(db) == QUIET_MS / 1000
    assert count_words(db) == 1
    clock.now += 2 * LOOK_BACK_MS
    assert maintain(db) == 0
    assert count_words(db) == 2
    write_row(db, clock, "running again", session_id=running)
    assert maintain(db) == QUIET_MS / 1000


def test_many_parts_of_a_quiet_session_are_indexed_in_several_steps(db: sqlite3.Connection, clock: Clock):
    write_row(db, clock, *(f"text {number}" for number in range(INDEX_BATCH + 5)))
    maintain = IdleMaintenance(clock)
    clock.now += QUIET_MS
    assert [maintain(db), count_words(db)] == [0, INDEX_BATCH]
    assert [maintain(db), count_words(db)] == [0, INDEX_BATCH + 5]
    assert maintain(db) is None


async def test_a_search_finds_the_text_of_running_sessions_in_every_process(
    store: SqliteStore, path: Path, clock: Clock
):
    async with SqliteStore(path, clock=clock) as other:
        session = await write(store, "harbour")
        for minutes in range(5):
            await write(store, f"lighthouse{minutes}", session)
            for one in (store, other):
                assert [hit.session_id for hit in await one.search(f"lighthouse{minutes}")] == [session]
                assert len(await one.search("harbour")) == 1
            clock.now += minutes * LOOK_BACK_MS


async def test_a_process_that_ends_at_once_leaves_its_session_to_the_next_one(path: Path, clock: Clock):
    async with SqliteStore(path, clock=clock) as store:
        session = await write(store, "harbour")
    async with SqliteStore(path, clock=clock) as store:
        assert [hit.session_id for hit in await store.search("harbour")] == [session]
        await write(store, "lighthouse")
    clock.now += 10 * LOOK_BACK_MS
    async with SqliteStore(path, clock=clock):
        with closing(sqlite3.connect(path)) as db:
            await until(lambda: count_words(db) == 2)


async def test_deleted_sessions_are_removed_while_others_wait_to_be_indexed(db: sqlite3.Connection, store: SqliteStore):
    session = await write(store, "harbour")
    await store.search("harbour")
    assert count_words(db) == 1
    await store.delete(session)
    await store.create(StoredSession())
    await until(lambda: is_empty(db) and not count_words(db))


async def test_the_writer_thread_sleeps_until_the_next_step_is_due(path: Path):
    open_file(path, file_system_type)
    delays, calls = [0.0, 0.2, 60.0, None], list[float]()

    def maintain(_: sqlite3.Connection) -> float | None:
        calls.append(asyncio.run_coroutine_threadsafe(now(), loop).result(10))
        return delays[min(len(calls), len(delays)) - 1]

    async def now() -> float:
        return loop.time()

    loop = asyncio.get_running_loop()
    writer = DatabaseWriter(path, maintain)
    try:
        await until(lambda: len(calls) == 3)
        assert calls[2] - calls[1] >= 0.2
        await asyncio.sleep(0.5)
        assert len(calls) == 3, "no step is due for a minute"
        await writer.run(lambda db: db.execute("PRAGMA user_version = 99"))
        await until(lambda: len(calls) == 4)
        await asyncio.sleep(0.5)
        assert len(calls) == 4, "no step is due before the next write"
    finally:
        await writer.close()
