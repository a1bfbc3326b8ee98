"""Runs from the outside: submit them, look at them, cancel, retry, answer; no worker has to be there for it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypedDict, Unpack

import msgspec
from dbos import DBOSClient, EnqueueOptions, WorkflowStatus, error

from outrider.background.database import QUEUE, VERSION, Database
from outrider.background.executor import family
from outrider.background.heartbeat import WorkerRegistry
from outrider.background.queue import DependentRuns, RunQueue, Waiting, queue_after, run_before
from outrider.background.records import Job, Outcome, Run, Terms, state_of
from outrider.background.reports import OrphanedRuns, Report, Reports
from outrider.background.schedules import Schedule, Schedules, local_zone
from outrider.background.worktrees import worktree_of
from outrider.engine.archive import Archive
from outrider.engine.session_trace import stored_trace
from outrider.errors import OutriderError, SessionNotFoundError
from outrider.project.sandbox import Worktree
from outrider.sessions.records import Approval, InboxItem, StoredSession
from outrider.sessions.sqlite.owners import is_alive
from outrider.sessions.store import Store
from outrider.tracing.trace import Trace
from outrider.types.agents import Limits, Mode
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message
from outrider.types.parts import TextPart

WORKFLOW = "outrider.run"
STARTING = 15_000  # milliseconds in which a worker that starts by itself is there


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands in line. Users of a queue take turns; among the runs of one `user` a smaller `priority` is
    begun sooner, and none before `after` seconds are over or the run `after_run` is."""

    queue: str = QUEUE
    user: str = ""
    priority: int = 100
    after: float = 0
    after_run: str = ""


IN_LINE = Place()


class Order(TypedDict, total=False):
    """What may be said about a run besides its prompt; see `Job` and `Place`."""

    workspace: str
    agent: str
    mode: Mode
    limits: Limits | None
    place: Place
    run_id: str | None
    worktree: bool
    webhook: str
    terms: Terms


class Jobs:
    """`store` keeps the sessions, and has to be the one that the workers use."""

    def __init__(self, client: DBOSClient, store: Store, database: Database) -> None:
        self._client = client
        self.store = store
        self._reports = Reports(database)
        self._leavings = OrphanedRuns(database)
        self._line = RunQueue(database)
        self._schedules = Schedules(database)
        self._afterwards = DependentRuns(database)
        self.waiting = Waiting(database)
        self._roster = WorkerRegistry(database)

    async def submit(self, prompt: str, **order: Unpack[Order]) -> Run:
        """The same `run_id` submits the same run once."""
        run_id, place = order.get("run_id") or new_id(), order.get("place", IN_LINE)
        if place.after_run:
            await self.show(place.after_run)
        session = StoredSession(
            id=run_id,
            mode=order.get("mode", "background"),
            agent=order.get("agent", ""),
            workspace_directory=order.get("workspace", ""),
        )
        await self._begin(session, prompt)
        options = EnqueueOptions(
            workflow_name=WORKFLOW,
            queue_name=queue_after(place.after_run) if place.after_run else QUEUE,
            workflow_id=run_id,
            app_version=VERSION,
            priority=place.priority,
        )
        if place.after > 0:
            options["delay_seconds"] = place.after
        job = Job(
            prompt=prompt,
            queue=place.queue,
            user=place.user,
            limits=order.get("limits"),
            worktree=order.get("worktree", True),
            webhook=order.get("webhook", ""),
            terms=order.get("terms", Terms()),
        )
        stands = {"queue": place.queue, "user": place.user, "agent": session.agent}
        await asyncio.to_thread(self._line.join, run_id, **stands, provider=job.terms.model.partition("/")[0])
        await self._client.enqueue_async(options, msgspec.to_builtins(job))
        return await self.show(run_id)

    async def list(self, *, limit: int = 50) -> Sequence[Run]:
        """The newest first."""
        found = await self._client.list_workflows_async(name=WORKFLOW, limit=limit, sort_desc=True)
        return [_run(status) for status in found]

    async def show(self, run_id: str) -> Run:
        found = await self._client.list_workflows_async(workflow_ids=[run_id], name=WORKFLOW)
        if not found:
            raise SessionNotFoundError(f"there is no run {run_id}")
        return _run(found[0])

    async def job(self, run_id: str) -> Job:
        """What was asked for."""
        (found,) = await self._client.list_workflows_async(workflow_ids=[run_id], load_output=False)
        return _job(found)

    async def is_left_open(self, run_id: str) -> bool:
        """Whether a run is over and a worker still has to end what it left."""
        return bool(await asyncio.to_thread(self._leavings.all, run_id))

    async def busy(self) -> bool:
        """Whether there is anything to do for a worker, now or at a time that is set: a run that waits for an answer is
        nothing to do until it has them all."""
        found = await self._client.list_workflows_async(
            name=WORKFLOW, status=["DELAYED", "ENQUEUED", "PENDING"], limit=1, load_input=False, load_output=False
        )
        if found or any(not one.paused for one in await self.schedules()):
            return True
        if await asyncio.to_thread(self._reports.notices.are_left) or await asyncio.to_thread(self._leavings.all):
            return True
        return any([not await self.approvals(run_id) for run_id in await asyncio.to_thread(self.waiting.all)])

    async def attended(self) -> bool:
        """Whether a worker lives, as far as that can be known: those of other machines are taken at their word."""
        beats = await asyncio.to_thread(self._roster.others)
        return any(is_alive(beat.owner) is not False for beat in beats)

    async def left_alone(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Those of them that should be worked on and are not, since there is no worker; one may be starting."""
        due = now_ms() - STARTING
        stuck = [run for run in runs if run.state == "running" or (run.state == "queued" and (run.created or 0) < due)]
        return stuck if stuck and not await self.attended() else ()

    async def schedule(self, cron: str, prompt: str, *, timezone: str = "", **order: Unpack[Order]) -> Schedule:
        """Submit a run at every time that `cron` tells, of a time zone like Europe/Berlin or else of this machine. What
        was missed while no worker lived is made up for once."""
        given = msgspec.to_builtins(order)
        return await asyncio.to_thread(self._schedules.add, cron, timezone or local_zone(), prompt, given)

    async def schedules(self) -> Sequence[Schedule]:
        return await asyncio.to_thread(self._schedules.all)

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        """No runs of it until it is resumed; those that were submitted go on."""
        return await asyncio.to_thread(self._schedules.pause, schedule_id)

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """From its next time on; nothing is made up for of what it missed meanwhile. One that is not paused stays as it
        is."""
        return await asyncio.to_thread(self._schedules.resume, schedule_id)

    async def unschedule(self, schedule_id: str) -> None:
        """No more runs of it; those that were submitted go on."""
        await asyncio.to_thread(self._schedules.remove, schedule_id)

    async def submit_due(self) -> None:
        """What schedules and ended runs have made due; a worker sees to it with every beat."""
        now = now_ms()
        for schedule in await asyncio.to_thread(self._schedules.all, due=now):
            order = msgspec.convert(schedule.order, Order, strict=False)
            await self.submit(schedule.prompt, **{**order, "run_id": schedule.run_id()})
            await asyncio.to_thread(self._schedules.advance, schedule, now)
        for run_id in await asyncio.to_thread(self._afterwards.awaited):
            if (await self.show(run_id)).is_over:
                await asyncio.to_thread(self._afterwards.release, run_id)

    async def report(self, run_id: str) -> Report | None:
        """What came of a run, once it has ended."""
        return await asyncio.to_thread(self._reports.of, run_id)

    async def worktree(self, run_id: str) -> Worktree | None:
        """The checkout that a run works in, as long as it is kept."""
        return worktree_of(await self.store.get(run_id))

    async def trace(self, run_id: str) -> Trace:
        """What a run did so far, with all the agents that it called."""
        return await stored_trace(Archive(self.store), run_id)

    async def cancel(self, run_id: str) -> Run:
        """The worker that has it ends it within a beat, with everything kept. A run that is over stays as it is."""
        run = await self.show(run_id)
        if run.state == "waiting":
            await self._again(run)
        await self._client.cancel_workflow_async(run_id)
        return await self.show(run_id)

    async def retry(self, run_id: str) -> Run:
        """Let a run go on that failed or was canceled; what it has done is not done again."""
        run = await self.show(run_id)
        if run.state not in ("failed", "canceled"):
            raise OutriderError(f"only a run that failed or was canceled can be retried; this one is {run.state}")
        await asyncio.to_thread(self._reports.withdraw, run_id)
        return await self._again(run)

    async def approvals(self, run_id: str | None = None) -> Sequence[Approval]:
        """The questions that runs wait for, those of the agents that they called included."""
        found = await self.store.approvals(only_open=True)
        if run_id is None or not found:
            return found
        ours = {session_id async for session_id in family(self.store, run_id)}
        return [question for question in found if question.session_id in ours]

    async def approve(self, approval_id: str, *, allow: bool = True, by: str = "", words: str = "") -> Approval:
        """The first answer counts. A worker notices that nothing is open any more and lets the run go on."""
        return await self.store.answer(approval_id, "allowed" if allow else "denied", by=by, words=words)

    async def wait(self, run_id: str, *, poll: float = 0.5) -> Run:
        """Until it is over, or waits for somebody."""
        while True:
            run = await self.show(run_id)
            if run.state not in ("delayed", "queued", "running"):
                return run
            await asyncio.sleep(poll)

    async def wake(self, run_id: str) -> bool:
        """Put a run that waits back into its queue once all its questions are answered, wherever that was done; says
        whether it need not be looked at any more."""
        run = await self.show(run_id)
        if run.state != "waiting":
            return run.is_over
        if await self.approvals(run_id):
            return False
        with suppress(error.DBOSException):  # somebody else has done so in this moment
            await self._again(run)
        return True

    async def _begin(self, session: StoredSession, prompt: str) -> None:
        """The session and its input are kept before anybody can be given the run."""
        try:
            await self.store.get(session.id)
        except SessionNotFoundError:
            await self.store.create(session)
        message = Message("user", [TextPart(prompt)])
        await self.store.put_inbox(InboxItem(session_id=session.id, message=message, id=session.id))

    async def _again(self, run: Run) -> Run:
        await self._client.rewind_workflow_async(run.id, queue_name=QUEUE)
        return await self.show(run.id)


@asynccontextmanager
async def open_jobs(database: Database, store: Store) -> AsyncGenerator[Jobs, None]:
    await asyncio.to_thread(database.prepare)
    client = await asyncio.to_thread(database.client)
    try:
        yield Jobs(client, store, database)
    finally:
        await asyncio.to_thread(client.destroy)


def _job(status: WorkflowStatus) -> Job:
    given: Any = status.input["args"][0] if status.input else {}
    return msgspec.convert(given, Job, strict=False)


def _run(status: WorkflowStatus) -> Run:
    job = _job(status)
    left: Any = status.output
    outcome = msgspec.convert(left, Outcome, strict=False) if left else None
    state, before = state_of(status.status, outcome), run_before(status.queue_name or "")
    return Run(
        id=status.workflow_id,
        state="delayed" if state == "queued" and before else state,
        prompt=job.prompt,
        queue=job.queue,
        user=job.user,
        priority=status.priority or 0,
        worker=status.executor_id or "",
        attempts=status.recovery_attempts or 0,
        created=status.created_at,
        ended=status.completed_at,
        begins=status.delay_until_epoch_ms if state == "delayed" else None,
        after_run=before if state == "queued" else "",
        outcome=outcome,
    )
