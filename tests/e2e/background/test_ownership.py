"""A worker that was paused after it lost its lease changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Engine, Tool
from outrider.background.database import RunDatabase
from outrider.background.executor import RunExecutor, iterate_session_tree
from outrider.background.jobs import open_job_client
from outrider.background.records import JobSpec
from outrider.background.reports import ReportTable
from outrider.background.worktrees import RunWorkspace
from outrider.sessions.records import SessionUpdate
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.parts import ToolPart, ToolResultPart
from outrider.types.request import Request
from tests.scenario.scripted_runs import agent, call, scripted

JOB = JobSpec(prompt="work", queue="runs")
SECONDS = 60


def answer(request: Request) -> Any:
    given = sum(isinstance(part, ToolResultPart) for message in request.prompt for part in message.content)
    return call("step", f"c{given}") if given < 2 else "done"


class Two:
    """Two workers in one process, one of which has the run."""

    def __init__(self, folder: Path) -> None:
        self.database = RunDatabase(f"sqlite:///{folder / 'runs.sqlite'}")
        self.store = SqliteStore(folder / "sessions.db")
        self.started = asyncio.Event()
        self.taken_over = asyncio.Event()
        self.calls = 0

    async def step(self) -> str:
        """The first one ends when the session is another's."""
        self.calls += 1
        self.started.set()
        if self.calls == 1:
            await self.taken_over.wait()
        return "stepped"

    @asynccontextmanager
    async def carrier(self, *, owns: bool) -> AsyncIterator[RunExecutor]:
        async def deny(_: str) -> bool:
            return owns

        async with Engine([agent()], [scripted(answer)], [Tool(self.step)], store=self.store) as engine:
            yield RunExecutor(engine, RunWorkspace(engine.store), ReportTable(self.database), deny)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    made = Two(tmp_path)
    async with made.store:
        yield made
    made.database.close()


async def submitted(two: Two) -> str:
    async with open_job_client(two.database, two.store) as jobs:
        return (await jobs.submit_run(JOB.prompt)).id


async def test_whose_run_it_is_not_any_more_leaves_its_session_alone(two: Two):
    run_id = await submitted(two)
    async with two.carrier(owns=False) as late:
        assert (await late.execute_run(run_id, JOB)).reason == "aborted"
    assert two.calls == 0
    assert len(await two.store.inbox(run_id)) == 1


async def test_whose_run_it_is_takes_its_session_back_from_one_that_came_too_late(two: Two):
    run_id = await submitted(two)
    async with two.carrier(owns=True) as owner:
        carried = asyncio.create_task(owner.execute_run(run_id, JOB))
        await asyncio.wait_for(two.started.wait(), SECONDS)
        async with Engine([agent()], [scripted(["never"])], store=two.store) as late:
            await late.open(run_id, take_over=True)
            two.taken_over.set()
            outcome = await asyncio.wait_for(carried, SECONDS)
    assert (outcome.reason, outcome.output) == ("completed", "done")
    calls = [call.state for m in (await two.store.load(run_id)).messages for call in m.parts if hasattr(call, "state")]
    assert [getattr(state, "reason", state.status) for state in calls] == ["interrupted", "completed"]


async def test_a_run_that_cannot_be_opened_where_it_continues_ends_with_all_that_was_open_in_it(two: Two):
    run_id = await submitted(two)
    async with Engine([agent()], [scripted(answer)], [Tool(two.step)], store=two.store) as killed:
        turn = asyncio.create_task(killed.resume(run_id, take_over=True))
        await asyncio.wait_for(two.started.wait(), SECONDS)
        await two.store.update(run_id, SessionUpdate(workspace_directory="/nowhere/to/be/found"))
        async with two.carrier(owns=True) as other:
            outcome = await other.execute_run(run_id, JOB)
        (left,) = [part for m in (await two.store.load(run_id)).messages for part in m.get_parts_by_type(ToolPart)]
        turn.cancel()
        await asyncio.wait([turn])
    assert (outcome.reason, "does not exist on this machine" in outcome.error) == ("error", True)
    assert getattr(left.state, "reason", "") == "interrupted"


async def test_an_agent_that_was_called_by_one_that_came_too_late_writes_nothing_either(two: Two):
    """Its call was ended, as interrupted, by the worker that took the run over; what it did since is discarded."""

    def asks(request: Request) -> Any:
        parts = [part for message in request.prompt for part in message.content]
        if any(isinstance(part, ToolResultPart) for part in parts):
            return "done"
        if any("look" in getattr(part, "text", "") for part in parts):
            return call("step", "below")
        return call("call_agent", "above", agent_name="reviewer", message="look")

    agents = [agent(), agent("reviewer", "You review.")]
    run_id = await submitted(two)
    async with Engine(agents, [scripted(asks)], [Tool(two.step)], store=two.store) as paused:
        turn = asyncio.create_task(paused.resume(run_id, take_over=True))
        await asyncio.wait_for(two.started.wait(), SECONDS)
        async with Engine(agents, [scripted(asks)], [Tool(two.step)], store=two.store) as owner:
            end = await asyncio.wait_for(owner.resume(run_id, take_over=True), SECONDS)
            _, child = [session_id async for session_id in iterate_session_tree(two.store, run_id)]
            before = [change async for change in two.store.changes(child, follow=False)]
            two.taken_over.set()
            await asyncio.wait_for(asyncio.wait([turn]), SECONDS)
            after = [change async for change in two.store.changes(child, follow=False)]
    assert end.output == "done"
    assert after == before
    (ended,) = [part for m in (await two.store.load(child)).messages for part in m.get_parts_by_type(ToolPart)]
    assert getattr(ended.state, "reason", "") == "interrupted"
    assert turn.cancelled() or turn.exception() or turn.result().reason != "completed"
