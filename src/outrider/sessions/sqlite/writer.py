"""All writes of a process to the file: those that wait together are committed together.

On a good disk a commit takes as long as two changes of thread. So it is done at once, in the thread of the caller's
event loop, while the file is free and commits are quick; otherwise a thread of our own waits for lock and disk.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from outrider.errors import StoreError, StoreUnavailableError
from outrider.sessions import failpoints as faults
from outrider.sessions.sqlite.connection import connect
from outrider.sessions.sqlite.files import FairFileLock, explain, log_of

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], T]

OVERDUE_SECONDS = 0.1

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the second


class WriteRequest:
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


def send(orders: Sequence[WriteRequest]) -> None:
    """Tell all who wait, from another thread: each loop is woken once."""
    loops: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
    for order in orders:
        loops.setdefault(order.loop, []).append(order)
    for loop, own in loops.items():
        with contextlib.suppress(RuntimeError):  # it was closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver, own)


def _deliver(orders: Sequence[WriteRequest]) -> None:
    for order in orders:
        order.deliver()


class WalSync:
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


class TransactionWriter:
    """Whoever uses it holds the turnstile.

    With a log, SQLite is told not to wait for the disk at commits, and we do where it is wanted: changing its mind each
    time costs more. Without one it always waits."""

    def __init__(self, path: Path, db: sqlite3.Connection, log: WalSync) -> None:
        self.db = db
        self._path = path
        self._log = log
        self._file = _open_log(path, db)
        if self._file is not None:
            db.execute("PRAGMA synchronous = NORMAL")

    @property
    def has_log(self) -> bool:
        return self._file is not None

    def commit(self, orders: Sequence[WriteRequest]) -> None:
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
        faults.failpoint("FP-after-commit")

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

    def _try(self, order: WriteRequest, *, alone: bool) -> None:
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


Chore = Callable[[sqlite3.Connection], bool]

BATCH = 256
AT_ONCE = 2
CROWD_SECONDS = 0.0005
IDLE_SECONDS = 0.05
BUSY_SECONDS = 2
PATIENCE_SECONDS = 30
QUICK_SECONDS = 0.002
CHECKPOINT_BYTES = 4 * 1024 * 1024
LOG_LIMIT_BYTES = 16 * 1024 * 1024


class Writer:
    """`chore` is called while nothing waits, each time for a short while, until it says that there is nothing to do."""

    def __init__(self, path: Path, chore: Chore) -> None:
        self._path = path
        self._log = WalSync()
        self._log_path = log_of(path)
        self._chore = chore
        self._chores_due = True
        self._closed = False
        self._lately = self._last = 0.0
        self._chore_done = time.perf_counter()
        self._home: _Home | None = None
        self._orders: queue.SimpleQueue[list[WriteRequest] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="outrider-writer", daemon=True)
        self._thread.start()

    async def run(self, write: Write[T], *, synced: bool = True, heavy: bool = False) -> T:
        """What `write` returns, once it is committed; what it raises, once it is rolled back.

        `heavy` work is left to the thread, so that the caller's event loop goes on. A caller that is cancelled
        leaves nothing half done: the write is committed whole or not begun.
        """
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        order = WriteRequest(write, synced=synced)
        if self._home is None:
            self._home = _Home(self._path, self._log, order.loop)
        if heavy or order.loop is not self._home.loop or self._home.may_wait:
            self._hand_over([order])
        else:
            self._join(self._home, order)
        return await order.future

    def look(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """What one quick statement finds, asked where the writes of this event loop have left their pages; None where
        that is not at hand."""
        home = self._home
        if home is None or self._closed or home.loop is not asyncio.get_running_loop():
            return None
        try:
            return home.read(read)
        except sqlite3.Error:
            return None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._orders.put(None)
            await asyncio.to_thread(self._thread.join)
            if self._home is not None:
                self._home.close()

    def _join(self, home: "_Home", order: WriteRequest) -> None:
        """The first to come are served at once; in a crowd, all who come in one round of the loop together."""
        if not home.crowd and self._lately <= QUICK_SECONDS and home.has_time():
            self._commit_here(home, [order])
            return
        if not home.crowd:
            home.loop.call_soon(self._serve_crowd, home)
        home.crowd.append(order)

    def _serve_crowd(self, home: "_Home") -> None:
        crowd, home.crowd = home.crowd, []
        if self._lately <= QUICK_SECONDS:
            self._commit_here(home, crowd)
        else:
            self._hand_over(crowd)

    def _commit_here(self, home: "_Home", orders: list[WriteRequest]) -> None:
        """At once, if nothing but the disk has to be waited for."""
        start = time.perf_counter()
        if not home.commit(orders):
            self._hand_over(orders)
            return
        self._took(start)
        if not self._chores_due:
            self._chores_due = True
            self._orders.put([])

    def _hand_over(self, orders: list[WriteRequest]) -> None:
        """To the thread. Who waits there for another process does not wait for ever. All are of one loop."""
        if self._closed:
            for order in orders:
                order.fail(StoreError(f"{self._path} is closed"))
                order.deliver()
            return
        patience = orders[0].loop.call_later(PATIENCE_SECONDS, self._give_up, tuple(orders))
        for order in orders:
            order.patience = patience
        self._orders.put(orders)

    def _took(self, start: float) -> None:
        self._last = time.perf_counter()
        self._lately = 0.8 * self._lately + 0.2 * (self._last - start)

    @property
    def _is_busy(self) -> bool:
        """A chore can wait until nobody writes, but not for ever."""
        now = time.perf_counter()
        return now - self._last < IDLE_SECONDS and now - self._chore_done < BUSY_SECONDS

    def _give_up(self, orders: Sequence[WriteRequest]) -> None:
        text = f"{self._path}: another process has held the lock for {PATIENCE_SECONDS} s"
        for order in orders:
            if order.claim():
                order.future.set_exception(StoreUnavailableError(text, path=str(self._path)))

    def _work(self) -> None:
        pen, turnstile = TransactionWriter(self._path, connect(self._path), self._log), FairFileLock(self._path)
        try:
            while (orders := self._next()) is not None:
                if orders:
                    self._commit(pen, turnstile, orders)
                elif self._chores_due:
                    self._do_chore(pen, turnstile)
        finally:
            pen.close()
            turnstile.close()

    def _next(self) -> list[WriteRequest] | None:
        """What waits; nothing when it is time for a chore; None at the end."""
        try:
            first = self._orders.get(timeout=IDLE_SECONDS if self._chores_due else None)
            while first == []:
                first = self._orders.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return []
        if first is None:
            return None
        while len(first) < BATCH and not self._orders.empty():
            more = self._orders.get()
            if more is None:
                self._orders.put(None)
                break
            first += more
        return first

    def _commit(self, pen: TransactionWriter, turnstile: FairFileLock, waiting: list[WriteRequest]) -> None:
        orders: list[WriteRequest] = []
        try:
            with turnstile:
                orders = [order for order in waiting if order.claim()]
                start = time.perf_counter()
                pen.commit(orders)
                self._took(start)
        except Exception as error:  # noqa: BLE001  whoever waits is told, and the thread lives on
            for order in orders:
                order.fail(explain(error, self._path))
        send(orders)
        self._chores_due = True
        self._bound_log(pen, turnstile, LOG_LIMIT_BYTES)

    def _do_chore(self, pen: TransactionWriter, turnstile: FairFileLock) -> None:
        self._chores_due = False  # first, so that a commit while we wait for the disk asks for another round
        pen.sync()
        if self._is_busy:
            self._chores_due = True
        else:
            self._chores_due = self._try_chore(pen, turnstile) or self._chores_due
            self._chore_done = time.perf_counter()
        self._bound_log(pen, turnstile, CHECKPOINT_BYTES)

    def _try_chore(self, pen: TransactionWriter, turnstile: FairFileLock) -> bool:
        """Says whether there is more to do."""
        try:
            with turnstile:
                pen.db.execute("BEGIN IMMEDIATE")
                more = self._chore(pen.db)
                pen.db.execute("COMMIT")
                return more
        except Exception:  # noqa: BLE001  a chore can wait; the next write shows what is wrong
            pen.roll_back()
            return False

    def _bound_log(self, pen: TransactionWriter, turnstile: FairFileLock, limit: int) -> None:
        """Merge the log while nobody waits; past a larger size wait for readers as well, so that it starts anew."""
        try:
            size = os.stat(self._log_path).st_size  # noqa: PTH116  often, so without a Path
            if size > limit:
                with turnstile:
                    pen.db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if size > LOG_LIMIT_BYTES else 'PASSIVE'})")
        except (OSError, sqlite3.Error):
            return


class _Home:
    """What writes in the thread of the first event loop that asked, without ever waiting for a lock."""

    def __init__(self, path: Path, log: WalSync, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.crowd: list[WriteRequest] = []
        self._since = 0.0
        self._served = 0  # alone, since then
        self._pen = TransactionWriter(path, connect(path, patient=False), log)
        self._turnstile = FairFileLock(path)

    @property
    def may_wait(self) -> bool:
        """Without a log a commit waits for all who read."""
        return not self._pen.has_log

    def has_time(self) -> bool:
        """For one that comes alone: a few times in a short while."""
        now = time.perf_counter()
        if now - self._since > CROWD_SECONDS:
            self._since, self._served = now, 0
        self._served += 1
        return self._served <= AT_ONCE

    def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return read(self._pen.db)

    def commit(self, orders: list[WriteRequest]) -> bool:
        """False, with nothing done, if somebody else is writing."""
        if not self._turnstile.try_enter():
            return False
        claimed = [order for order in orders if order.claim()]
        try:
            self._pen.commit(claimed)
        except sqlite3.Error:
            for order in claimed:
                order.hand_back()
            return False
        finally:
            self._turnstile.leave()
        for order in claimed:
            order.deliver()
        return True

    def close(self) -> None:
        self._pen.close()
        self._turnstile.close()
