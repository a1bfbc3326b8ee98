"""Runs that are submitted again and again, at the times that a line of cron tells."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from outrider.server.endpoint import Asked, Endpoint, Nothing
from outrider.server.routes.jobs import Priority, Words, folder_of, jobs_of, wake
from outrider.types.agents import Limits

if TYPE_CHECKING:
    from outrider.background.times.schedules import Schedule


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`cron` has five fields; `timezone` is like Europe/Berlin, and else the server's."""

    cron: Words
    prompt: Words
    timezone: str = ""
    workspace: str | None = None
    agent: str = ""
    priority: Priority = 100
    worktree: bool = True
    limits: Limits | None = None


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """`due` is when a run of it is submitted next, in Unix milliseconds, or would be if it were not `paused`; it works
    in the folder `workspace`."""

    id: str
    cron: str
    timezone: str
    prompt: str
    due: int
    paused: bool = False
    workspace: str = ""


async def list_schedules(asked: Asked[Nothing, Nothing]) -> Sequence[Scheduled]:
    return [_scheduled(schedule) for schedule in await (await jobs_of(asked)).schedules()]


async def add_schedule(asked: Asked[Nothing, NewSchedule]) -> Scheduled:
    from outrider.background.jobs import Place

    new, jobs = asked.body, await jobs_of(asked)
    made = await jobs.schedule(
        new.cron,
        new.prompt,
        timezone=new.timezone,
        workspace=new.workspace or folder_of(asked),
        agent=asked.engine.staff.agent(new.agent).name if new.agent else "",
        limits=new.limits,
        place=Place(priority=new.priority),
        worktree=new.worktree,
    )
    await wake(asked)
    return _scheduled(made)


async def pause_schedule(asked: Asked[Nothing, Nothing]) -> Scheduled:
    return _scheduled(await (await jobs_of(asked)).pause_schedule(asked.path["schedule_id"]))


async def resume_schedule(asked: Asked[Nothing, Nothing]) -> Scheduled:
    resumed = await (await jobs_of(asked)).resume_schedule(asked.path["schedule_id"])
    await wake(asked)
    return _scheduled(resumed)


async def remove_schedule(asked: Asked[Nothing, Nothing]) -> None:
    await (await jobs_of(asked)).unschedule(asked.path["schedule_id"])


def _scheduled(schedule: "Schedule") -> Scheduled:
    return Scheduled(
        id=schedule.id,
        cron=schedule.cron,
        timezone=schedule.timezone,
        prompt=schedule.prompt,
        due=schedule.due,
        paused=schedule.paused,
        workspace=schedule.order.get("workspace", ""),
    )


ALL, ONE = "/api/schedules", "/api/schedules/{schedule_id}"
SCHEDULES = (
    Endpoint(method="GET", path=ALL, name="list_schedules", summary="Runs that are submitted again and again",
             answer=list_schedules, gives=list[Scheduled]),
    Endpoint(method="POST", path=ALL, name="add_schedule", summary="Submit a run at every time that cron tells",
             answer=add_schedule, body=NewSchedule, gives=Scheduled, status=201),
    Endpoint(method="POST", path=f"{ONE}/pause", name="pause_schedule", summary="No runs of it until it is resumed",
             answer=pause_schedule, gives=Scheduled),
    Endpoint(method="POST", path=f"{ONE}/resume", name="resume_schedule", summary="Runs of it from its next time on",
             answer=resume_schedule, gives=Scheduled),
    Endpoint(method="DELETE", path=ONE, name="remove_schedule", summary="No more runs of it",
             answer=remove_schedule, status=204),
)  # fmt: skip
