"""Schedules tell when they are due, catch up once, and are submitted by one worker only."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import Database
from outrider.background.times.schedules import Schedules, next_time
from outrider.errors import ConfigurationError
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
    assert next_time(cron, "Europe/Berlin", at(after)) == at(expected)


@pytest.mark.parametrize("cron", ["", "tomorrow", "61 * * * *", "* * * *", "* * * * * *"])
def test_what_is_no_schedule_is_refused(cron: str):
    with pytest.raises(ConfigurationError, match="is no schedule"):
        next_time(cron, "UTC", 0)


def test_an_unknown_time_zone_is_refused():
    with pytest.raises(ConfigurationError, match="there is no time zone"):
        next_time("0 7 * * *", "Nowhere/Else", 0)


def test_what_was_missed_is_due_once_and_then_at_its_next_time(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.prepare()
    schedules = Schedules(database)
    made = schedules.add("0 * * * *", "UTC", "look", {"workspace": "/somewhere"})
    assert schedules.all(due=made.due - 1) == []
    later = made.due + 50 * HOUR
    (due,) = schedules.all(due=later)
    assert due == made
    assert is_id(due.run_id())
    assert due.run_id() == made.run_id()
    schedules.advance(due, later)
    assert schedules.all(due=later) == []
    (again,) = schedules.all()
    assert again.due == later + HOUR
    assert again.run_id() != due.run_id()
    schedules.advance(due, later + 70 * HOUR)  # another worker that found the same moment due, and was slow
    assert schedules.all() == [again]
    schedules.remove(made.id)
    assert schedules.all() == []
    assert made.due > now_ms()
    database.close()
