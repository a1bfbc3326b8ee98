"""A worker that continues a run has only what earlier workers left of its limits."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Engine, Limits
from outrider.background.database import RunDatabase
from outrider.background.executor import RunExecutor
from outrider.background.jobs import open_job_client
from outrider.background.records import JobSpec
from outrider.background.reports import ReportTable
from outrider.background.worktrees import RunWorkspace
from outrider.sessions.memory_store import MemoryStore
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart, Tokens, ToolPart
from outrider.types.tool_state import ToolPending
from tests.scenario.scripted_runs import agent, scripted

SECONDS = 60


def earlier_life(run_id: str) -> list[Message]:
    """One answer and one call of ten seconds, after which a worker died."""
    asked = Message("user", [], session_id=run_id, time=MessageTime(0))
    asked.add_part(TextPart("go"))
    answered = Message(
        "assistant",
        [],
        session_id=run_id,
        time=MessageTime(0, 1000),
        tokens=Tokens(input=900, output=100),
        cost=Decimal("0.5"),
        finish="tool_use",
    )
    call = ToolPending().ready({}).start(at=1000).complete("yes", at=11_000)
    answered.add_part(ToolPart("call-1", "effect", call))
    return [asked, answered]


@pytest.mark.parametrize(
    ("limits", "reason", "asked"),
    [
        ({"turns": 1}, "limit", 0),
        ({"seconds": 11.0}, "limit", 0),
        ({"tokens": 1200}, "limit", 0),
        ({"cost": Decimal("0.5")}, "limit", 0),
        ({"turns": 2, "seconds": 600.0, "tokens": 50_000}, "completed", 1),
    ],
)
async def test_limits_hold_over_all_workers_of_a_run(tmp_path: Path, limits: dict[str, Any], reason: str, asked: int):
    requests: list[Any] = []

    def answer(request: Any) -> str:
        requests.append(request)
        return "Done."

    database, store = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}"), MemoryStore()
    job = JobSpec(prompt="go", queue="runs", limits=Limits(**limits))
    async with (
        Engine([agent()], [scripted(answer)], store=store) as engine,
        open_job_client(database, engine.store) as jobs,
    ):
        run = await jobs.submit_run(job.prompt, limits=job.limits)
        (given,) = await store.inbox(run.id)
        await store.append(run.id, earlier_life(run.id), takes=[given.id])
        outcome = await asyncio.wait_for(
            RunExecutor(engine, RunWorkspace(store), ReportTable(database)).execute_run(run.id, job), SECONDS
        )
        report = await jobs.get_report(run.id)
    database.close()
    assert (outcome.reason, len(requests)) == (reason, asked)
    assert report is not None
    assert report.outcome == outcome
    assert outcome.seconds >= 11
