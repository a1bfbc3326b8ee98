"""A provider's bad hour delays runs and leaves the others in the queue; only errors that do not pass end them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Engine
from outrider.background.database import RunDatabase
from outrider.background.retries import ProviderMonitor, RunRetries, choose_wait
from outrider.background.worker import Worker
from outrider.config.file import BackgroundTable, RunRetryTable
from outrider.errors import AuthenticationError, NetworkError, OverloadedError, RateLimitError, StalledStreamError
from outrider.event_bus import EventBus
from outrider.sessions.memory_store import MemoryStore
from outrider.types.events import LLMRequestEvent, LLMResponseEvent, RetryScheduledEvent
from outrider.types.ids import now_ms
from tests.scenario.scripted_runs import agent, scripted

SECONDS = 30
QUICK = RunRetryTable(attempts=3, first_window=0.4, largest_window=0.4)


class FailingModel:
    """Raises the given errors first, and answers then."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.requests = 0

    def __call__(self, _: Any) -> Any:
        self.requests += 1
        return self.errors.pop(0) if self.errors else "It is done."


@asynccontextmanager
async def working(folder: Path, model: Callable[[Any], Any], retry: RunRetryTable = QUICK) -> AsyncIterator[Worker]:
    database = RunDatabase(f"sqlite:///{folder / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted(model)], store=MemoryStore()) as engine,
        Worker(engine, database, limits=BackgroundTable(retry=retry), poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        yield worker
    database.close()


@pytest.mark.slow
async def test_runs_stay_in_the_queue_while_their_provider_fails_and_all_are_done_afterwards(tmp_path: Path):
    model = FailingModel(
        OverloadedError("no capacity", provider="scripted", status=529), NetworkError("reset", provider="scripted")
    )
    async with working(tmp_path, model, RunRetryTable(first_window=5, largest_window=5)) as worker:
        jobs = worker.job_client
        first = await jobs.submit_run("0", workspace=str(tmp_path))
        while (run := await jobs.get_run(first.id)).state != "delayed":
            await asyncio.sleep(0.02)
        assert (run.waiting_for, run.outcome and run.outcome.error) == (
            "provider scripted",
            "scripted 529: no capacity",
        )
        assert list(await jobs.list_paused_providers()) == ["scripted"]
        others = [await jobs.submit_run(str(number), workspace=str(tmp_path)) for number in range(1, 6)]
        await asyncio.sleep(0.4)
        assert [(await jobs.get_run(one.id)).state for one in others] == ["queued"] * 5
        assert model.requests == 1, "the provider is left alone"
        ended = [await jobs.wait_for_run(one.id, poll=0.05) for one in (first, *others)]
        assert [run.state for run in ended] == ["done"] * 6
        assert model.requests == 8, "two errors, the second one of the only run that was tried, and six answers"
        assert await jobs.list_paused_providers() == {}


@pytest.mark.slow
async def test_a_long_retry_after_is_honoured_and_the_run_can_be_canceled_meanwhile(tmp_path: Path):
    async with working(tmp_path, FailingModel(RateLimitError("slow down", retry_after=7200.0))) as worker:
        jobs = worker.job_client
        run = await jobs.submit_run("go", workspace=str(tmp_path))
        while (run := await jobs.get_run(run.id)).state != "delayed":
            await asyncio.sleep(0.02)
        assert run.begins is not None
        assert 7190 < (run.begins - now_ms()) / 1000 < 7202
        assert await jobs.has_work(), "a resident worker stays for it"
        await jobs.cancel_run(run.id)
        while (report := await jobs.get_report(run.id)) is None:
            await asyncio.sleep(0.02)
        assert report.outcome.reason == "aborted"
        assert (await jobs.get_run(run.id)).state == "canceled"


@pytest.mark.slow
async def test_a_run_fails_with_its_reason_when_no_attempt_is_left_and_retry_resets_the_count(tmp_path: Path):
    model = FailingModel(*[OverloadedError(f"busy {number}", provider="other") for number in range(4)])
    async with working(tmp_path, model) as worker:
        jobs = worker.job_client
        run = await jobs.submit_run("go", workspace=str(tmp_path))
        run = await jobs.wait_for_run(run.id, poll=0.02)
        assert (run.state, run.outcome and run.outcome.error) == ("failed", "other: busy 2")
        assert model.requests == 3
        await jobs.retry_run(run.id)
        assert (await jobs.wait_for_run(run.id, poll=0.02)).state == "done"


@pytest.mark.slow
async def test_an_error_that_does_not_pass_ends_the_run_at_once(tmp_path: Path):
    model = FailingModel(AuthenticationError("the key is wrong", provider="scripted", status=401))
    async with working(tmp_path, model) as worker:
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        run = await worker.job_client.wait_for_run(run.id, poll=0.02)
        assert (run.state, model.requests) == ("failed", 1)
        assert await worker.job_client.list_paused_providers() == {}


def test_the_wait_doubles_up_to_its_limit_and_names_include_subclasses():
    policy = RunRetryTable(attempts=9, first_window=10, largest_window=40, errors=("NetworkError",))
    waits = [choose_wait(policy, failures, StalledStreamError("quiet")) for failures in (1, 2, 3, 8)]
    assert all(wait is not None and top / 2 <= wait <= top for wait, top in zip(waits, (10, 20, 40, 40), strict=True))
    assert choose_wait(policy, 9, NetworkError("gone")) is None
    assert choose_wait(policy, 1, OverloadedError("busy")) is None


def test_a_shorter_pause_does_not_replace_a_longer_one(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.migrate()
    retries = RunRetries(database, RunRetryTable(first_window=1), clock=lambda: 0)
    retries.plan_retry("one", RateLimitError("later", provider="far", retry_after=100.0))
    retries.plan_retry("two", OverloadedError("busy", provider="far"))
    assert retries.list_paused()["far"] >= 100_000
    retries.finish_run("run", "far")
    assert retries.list_paused() == {}
    database.close()


async def test_a_provider_is_paused_while_requests_still_repeat_and_resumed_by_its_first_answer(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    await asyncio.to_thread(database.migrate)
    retries, bus = RunRetries(database), EventBus()
    monitor = ProviderMonitor(retries, clock=lambda: 1000)
    stop = monitor.attach(bus)
    bus.publish(LLMRequestEvent(message_count=1, has_tools=False, session_id="s", provider="far"))
    for attempt in (1, 2, 3):
        assert retries.list_paused() == {}
        bus.publish(RetryScheduledEvent(attempt=attempt, delay_ms=500, error="529", session_id="s"))
    await asyncio.wait_for(monitor.store_changes(), 10)
    assert retries.list_paused() == {"far": 1500}
    bus.publish(LLMResponseEvent(stop_reason="stop", session_id="s"))
    await asyncio.wait_for(monitor.store_changes(), 10)
    assert retries.list_paused() == {}
    stop()
    database.close()
