"""`RunQueue` in SQLite and Postgres: capacity of workers, turns of users, limits of queues and providers."""

from collections.abc import AsyncIterator, Iterator

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient, QueuePlacement, open_job_client
from outrider.background.queue import RunQueue
from outrider.background.records import JobOverrides
from outrider.config.file import BackgroundTable, BoundsTable
from outrider.sessions.memory_store import MemoryStore
from tests.fixtures.postgres import ON_POSTGRES, fresh_database, postgres_url

__all__ = ["postgres_url"]

PROVIDERS = {"": "one", "other": "two"}


class Stand:
    """A client that submits runs, and workers that only dequeue them."""

    def __init__(self, database: RunDatabase, jobs: JobClient) -> None:
        self.database = database
        self.jobs = jobs
        self.line = RunQueue(database)
        self.names: dict[str, str] = {}

    async def submit(self, name: str, *, agent: str = "", **place: object) -> None:
        run = await self.jobs.submit_run(name, agent=agent, place=QueuePlacement(**place))  # pyright: ignore[reportArgumentType]
        self.names[run.id] = name

    def take(self, worker: str = "w", **terms: object) -> list[str]:
        runs = self.line.dequeue_runs(worker, BackgroundTable(**terms), lambda agent: PROVIDERS[agent])  # pyright: ignore
        return [self.names[run_id] for run_id in runs]

    def end(self, name: str) -> None:
        (run_id,) = (run_id for run_id, known in self.names.items() if known == name)
        with self.database.engine.begin() as db:
            statement = f"UPDATE {self.database.table_prefix}entries SET state = 'released' WHERE id = :id"
            db.execute(sa.text(statement), {"id": run_id})


@pytest.fixture(scope="module", params=["sqlite", ON_POSTGRES])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDatabase]:
    """Made once, since the durable engine has many tables."""
    if request.param == "postgres":
        opened = RunDatabase(fresh_database(request.getfixturevalue("postgres_url")))
    else:
        opened = RunDatabase(f"sqlite:///{tmp_path_factory.mktemp('line') / 'runs.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
async def stand(database: RunDatabase) -> AsyncIterator[Stand]:
    async with open_job_client(database, MemoryStore()) as jobs:
        with database.engine.begin() as db:
            for table in ("entries", "line", "turns"):
                db.execute(sa.text(f"DELETE FROM {database.table_prefix}{table}"))
        yield Stand(database, jobs)


async def test_workers_take_what_they_have_room_for_and_users_take_turns(stand: Stand):
    for number in range(12):
        await stand.submit(f"a{number}", user="ann")
    for number in range(2):
        await stand.submit(f"b{number}", user="bob")
    assert stand.take("w1", runs=3) == ["a0", "b0", "a1"]
    assert stand.take("w1", runs=3) == []
    assert stand.take("w2", runs=2) == ["b1", "a2"]
    stand.end("a0")
    assert stand.take("w1", runs=3) == ["a3"]


async def test_users_take_turns_for_a_single_slot(stand: Stand):
    for user in ("ann", "bob"):
        for number in range(3):
            await stand.submit(f"{user}{number}", user=user)
    started = list[str]()
    for _ in range(6):
        started += stand.take(runs=1)
        stand.end(started[-1])
    assert started == ["ann0", "bob0", "ann1", "bob1", "ann2", "bob2"]


async def test_a_queue_and_a_provider_have_no_more_at_once_than_their_bounds_over_all_workers(stand: Stand):
    for number in range(4):
        await stand.submit(f"one{number}")
        await stand.submit(f"two{number}", agent="other", queue="night")
    terms = {"queues": {"night": BoundsTable(at_once=3)}, "providers": {"one": BoundsTable(at_once=2)}}
    dequeued = [stand.take(worker, runs=4, **terms) for worker in ("w1", "w2")]
    assert sorted(dequeued[0] + dequeued[1]) == ["one0", "one1", "two0", "two1", "two2"]
    stand.end("one1")
    assert stand.take("w3", **terms) == ["one2"]


@pytest.mark.parametrize("kind", ["queues", "providers"])
async def test_no_more_start_in_a_time_than_the_limit_allows_also_when_they_have_ended(stand: Stand, kind: str):
    for number in range(4):
        await stand.submit(f"r{number}")
    terms = {kind: {"runs" if kind == "queues" else "one": BoundsTable(starts=2, seconds=3600)}}
    assert stand.take(**terms) == ["r0", "r1"]
    stand.end("r0")
    stand.end("r1")
    assert stand.take(**terms) == []
    assert stand.take(**{kind: {"runs" if kind == "queues" else "one": BoundsTable(starts=3, seconds=3600)}}) == ["r2"]


async def test_a_run_that_was_dequeued_and_never_started_has_its_old_position(stand: Stand):
    for number in range(3):
        await stand.submit(f"r{number}")
    assert stand.take("dead", runs=2) == ["r0", "r1"]
    assert stand.line.list_workers() == {"dead"}
    for entry in stand.line.list_assigned("dead"):
        assert stand.line.requeue_run(entry.id, "dead")
        assert not stand.line.requeue_run(entry.id, "dead"), "only one process succeeds"
    assert stand.line.list_workers() == set()
    assert stand.take("w", runs=3) == ["r0", "r1", "r2"]


async def test_a_run_is_counted_for_the_provider_that_its_job_names(stand: Stand):
    for model in ("two/large", ""):
        run = await stand.jobs.submit_run(model, terms=JobOverrides(model=model))
        stand.names[run.id] = model or "usual"
    assert stand.take(runs=4, providers={"two": BoundsTable(at_once=1)}) == ["two/large", "usual"]
    await stand.jobs.submit_run("next", terms=JobOverrides(model="two/large"))
    assert stand.take("other", runs=4, providers={"two": BoundsTable(at_once=1)}) == []


async def test_runs_that_wait_for_others_take_no_place(stand: Stand):
    await stand.submit("first")
    await stand.submit("second", after_run=next(iter(stand.names)))
    await stand.submit("third")
    assert stand.take(queues={"runs": BoundsTable(at_once=2)}) == ["first", "third"]


async def test_a_canceled_run_leaves_the_queue(stand: Stand):
    await stand.submit("r0")
    await stand.submit("r1")
    await stand.jobs.cancel_run(next(iter(stand.names)))
    assert stand.take() == ["r1"]
