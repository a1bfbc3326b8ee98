"""Orders to write, and a connection that carries out several of them in one transaction."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from outrider.sessions import faults
from outrider.sessions.sqlite.failures import explain
from outrider.sessions.sqlite.files import log_of

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], T]

OVERDUE_SECONDS = 0.1

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the second


class Order:
    """One write that somebody waits for."""

    __slots__ = ("_claim", "_error", "_result", "future", "loop", "patience", "synced", "write")

    def __init__(self, write: Write[Any], *, synced: bool) -> None:
        self.write = write
        self.synced = synced
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.patience: asyncio.TimerHandle | None = None  # of all that were handed over with it
        self._result: Any = None
        self._error: Exception | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """True for the first who asks: the one that begins it, or the caller that gives up."""
        return not self.future.done() and self._claim.acquire(blocking=False)

    def hand_back(self) -> None:
        """Nothing was done: somebody else may begin it."""
        self._claim.release()

    def carry_out(self, db: sqlite3.Connection) -> None:
        self._result = self.write(db)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error

    def deliver(self) -> None:
        """Tell whoever waits, from the thread of their loop."""
        if self.patience is not None:
            self.patience.cancel()
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


def send(orders: Sequence[Order]) -> None:
    """Tell all who wait, from another thread: each loop is woken once."""
    loops: dict[asyncio.AbstractEventLoop, list[Order]] = {}
    for order in orders:
        loops.setdefault(order.loop, []).append(order)
    for loop, own in loops.items():
        with contextlib.suppress(RuntimeError):  # it was closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver, own)


def _deliver(orders: Sequence[Order]) -> None:
    for order in orders:
        order.deliver()


class Log:
    """Since when the file that commits go to first holds some that may not have reached the disk."""

    def __init__(self) -> None:
        self._waiting_since: float | None = None

    @property
    def is_overdue(self) -> bool:
        return self._waiting_since is not None and monotonic() - self._waiting_since > OVERDUE_SECONDS

    def written(self, file: int, *, synced: bool) -> None:
        """One that waits for the disk takes all earlier ones along."""
        if synced:
            _sync(file)
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = monotonic()

    def sync(self, file: int) -> None:
        """For the last ones, which no other commit takes along. One that comes in between counts as waiting again."""
        since, self._waiting_since = self._waiting_since, None
        if since is None:
            return
        try:
            _sync(file)
        except OSError:
            self._waiting_since = since


class Pen:
    """Whoever uses it holds the turnstile.

    With a log, SQLite is told not to wait for the disk at commits, and we do where it is wanted: changing its mind each
    time costs more. Without one it always waits."""

    def __init__(self, path: Path, db: sqlite3.Connection, log: Log) -> None:
        self.db = db
        self._path = path
        self._log = log
        self._file = _open_log(path, db)
        if self._file is not None:
            db.execute("PRAGMA synchronous = NORMAL")

    @property
    def has_log(self) -> bool:
        return self._file is not None

    def commit(self, orders: Sequence[Order]) -> None:
        """All orders in one transaction; one that fails is undone alone. Raises only if it cannot even begin."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            for order in orders:
                self._try(order, alone=len(orders) == 1)
            if self.db.in_transaction:
                self.db.execute("COMMIT")
                if self._file is not None:
                    synced = self._log.is_overdue or any(order.synced for order in orders)
                    self._log.written(self._file, synced=synced)
        except Exception as error:  # noqa: BLE001  whoever waits is told
            self.roll_back()
            for order in orders:
                order.fail(explain(error, self._path))
        faults.reach("FP-after-commit")

    def sync(self) -> None:
        """What was committed without waiting for the disk reaches it."""
        if self._file is not None:
            self._log.sync(self._file)

    def close(self) -> None:
        self.sync()
        if self._file is not None:
            os.close(self._file)
        self.db.close()

    def roll_back(self) -> None:
        if self.db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")

    def _try(self, order: Order, *, alone: bool) -> None:
        """One order; its failure is its own unless the whole transaction is lost."""
        if not alone:
            self.db.execute("SAVEPOINT one")
        try:
            order.carry_out(self.db)
        except Exception as error:
            order.fail(explain(error, self._path) if isinstance(error, sqlite3.Error | OSError) else error)
            if not self.db.in_transaction:
                raise
            self.db.execute("ROLLBACK" if alone else "ROLLBACK TO one")
        if not alone:
            self.db.execute("RELEASE one")


def _open_log(path: Path, db: sqlite3.Connection) -> int | None:
    """None where there is none, or it cannot be opened. While the connection is open, nobody puts another in its place.
    Closing it drops no locks: SQLite has none on this file."""
    if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        return None
    try:
        return os.open(log_of(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
