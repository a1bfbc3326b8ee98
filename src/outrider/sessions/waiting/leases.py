"""Holds a session for its owner, beat by beat."""

import asyncio
from collections.abc import Awaitable, Callable

from outrider.errors import LeaseLostError, StoreError
from outrider.sessions.records import Lease
from outrider.sessions.store import Store


async def hold(
    lease: Lease, store: Store, retry: Callable[[], Awaitable[object]], lose: Callable[[LeaseLostError], None]
) -> None:
    """Until somebody else has taken it over. With each beat what could not be kept is tried again."""
    while True:
        await asyncio.sleep(lease.ttl_ms / 3000)
        try:
            await store.renew(lease)
            await retry()
        except LeaseLostError as error:
            lose(error)
            return
        except StoreError:
            continue  # the store is full or busy: nobody else can have taken the lease meanwhile without a trace
