"""A run is seen from anywhere, in order, and from where one was after a break."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from msgspec.structs import replace
from sqlalchemy.exc import OperationalError

from outrider.background.follow import RunChangeReader, follow_run
from outrider.background.records import Run, RunOutcome
from outrider.errors import StoreUnavailableError
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionChange, SessionUpdate, StoredSession


class BreakingStore:
    """Returns three changes, and is unreachable in between."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def changes(
        self, session_id: str, *, after: int = 0, follow: bool = True
    ) -> AsyncGenerator[SessionChange, None]:
        self.asked.append(after)
        for seq in range(after + 1, 4):
            if seq == 3 and len(self.asked) == 1:
                raise StoreUnavailableError("gone for a moment")
            yield SessionChange(seq, StoredSession(id=session_id))


class FewJobs:
    """A run that is over once all was read."""

    def __init__(self, store: BreakingStore) -> None:
        self.store = store

    async def get_run(self, run_id: str) -> Run:
        over = len(self.store.asked) > 1
        outcome = RunOutcome(reason="completed") if over else None
        return Run(id=run_id, state="done" if over else "running", prompt="x", queue="runs", outcome=outcome)


async def test_a_store_that_cannot_be_reached_for_a_moment_is_read_on_from_where_one_was():
    store = BreakingStore()
    jobs: Any = FewJobs(store)
    news = [new async for new in follow_run(jobs, "one", poll=0.01)]
    assert [new.seq for new in news if isinstance(new, SessionChange)] == [1, 2, 3]
    assert [new.state for new in news if isinstance(new, Run)] == ["running", "done"]
    assert store.asked[:2] == [0, 2]


async def test_a_reconnected_client_sees_only_what_is_newer():
    store = BreakingStore()
    store.asked.append(0)
    jobs: Any = FewJobs(store)
    assert [new.seq async for new in follow_run(jobs, "one", after=2) if isinstance(new, SessionChange)] == [3]


@pytest.mark.parametrize("rounds", range(12))
async def test_to_leave_at_the_moment_at_which_a_change_comes_is_to_leave(rounds: int):
    store = MemoryStore()
    session = await store.create(StoredSession())
    async with RunChangeReader(store, session.id, after=1) as reader:
        asking = asyncio.create_task(reader.next_change(30))
        await asyncio.sleep(0.01)
        await store.update(session.id, SessionUpdate(title="new"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        if asking.cancel():
            with pytest.raises(asyncio.CancelledError):
                await asking
        else:
            assert await asking is not None


class AwayJobs(FewJobs):
    """Its database cannot be reached for two polls."""

    polls = 0

    async def get_run(self, run_id: str) -> Run:
        self.polls += 1
        if self.polls in (2, 3):
            raise OperationalError("SELECT 1", None, ConnectionError("the server is away"))
        run = await super().get_run(run_id)
        return run if self.polls > 4 else replace(run, state="running", outcome=None)


async def test_an_outage_of_the_database_is_shown_and_does_not_end_the_following():
    jobs: Any = AwayJobs(BreakingStore())
    news = [new async for new in follow_run(jobs, "one", poll=0.01)]
    shown = [(new.state, new.waiting_for) for new in news if isinstance(new, Run)]
    assert shown == [("running", ""), ("running", "database"), ("running", ""), ("done", "")]
