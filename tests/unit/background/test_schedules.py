"""`ScheduleTable`: due times of cron expressions, one run for missed times, pause and resume, one worker per run."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from outrider.background.database import RunDatabase
from outrider.background.jobs import QueuePlacement, open_job_client
from outrider.background.queue import RunQueue
from outrider.background.schedules import ScheduleTable, next_due_time
from outrider.errors import ConfigurationError, SessionNotFoundError
from outrider.presentation.formats import short_id
from outrider.sessions.memory_store import MemoryStore
from outrider.types.ids import is_id, now_ms

HOUR = 3600 * 1000


def at(text: str, zone: str = "Europe/Berlin") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("0 7 * * *", "2026-11-15T06:59:59", "2026-11-15T07:00"),
        ("0 7 * * *", "2026-11-15T07:00:00", "2026-11-16T07:00"),
        ("30 6 * * 1-5", "2026-11-13T06:30:00", "2026-11-16T06:30"),
        ("0 7 * * *", "2026-03-28T07:00:00", "2026-03-29T07:00"),  # the clocks are put forward in between
        ("0 7 * * *", "2026-10-24T07:00:00", "2026-10-25T07:00"),
    ],
)
def test_a_schedule_means_the_clock_on_the_wall(cron: str, after: str, expected: str):
    assert next_due_time(cron, "Europe/Berlin", at(after)) == at(expected)


def list_due_times(cron: str, after: str, count: int) -> list[str]:
    zone, due, found = ZoneInfo("Europe/Berlin"), at(after), []
    for _ in range(count):
        due = next_due_time(cron, "Europe/Berlin", due)
        found.append(datetime.fromtimestamp(due / 1000, zone).isoformat(timespec="minutes"))
    return found


def test_a_clock_time_that_repeats_in_autumn_is_due_once():
    assert list_due_times("30 2 * * *", "2026-10-24T12:00", 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    assert list_due_times("*/20 2 * * *", "2026-10-25T02:30", 2) == ["2026-10-25T02:40+02:00", "2026-10-26T02:00+01:00"]
    assert list_due_times("0 1-3 * * *", "2026-10-25T00:30", 3) == [
        "2026-10-25T01:00+02:00",
        "2026-10-25T02:00+02:00",
        "2026-10-25T03:00+01:00",
    ]


def test_an_hourly_schedule_is_due_every_hour_also_in_autumn():
    times = ["2026-10-25T02:15+02:00", "2026-10-25T02:15+01:00", "2026-10-25T03:15+01:00"]
    for hours in ("*", "*/1"):
        assert list_due_times(f"15 {hours} * * *", "2026-10-25T01:30", 3) == times


def test_a_clock_time_that_spring_skips_is_due_once():
    found = list_due_times("30 2 * * *", "2026-03-28T12:00", 2)
    assert found == ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]


@pytest.mark.parametrize("cron", ["", "tomorrow", "61 * * * *", "* * * *", "* * * * * *"])
def test_an_invalid_cron_expression_is_rejected(cron: str):
    with pytest.raises(ConfigurationError, match="is not a cron line"):
        next_due_time(cron, "UTC", 0)


def test_an_unknown_time_zone_is_refused():
    with pytest.raises(ConfigurationError, match="unknown time zone"):
        next_due_time("0 7 * * *", "Nowhere/Else", 0)


@pytest.fixture
def schedules(tmp_path: Path) -> Iterator[ScheduleTable]:
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.migrate()
    yield ScheduleTable(database)
    database.close()


def test_what_was_missed_is_due_once_and_then_at_its_next_time(schedules: ScheduleTable):
    made = schedules.add_schedule("0 * * * *", "UTC", "look", {"workspace": "/somewhere"})
    assert schedules.list_schedules(due=made.due - 1) == []
    later = made.due + 50 * HOUR
    (due,) = schedules.list_schedules(due=later)
    assert due == made
    assert is_id(due.run_id())
    assert due.run_id() == made.run_id()
    schedules.advance_due(due, later)
    assert schedules.list_schedules(due=later) == []
    (again,) = schedules.list_schedules()
    assert again.due == later + HOUR
    assert again.run_id() != due.run_id()
    schedules.advance_due(due, later + 70 * HOUR)  # another worker that found the same moment due, and was slow
    assert schedules.list_schedules() == [again]
    schedules.remove_schedule(made.id)
    assert schedules.list_schedules() == []
    assert made.due > now_ms()


async def test_runs_have_the_approval_level_of_their_schedule(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        made = await jobs.add_schedule("0 * * * *", "look", timezone="UTC", approval="edits", mode="agent")
        ScheduleTable(database).advance_due(made, made.due - 50 * HOUR)  # as if it had been due long ago
        await jobs.submit_due()
        (run,) = await jobs.list_runs()
        assert (await jobs.store.get(run.id)).approval == "edits"
    database.close()


def execute(database: RunDatabase, statement: str, **values: Any) -> None:
    with database.engine.begin() as db:
        db.execute(sa.text(statement), values)


async def test_an_entry_that_cannot_be_processed_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        made = [await jobs.add_schedule("0 * * * *", prompt, timezone="UTC") for prompt in ("first", "second", "third")]
        for number, schedule in enumerate(made):
            ScheduleTable(database).advance_due(schedule, schedule.due - (50 - number) * HOUR)
        damage = "UPDATE outrider_schedules SET schedule = :text WHERE id = :id"
        execute(database, damage, text="{", id=made[0].id)
        execute(database, damage, text=msgspec.json.encode(replace(made[1], order={"limits": 1})), id=made[1].id)
        predecessor = await jobs.submit_run("predecessor")
        waiting = [await jobs.submit_run("go", place=QueuePlacement(after_run=predecessor.id)) for _ in range(2)]
        execute(database, "UPDATE outrider_entries SET after_run = '0' WHERE id = :id", id=waiting[0].id)
        await jobs.cancel_run(predecessor.id)
        await jobs.submit_due()
        assert "third" in [run.prompt for run in await jobs.list_runs()]
        entries = RunQueue(database).get_entries([run.id for run in waiting])
        assert [entries[run.id].after_run for run in waiting] == ["0", ""]
    assert [text.partition(",")[0] for text in caplog.messages] == [
        f"cannot process schedule {short_id(made[0].id)}",
        f"cannot process schedule {short_id(made[1].id)}",
        "cannot process runs that wait for run 0",
    ]
    database.close()


async def test_a_database_that_cannot_be_reached_is_no_failed_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        made = await jobs.add_schedule("0 * * * *", "look", timezone="UTC")
        ScheduleTable(database).advance_due(made, made.due - 50 * HOUR)

        async def lose_connection(*_: Any, **__: Any) -> None:
            raise sa.exc.OperationalError("SELECT", {}, Exception("the server closed the connection"))

        monkeypatch.setattr(jobs, "submit_run", lose_connection)
        with pytest.raises(sa.exc.OperationalError):
            await jobs.submit_due()
    database.close()


def test_a_paused_schedule_is_never_due_and_stays_paused_after_a_worker_that_found_it_earlier(
    schedules: ScheduleTable,
):
    made = schedules.add_schedule("0 * * * *", "UTC", "look", {})
    later = made.due + 50 * HOUR
    (found,) = schedules.list_schedules(due=later)
    paused = schedules.pause_schedule(made.id)
    schedules.advance_due(found, later)
    assert paused.paused
    assert schedules.list_schedules(due=later) == schedules.list_schedules(due=1 << 62) == []
    assert [one.paused for one in schedules.list_schedules()] == [True]


def test_a_resumed_schedule_is_due_at_its_next_time_and_not_for_missed_times(schedules: ScheduleTable):
    before = now_ms()
    made = schedules.add_schedule("* * * * *", "UTC", "look", {"workspace": "/somewhere"})
    schedules.advance_due(made, made.due - 100 * HOUR)  # as if it had been due long ago
    schedules.pause_schedule(made.id)
    resumed = schedules.resume_schedule(made.id)
    assert resumed.due > before
    assert not resumed.paused
    assert schedules.list_schedules(due=before) == []
    assert schedules.list_schedules() == [resumed]
    assert schedules.resume_schedule(made.id) == resumed, "one that is not paused stays as it is"


def test_a_schedule_of_an_earlier_version_is_read_paused_and_resumed(tmp_path: Path):
    stored = '{"id":"old","cron":"0 7 * * *","timezone":"UTC","prompt":"look","due":1700000000000,"order":{}}'
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    with database.engine.begin() as db:
        db.execute(sa.text("CREATE TABLE outrider_schedules (id TEXT PRIMARY KEY, schedule TEXT NOT NULL, due BIGINT)"))
        db.execute(sa.text("INSERT INTO outrider_schedules VALUES ('old', :kept, 1700000000000)"), {"kept": stored})
    database.migrate()
    schedules = ScheduleTable(database)
    assert [(one.due, one.paused) for one in schedules.list_schedules()] == [(1700000000000, False)]
    assert schedules.pause_schedule("old").paused
    assert schedules.resume_schedule("old").due > now_ms()
    database.close()


def test_paused_schedules_are_listed_after_the_others(schedules: ScheduleTable):
    first, second = (schedules.add_schedule(cron, "UTC", "look", {}) for cron in ("* * * * *", "0 7 1 1 *"))
    schedules.pause_schedule(first.id)
    assert [(one.id, one.paused) for one in schedules.list_schedules()] == [(second.id, False), (first.id, True)]


def test_a_deleted_schedule_can_be_neither_paused_nor_resumed(schedules: ScheduleTable):
    for ordered in (schedules.pause_schedule, schedules.resume_schedule):
        with pytest.raises(SessionNotFoundError, match="no schedule nothing"):
            ordered("nothing")
