"""Costs of users: read from the store, including sessions that other processes add and delete."""

from collections.abc import Sequence
from decimal import Decimal

import pytest

from outrider import Agent, Engine, Provider
from outrider.errors import LimitReachedError
from outrider.server.users import LISTING_MS, Requester, ServerUser, UserDirectory, UserLimits
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter, SessionPage, StoredSession
from outrider.types.messages import Message, MessageTime

NOW = 1_790_000_000_000
HOUR = 3_600_000
ANY_SESSION = SessionFilter()
ANA = ServerUser(name="ana", budget=Decimal(10))


class CountingStore(MemoryStore):
    """Counts the listed sessions; `now` is the time of its clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.listed = 0
        super().__init__(clock=lambda: self.now)

    async def list(
        self, filter: SessionFilter = ANY_SESSION, *, limit: int = 50, after: str | None = None
    ) -> SessionPage:
        page = await super().list(filter, limit=limit, after=after)
        self.listed += len(page.sessions)
        return page

    async def spend(self, session_id: str, cost: str) -> None:
        answer = Message("assistant", session_id=session_id, time=MessageTime(self.now), cost=Decimal(cost))
        await self.append(session_id, [answer])

    async def spend_in_new_sessions(self, *costs: str) -> Sequence[str]:
        created = [(await self.create(StoredSession(owner="ana"))).id for _ in costs]
        for session_id, cost in zip(created, costs, strict=True):
            await self.spend(session_id, cost)
        return created


async def test_only_sessions_that_were_active_since_the_last_check_are_listed_again():
    store, users = CountingStore(), UserDirectory()
    users.put(ANA)
    agent = Agent("writer", "You write.", "model-1", "scripted")
    async with Engine([agent], [Provider("scripted", "scripted")], store=store) as engine:
        limits, ana = UserLimits(users, engine, clock=lambda: store.now), Requester.from_user(ANA)
        created = await store.spend_in_new_sessions(*["0.10"] * 20)
        store.now += HOUR // 2
        assert await limits.check_budget(ana) == 8
        store.now += LISTING_MS // 2
        store.listed = 0
        await store.spend(created[3], "1")  # as another process does
        (added,) = await store.spend_in_new_sessions("2")
        assert await limits.check_budget(ana) == 5
        assert store.listed == 2
        await store.delete(created[3])
        await store.spend(added, "5")
        assert await limits.check_budget(ana) == Decimal("1.10"), "all are listed before input is rejected"
        store.now += LISTING_MS
        await store.spend(added, "1.10")
        with pytest.raises(LimitReachedError):
            await limits.check_budget(ana)


async def test_a_budget_of_less_than_a_cent_is_not_shown_as_zero():
    store, users = CountingStore(), UserDirectory()
    poor = ServerUser(name="ana", budget=Decimal("0.004"))
    users.put(poor)
    agent = Agent("writer", "You write.", "model-1", "scripted")
    async with Engine([agent], [Provider("scripted", "scripted")], store=store) as engine:
        await store.spend_in_new_sessions("0.0041")
        limits = UserLimits(users, engine, clock=lambda: store.now)
        with pytest.raises(LimitReachedError, match=r"limit of 0\.0040 dollars per month for ana .*\(\$0\.0041\)"):
            await limits.check_budget(Requester.from_user(poor))
