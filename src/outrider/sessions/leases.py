"""Who holds sessions, with one beat for all of them, and what is written as long as one is held."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from outrider.errors import LeaseLostError, OutriderError, StorageFullError, StoreError
from outrider.event_bus import EventBus
from outrider.sessions.records import Kept, Lease, Owner
from outrider.sessions.store import Store
from outrider.types.events import ErrorEvent

TOGETHER = 64

_log = logging.getLogger("outrider.sessions")


class LeaseOwner:
    """Owns sessions of a store. Between two beats lies a third of the time that a lease lives; meanwhile there is a
    timer and no task, however many sessions are held."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._held: dict[SessionLease, Lease] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    async def acquire(self, session_id: str, *, take_over: bool = False) -> Lease:
        return await self._store.acquire(session_id, self._owner, take_over=take_over)

    def hold(self, holding: "SessionLease", lease: Lease) -> None:
        self._held[holding] = lease
        self._wind(lease.ttl_ms)

    def let_go(self, holding: "SessionLease") -> None:
        self._held.pop(holding, None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """One that takes long, as where the store is busy, is not followed by another at the same time."""
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._renew_all())

    def _wind(self, ttl_ms: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + ttl_ms / 3000
        if self._timer is not None and self._timer.when() <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wind(min(lease.ttl_ms for lease in self._held.values()))
        self.beat()

    async def _renew_all(self) -> None:
        held = list(self._held.items())
        for start in range(0, len(held), TOGETHER):
            await asyncio.gather(*(self._renew(holding, lease) for holding, lease in held[start : start + TOGETHER]))

    async def _renew(self, holding: "SessionLease", lease: Lease) -> None:
        """One that was let go of since the beat began is left alone: what was given back must not be taken back."""
        if holding not in self._held:
            return
        try:
            await holding.renew(lease)
        except Exception:  # noqa: BLE001  a defect here must not cost the others their leases
            _log.exception("session %s could not be held on to", lease.session_id)


class SessionLease:
    """A session as it is written: by whoever holds it, else by anybody. When somebody else has taken it over, `lost` is
    set and `when_lost` called. With each beat what could not be kept is tried again."""

    def __init__(
        self,
        session_id: str,
        store: Store,
        bus: EventBus,
        retry: Callable[[], Awaitable[object]],
        held: tuple[LeaseOwner, Lease] | None = None,
    ) -> None:
        self.lost = asyncio.Event()
        self.when_lost: Callable[[], object] | None = None
        self._session_id = session_id
        self._store = store
        self._bus = bus
        self._retry = retry
        self._holder, self._lease = held or (None, None)
        self._renewal: asyncio.Task[object] | None = None
        if held is not None:
            held[0].hold(self, held[1])

    async def append(
        self, values: Sequence[Kept], takes: Sequence[str] = (), *, draft: bool = False, synced: bool = True
    ) -> int:
        token = self._lease.token if self._lease else None
        try:
            return await self._store.append(
                self._session_id, values, token=token, draft=draft, synced=synced, takes=takes
            )
        except LeaseLostError:
            self.lose()
            raise
        except StorageFullError as error:
            self._tell(error)
            raise

    def lose(self) -> None:
        """Whoever found it out says so first; later ones, who find it out while they end, are not disturbed."""
        if not self.lost.is_set():
            self.lost.set()
            self._let_go()
            asyncio.get_running_loop().call_soon(self._stop)

    async def stop(self) -> None:
        """No beat comes after this: it would take back what is given back."""
        self._let_go()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])

    async def give_back(self) -> None:
        if self._lease is not None and not self.lost.is_set():
            await self._store.release(self._lease)

    async def renew(self, lease: Lease) -> None:
        self._renewal = asyncio.current_task()
        try:
            await self._store.renew(lease)
            await self._retry()
        except LeaseLostError as error:
            self.lose()
            self._tell(error)
        except StoreError:
            return  # the store is full or busy: nobody else can have taken the lease meanwhile without a trace
        finally:
            self._renewal = None

    def _let_go(self) -> None:
        if self._holder is not None:
            self._holder.let_go(self)

    def _tell(self, error: OutriderError) -> None:
        self._bus.publish(
            ErrorEvent(error_type=type(error).__name__, message=error.message, session_id=self._session_id)
        )

    def _stop(self) -> None:
        if self.when_lost is not None:
            self.when_lost()
