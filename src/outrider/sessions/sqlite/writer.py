"""The one thread of a process that writes to the file: it gathers what waits, and commits it together."""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from outrider.errors import StoreError, StoreUnavailableError
from outrider.sessions import faults
from outrider.sessions.sqlite.failures import explain
from outrider.sessions.sqlite.turnstile import Turnstile

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], T]
Chore = Callable[[sqlite3.Connection], bool]

BATCH = 256
IDLE_SECONDS = 0.05
PATIENCE_SECONDS = 30
CHECKPOINT_BYTES = 16 * 1024 * 1024


class _Order:
    """One write that somebody waits for."""

    __slots__ = ("_claim", "durable", "error", "future", "loop", "result", "write")

    def __init__(self, write: Write[Any], *, durable: bool) -> None:
        self.write = write
        self.durable = durable
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """True for the first who asks: the writer that begins it, or the caller that gives up."""
        return not self.future.done() and self._claim.acquire(blocking=False)

    def deliver(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """`chore` is called while nothing waits, each time for a short while, until it says that there is nothing to do."""

    def __init__(
        self, path: Path, connect: Callable[[], sqlite3.Connection], turnstile: Turnstile, chore: Chore
    ) -> None:
        self._path = path
        self._log = f"{path}-wal"
        self._connect = connect
        self._turnstile = turnstile
        self._chore = chore
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._chores_due = True
        self._full = True
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="outrider-writer", daemon=True)
        self._thread.start()

    async def run(self, write: Write[T], *, durable: bool = True) -> T:
        """What `write` returns, once it is committed; what it raises, once it is rolled back.

        A caller that is cancelled leaves nothing half done: the write is committed whole or not begun.
        """
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        order = _Order(write, durable=durable)
        self._orders.put(order)
        patience = order.loop.call_later(PATIENCE_SECONDS, self._give_up, order)
        try:
            return await order.future
        finally:
            patience.cancel()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._orders.put(None)
            await asyncio.to_thread(self._thread.join)

    def _give_up(self, order: _Order) -> None:
        if order.claim():
            text = f"{self._path}: another process has held the lock for {PATIENCE_SECONDS} s"
            order.future.set_exception(StoreUnavailableError(text, path=str(self._path)))

    def _work(self) -> None:
        db = self._connect()
        try:
            while (orders := self._next()) is not None:
                if orders:
                    self._commit(db, orders)
                    self._chores_due = True
                else:
                    self._do_chore(db)
        finally:
            db.close()

    def _next(self) -> list[_Order] | None:
        """What waits; nothing when it is time for a chore; None at the end."""
        try:
            first = self._orders.get(timeout=IDLE_SECONDS if self._chores_due else None)
        except queue.Empty:
            return []
        orders: list[_Order] = []
        while first is not None:
            orders.append(first)
            try:
                first = self._orders.get_nowait() if len(orders) < BATCH else None
            except queue.Empty:
                return orders
        if len(orders) < BATCH:
            self._orders.put(None)  # the end was asked for, after these
        return orders or None

    def _commit(self, db: sqlite3.Connection, waiting: Sequence[_Order]) -> None:
        orders: list[_Order] = []
        try:
            with self._turnstile:
                orders = [order for order in waiting if order.claim()]
                self._set_durability(db, full=any(order.durable for order in orders))
                db.execute("BEGIN IMMEDIATE")
                for order in orders:
                    self._try(db, order, alone=len(orders) == 1)
                if db.in_transaction:
                    db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  whoever waits is told, and the thread lives on
            self._roll_back(db)
            for order in orders:
                order.error = order.error or explain(error, self._path)
        faults.reach("FP-after-commit")
        for order in orders:
            order.deliver()
        self._bound_log(db)

    def _try(self, db: sqlite3.Connection, order: _Order, *, alone: bool) -> None:
        """One order; its failure is its own unless the whole transaction is lost."""
        if not alone:
            db.execute("SAVEPOINT one")
        try:
            order.result = order.write(db)
        except Exception as error:
            order.error = error if not isinstance(error, sqlite3.Error | OSError) else explain(error, self._path)
            if not db.in_transaction:
                raise
            db.execute("ROLLBACK" if alone else "ROLLBACK TO one")
        if not alone:
            db.execute("RELEASE one")

    def _do_chore(self, db: sqlite3.Connection) -> None:
        try:
            with self._turnstile:
                self._set_durability(db, full=False)
                db.execute("BEGIN IMMEDIATE")
                self._chores_due = self._chore(db)
                db.execute("COMMIT")
        except Exception:  # noqa: BLE001  a chore can wait; the next write shows what is wrong
            self._roll_back(db)
            self._chores_due = False

    def _set_durability(self, db: sqlite3.Connection, *, full: bool) -> None:
        """FULL waits for the disk at each commit; NORMAL survives the process but perhaps not the machine."""
        if full != self._full:
            db.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full

    def _roll_back(self, db: sqlite3.Connection) -> None:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")

    def _bound_log(self, db: sqlite3.Connection) -> None:
        """Readers can keep SQLite from starting the log anew; past a size we wait for them and do it."""
        try:
            if os.stat(self._log).st_size > CHECKPOINT_BYTES:  # noqa: PTH116  on every commit, so without a Path
                with self._turnstile:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (OSError, sqlite3.Error):
            return
