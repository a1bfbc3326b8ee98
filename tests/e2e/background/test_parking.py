"""A run whose agents wait for an answer holds no worker: it is left, and continues in the same sessions afterwards."""

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
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.records import FINAL_STATES, JobSpec
from outrider.background.reports import ReportTable
from outrider.background.worktrees import RunWorkspace
from outrider.providers.scripted import call
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.parts import ToolPart, ToolResultPart
from outrider.types.request import Request
from tests.e2e.background.worker_group import Watched, watched
from tests.fixtures.postgres import fresh_database
from tests.scenario.scripted_runs import agent, scripted

SECONDS = 60
JOB = JobSpec(prompt="ask the reviewer", queue="runs")


def answer(request: Request) -> Any:
    """The writer calls the reviewer, which makes two calls that need approvals."""
    parts = [part for message in request.prompt for part in message.content]
    given = sum(isinstance(part, ToolResultPart) for part in parts)
    if not any(JOB.prompt in getattr(part, "text", "") for part in parts):
        return call("risky", f"risk-{given}", name=f"r{given}") if given < 2 else "It is fine."
    return call("call_agent", "call-1", agent_name="reviewer", message="look") if not given else "All is done."


@asynccontextmanager
async def worker(folder: Path, effects: list[str]) -> AsyncIterator[tuple[RunExecutor, JobClient]]:
    """As one process would carry runs, without the durable engine around it."""

    def risky(name: str) -> str:
        effects.append(name)
        return "done"

    agents = [agent(), agent("reviewer", "You review.")]
    database = RunDatabase(f"sqlite:///{folder / 'runs.sqlite'}")
    async with (
        SqliteStore(folder / "sessions.db") as store,
        Engine(agents, [scripted(answer)], [Tool(risky, policy="ask")], store=store) as engine,
        open_job_client(database, engine.store) as jobs,
    ):
        yield RunExecutor(engine, RunWorkspace(engine.store), ReportTable(database)), jobs
    database.close()


async def test_the_question_of_an_agent_that_was_called_parks_the_run_and_its_answer_lets_it_continue(tmp_path: Path):
    effects: list[str] = []
    async with worker(tmp_path, effects) as (_, jobs):
        run = await jobs.submit_run(JOB.prompt, mode="agent")
    for number in range(2):
        async with worker(tmp_path, effects) as (carrier, jobs):
            outcome = await asyncio.wait_for(carrier.execute_run(run.id, JOB), SECONDS)
            assert (outcome.reason, carrier.open_runs) == ("waiting", {})
            (question,) = await jobs.open_approvals(run.id)
            assert (question.session_id != run.id, question.input) == (True, {"name": f"r{number}"})
            await jobs.answer_approval(question.id, by="the test")
        assert len(effects) == number
    async with worker(tmp_path, effects) as (carrier, jobs):
        outcome = await asyncio.wait_for(carrier.execute_run(run.id, JOB), SECONDS)
        assert (outcome.reason, outcome.output) == ("completed", "All is done.")
        sessions = [session_id async for session_id in iterate_session_tree(jobs.store, run.id)]
        loaded = [(await jobs.store.load(session_id)).messages for session_id in sessions]
    assert effects == ["r0", "r1"]
    assert len(sessions) == 2
    calls = [[part for message in messages for part in message.get_parts_by_type(ToolPart)] for messages in loaded]
    assert [[one.state.status for one in session] for session in calls] == [["completed"], ["completed"] * 2]


async def continues_in_another_worker(here: Watched) -> None:
    """The question is asked in one process, answered in this one, and the run continues in a third."""
    first, _ = here.workers.start()
    run = await here.submit("1 steps of delegate")
    run = await asyncio.wait_for(here.jobs.wait_for_run(run.id, poll=0.1), SECONDS)
    assert run.state == "waiting", run.outcome
    here.workers.kill(first)
    (question,) = await here.jobs.open_approvals(run.id)
    assert (question.session_id != run.id, question.input) == (True, {"name": "ask-1"})
    await here.jobs.answer_approval(question.id, by="the test")
    _, second = here.workers.start()
    async with asyncio.timeout(SECONDS):
        while run.state not in FINAL_STATES:
            await asyncio.sleep(0.1)
            run = await here.jobs.get_run(run.id)
    assert (run.state, run.worker) == ("done", second), run.outcome
    assert here.workers.count_effects() == {"ask-0": 1, "ask-1": 1}
    sessions = [session_id async for session_id in iterate_session_tree(here.store, run.id)]
    states = [[call.state.status for call in await here.calls(session_id)] for session_id in sessions]
    assert states == [["completed"], ["completed", "completed"]]


async def test_a_called_agent_s_question_is_answered_in_one_process_and_the_run_continues_in_another(tmp_path: Path):
    async with watched(tmp_path) as here:
        await continues_in_another_worker(here)


async def test_a_called_agent_s_question_is_answered_on_one_machine_and_the_run_continues_on_another(
    tmp_path: Path, postgres_url: str
):
    async with watched(tmp_path, fresh_database(postgres_url)) as there:
        await continues_in_another_worker(there)
