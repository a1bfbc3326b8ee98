"""Commits all writes of a process to the SQLite file; writes that wait at the same time share one transaction.

On a fast disk a commit takes about as long as two thread switches. So a write is committed inline, in the thread of
the caller's event loop, while the file lock is free and recent commits were fast. Otherwise the writer thread waits for
the lock and the disk.
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

from outrider._posix import O_CLOEXEC, O_NOFOLLOW
from outrider.errors import StoreError, StoreUnavailableError
from outrider.sessions.database_files import FairFileLock, to_store_error, translate_errors, wal_path
from outrider.sessions.failpoints import failpoint
from outrider.sessions.sqlite.connection import WAL_LIMIT_BYTES, connect_writer

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], T]

MAX_UNSYNCED_SECONDS = 0.1

SyncFile = Callable[[int], None]
"""Returns when everything that was written to an open file is on the disk."""
fdatasync: SyncFile = getattr(os, "fdatasync", os.fsync)  # macOS has only the second


class WriteRequest:
    """One write and, if it cannot be committed at once, the future that its caller awaits."""

    __slots__ = ("_claim", "_error", "_result", "future", "loop", "synced", "timeout", "write")

    def __init__(self, write: Write[Any], *, synced: bool) -> None:
        self.write = write
        self.synced = synced
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] | None = None
        self.timeout: asyncio.TimerHandle | None = None  # shared by all requests of one submission
        self._result: Any = None
        self._error: Exception | None = None
        self._claim = threading.Lock()

    def make_future(self) -> None:
        """Creates the future, because the caller has to wait. Must run in the thread of its event loop."""
        if self.future is None:
            self.future = self.loop.create_future()

    def result(self) -> Any:
        """Returns the result of a write that was committed at once, or raises its exception."""
        if self._error is not None:
            raise self._error
        return self._result

    def try_claim(self) -> bool:
        """Returns True once: to the thread that starts the write, or to the timeout that cancels it."""
        return (self.future is None or not self.future.done()) and self._claim.acquire(blocking=False)

    def release_claim(self) -> None:
        """Undoes a claim after a failed start, so that another thread can run the write."""
        self._claim.release()

    def execute_write(self, db: sqlite3.Connection) -> None:
        self._result = self.write(db)

    def set_error(self, error: Exception) -> None:
        self._error = self._error or error

    def deliver_result(self) -> None:
        """Sets the result or exception of the future, if there is one. Must run in the thread of its event loop."""
        if self.timeout is not None:
            self.timeout.cancel()
        if self.future is None or self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


def deliver_from_thread(requests: Sequence[WriteRequest]) -> None:
    """Delivers results from the writer thread, with one wakeup per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
    for request in requests:
        loops.setdefault(request.loop, []).append(request)
    for loop, own_requests in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller awaits the result
            loop.call_soon_threadsafe(_deliver_all, own_requests)


def _deliver_all(requests: Sequence[WriteRequest]) -> None:
    for request in requests:
        request.deliver_result()


class WalSync:
    """Tracks whether the write-ahead log holds commits without an fsync, and since when."""

    def __init__(self, sync: SyncFile) -> None:
        self._sync = sync
        self._unsynced_since: float | None = None

    @property
    def is_overdue(self) -> bool:
        return self._unsynced_since is not None and monotonic() - self._unsynced_since > MAX_UNSYNCED_SECONDS

    def after_commit(self, file: int, *, synced: bool) -> None:
        """Records a commit. With `synced` it runs fdatasync, which also covers all earlier commits."""
        if synced:
            self._run_sync(file, self._unsynced_since or monotonic())
        elif self._unsynced_since is None:
            self._unsynced_since = monotonic()

    def sync_pending(self, file: int) -> None:
        """Syncs the last commits if no synced commit followed them."""
        if self._unsynced_since is not None:
            with contextlib.suppress(OSError):
                self._run_sync(file, self._unsynced_since)

    def _run_sync(self, file: int, since: float) -> None:
        """Syncs the log. Resets the timestamp before the sync, so that a commit during the sync is unsynced again."""
        self._unsynced_since = None
        try:
            self._sync(file)
        except OSError:
            self._unsynced_since = since
            raise


class TransactionWriter:
    """Runs write requests in transactions on one connection.

    With a write-ahead log, SQLite commits without fsync (`synchronous = NORMAL`) and this class syncs the log where a
    request needs it: switching the pragma per transaction costs more. Without a log, SQLite syncs every commit.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, wal_sync: WalSync) -> None:
        self.db = db
        self._path = path
        self._wal_sync = wal_sync
        self._wal = _open_wal(path, db)
        self._has_committed = False  # the last batch, which `sync_batch` has not seen yet
        if self._wal is not None:
            db.execute("PRAGMA synchronous = NORMAL")

    @property
    def uses_wal(self) -> bool:
        return self._wal is not None

    def commit_batch(self, requests: Sequence[WriteRequest]) -> None:
        """Runs all requests in one transaction; rolls back a failed request alone. Raises only if BEGIN fails. The
        caller holds the file lock, releases it and calls `sync_batch` before it delivers the results."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            for request in requests:
                self._run_request(request, alone=len(requests) == 1)
            self._has_committed = self.db.in_transaction
            if self._has_committed:
                self.db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  delivered to the callers
            self._fail_batch(requests, error)

    def sync_batch(self, requests: Sequence[WriteRequest]) -> None:
        """Syncs the log if a committed request needs it. Without the file lock: a sync takes far longer than a commit,
        and covers what other processes have committed meanwhile. A checkpoint that they run syncs the log itself."""
        if self._has_committed and self._wal is not None:
            self._has_committed = False
            try:
                synced = self._wal_sync.is_overdue or any(request.synced for request in requests)
                self._wal_sync.after_commit(self._wal, synced=synced)
            except OSError as error:
                self._fail_batch(requests, error)
        failpoint("FP-after-commit")

    def _fail_batch(self, requests: Sequence[WriteRequest], error: Exception) -> None:
        self._has_committed = False
        self.roll_back()
        for request in requests:
            request.set_error(to_store_error(error, self._path))

    def sync_wal(self) -> None:
        """Syncs commits that have no fsync yet."""
        if self._wal is not None:
            self._wal_sync.sync_pending(self._wal)

    def close(self) -> None:
        self.sync_wal()
        if self._wal is not None:
            os.close(self._wal)
        self.db.close()

    def roll_back(self) -> None:
        if self.db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")

    def _run_request(self, request: WriteRequest, *, alone: bool) -> None:
        """Runs one request in a savepoint. Raises only if its error aborted the whole transaction."""
        if not alone:
            self.db.execute("SAVEPOINT one")
        try:
            request.execute_write(self.db)
        except Exception as error:
            request.set_error(
                to_store_error(error, self._path) if isinstance(error, sqlite3.Error | OSError) else error
            )
            if not self.db.in_transaction:
                raise
            self.db.execute("ROLLBACK" if alone else "ROLLBACK TO one")
        if not alone:
            self.db.execute("RELEASE one")


def _open_wal(path: Path, db: sqlite3.Connection) -> int | None:
    """Opens the write-ahead log for fsync; returns None without one.

    While the connection is open, no process replaces the log. Closing this descriptor drops no locks, because SQLite
    places its POSIX locks on other files.
    """
    if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        return None
    try:
        return os.open(wal_path(path), os.O_RDWR | O_NOFOLLOW | O_CLOEXEC)
    except OSError:
        return None


Maintenance = Callable[[sqlite3.Connection], float | None]
"""Runs one step; returns the seconds until the next one is due, and None if it can wait for the next write."""

MAX_BATCH = 256
INLINE_BURST = 2
BURST_SECONDS = 0.0005
IDLE_SECONDS = 0.05
MAX_MAINTENANCE_DELAY_SECONDS = 2
LOCK_TIMEOUT_SECONDS = 30
FAST_COMMIT_SECONDS = 0.002
CHECKPOINT_BYTES = 4 * 1024 * 1024


class DatabaseWriter:
    """Commits writes inline or in a thread. While idle, the thread calls `maintenance` until it returns None. A write
    fails if another process holds the lock for `lock_seconds`."""

    def __init__(
        self,
        path: Path,
        maintenance: Maintenance,
        *,
        sync: SyncFile = fdatasync,
        lock_seconds: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self._path = path
        self._lock_seconds = lock_seconds
        self._wal_sync = WalSync(sync)
        self._wal_path = wal_path(path)
        self._maintenance = maintenance
        self._maintenance_due = True  # after a write
        self._maintenance_delay: float | None = None  # until a step is due without a write
        self._closed = False
        self._average_seconds = self._last_commit = 0.0
        self._last_maintenance = time.perf_counter()
        self._loop_writer: _LoopWriter | None = None
        self._requests: queue.SimpleQueue[list[WriteRequest] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_thread, name="outrider-writer", daemon=True)
        self._thread.start()

    async def run(self, write: Write[T], *, synced: bool = True, slow: bool = False) -> T:
        """Returns the result of `write` after the commit, or raises its exception after the rollback.

        A `slow` write runs in the thread, so that it does not block the caller's event loop. If the caller is
        cancelled, the write is either committed completely or not started.
        """
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        request = WriteRequest(write, synced=synced)
        if self._loop_writer is None:
            with translate_errors(self._path):
                self._loop_writer = _LoopWriter(self._path, self._wal_sync, request.loop)
        if slow or request.loop is not self._loop_writer.loop or self._loop_writer.may_block:
            self._submit_to_thread([request])
        else:
            self._submit(self._loop_writer, request)
        # Not in a coroutine of the request: many sessions wait here, and each would create one more for each write.
        return request.result() if request.future is None else await request.future

    def read_inline(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """Runs a fast query on the inline connection, whose page cache is warm; returns None if it is not available."""
        loop_writer = self._loop_writer
        if loop_writer is None or self._closed or loop_writer.loop is not asyncio.get_running_loop():
            return None
        try:
            return loop_writer.read_inline(read)
        except sqlite3.Error:
            return None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._requests.put(None)
            await asyncio.to_thread(self._thread.join)
            if self._loop_writer is not None:
                self._loop_writer.close()

    def _submit(self, loop_writer: "_LoopWriter", request: WriteRequest) -> None:
        """Commits the first requests of a burst at once; collects later ones of one loop iteration in a batch."""
        if not loop_writer.waiting and self._average_seconds <= FAST_COMMIT_SECONDS and loop_writer.may_commit_now():
            self._commit_inline(loop_writer, [request])
            return
        if not loop_writer.waiting:
            loop_writer.loop.call_soon(self._commit_waiting, loop_writer)
        request.make_future()
        loop_writer.waiting.append(request)

    def _commit_waiting(self, loop_writer: "_LoopWriter") -> None:
        waiting, loop_writer.waiting = loop_writer.waiting, []
        if self._average_seconds <= FAST_COMMIT_SECONDS:
            self._commit_inline(loop_writer, waiting)
        else:
            self._submit_to_thread(waiting)

    def _commit_inline(self, loop_writer: "_LoopWriter", requests: list[WriteRequest]) -> None:
        """Commits in this thread, or submits to the writer thread if another process holds the file lock."""
        start = time.perf_counter()
        if not loop_writer.try_commit(requests):
            self._submit_to_thread(requests)
            return
        self._record_duration(start)
        if not self._maintenance_due:
            self._maintenance_due = True
            self._requests.put([])

    def _submit_to_thread(self, requests: list[WriteRequest]) -> None:
        """Queues requests of one event loop for the thread, with a timeout in case another process holds the lock."""
        for request in requests:
            request.make_future()
        if self._closed:
            for request in requests:
                request.set_error(StoreError(f"{self._path} is closed"))
                request.deliver_result()
            return
        patience = requests[0].loop.call_later(self._lock_seconds, self._time_out, tuple(requests))
        for request in requests:
            request.timeout = patience
        self._requests.put(requests)

    def _record_duration(self, start: float) -> None:
        self._last_commit = time.perf_counter()
        self._average_seconds = 0.8 * self._average_seconds + 0.2 * (self._last_commit - start)

    @property
    def _is_busy(self) -> bool:
        """Returns whether there was a recent commit, unless maintenance was delayed for too long."""
        now = time.perf_counter()
        return now - self._last_commit < IDLE_SECONDS and now - self._last_maintenance < MAX_MAINTENANCE_DELAY_SECONDS

    def _time_out(self, requests: Sequence[WriteRequest]) -> None:
        text = f"{self._path}: another process has held the lock for {self._lock_seconds:g} s"
        for request in requests:
            if request.try_claim():
                request.set_error(StoreUnavailableError(text, path=str(self._path)))
                request.deliver_result()

    def _run_thread(self) -> None:
        requests: list[WriteRequest] | None = []
        while (connection := self._try_connect(requests)) is None:
            self._maintenance_due = False  # it needs the connection; the next write sets the flag again
            if (requests := self._next_batch()) is None:
                return
        transactions, file_lock = connection
        try:
            requests = requests or self._next_batch()
            while requests is not None:
                if requests:
                    self._commit_in_thread(transactions, file_lock, requests)
                else:
                    self._run_maintenance(transactions, file_lock)
                requests = self._next_batch()
        finally:
            transactions.close()
            file_lock.close()

    def _try_connect(self, requests: Sequence[WriteRequest]) -> tuple[TransactionWriter, FairFileLock] | None:
        """Opens the connection of the thread. If that fails, these requests get the error, and the next ones make the
        thread try again."""
        with contextlib.ExitStack() as opened:
            try:
                file_lock = FairFileLock(self._path)
                opened.callback(file_lock.close)
                db = connect_writer(self._path)
                opened.callback(db.close)
                transactions = TransactionWriter(self._path, db, self._wal_sync)
            except Exception as error:  # noqa: BLE001  delivered to the callers; the thread must survive
                self._fail_requests([request for request in requests if request.try_claim()], error)
                return None
            opened.pop_all()
        return transactions, file_lock

    def _fail_requests(self, requests: Sequence[WriteRequest], error: Exception) -> None:
        for request in requests:
            request.set_error(to_store_error(error, self._path))
        deliver_from_thread(requests)

    def _next_batch(self) -> list[WriteRequest] | None:
        """Returns the queued requests; an empty list when maintenance is due; None after `close`."""
        try:
            first = self._requests.get(timeout=IDLE_SECONDS if self._maintenance_due else self._maintenance_delay)
            while first == []:
                first = self._requests.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return []
        if first is None:
            return None
        while len(first) < MAX_BATCH and not self._requests.empty():
            further = self._requests.get()
            if further is None:
                self._requests.put(None)
                break
            first += further
        return first

    def _commit_in_thread(
        self, transactions: TransactionWriter, file_lock: FairFileLock, waiting: list[WriteRequest]
    ) -> None:
        requests: list[WriteRequest] = []
        try:
            with file_lock:
                requests = [request for request in waiting if request.try_claim()]
                start = time.perf_counter()
                transactions.commit_batch(requests)
            transactions.sync_batch(requests)
            self._record_duration(start)
        except Exception as error:  # noqa: BLE001  delivered to the callers; the thread must survive
            self._fail_requests(requests or [request for request in waiting if request.try_claim()], error)
        else:
            deliver_from_thread(requests)
        self._maintenance_due = True
        self._checkpoint_wal(transactions, file_lock, WAL_LIMIT_BYTES)

    def _run_maintenance(self, transactions: TransactionWriter, file_lock: FairFileLock) -> None:
        self._maintenance_due = False  # before the sync, so that a commit during it sets the flag again
        transactions.sync_wal()
        if self._is_busy:
            self._maintenance_due = True
        else:
            self._maintenance_delay = self._try_maintenance(transactions, file_lock)
            self._last_maintenance = time.perf_counter()
        self._checkpoint_wal(transactions, file_lock, CHECKPOINT_BYTES)

    def _try_maintenance(self, transactions: TransactionWriter, file_lock: FairFileLock) -> float | None:
        """Runs one maintenance step in a transaction; returns the seconds to wait for the next one."""
        try:
            with file_lock:
                transactions.db.execute("BEGIN IMMEDIATE")
                delay = self._maintenance(transactions.db)
                transactions.db.execute("COMMIT")
                return None if delay is None else max(delay, IDLE_SECONDS)
        except Exception:  # noqa: BLE001  maintenance can wait; the next write raises a persistent error
            transactions.roll_back()
            return None

    def _checkpoint_wal(self, transactions: TransactionWriter, file_lock: FairFileLock, limit: int) -> None:
        """Checkpoints the log above `limit` bytes. Above WAL_LIMIT_BYTES it waits for readers and truncates the log."""
        try:
            size = os.stat(self._wal_path).st_size  # noqa: PTH116  on the hot path, and faster than Path
            if size > limit:
                with file_lock:
                    transactions.db.execute(
                        f"PRAGMA wal_checkpoint({'TRUNCATE' if size > WAL_LIMIT_BYTES else 'PASSIVE'})"
                    )
        except (OSError, sqlite3.Error):
            return


class _LoopWriter:
    """Commits inline, in the thread of the first event loop that wrote, and never waits for a lock."""

    def __init__(self, path: Path, wal_sync: WalSync, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: list[WriteRequest] = []
        self._burst_start = 0.0
        self._burst_count = 0  # inline commits since then
        self._transactions = TransactionWriter(path, connect_writer(path, wait_for_locks=False), wal_sync)
        self._file_lock = FairFileLock(path)

    @property
    def may_block(self) -> bool:
        """Whether a commit may wait for all readers, as it does without a write-ahead log."""
        return not self._transactions.uses_wal

    def may_commit_now(self) -> bool:
        """Returns whether a request is one of the first INLINE_BURST requests within BURST_SECONDS. Further requests
        are batched."""
        now = time.perf_counter()
        if now - self._burst_start > BURST_SECONDS:
            self._burst_start, self._burst_count = now, 0
        self._burst_count += 1
        return self._burst_count <= INLINE_BURST

    def read_inline(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return read(self._transactions.db)

    def try_commit(self, requests: list[WriteRequest]) -> bool:
        """Commits the requests; returns False without effect if another connection writes."""
        if not self._file_lock.try_acquire():
            return False
        claimed = [request for request in requests if request.try_claim()]
        try:
            self._transactions.commit_batch(claimed)
        except sqlite3.Error:
            for request in claimed:
                request.release_claim()
            return False
        finally:
            self._file_lock.release()
        self._transactions.sync_batch(claimed)
        for request in claimed:
            request.deliver_result()
        return True

    def close(self) -> None:
        self._transactions.close()
        self._file_lock.close()
