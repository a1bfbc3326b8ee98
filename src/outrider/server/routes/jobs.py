"""Endpoints for background runs and schedules."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from outrider.background.records import Run, RunFilter
from outrider.engine.archive import Approval
from outrider.engine.session_tools import OWNER_LIMITS
from outrider.errors import ConfigurationError, LimitReachedError, OutriderError, SessionNotFoundError
from outrider.presentation.formats import format_cost, format_dollars
from outrider.presentation.item_views import DiffRow, RunView, run_view, unified_diff_rows
from outrider.server.endpoint import ApiEndpoint, NoPayload, PageLimit, RouteRequest, SseResponse
from outrider.server.payloads import ApprovalWithView, add_approval_view
from outrider.server.routes.sessions import FollowQuery, choose_workspace, follow_session
from outrider.server.users import AccessDeniedError, Requester
from outrider.types.agents import Limits, Mode
from outrider.types.modes import ApprovalLevel

if TYPE_CHECKING:
    from outrider.background.jobs import JobClient
    from outrider.background.schedules import Schedule


SERVER_ACTOR = "the server"
Priority = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**9)]
NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]


class JobsQuery(msgspec.Struct, frozen=True):
    limit: PageLimit = 50


class NewJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run to submit. Omitted fields use the settings.

    - `id`: a UUID that the client chooses; a repeated request submits a run once.
    - `user`: whose run it is.
    - `priority`: among the runs of one user, a smaller one starts first.
    - `after`: seconds before which the run does not start.
    - `webhook`: a URL that receives a POST when the run ends.
    """

    prompt: NonEmptyText
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
    webhook: str = ""
    approval: ApprovalLevel = "ask"


class RunWithView(Run, frozen=True, kw_only=True):
    """A run; `view` has its figures as texts."""

    view: RunView


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A run, its open approvals and, after its end, the changes in its worktree: `diff` as text, `diff_rows` as it is
    shown."""

    run: RunWithView
    approvals: Sequence[ApprovalWithView] = ()
    diff: str = ""
    stat: str = ""
    worktree: str = ""
    branch: str = ""
    diff_rows: tuple[DiffRow, ...] = ()


class JobAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`words` is a message for the model."""

    words: str = ""


async def list_jobs(request: RouteRequest[JobsQuery, NoPayload]) -> Sequence[RunWithView]:
    jobs, requester = await require_job_client(request), request.requester
    selected = RunFilter(user="" if requester.is_admin else requester.name)
    return [_add_run_view(run) for run in await jobs.find_runs(selected, limit=request.query.limit)]


async def submit_job(request: RouteRequest[NoPayload, NewJob]) -> RunWithView:
    from outrider.background.jobs import QueuePlacement

    new, jobs = request.body, await require_job_client(request)
    if new.id and not request.requester.is_admin:
        await _check_run_id(request, new.id)
    limits = request.users.limits_of_owner(request.requester.owner)
    async with _limit_cost(request, jobs) as cost_limits:
        run = await jobs.submit_run(
            new.prompt,
            metadata=limits.as_metadata() if limits is not None else {},
            workspace=await choose_workspace(request, new.workspace) or default_workspace(request),
            agent=request.engine.runtime.find_agent(new.agent).name if new.agent else "",
            mode=new.mode,
            limits=cost_limits,
            place=QueuePlacement(
                queue=new.queue, user=request.requester.owner or new.user, priority=new.priority, after=new.after
            ),
            run_id=new.id,
            worktree=new.worktree,
            webhook=new.webhook,
            approval=new.approval,
        )
    await ensure_worker(request)
    return _add_run_view(run)


async def _check_run_id(request: RouteRequest[NoPayload, NewJob], run_id: str) -> None:
    """Raises AccessDeniedError for the id of a session that was not submitted as a run of the requester: a worker gets
    the limits of its owner from the session."""
    with suppress(SessionNotFoundError):
        session = await request.engine.store.get(run_id)
        if session.owner != request.requester.name or OWNER_LIMITS not in session.metadata:
            raise AccessDeniedError(f"{run_id} is the id of a session that is not a run of {request.requester.name}")


@asynccontextmanager
async def _limit_cost(
    request: RouteRequest[NoPayload, NewJob], jobs: "JobClient"
) -> AsyncGenerator[Limits | None, None]:
    """Yields the limits of the run that the block submits. With a budget, the unfinished runs together may not cost
    more than what remains of it. A run without a cost limit gets half of what no other run has reserved, so that
    further runs can be submitted while it runs. The lock is held until the run is stored and its cost is reserved:
    otherwise two requests could reserve the same money."""
    requested, limits = request.body.limits, request.limits
    if limits is None or await limits.check_budget(request.requester) is None:
        yield requested
        return
    async with limits.submission:
        reserved = partial(jobs.reserved_cost, without=request.body.id)
        remaining = await limits.check_budget(request.requester, reserved=reserved)
        usual = requested or (request.settings.limits if request.settings is not None else None) or Limits()
        if remaining is None:
            yield requested
        elif usual.cost is None:
            yield msgspec.structs.replace(usual, cost=remaining / 2)
        else:
            yield msgspec.structs.replace(usual, cost=min(usual.cost, remaining))


async def show_job(request: RouteRequest[NoPayload, NoPayload]) -> JobDetails:
    jobs, run_id = await require_job_client(request), request.path["run_id"]
    run, report, worktree = await jobs.get_run(run_id), await jobs.get_report(run_id), await jobs.get_worktree(run_id)
    changes = report.changes if report else None
    return JobDetails(
        run=_add_run_view(run),
        approvals=[add_approval_view(approval) for approval in await jobs.open_approvals(run_id)],
        diff=changes.diff if changes else "",
        stat=changes.stat if changes else "",
        worktree=worktree.path if worktree else "",
        branch=worktree.branch if worktree else "",
        diff_rows=unified_diff_rows(changes.diff) if changes else (),
    )


async def follow_job(request: RouteRequest[FollowQuery, NoPayload]) -> SseResponse:
    """Streams the events of the run's session; the state of the run is a separate request."""
    run = await (await require_job_client(request)).get_run(request.path["run_id"])
    return await follow_session(msgspec.structs.replace(request, path={"session_id": run.id}))


async def cancel_job(request: RouteRequest[NoPayload, NoPayload]) -> RunWithView:
    jobs = await require_job_client(request)
    run = await jobs.cancel_run(request.path["run_id"])
    if await jobs.needs_cleanup(run.id):
        await ensure_worker(request)
    return _add_run_view(run)


async def retry_job(request: RouteRequest[NoPayload, NoPayload]) -> RunWithView:
    jobs, run_id = await require_job_client(request), request.path["run_id"]
    async with request.limits.submission if request.limits is not None else nullcontext():
        await _check_retry(request, jobs, run_id)
        run = await jobs.retry_run(run_id)
    await ensure_worker(request)
    return _add_run_view(run)


async def _check_retry(request: RouteRequest[NoPayload, NoPayload], jobs: "JobClient", run_id: str) -> None:
    """Raises LimitReachedError if a retried run may cost more than what remains of its user's budget."""
    user = request.users.get((await jobs.get_run(run_id)).user)
    if request.limits is None or user is None:
        return
    payer = Requester.from_user(user)
    remaining = await request.limits.check_budget(payer, reserved=partial(jobs.reserved_cost, without=run_id))
    cost = await jobs.remaining_cost(run_id, await jobs.get_job(run_id))
    if remaining is not None and cost is not None and cost > remaining:
        maximum = f"dollars that are left for {user.name}"
        actual = f"this run may cost {format_cost(cost)}: submit it again"
        raise LimitReachedError(maximum, format_dollars(remaining), actual)


def _add_run_view(run: Run) -> RunWithView:
    outcome, view = run.outcome, RunView()
    if outcome is not None:
        took = run.ended - run.created if run.is_over and run.ended and run.created else None
        view = run_view(outcome.tokens, outcome.cost, took)
    return RunWithView(**msgspec.structs.asdict(run), view=view)


async def approve_job(request: RouteRequest[NoPayload, JobAnswer]) -> Sequence[Approval]:
    return await _answer_approvals(request, allow=True)


async def deny_job(request: RouteRequest[NoPayload, JobAnswer]) -> Sequence[Approval]:
    return await _answer_approvals(request, allow=False)


async def _answer_approvals(request: RouteRequest[NoPayload, JobAnswer], *, allow: bool) -> Sequence[Approval]:
    """Answers all open approvals. The first answer applies, so an approval that was answered in between does
    not change."""
    jobs = await require_job_client(request)
    run = await jobs.get_run(request.path["run_id"])
    approvals = await jobs.open_approvals(run.id)
    if not approvals:
        raise OutriderError("the run has no open approvals")
    answers = [
        await jobs.answer_approval(
            approval.id, allow=allow, by=request.requester.owner or SERVER_ACTOR, words=request.body.words
        )
        for approval in approvals
    ]
    await ensure_worker(request)
    return answers


async def require_job_client(request: RouteRequest[Any, Any]) -> "JobClient":
    if request.background is None:
        raise ConfigurationError("background runs are not enabled on this server")
    return await request.background.open_client()


def default_workspace(request: RouteRequest[Any, Any]) -> str:
    """Returns the folder of runs that name none: the server's workspace."""
    return str(request.background.workspace) if request.background is not None else ""


async def ensure_worker(request: RouteRequest[Any, Any]) -> None:
    if request.background is not None:
        await request.background.ensure_worker()


JOBS_PATH, JOB_PATH = "/api/jobs", "/api/jobs/{run_id}"
JOB_ROUTES = (
    ApiEndpoint(method="GET", path=JOBS_PATH, name="list_jobs", summary="List background runs, newest first",
                handler=list_jobs, query=JobsQuery, response_type=list[RunWithView]),
    ApiEndpoint(method="POST", path=JOBS_PATH, name="submit_job", summary="Submit a background run", starts_work=True,
                handler=submit_job,
                body=NewJob, response_type=RunWithView, status=201),
    ApiEndpoint(method="GET", path=JOB_PATH, name="show_job", summary="Get the state and result of a run",
                handler=show_job, response_type=JobDetails),
    ApiEndpoint(method="GET", path=f"{JOB_PATH}/events", name="follow_job",
                summary="Stream stored changes, then live events, of a run", handler=follow_job, query=FollowQuery,
                response_type="text/event-stream"),
    ApiEndpoint(method="POST", path=f"{JOB_PATH}/cancel", name="cancel_job",
                summary="Cancel a run; its session stays stored", handler=cancel_job, response_type=RunWithView),
    ApiEndpoint(method="POST", path=f"{JOB_PATH}/retry", name="retry_job", summary="Continue a failed or canceled run",
                starts_work=True, handler=retry_job, response_type=RunWithView),
    ApiEndpoint(method="POST", path=f"{JOB_PATH}/approve", name="approve_job",
                summary="Approve the open approvals of a run", handler=approve_job, body=JobAnswer,
                response_type=list[Approval]),
    ApiEndpoint(method="POST", path=f"{JOB_PATH}/deny", name="deny_job", summary="Deny the open approvals of a run",
                handler=deny_job, body=JobAnswer, response_type=list[Approval]),
)  # fmt: skip


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`cron` has five fields; `timezone` is an IANA name such as Europe/Berlin (default: the server's). `approval`
    has an effect in agent mode."""

    cron: NonEmptyText
    prompt: NonEmptyText
    timezone: str = ""
    workspace: str | None = None
    agent: str = ""
    mode: Mode = "background"
    queue: str = "runs"
    priority: Priority = 100
    worktree: bool = True
    limits: Limits | None = None
    approval: ApprovalLevel = "ask"


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """`due` is the time of the next submission in Unix milliseconds, or what it would be if the schedule were not
    `paused`; `workspace` is the folder of its runs."""

    id: str
    cron: str
    timezone: str
    prompt: str
    due: int
    paused: bool = False
    workspace: str = ""


async def list_schedules(request: RouteRequest[NoPayload, NoPayload]) -> Sequence[ScheduleView]:
    return [_schedule_view(schedule) for schedule in await (await require_job_client(request)).list_schedules()]


async def add_schedule(request: RouteRequest[NoPayload, NewSchedule]) -> ScheduleView:
    from outrider.background.jobs import QueuePlacement

    new, jobs = request.body, await require_job_client(request)
    schedule = await jobs.add_schedule(
        new.cron,
        new.prompt,
        timezone=new.timezone,
        workspace=new.workspace or default_workspace(request),
        agent=request.engine.runtime.find_agent(new.agent).name if new.agent else "",
        mode=new.mode,
        limits=new.limits,
        place=QueuePlacement(queue=new.queue, priority=new.priority),
        worktree=new.worktree,
        approval=new.approval,
    )
    await ensure_worker(request)
    return _schedule_view(schedule)


async def pause_schedule(request: RouteRequest[NoPayload, NoPayload]) -> ScheduleView:
    return _schedule_view(await (await require_job_client(request)).pause_schedule(request.path["schedule_id"]))


async def resume_schedule(request: RouteRequest[NoPayload, NoPayload]) -> ScheduleView:
    resumed = await (await require_job_client(request)).resume_schedule(request.path["schedule_id"])
    await ensure_worker(request)
    return _schedule_view(resumed)


async def remove_schedule(request: RouteRequest[NoPayload, NoPayload]) -> None:
    await (await require_job_client(request)).remove_schedule(request.path["schedule_id"])


def _schedule_view(schedule: "Schedule") -> ScheduleView:
    return ScheduleView(
        id=schedule.id,
        cron=schedule.cron,
        timezone=schedule.timezone,
        prompt=schedule.prompt,
        due=schedule.due,
        paused=schedule.paused,
        workspace=schedule.order.get("workspace", ""),
    )


SCHEDULES_PATH, SCHEDULE_PATH = "/api/schedules", "/api/schedules/{schedule_id}"
SCHEDULE_ROUTES = (
    ApiEndpoint(method="GET", path=SCHEDULES_PATH, name="list_schedules", summary="List the schedules",
                access="admin", handler=list_schedules, response_type=list[ScheduleView]),
    ApiEndpoint(method="POST", path=SCHEDULES_PATH, name="add_schedule", summary="Submit runs on a cron schedule",
                access="admin", handler=add_schedule, body=NewSchedule, response_type=ScheduleView, status=201),
    ApiEndpoint(method="POST", path=f"{SCHEDULE_PATH}/pause", name="pause_schedule", summary="Pause a schedule",
                access="admin", handler=pause_schedule, response_type=ScheduleView),
    ApiEndpoint(method="POST", path=f"{SCHEDULE_PATH}/resume", name="resume_schedule",
                summary="Resume a schedule at its next time", access="admin", handler=resume_schedule,
                response_type=ScheduleView),
    ApiEndpoint(method="DELETE", path=SCHEDULE_PATH, name="remove_schedule", summary="Delete a schedule",
                access="admin", handler=remove_schedule, status=204),
)  # fmt: skip
