"""`DatabaseWriter` with delayed fsync: the order of commits, other processes, and errors of the disk."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.errors import StoreError, StoreUnavailableError
from outrider.sessions.database_files import file_system_type
from outrider.sessions.sqlite.connection import connect_writer
from outrider.sessions.sqlite.recovery import open_file
from outrider.sessions.sqlite.writer import DatabaseWriter


class Disk:
    """Counts the syncs of the writer's thread, which wait until they are released."""

    def __init__(self) -> None:
        self.waits = 0
        self.reached = threading.Event()
        self.release = threading.Event()

    def sync(self, _: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.waits += 1
            self.reached.set()
            assert self.release.wait(30)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_commit_while_earlier_ones_reach_the_disk_follows_them(tmp_path: Path):
    disk, path = Disk(), tmp_path / "sessions.db"
    open_file(path, file_system_type)
    writer = DatabaseWriter(path, lambda _: None, sync=disk.sync)
    try:
        await writer.run(lambda db: db.execute("PRAGMA user_version = 98"), synced=False)
        await until(disk.reached.is_set)
        waits = disk.waits
        late = asyncio.create_task(writer.run(lambda db: db.execute("PRAGMA user_version = 99"), synced=False))
        await asyncio.sleep(0)
        disk.release.set()
        await late
        await until(lambda: disk.waits > waits)
    finally:
        await writer.close()


async def test_others_commit_while_a_process_waits_for_the_disk(tmp_path: Path):
    disk, path = Disk(), tmp_path / "sessions.db"
    open_file(path, file_system_type)
    writer, other = (DatabaseWriter(path, lambda _: None, sync=disk.sync) for _ in range(2))
    try:
        first = asyncio.create_task(writer.run(lambda db: db.execute("PRAGMA user_version = 98"), slow=True))
        await until(disk.reached.is_set)
        async with asyncio.timeout(10):
            await other.run(lambda db: db.execute("PRAGMA user_version = 99"))
        assert not first.done(), "its result is delivered after the sync"
        disk.release.set()
        await first
    finally:
        disk.release.set()
        await writer.close()
        await other.close()


async def test_a_commit_that_does_not_reach_the_disk_is_an_error(tmp_path: Path):
    path, is_broken = tmp_path / "sessions.db", True
    open_file(path, file_system_type)

    def sync(_: int) -> None:
        if is_broken:
            raise OSError(5, "Input/output error")

    writer = DatabaseWriter(path, lambda _: None, sync=sync)
    try:
        with pytest.raises(StoreUnavailableError):
            await writer.run(lambda db: db.execute("PRAGMA user_version = 98"), slow=True)
        with pytest.raises(StoreUnavailableError):
            await writer.run(lambda db: db.execute("PRAGMA user_version = 99"))
        is_broken = False
        await writer.run(lambda db: db.execute("PRAGMA user_version = 100"))
    finally:
        await writer.close()


async def test_the_thread_reports_why_it_cannot_connect_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def connect(path: Path, *, wait_for_locks: bool = True) -> sqlite3.Connection:
        if wait_for_locks:
            raise sqlite3.OperationalError("too many open files")
        return connect_writer(path, wait_for_locks=False)

    path = tmp_path / "sessions.db"
    open_file(path, file_system_type)
    with monkeypatch.context() as patched:
        patched.setattr("outrider.sessions.sqlite.writer.connect_writer", connect)
        writer = DatabaseWriter(path, lambda _: None)
        async with asyncio.timeout(10):
            with pytest.raises(StoreError, match="too many open files"):
                await writer.run(lambda db: db.execute("PRAGMA user_version = 98"), slow=True)
            await writer.run(lambda db: db.execute("PRAGMA user_version = 98"))
    async with asyncio.timeout(10):
        found = await writer.run(lambda db: db.execute("PRAGMA user_version").fetchone(), slow=True)
    await writer.close()
    assert found == (98,)


async def test_a_writer_whose_file_cannot_be_opened_raises_an_error_of_the_store(tmp_path: Path):
    path = tmp_path / "sessions.db"
    path.mkdir()
    writer = DatabaseWriter(path, lambda _: None)
    with pytest.raises(StoreUnavailableError, match="cannot be used now"):
        await writer.run(lambda db: db.execute("PRAGMA user_version = 98"))
    await writer.close()
