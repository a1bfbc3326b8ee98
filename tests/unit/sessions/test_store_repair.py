"""A store file is checked without changes, repaired without losing rows, and compacted."""

import os
import sqlite3
from pathlib import Path

import pytest

from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite import recovery as doctor
from outrider.sessions.sqlite.connection import MIGRATIONS, connect_writer, migrate_schema
from outrider.sessions.sqlite.search import delete_batch
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


async def fill(path: Path, *texts: str) -> list[str]:
    async with SqliteStore(path) as store:
        made = [await store.create(StoredSession(title=text[:20])) for text in texts]
        for session, text in zip(made, texts, strict=True):
            message = Message("user", [TextPart(text)], time=MessageTime(now_ms()))
            message.join(session.id)
            await store.append(session.id, [message])
        await store.search("anything")
    return [session.id for session in made]


def execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


async def test_a_healthy_store_is_found_healthy_and_left_alone(path: Path):
    await fill(path, "one", "two " * 20_000)
    before = path.read_bytes()
    health = doctor.check_file(path)
    assert health.is_healthy
    assert health.rows == {"sessions": 2, "messages": 2, "parts": 2, "blobs": 1}
    assert (health.version, health.bytes) == (len(MIGRATIONS), len(before))
    assert path.read_bytes() == before


async def test_what_hangs_loose_is_found(path: Path):
    await fill(path, "one", "two " * 20_000)
    execute(path, "DELETE FROM sessions WHERE key = 1")
    execute(path, "DELETE FROM blobs")
    execute(path, "UPDATE parts SET seq = 99 WHERE key = 2")
    problems = " ".join(doctor.check_file(path).problems)
    for text in ("1 messages without a session", "large texts that are missing", "past their session's"):
        assert text in problems


async def test_repair_rebuilds_a_damaged_search_index(path: Path):
    ids = await fill(path, "the lost word")
    execute(path, "INSERT INTO words (words) VALUES ('delete-all')")
    assert doctor.repair_file(path).is_healthy
    async with SqliteStore(path) as store:
        assert [hit.session_id for hit in await store.search("lost")] == [ids[0], ids[0]]


async def test_compacting_gives_back_what_was_deleted(path: Path):
    noise = [os.urandom(40_000).hex() for _ in range(10)]
    ids = await fill(path, *noise)
    async with SqliteStore(path) as store:
        for id in ids[1:]:
            await store.delete(id)
    assert doctor.compact_file(path) > 500_000
    health = doctor.check_file(path)
    assert health.is_healthy
    assert health.rows == {"sessions": 1, "messages": 1, "parts": 1, "blobs": 1}
    for text in noise[1:]:
        assert text[:64].encode() not in path.read_bytes()


async def test_a_file_that_is_no_database_is_reported_to_be_broken(path: Path):
    path.write_bytes(b"nothing of the kind" * 100)
    assert not doctor.check_file(path).is_healthy
    repaired = doctor.repair_file(path)
    assert repaired.is_healthy
    assert list(path.parent.glob("*.damaged-*"))


def make_old_store(path: Path, version: int) -> sqlite3.Connection:
    """A store of an older schema with three sessions, of which the last is deleted, and inbox items of the first."""
    db = connect_writer(path)
    migrate_schema(db, path, MIGRATIONS[:version])
    for key, id in enumerate(("a", "b", "deleted 3"), 1):
        row = (key, id, 9, 0, 0, 0, f"title number {key}", "", "agent", "", b"{}", int(key == 3))
        db.execute(
            "INSERT INTO sessions"
            " (key, id, seq, changed, active, created, title, workspace, mode, agent, body, deleted)"
            f" VALUES ({', '.join('?' * len(row))})",
            row,
        )
        if key < 3:
            db.execute("INSERT INTO titles (rowid, title) VALUES (?, ?)", (key, f"title number {key}"))
    items = [("x", 3, 1), ("y", 4, 0), ("z", 5, 0)]
    db.executemany("INSERT INTO inbox (session, id, seq, taken, body) VALUES (1, ?, ?, ?, x'')", items)
    return db


def query_plan(db: sqlite3.Connection, query: str) -> str:
    return " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}"))


def test_an_older_store_loses_spare_indexes_and_finds_the_same(path: Path):
    db = make_old_store(path, 3)
    old = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    migrate_schema(db, path)
    assert len(old) - len({name for (name,) in db.execute("SELECT name FROM sqlite_master")}) == 3
    assert db.execute("SELECT rowid FROM titles WHERE titles MATCH 'number'").fetchall() == [(1,), (2,)]
    opened = "SELECT id FROM inbox WHERE session = 1 AND taken = 0 ORDER BY seq, key"
    assert db.execute(opened).fetchall() == [("y",), ("z",)]
    assert "inbox_by_state (session=? AND taken=?)" in query_plan(db, opened)
    assert "TEMP B-TREE" not in query_plan(db, opened)
    assert delete_batch(db)  # of the deleted session
    assert not delete_batch(db)
    assert db.execute("SELECT id FROM sessions").fetchall() == [("a",), ("b",)]
    db.close()
