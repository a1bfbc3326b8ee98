"""Holds a session for its owner, beat by beat."""

import asyncio
from collections.abc import Awaitable, Callable

from outrider.errors import LeaseLostError, StoreError
from outrider.sessions.records import Lease
from outrider.sessions.store import Store


class Holding:
    """Until somebody else has taken the session over: then `lost` is set, and `when_lost` called. With each beat what
    could not be kept is tried again."""

    def __init__(self, lease: Lease | None, store: Store, retry: Callable[[], Awaitable[object]]) -> None:
        self.lease = lease
        self.lost = asyncio.Event()
        self.when_lost: Callable[[], object] | None = None
        self._store = store
        self._retry = retry
        self._pulse: asyncio.Task[None] | None = None

    def begin(self, tell: Callable[[LeaseLostError], None]) -> None:
        if self.lease is not None:
            self._pulse = asyncio.create_task(self._beat(self.lease, tell))

    def lose(self) -> None:
        """Whoever found it out says so first; later ones, who find it out while they end, are not disturbed."""
        if not self.lost.is_set():
            self.lost.set()
            asyncio.get_running_loop().call_soon(self._stop)

    def _stop(self) -> None:
        if self.when_lost is not None:
            self.when_lost()

    async def end(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.wait([self._pulse])

    async def _beat(self, lease: Lease, tell: Callable[[LeaseLostError], None]) -> None:
        while True:
            await asyncio.sleep(lease.ttl_ms / 3000)
            try:
                await self._store.renew(lease)
                await self._retry()
            except LeaseLostError as error:
                self.lose()
                tell(error)
                return
            except StoreError:
                continue  # the store is full or busy: nobody else can have taken the lease meanwhile without a trace
