"""Session leases: one timer renews all leases of a process, and writes use the lease's fencing token.

The module also identifies this process, and checks whether another process is alive, independent of the wall clock."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from outrider._sync import wait_to_end
from outrider.errors import LeaseLostError, OutriderError, StorageFullError, StoreError
from outrider.event_bus import EventBus
from outrider.sessions.records import Lease, ProcessIdentity, StoredValue
from outrider.sessions.store import Store
from outrider.types.events import ErrorEvent
from outrider.types.ids import new_id

RENEWAL_BATCH = 64

_log = logging.getLogger("outrider.sessions")


class LeaseOwner:
    """Acquires leases for this process and renews them after a third of their lifetime.

    One timer serves all leases; a task exists only during a renewal, so idle sessions cost nothing.
    """

    def __init__(self, store: Store, owner: ProcessIdentity) -> None:
        self._store = store
        self._owner = owner
        self._leases: dict[SessionLease, Lease] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def acquire(self, session_id: str, *, take_over: bool = False) -> Lease:
        return await self._store.acquire(session_id, self._owner, take_over=take_over)

    async def release_unused(self, lease: Lease) -> None:
        """Releases a lease that was not added, even if the caller is cancelled. If the store fails, the lease expires,
        because it is not renewed."""
        with suppress(StoreError):
            await wait_to_end(self._store.release(lease))

    def add_lease(self, session_lease: "SessionLease", lease: Lease) -> None:
        self._leases[session_lease] = lease
        self._schedule_renewal(lease.ttl_ms)

    def remove_lease(self, session_lease: "SessionLease") -> None:
        self._leases.pop(session_lease, None)
        if not self._leases and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start_renewal(self) -> None:
        """Starts a renewal of all leases, unless the previous one still runs, for example because the store is busy."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew_all())

    def _schedule_renewal(self, ttl_ms: int) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time() + ttl_ms / 3000
        if self._timer is not None and self._timer.when() <= due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due_at, self._renewal_due)

    def _renewal_due(self) -> None:
        self._timer = None
        self._schedule_renewal(min(lease.ttl_ms for lease in self._leases.values()))
        self.start_renewal()

    async def _renew_all(self) -> None:
        held = list(self._leases.items())
        for start in range(0, len(held), RENEWAL_BATCH):
            async with asyncio.TaskGroup() as renewals:
                for session_lease, lease in held[start : start + RENEWAL_BATCH]:
                    renewals.create_task(self._renew_lease(session_lease, lease))

    async def _renew_lease(self, session_lease: "SessionLease", lease: Lease) -> None:
        """Renews one lease, unless it was removed since the renewal started: a released lease must not be renewed."""
        if session_lease not in self._leases:
            return
        try:
            await session_lease.renew_lease(lease)
        except Exception:  # noqa: BLE001  an error with one lease must not stop the renewal of the others
            _log.exception("the lease of session %s could not be renewed", lease.session_id)


class SessionLease:
    """Writes to one session with its lease, or without a token if there is none.

    When another owner acquires the session, `is_lost` is set and `on_lost` is called. Each renewal also calls `retry`,
    which repeats writes that failed because the disk was full.
    """

    def __init__(
        self,
        session_id: str,
        store: Store,
        bus: EventBus,
        retry: Callable[[], Awaitable[object]],
        held: tuple[LeaseOwner, Lease] | None = None,
    ) -> None:
        self.is_lost = False
        self.on_lost: Callable[[], object] | None = None
        self._session_id = session_id
        self._store = store
        self._bus = bus
        self._retry: Callable[[], Awaitable[object]] | None = retry  # until the renewal stops
        self._owner, self._lease = held or (None, None)
        self._renewal: asyncio.Task[object] | None = None
        if held is not None:
            held[0].add_lease(self, held[1])

    async def append(
        self, values: Sequence[StoredValue], takes: Sequence[str] = (), *, draft: bool = False, synced: bool = True
    ) -> int:
        token = self._lease.token if self._lease else None
        try:
            return await self._store.append(
                self._session_id, values, token=token, draft=draft, synced=synced, takes=takes
            )
        except LeaseLostError as error:
            self.mark_lost(error)
            raise
        except StorageFullError as error:
            self._publish_error(error)
            raise

    def mark_lost(self, error: LeaseLostError) -> None:
        """Records and publishes the loss of the lease once.

        `on_lost` runs in the next loop iteration, so the write that detected the loss raises LeaseLostError first.
        """
        if not self.is_lost:
            self.is_lost = True
            self._detach()
            self._publish_error(error)
            asyncio.get_running_loop().call_soon(self._notify_lost)

    async def stop_renewal(self) -> None:
        """Stops the renewal and waits for a running renewal, which must not renew a lease after its release."""
        self._detach()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        self._retry = None  # the journal refers to this lease: a reference cycle would delay freeing its memory

    async def release_lease(self) -> None:
        if self._lease is not None and not self.is_lost:
            await self._store.release(self._lease)

    async def renew_lease(self, lease: Lease) -> None:
        self._renewal = asyncio.current_task()
        try:
            await self._store.renew(lease)
            if self._retry is not None:
                await self._retry()
        except LeaseLostError as error:
            self.mark_lost(error)
        except StoreError:
            return  # the store is full or busy; the next renewal detects a takeover by its token
        finally:
            self._renewal = None

    def _detach(self) -> None:
        if self._owner is not None:
            self._owner.remove_lease(self)

    def _publish_error(self, error: OutriderError) -> None:
        self._bus.publish(
            ErrorEvent(error_type=type(error).__name__, message=error.message, session_id=self._session_id)
        )

    def _notify_lost(self) -> None:
        if self.on_lost is not None:
            self.on_lost()


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_EXITED = -1


def current_process() -> ProcessIdentity:
    """Returns the identity of this process with a new id: two stores in one process are two lease owners."""
    return msgspec.structs.replace(_process_identity(os.getpid()), id=new_id())


def boot_clock_ms() -> int:
    """Returns milliseconds since boot: equal for all processes of the machine, unaffected by clock changes."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def is_process_alive(owner: ProcessIdentity) -> bool | None:
    """Returns whether a process is alive; None if unknown: on another machine or in another PID namespace."""
    this_process = _process_identity(os.getpid())
    if owner.host != this_process.host:
        return None
    if owner.boot != this_process.boot:
        return False
    if owner.namespace != this_process.namespace:
        return None
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return owner.started in (0, _start_ticks(owner.pid))


def is_same_machine(owner: ProcessIdentity) -> bool:
    this_process = _process_identity(os.getpid())
    return (owner.host, owner.boot) == (this_process.host, this_process.boot)


def has_ended_here(owner: ProcessIdentity) -> bool:
    """Returns whether a process of this machine has ended. Machines with the same name have different boot ids, so the
    result is False for a process of another machine, which may be alive."""
    return bool(owner.boot) and is_same_machine(owner) and is_process_alive(owner) is False


@lru_cache(maxsize=1)
def _process_identity(pid: int) -> ProcessIdentity:
    namespace = Path("/proc/self/ns/pid")
    return ProcessIdentity(
        id="",
        host=socket.gethostname(),
        pid=pid,
        boot=_read_proc("/proc/sys/kernel/random/boot_id"),
        started=_start_ticks(pid),
        namespace=str(namespace.readlink()) if namespace.is_symlink() else "",
    )


def _start_ticks(pid: int) -> int:
    """Returns the start time of a process in clock ticks since boot, which detects a reused PID; 0 if unknown.

    A zombie is treated as exited: in a container without an init process it may stay a zombie forever.
    """
    fields = _read_proc(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if fields[:1] in (["Z"], ["X"]):
        return _EXITED
    return int(fields[19]) if len(fields) > 19 else 0


def _read_proc(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
