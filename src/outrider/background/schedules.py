"""Cron schedules that submit runs."""

import hashlib
import os
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import sqlalchemy as sa
from croniter import croniter

from outrider.background.database import RunDatabase, skip_failed_entry
from outrider.errors import ConfigurationError, SessionNotFoundError
from outrider.presentation.formats import short_id
from outrider.types.ids import new_id, now_ms

_PAUSED_DUE = (1 << 62) + 1  # due time of a paused schedule: workers of all versions never find it due


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A cron schedule. `due` is the time of the next submission in Unix milliseconds, or what it would be if the
    schedule were not `paused`; `order` holds the options of its runs."""

    id: str
    cron: str
    timezone: str
    prompt: str
    due: int
    paused: bool = False
    order: dict[str, Any] = {}

    def run_id(self) -> str:
        """Returns a UUIDv7 derived from the schedule and its due time. All workers that find the schedule due compute
        the same id, so only one run is submitted."""
        mark = hashlib.sha256(f"{self.id} {self.due}".encode()).digest()
        bits = int.from_bytes(mark[:10], "big")
        value = (self.due << 80 | bits) & ~(0xF << 76 | 0x3 << 62) | 7 << 76 | 2 << 62
        return str(uuid.UUID(int=value))


def next_due_time(cron: str, timezone: str, after: int) -> int:
    """Returns the first matching time after `after`. In the hour that repeats when daylight saving time ends, only the
    first of two equal clock times matches, unless the cron line names every hour. Raises ConfigurationError for an
    invalid cron line or time zone."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(f"unknown time zone {timezone!r}; use an IANA name such as Europe/Berlin") from None
    if not croniter.is_valid(cron) or len(cron.split()) != 5:
        raise ConfigurationError(
            f"{cron!r} is not a cron line; write minute, hour, day, month and weekday, such as 0 7 * * *"
        )
    times = croniter(cron, datetime.fromtimestamp(after / 1000, zone))
    due: float = times.get_next(float)
    while cron.split()[1] not in ("*", "*/1") and datetime.fromtimestamp(due, zone).fold:
        due = times.get_next(float)
    return round(due * 1000)


def local_timezone() -> str:
    """Returns the IANA name of this machine's time zone; UTC if it is unknown."""
    named = os.environ.get("TZ", "").lstrip(":")
    linked = str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    for name in (named, linked):
        try:
            return ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    return "UTC"


class ScheduleTable:
    """The table of schedules."""

    def __init__(self, database: RunDatabase) -> None:
        self._engine = database.engine
        self._table = f"{database.table_prefix}schedules"

    def add_schedule(self, cron: str, timezone: str, prompt: str, order: dict[str, Any]) -> Schedule:
        due = next_due_time(cron, timezone, now_ms())
        schedule = Schedule(id=new_id(), cron=cron, timezone=timezone, prompt=prompt, due=due, order=order)
        with self._engine.begin() as db:
            db.execute(
                sa.text(f"INSERT INTO {self._table} VALUES (:id, :schedule, :due)"),
                {"id": schedule.id, "schedule": msgspec.json.encode(schedule).decode(), "due": due},
            )
        return schedule

    def list_schedules(self, *, due: int | None = None) -> Sequence[Schedule]:
        """Returns the schedules ordered by due time, paused ones last; with `due` only those that are due by then. A
        damaged row is logged and skipped."""
        statement = f"SELECT id, schedule, due FROM {self._table} WHERE due <= :due ORDER BY due, id"
        with self._engine.connect() as db:
            rows = db.execute(sa.text(statement), {"due": _PAUSED_DUE if due is None else due}).all()
        schedules: list[Schedule] = []
        for row in rows:
            with skip_failed_entry(f"schedule {short_id(row.id)}"):
                schedules.append(_decode_schedule(row.schedule, row.due))
        return schedules

    def advance_due(self, schedule: Schedule, now: int) -> None:
        """Moves the schedule to its next time after `now`; missed times result in one run, not in one each."""
        self._set_due(schedule.id, next_due_time(schedule.cron, schedule.timezone, now), before=schedule.due)

    def pause_schedule(self, schedule_id: str) -> Schedule:
        with self._engine.begin() as db:
            db.execute(
                sa.text(f"UPDATE {self._table} SET due = :never WHERE id = :id"),
                {"never": _PAUSED_DUE, "id": schedule_id},
            )
        return self._load_schedule(schedule_id)

    def resume_schedule(self, schedule_id: str) -> Schedule:
        """Continues a paused schedule at its next time after now; times that it missed are skipped."""
        schedule = self._load_schedule(schedule_id)
        if schedule.paused:
            self._set_due(schedule_id, schedule.due, before=_PAUSED_DUE)
        return self._load_schedule(schedule_id)

    def remove_schedule(self, schedule_id: str) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": schedule_id})

    def _set_due(self, schedule_id: str, due: int, *, before: int) -> None:
        """Sets the due time, unless another process has changed it since `before` was read."""
        with self._engine.begin() as db:
            db.execute(
                sa.text(f"UPDATE {self._table} SET due = :due WHERE id = :id AND due = :before"),
                {"due": due, "id": schedule_id, "before": before},
            )

    def _load_schedule(self, schedule_id: str) -> Schedule:
        with self._engine.connect() as db:
            row = db.execute(
                sa.text(f"SELECT schedule, due FROM {self._table} WHERE id = :id"), {"id": schedule_id}
            ).one_or_none()
        if row is None:
            raise SessionNotFoundError(f"no schedule {schedule_id}")
        return _decode_schedule(row.schedule, row.due)


def _decode_schedule(encoded: str, due: int) -> Schedule:
    schedule = msgspec.json.decode(encoded, type=Schedule)
    if due < _PAUSED_DUE:
        return msgspec.structs.replace(schedule, due=due)
    return msgspec.structs.replace(schedule, due=next_due_time(schedule.cron, schedule.timezone, now_ms()), paused=True)
