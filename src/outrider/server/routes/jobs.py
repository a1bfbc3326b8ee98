"""Background runs: submitted, looked at, followed, ended and answered."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from outrider.background.records import Run
from outrider.engine.archive import Approval
from outrider.errors import ConfigurationError, OutriderError
from outrider.server.routes.sessions import FollowQuery, follow_session
from outrider.server.routing import Asked, Endpoint, Limit, Nothing, Stream
from outrider.types.agents import Limits, Mode

if TYPE_CHECKING:
    from outrider.background.jobs import Jobs
    from outrider.background.schedules import Schedule


BY = "the server"
Priority = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**9)]
Words = Annotated[str, msgspec.Meta(min_length=1)]


class JobsQuery(msgspec.Struct, frozen=True):
    limit: Limit = 50


class NewJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`id` is the sender's own, a UUID: the same run sent twice is submitted once. None is begun before `after`
    seconds; a smaller `priority` is begun sooner, among the runs of one `user`. What is left out is as the settings
    say."""

    prompt: Words
    id: str | None = None
    workspace: str | None = None
    agent: str = ""
    mode: Mode = "background"
    queue: str = "runs"
    user: str = ""
    priority: Priority = 100
    after: Seconds = 0
    worktree: bool = True
    limits: Limits | None = None


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """A run with the questions that it waits for and, at its end, with what it changed in its worktree."""

    run: Run
    approvals: Sequence[Approval] = ()
    diff: str = ""
    stat: str = ""
    worktree: str = ""
    branch: str = ""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`words` are read by the model."""

    words: str = ""


async def list_jobs(asked: Asked[JobsQuery, Nothing]) -> Sequence[Run]:
    return await (await jobs_of(asked)).list(limit=asked.query.limit)


async def submit_job(asked: Asked[Nothing, NewJob]) -> Run:
    from outrider.background.jobs import Place

    new, jobs = asked.body, await jobs_of(asked)
    run = await jobs.submit(
        new.prompt,
        workspace=new.workspace or folder_of(asked),
        agent=asked.engine.staff.agent(new.agent).name if new.agent else "",
        mode=new.mode,
        limits=new.limits,
        place=Place(queue=new.queue, user=new.user, priority=new.priority, after=new.after),
        run_id=new.id,
        worktree=new.worktree,
    )
    await wake(asked)
    return run


async def show_job(asked: Asked[Nothing, Nothing]) -> Details:
    jobs, run_id = await jobs_of(asked), asked.path["run_id"]
    run, report, worktree = await jobs.show(run_id), await jobs.report(run_id), await jobs.worktree(run_id)
    changes = report.changes if report else None
    return Details(
        run=run,
        approvals=await jobs.approvals(run_id),
        diff=changes.diff if changes else "",
        stat=changes.stat if changes else "",
        worktree=worktree.path if worktree else "",
        branch=worktree.branch if worktree else "",
    )


async def follow_job(asked: Asked[FollowQuery, Nothing]) -> Stream:
    """A run is a session too, and is followed as one; where the run stands is asked for apart."""
    run = await (await jobs_of(asked)).show(asked.path["run_id"])
    return await follow_session(msgspec.structs.replace(asked, path={"session_id": run.id}))


async def cancel_job(asked: Asked[Nothing, Nothing]) -> Run:
    jobs = await jobs_of(asked)
    run = await jobs.cancel(asked.path["run_id"])
    if await jobs.is_left_open(run.id):
        await wake(asked)
    return run


async def retry_job(asked: Asked[Nothing, Nothing]) -> Run:
    run = await (await jobs_of(asked)).retry(asked.path["run_id"])
    await wake(asked)
    return run


async def approve_job(asked: Asked[Nothing, Answer]) -> Sequence[Approval]:
    return await _answered(asked, allow=True)


async def deny_job(asked: Asked[Nothing, Answer]) -> Sequence[Approval]:
    return await _answered(asked, allow=False)


async def _answered(asked: Asked[Nothing, Answer], *, allow: bool) -> Sequence[Approval]:
    """The first answer counts, so what somebody else has answered meanwhile stays as it is."""
    jobs = await jobs_of(asked)
    run = await jobs.show(asked.path["run_id"])
    questions = await jobs.approvals(run.id)
    if not questions:
        raise OutriderError("the run waits for no answer")
    answers = [await jobs.approve(one.id, allow=allow, by=BY, words=asked.body.words) for one in questions]
    await wake(asked)
    return answers


async def jobs_of(asked: Asked[Any, Any]) -> "Jobs":
    if asked.background is None:
        raise ConfigurationError("this server has no background runs")
    return await asked.background.jobs()


def folder_of(asked: Asked[Any, Any]) -> str:
    """Where a run works whose sender named no folder: where the server was told to."""
    return str(asked.background.workspace) if asked.background is not None else ""


async def wake(asked: Asked[Any, Any]) -> None:
    if asked.background is not None:
        await asked.background.wake()


ALL, ONE_JOB = "/api/jobs", "/api/jobs/{run_id}"
JOBS = (
    Endpoint(method="GET", path=ALL, name="list_jobs", summary="Background runs, the newest first",
             answer=list_jobs, query=JobsQuery, gives=list[Run]),
    Endpoint(method="POST", path=ALL, name="submit_job", summary="Submit a run that outlives this connection",
             answer=submit_job, body=NewJob, gives=Run, status=201),
    Endpoint(method="GET", path=ONE_JOB, name="show_job", summary="Where a run stands, and what came of it",
             answer=show_job, gives=Details),
    Endpoint(method="GET", path=f"{ONE_JOB}/events", name="follow_job", summary="What was kept, then what happens",
             answer=follow_job, query=FollowQuery, gives="text/event-stream"),
    Endpoint(method="POST", path=f"{ONE_JOB}/cancel", name="cancel_job", summary="End a run, with everything kept",
             answer=cancel_job, gives=Run),
    Endpoint(method="POST", path=f"{ONE_JOB}/retry", name="retry_job", summary="Let a failed or canceled run go on",
             answer=retry_job, gives=Run),
    Endpoint(method="POST", path=f"{ONE_JOB}/approve", name="approve_job", summary="Say yes to what a run waits for",
             answer=approve_job, body=Answer, gives=list[Approval]),
    Endpoint(method="POST", path=f"{ONE_JOB}/deny", name="deny_job", summary="Say no to what a run waits for",
             answer=deny_job, body=Answer, gives=list[Approval]),
)  # fmt: skip


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


SCHEDULES_PATH, ONE = "/api/schedules", "/api/schedules/{schedule_id}"
SCHEDULES = (
    Endpoint(method="GET", path=SCHEDULES_PATH, name="list_schedules", summary="Runs that are submitted again and again",
             answer=list_schedules, gives=list[Scheduled]),
    Endpoint(method="POST", path=SCHEDULES_PATH, name="add_schedule", summary="Submit a run on a cron schedule",
             answer=add_schedule, body=NewSchedule, gives=Scheduled, status=201),
    Endpoint(method="POST", path=f"{ONE}/pause", name="pause_schedule", summary="No runs of it until it is resumed",
             answer=pause_schedule, gives=Scheduled),
    Endpoint(method="POST", path=f"{ONE}/resume", name="resume_schedule", summary="Runs of it from its next time on",
             answer=resume_schedule, gives=Scheduled),
    Endpoint(method="DELETE", path=ONE, name="remove_schedule", summary="No more runs of it",
             answer=remove_schedule, status=204),
)  # fmt: skip
