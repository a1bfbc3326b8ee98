"""Runs that are submitted again and again, at the times that a line of cron tells."""

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

from outrider.background.database import Database
from outrider.errors import ConfigurationError, SessionNotFoundError
from outrider.types.ids import new_id, now_ms

_NEVER = (1 << 62) + 1  # of one that is paused: no worker finds it due, those of earlier versions included


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """`due` is when it is submitted next, in Unix milliseconds, or would be if it were not `paused`; `order` is what
    else was said about its runs."""

    id: str
    cron: str
    timezone: str
    prompt: str
    due: int
    paused: bool = False
    order: dict[str, Any] = {}

    def run_id(self) -> str:
        """The same for the same moment, so that of many workers that find it due only one submits it."""
        mark = hashlib.sha256(f"{self.id} {self.due}".encode()).digest()
        bits = int.from_bytes(mark[:10], "big")
        value = (self.due << 80 | bits) & ~(0xF << 76 | 0x3 << 62) | 7 << 76 | 2 << 62
        return str(uuid.UUID(int=value))


def next_time(cron: str, timezone: str, after: int) -> int:
    """The first moment of a schedule after another one; raises ConfigurationError for what is none."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(f"there is no time zone {timezone!r}; write one like Europe/Berlin") from None
    if not croniter.is_valid(cron) or len(cron.split()) != 5:
        raise ConfigurationError(f"{cron!r} is no schedule; write minute, hour, day, month and weekday: 0 7 * * *")
    return round(croniter(cron, datetime.fromtimestamp(after / 1000, zone)).get_next(float) * 1000)


def local_zone() -> str:
    """The name of this machine's time zone."""
    named = os.environ.get("TZ", "").lstrip(":")
    linked = str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    for name in (named, linked):
        try:
            return ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    return "UTC"


class Schedules:
    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._table = f"{database.prefix}schedules"

    def add(self, cron: str, timezone: str, prompt: str, order: dict[str, Any]) -> Schedule:
        due = next_time(cron, timezone, now_ms())
        schedule = Schedule(id=new_id(), cron=cron, timezone=timezone, prompt=prompt, due=due, order=order)
        with self._engine.begin() as db:
            db.execute(
                sa.text(f"INSERT INTO {self._table} VALUES (:id, :schedule, :due)"),
                {"id": schedule.id, "schedule": msgspec.json.encode(schedule).decode(), "due": due},
            )
        return schedule

    def all(self, *, due: int | None = None) -> Sequence[Schedule]:
        """In the order in which they are due, then those that are paused; with `due` only those whose time has come by
        then."""
        statement = f"SELECT schedule, due FROM {self._table} WHERE due <= :due ORDER BY due, id"
        with self._engine.connect() as db:
            rows = db.execute(sa.text(statement), {"due": _NEVER if due is None else due}).all()
        return [_read(row.schedule, row.due) for row in rows]

    def advance(self, schedule: Schedule, now: int) -> None:
        """To its next time from now: what was missed while nobody looked is made up for once, not once for each."""
        self._set_due(schedule.id, next_time(schedule.cron, schedule.timezone, now), before=schedule.due)

    def pause(self, schedule_id: str) -> Schedule:
        with self._engine.begin() as db:
            db.execute(
                sa.text(f"UPDATE {self._table} SET due = :never WHERE id = :id"), {"never": _NEVER, "id": schedule_id}
            )
        return self._one(schedule_id)

    def resume(self, schedule_id: str) -> Schedule:
        """From its next time from now on: what it missed while it was paused was not wanted."""
        schedule = self._one(schedule_id)
        if schedule.paused:
            self._set_due(schedule_id, schedule.due, before=_NEVER)
        return self._one(schedule_id)

    def remove(self, schedule_id: str) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": schedule_id})

    def _set_due(self, schedule_id: str, due: int, *, before: int) -> None:
        """Unless somebody else has set it in the meantime."""
        with self._engine.begin() as db:
            db.execute(
                sa.text(f"UPDATE {self._table} SET due = :due WHERE id = :id AND due = :before"),
                {"due": due, "id": schedule_id, "before": before},
            )

    def _one(self, schedule_id: str) -> Schedule:
        with self._engine.connect() as db:
            row = db.execute(
                sa.text(f"SELECT schedule, due FROM {self._table} WHERE id = :id"), {"id": schedule_id}
            ).one_or_none()
        if row is None:
            raise SessionNotFoundError(f"there is no schedule {schedule_id}")
        return _read(row.schedule, row.due)


def _read(kept: str, due: int) -> Schedule:
    schedule = msgspec.json.decode(kept, type=Schedule)
    if due < _NEVER:
        return msgspec.structs.replace(schedule, due=due)
    return msgspec.structs.replace(schedule, due=next_time(schedule.cron, schedule.timezone, now_ms()), paused=True)
