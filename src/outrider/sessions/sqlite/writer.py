"""All writes of a process to the file: those that wait together are committed together.

On a good disk a commit takes as long as two changes of thread. So it is done at once, in the thread of the caller's
event loop, while the file is free and commits are quick; otherwise a thread of our own waits for lock and disk.
"""

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from outrider.errors import StoreError, StoreUnavailableError
from outrider.sessions.sqlite.connection import connect
from outrider.sessions.sqlite.failures import explain
from outrider.sessions.sqlite.files import log_of
from outrider.sessions.sqlite.pen import Log, Order, Pen, Write, send
from outrider.sessions.sqlite.turnstile import Turnstile

T = TypeVar("T")
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
        self._log = Log()
        self._log_path = log_of(path)
        self._chore = chore
        self._chores_due = True
        self._closed = False
        self._lately = self._last = 0.0
        self._chore_done = time.perf_counter()
        self._home: _Home | None = None
        self._orders: queue.SimpleQueue[list[Order] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="outrider-writer", daemon=True)
        self._thread.start()

    async def run(self, write: Write[T], *, synced: bool = True, heavy: bool = False) -> T:
        """What `write` returns, once it is committed; what it raises, once it is rolled back.

        `heavy` work is left to the thread, so that the caller's event loop goes on. A caller that is cancelled
        leaves nothing half done: the write is committed whole or not begun.
        """
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        order = Order(write, synced=synced)
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

    def _join(self, home: "_Home", order: Order) -> None:
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

    def _commit_here(self, home: "_Home", orders: list[Order]) -> None:
        """At once, if nothing but the disk has to be waited for."""
        start = time.perf_counter()
        if not home.commit(orders):
            self._hand_over(orders)
            return
        self._took(start)
        if not self._chores_due:
            self._chores_due = True
            self._orders.put([])

    def _hand_over(self, orders: list[Order]) -> None:
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

    def _give_up(self, orders: Sequence[Order]) -> None:
        text = f"{self._path}: another process has held the lock for {PATIENCE_SECONDS} s"
        for order in orders:
            if order.claim():
                order.future.set_exception(StoreUnavailableError(text, path=str(self._path)))

    def _work(self) -> None:
        pen, turnstile = Pen(self._path, connect(self._path), self._log), Turnstile(self._path)
        try:
            while (orders := self._next()) is not None:
                if orders:
                    self._commit(pen, turnstile, orders)
                elif self._chores_due:
                    self._do_chore(pen, turnstile)
        finally:
            pen.close()
            turnstile.close()

    def _next(self) -> list[Order] | None:
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

    def _commit(self, pen: Pen, turnstile: Turnstile, waiting: list[Order]) -> None:
        orders: list[Order] = []
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

    def _do_chore(self, pen: Pen, turnstile: Turnstile) -> None:
        self._chores_due = False  # first, so that a commit while we wait for the disk asks for another round
        pen.sync()
        if self._is_busy:
            self._chores_due = True
        else:
            self._chores_due = self._try_chore(pen, turnstile) or self._chores_due
            self._chore_done = time.perf_counter()
        self._bound_log(pen, turnstile, CHECKPOINT_BYTES)

    def _try_chore(self, pen: Pen, turnstile: Turnstile) -> bool:
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

    def _bound_log(self, pen: Pen, turnstile: Turnstile, limit: int) -> None:
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

    def __init__(self, path: Path, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.crowd: list[Order] = []
        self._since = 0.0
        self._served = 0  # alone, since then
        self._pen = Pen(path, connect(path, patient=False), log)
        self._turnstile = Turnstile(path)

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

    def commit(self, orders: list[Order]) -> bool:
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
