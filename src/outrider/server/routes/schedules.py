"""Runs that are submitted again and again, at the times that a line of cron tells."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.server.endpoint import Asked, Endpoint, Nothing
from outrider.server.routes.jobs import Words, jobs_of, wake


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`cron` has five fields; `timezone` is like Europe/Berlin, and else the server's."""

    cron: Words
    prompt: Words
    timezone: str = ""
    workspace: str | None = None
    agent: str = ""


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """`due` is when a run of it is submitted next, in Unix milliseconds."""

    id: str
    cron: str
    timezone: str
    prompt: str
    due: int


async def list_schedules(asked: Asked[Nothing, Nothing]) -> Sequence[Scheduled]:
    return [_scheduled(schedule) for schedule in await (await jobs_of(asked)).schedules()]


async def add_schedule(asked: Asked[Nothing, NewSchedule]) -> Scheduled:
    new, jobs = asked.body, await jobs_of(asked)
    agent = asked.engine.staff.agent(new.agent).name if new.agent else ""
    workspace = new.workspace or str(Path.cwd())
    made = await jobs.schedule(new.cron, new.prompt, timezone=new.timezone, workspace=workspace, agent=agent)
    await wake(asked)
    return _scheduled(made)


async def remove_schedule(asked: Asked[Nothing, Nothing]) -> None:
    await (await jobs_of(asked)).unschedule(asked.path["schedule_id"])


def _scheduled(schedule: Any) -> Scheduled:
    return Scheduled(**{name: getattr(schedule, name) for name in Scheduled.__struct_fields__})


ALL = "/api/schedules"
SCHEDULES = (
    Endpoint(method="GET", path=ALL, name="list_schedules", summary="Runs that are submitted again and again",
             answer=list_schedules, gives=list[Scheduled]),
    Endpoint(method="POST", path=ALL, name="add_schedule", summary="Submit a run at every time that cron tells",
             answer=add_schedule, body=NewSchedule, gives=Scheduled, status=201),
    Endpoint(method="DELETE", path=f"{ALL}/{{schedule_id}}", name="remove_schedule", summary="No more runs of it",
             answer=remove_schedule, status=204),
)  # fmt: skip
