"""The client for background runs: submit, list, cancel, retry and answer them. It needs no worker in the same
process."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, TypedDict, Unpack

import msgspec
from dbos import DBOSClient, EnqueueOptions, WorkflowStatus
from msgspec.structs import replace

from outrider.background.database import WORKFLOW_NAME, WORKFLOW_VERSION, RunDatabase, skip_failed_entry
from outrider.background.executor import iterate_session_tree
from outrider.background.heartbeat import WorkerInfo, WorkerRegistry
from outrider.background.queue import QueuedRun, QueueEntry, RunQueue, WaitingRuns
from outrider.background.records import (
    NO_REASON,
    RUN_QUEUE_NAME,
    JobOverrides,
    JobSpec,
    QueuePlacement,
    Run,
    RunFilter,
    RunOutcome,
    derive_run_state,
)
from outrider.background.reports import JobReport, OrphanedRunFinder, ReportTable
from outrider.background.retries import RunRetries
from outrider.background.schedules import Schedule, ScheduleTable, local_timezone
from outrider.background.workspace_snapshots import SnapshotInfo, SnapshotTable
from outrider.background.worktrees import stored_worktree
from outrider.engine.approvals import check_scope
from outrider.engine.archive import SessionArchive
from outrider.engine.inbox import first_line_title
from outrider.engine.session_trace import stored_trace
from outrider.errors import ConfigurationError, OutriderError, SessionNotFoundError
from outrider.presentation.formats import short_id
from outrider.project.sandbox import RunWorktree
from outrider.sessions.records import Approval, ApprovalScope, InboxItem, StoredSession, check_metadata
from outrider.sessions.store import Store
from outrider.tracing.trace import Trace
from outrider.types.agents import Limits, Mode
from outrider.types.ids import is_id, new_id, now_ms
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.outcomes import OutcomeChoice
from outrider.types.parts import TextPart

_PAGE_SIZE = 500
# The statuses of DBOS that runs in a state can have; a worker ends most runs with a stored outcome, which is a success.
_WORKFLOW_STATUSES = {
    "failed": ("SUCCESS", "ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"),
    "canceled": ("SUCCESS", "CANCELLED"),
    "done": ("SUCCESS",),
    "waiting": ("SUCCESS",),
    "queued": ("DELAYED", "ENQUEUED", "PENDING"),
    "running": ("PENDING",),
}
_ENTRY_STATES = {"queued": "queued", "running": "assigned"}  # other states do not follow from the queue's table
WORKER_START_MS = 15_000  # how long a worker may take to start


DEFAULT_PLACEMENT = QueuePlacement()


class JobOptions(TypedDict, total=False):
    """The optional arguments of a submitted run; see `JobSpec` and `QueuePlacement`."""

    workspace: str
    agent: str
    mode: Mode
    limits: Limits | None
    place: QueuePlacement
    run_id: str | None
    worktree: bool
    webhook: str
    terms: JobOverrides
    output_schema: dict[str, Any] | None
    owner: str
    metadata: dict[str, Any]
    approval: ApprovalLevel


class JobClient:
    """Submits runs and reads their state. `store` holds the sessions and must be the store that the workers use."""

    def __init__(self, client: DBOSClient, store: Store, database: RunDatabase) -> None:
        self._client = client
        self._database = database
        self.store = store
        self._reports = ReportTable(database)
        self._snapshots = SnapshotTable(database)
        self._orphans = OrphanedRunFinder(database, client)
        self._queue = RunQueue(database)
        self._retries = RunRetries(database)
        self._schedules = ScheduleTable(database)
        self.waiting_runs = WaitingRuns(database)
        self._workers = WorkerRegistry(database)

    async def submit_run(self, prompt: str, **order: Unpack[JobOptions]) -> Run:
        """Stores a run and returns it. The same `run_id`, a UUID, submits a run only once."""
        run_id, placement = order.get("run_id") or new_id(), order.get("place", DEFAULT_PLACEMENT)
        if not is_id(run_id):
            raise ConfigurationError(f"run_id must be a UUID, not {run_id!r}; uuid.uuid5 makes one from a name")
        if placement.after_run:
            await self.get_run(placement.after_run)
        session = StoredSession(
            id=run_id,
            mode=order.get("mode", "background"),
            agent=order.get("agent", ""),
            workspace_directory=order.get("workspace", ""),
            title=first_line_title(Message("user", [TextPart(prompt)])),  # else the worker stores it: one more write
            owner=order.get("owner") or placement.user,
            metadata=check_metadata(order.get("metadata")),
            approval=order.get("approval", "ask"),
        )
        await self._store_session(session, prompt)
        options = EnqueueOptions(
            workflow_name=WORKFLOW_NAME,
            queue_name=RUN_QUEUE_NAME,
            workflow_id=run_id,
            app_version=WORKFLOW_VERSION,
            priority=placement.priority,
        )
        if placement.after > 0:
            options["delay_seconds"] = placement.after
        job = JobSpec(
            prompt=prompt,
            queue=placement.queue,
            user=placement.user,
            limits=order.get("limits"),
            worktree=order.get("worktree", True),
            webhook=order.get("webhook", ""),
            terms=order.get("terms", JobOverrides()),
            output_schema=order.get("output_schema"),
        )
        await asyncio.to_thread(self._enqueue, run_id, placement, session.agent, job, options)
        return await self.get_run(run_id)

    def _enqueue(
        self, run_id: str, placement: QueuePlacement, agent: str, job: JobSpec, options: EnqueueOptions
    ) -> None:
        """Adds the run to the queue and enqueues its workflow in one transaction, so that neither exists alone."""
        created = now_ms()
        run = QueuedRun(
            id=run_id,
            queue=placement.queue,
            user=placement.user,
            provider=job.terms.model.partition("/")[0],
            priority=placement.priority,
            number=created,
        )
        ready_at = created + round(max(placement.after, 0) * 1000)
        with self._database.engine.begin() as db:
            self._queue.add_run(db, run, agent=agent, ready=ready_at, after_run=placement.after_run)
            self._client.enqueue_in_transaction(db, options, msgspec.to_builtins(job))

    async def find_runs(self, selection: RunFilter, *, limit: int | None = None) -> Sequence[Run]:
        """Returns the runs that match, newest first."""
        runs: list[Run] = []
        offset, size = 0, min(limit or _PAGE_SIZE, _PAGE_SIZE)
        while page := await self._list_page(selection, size, offset):
            runs += [run for run in page if selection.matches(run)]
            offset, size = offset + size, min(size * 4, _PAGE_SIZE)
            if limit is not None and len(runs) >= limit:
                break
        return runs[:limit]

    async def _list_page(self, selection: RunFilter, limit: int, offset: int) -> Sequence[Run]:
        """Returns a page of the runs that may match. Runs in the queue are found by an index of the queue's table."""
        states = {_ENTRY_STATES.get(state, "") for state in selection.states} or {""}
        if "" in states:
            groups = [_WORKFLOW_STATUSES.get(state) for state in selection.states]
            if not groups or None in groups:
                return await self.list_runs(limit=limit, offset=offset)
            statuses = sorted({status for group in groups for status in group or ()})
            return await self._load_runs(
                name=WORKFLOW_NAME, status=statuses, limit=limit, offset=offset, sort_desc=True
            )
        ids = await asyncio.to_thread(
            self._queue.list_active, states, selection.queue, selection.user, limit=limit, offset=offset
        )
        runs_by_id = {run.id: run for run in await self._load_runs(workflow_ids=list(ids))} if ids else {}
        return [runs_by_id[run_id] for run_id in ids if run_id in runs_by_id]

    async def find_run_ids(self, ending: str) -> Sequence[str]:
        """Returns up to two runs whose ids end with the text."""
        return await asyncio.to_thread(self._queue.find_ids, ending)

    async def list_runs(self, *, limit: int = 50, offset: int = 0) -> Sequence[Run]:
        """Returns runs, newest first."""
        return await self._load_runs(name=WORKFLOW_NAME, limit=limit, offset=offset, sort_desc=True)

    async def _load_runs(self, **selection: Any) -> Sequence[Run]:
        workflows = await self._client.list_workflows_async(**selection)
        entries = await asyncio.to_thread(self._queue.get_entries, [status.workflow_id for status in workflows])
        return await self._describe_runs(workflows, entries)

    async def _describe_runs(
        self, workflows: Sequence[WorkflowStatus], entries: Mapping[str, QueueEntry]
    ) -> Sequence[Run]:
        runs = [_decode_run(status, entries.get(status.workflow_id)) for status in workflows]
        if all(run.state not in ("queued", "running") for run in runs):
            return runs
        return await asyncio.to_thread(self._explain_waits, runs, entries)

    def _explain_waits(self, runs: Sequence[Run], entries: Mapping[str, QueueEntry]) -> Sequence[Run]:
        """Sets `waiting_for`: queued runs may wait for a paused provider, and running runs for the database, if their
        worker cannot reach it or reports that it waits for it."""
        workers = {worker.id: worker for worker in self._workers.list_workers()}
        providers = {name: value for worker in workers.values() for name, value in worker.status.providers.items()}
        paused = self._retries.list_paused()

        def explain(run: Run) -> Run:
            entry, worker = entries.get(run.id), workers.get(run.worker)
            if run.state == "running" and worker and worker.state in ("silent", "waiting for database"):
                return replace(run, waiting_for="database")
            if run.state != "queued" or entry is None:
                return run
            provider = entry.provider or providers.get(entry.agent) or _shared_provider(providers)
            return replace(run, waiting_for=f"provider {provider}") if provider in paused else run

        return [explain(run) for run in runs]

    async def list_workers(self) -> Sequence[WorkerInfo]:
        """Returns the workers of all machines that share the database."""
        return await asyncio.to_thread(self._workers.list_workers)

    async def get_run(self, run_id: str) -> Run:
        """Returns a run. Raises SessionNotFoundError if it does not exist."""
        return (await self._read_run(run_id))[0]

    async def _read_run(self, run_id: str) -> tuple[Run, QueueEntry | None]:
        """Returns a run and its entry in the queue. The entry is read first: a change that depends on the state of the
        run fails if the entry has changed since."""
        entries = await asyncio.to_thread(self._queue.get_entries, [run_id])
        workflows = await self._client.list_workflows_async(workflow_ids=[run_id], name=WORKFLOW_NAME)
        if not workflows:
            raise SessionNotFoundError(f"there is no run {run_id}; `outrider jobs` lists them")
        return (await self._describe_runs(workflows, entries))[0], entries.get(run_id)

    async def get_job(self, run_id: str) -> JobSpec:
        """Returns the job as it was submitted."""
        (workflow,) = await self._client.list_workflows_async(workflow_ids=[run_id], load_output=False)
        return _decode_job(workflow)

    async def reserved_cost(self, users: Collection[str], *, without: str | None = None) -> Decimal:
        """Returns what the unfinished runs of these users may still cost: their cost limits minus what they have spent.
        The run `without` is left out."""
        run_ids = [run_id for run_id in await asyncio.to_thread(self._list_open, users) if run_id != without]
        workflows = await self._client.list_workflows_async(workflow_ids=run_ids) if run_ids else []
        open_runs = [status for status in workflows if not _decode_run(status, None).is_over]
        costs = [await self.remaining_cost(status.workflow_id, _decode_job(status)) for status in open_runs]
        return sum((cost for cost in costs if cost is not None), Decimal(0))

    def _list_open(self, users: Collection[str]) -> Sequence[str]:
        """Returns the runs of the users that may not be over. Those that wait for an approval or for their next attempt
        are released, and their workflow has ended."""
        released = [*self.waiting_runs.list_runs(), *self._retries.list_runs()]
        return self._queue.list_owned(users, released)

    async def remaining_cost(self, run_id: str, job: JobSpec) -> Decimal | None:
        """Returns what a run may still cost, None without a limit."""
        if job.limits is None or job.limits.cost is None:
            return None
        used_cost = Decimal(0)
        async for session_id in iterate_session_tree(self.store, run_id):
            rows = await self.store.statistics("model", session_id=session_id)
            used_cost += sum((row.cost for row in rows), Decimal(0))
        return max(job.limits.cost - used_cost, Decimal(0))

    async def needs_cleanup(self, run_id: str) -> bool:
        """Returns whether a run is over but a worker still has to end its open calls and store its report."""
        return bool(await asyncio.to_thread(self._orphans.list_orphans, run_id))

    async def has_work(self) -> bool:
        """Returns whether a worker has anything to do, now or at a scheduled time. A run that waits for an approval
        does not count until all its approvals are answered."""
        workflows = await self._client.list_workflows_async(
            name=WORKFLOW_NAME, status=["DELAYED", "ENQUEUED", "PENDING"], limit=1, load_input=False, load_output=False
        )
        if workflows or any(not schedule.paused for schedule in await self.list_schedules()):
            return True
        if await asyncio.to_thread(self._reports.outbox.has_pending) or await asyncio.to_thread(
            self._orphans.list_orphans
        ):
            return True
        return any(
            [not await self.open_approvals(run_id) for run_id in await asyncio.to_thread(self.waiting_runs.list_runs)]
        )

    async def list_paused_providers(self) -> dict[str, int]:
        """Returns the providers whose runs stay in the queue after errors, and when each is tried again."""
        return await asyncio.to_thread(self._retries.list_paused)

    async def read_queue_gauges(self) -> dict[str, dict[str, float]]:
        """Returns the number of runs and workers by state, and the seconds until paused providers are tried again."""
        states = Counter[str](worker.state for worker in await self.list_workers())
        now, paused = now_ms(), await self.list_paused_providers()
        return {
            "outrider_queue_runs_state": dict(await asyncio.to_thread(self._queue.count_states)),
            "outrider_workers_state": dict(states),
            "outrider_paused_seconds_provider": {name: max(until - now, 0) / 1000 for name, until in paused.items()},
        }

    @property
    def is_shared(self) -> bool:
        """Whether several machines can share the database."""
        return self._database.is_postgres

    async def has_live_worker(self) -> bool:
        """Returns whether a worker is alive. A worker that reports nothing, for example because it cannot reach the
        database, is not."""
        return any(worker.state not in ("dead", "silent") for worker in await self.list_workers())

    async def unattended_runs(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Returns those of the runs that should be executing but have no live worker. A queued run gets a grace period,
        because a worker may be starting; in a shared database no command starts one."""
        submitted_before = now_ms() + 1 if self.is_shared else now_ms() - WORKER_START_MS
        stuck = [
            run
            for run in runs
            if run.state == "running" or (run.state == "queued" and (run.created or 0) < submitted_before)
        ]
        return stuck if stuck and not await self.has_live_worker() else ()

    async def add_schedule(
        self, cron: str, prompt: str, *, timezone: str = "", **order: Unpack[JobOptions]
    ) -> Schedule:
        """Submits a run at every time that `cron` matches in `timezone` (such as Europe/Berlin; default: this
        machine's). Times that were missed while no worker was alive result in one run, not in one each."""
        encoded_order = msgspec.to_builtins(order)
        return await asyncio.to_thread(
            self._schedules.add_schedule, cron, timezone or local_timezone(), prompt, encoded_order
        )

    async def list_schedules(self) -> Sequence[Schedule]:
        """Returns the schedules by the time of their next submission, paused ones last."""
        return await asyncio.to_thread(self._schedules.list_schedules)

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        """Submits no more runs of the schedule until it is resumed; runs that were submitted continue."""
        return await asyncio.to_thread(self._schedules.pause_schedule, schedule_id)

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Continues a paused schedule at its next time; missed times are skipped. A schedule that is not paused is not
        changed."""
        return await asyncio.to_thread(self._schedules.resume_schedule, schedule_id)

    async def remove_schedule(self, schedule_id: str) -> None:
        """Deletes the schedule; runs that were submitted continue."""
        await asyncio.to_thread(self._schedules.remove_schedule, schedule_id)

    async def submit_due(self) -> None:
        """Submits the runs of due schedules and queues runs whose predecessor is over. A worker calls it with every
        heartbeat. An entry that cannot be processed is logged and skipped."""
        now = now_ms()
        for schedule in await asyncio.to_thread(self._schedules.list_schedules, due=now):
            with skip_failed_entry(f"schedule {short_id(schedule.id)}"):
                order = msgspec.convert(schedule.order, JobOptions, strict=False)
                await self.submit_run(schedule.prompt, **{**order, "run_id": schedule.run_id()})
                await asyncio.to_thread(self._schedules.advance_due, schedule, now)
        for run_id in await asyncio.to_thread(self._queue.list_awaited_runs):
            with skip_failed_entry(f"runs that wait for run {short_id(run_id)}"):
                if (await self.get_run(run_id)).is_over:
                    await asyncio.to_thread(self._queue.release_dependents, run_id)

    async def get_report(self, run_id: str) -> JobReport | None:
        """Returns the report of a run; None before it has ended."""
        return await asyncio.to_thread(self._reports.get_report, run_id)

    async def get_snapshot(self, run_id: str) -> SnapshotInfo | None:
        """Returns what is stored of the worktree of a run that is not over, for workers on other machines."""
        return await asyncio.to_thread(self._snapshots.get_info, run_id)

    async def get_worktree(self, run_id: str) -> RunWorktree | None:
        """Returns the worktree of a run; None if it has none or if it was removed."""
        return stored_worktree(await self.store.get(run_id))

    async def load_trace(self, run_id: str) -> Trace:
        """Returns the trace of a run and of all its child sessions."""
        return await stored_trace(SessionArchive(self.store), run_id)

    async def cancel_run(self, run_id: str) -> Run:
        """Cancels a run. Its worker aborts the turn at its next heartbeat; everything stored stays stored. A run that
        is over does not change."""
        run, entry = await self._read_run(run_id)
        while not run.is_over:  # another process may start it in between, or a worker may release it
            await asyncio.to_thread(self._cancel_once, run, entry)
            run, entry = await self._read_run(run_id)
        return run

    def _cancel_once(self, run: Run, entry: QueueEntry | None) -> None:
        """Cancels the run unless it has changed. The workflow of a waiting run has ended, so it is rewound first; if
        this process dies then, a worker finishes it."""
        if run.state != "waiting" and _retry_time(run) is None:
            self._queue.cancel_run(run.id)
        elif self._queue.reopen_run(run, entry, canceled=True):
            self._queue.finish_cancel(self._queue.get_entries([run.id])[run.id])

    async def retry_run(self, run_id: str) -> Run:
        """Puts a failed or canceled run back into the queue. It continues its session; completed calls do not run
        again."""
        run, entry = await self._read_run(run_id)
        if run.state not in ("failed", "canceled"):
            raise OutriderError(f"only a failed or canceled run can be retried; this run is {run.state}")
        is_queued = await asyncio.to_thread(self._queue.reopen_run, run, entry, is_retry=True)
        run = await self.get_run(run_id)
        if not is_queued and run.state in ("failed", "canceled"):
            raise OutriderError(f"the run was not retried, because it has changed in between; it is {run.state}")
        return run

    async def open_approvals(self, run_id: str | None = None) -> Sequence[Approval]:
        """Returns the open approvals of all sessions, or of one run and its child sessions in the order of their
        calls."""
        approvals = await self.store.approvals(only_open=True)
        if run_id is None or not approvals:
            return approvals
        session_ids = [session_id async for session_id in iterate_session_tree(self.store, run_id)]
        positions = {session_id: position for position, session_id in enumerate(session_ids)}
        questions = [question for question in approvals if question.session_id in positions]
        return sorted(questions, key=lambda question: (positions[question.session_id], question.position))

    async def answer_approval(
        self,
        approval_id: str,
        *,
        allow: bool = True,
        by: str = "",
        words: str = "",
        scope: ApprovalScope = "once",
        width: str = "",
        keep: tuple[str, ...] | None = None,
        choice: OutcomeChoice = "keep",
    ) -> Approval:
        """Stores an answer; only the first one applies. A worker resumes the run when none of its approvals is open.
        `scope`, `width`, `keep` and `choice` are as for `Engine.answer`."""
        if scope != "once" or width:
            approvals = [question for question in await self.store.approvals() if question.id == approval_id]
            scope = check_scope(approvals[0], scope, width) if approvals else scope
        answer = "allowed" if allow else "denied"
        approval = await self.store.answer(
            approval_id, answer, scope=scope, by=by, words=words, keep=keep, choice=choice, width=width
        )
        await asyncio.to_thread(self._queue.notify_workers)
        return approval

    async def wait_for_run(self, run_id: str, *, poll: float = 0.5) -> Run:
        """Polls until the run is over or waits for an approval."""
        while True:
            run = await self.get_run(run_id)
            if run.state not in ("delayed", "queued", "running"):
                return run
            await asyncio.sleep(poll)

    async def resume_if_answered(self, run_id: str) -> None:
        """Puts a waiting run back into the queue once all its approvals are answered, by any process, or once the time
        of its retry has come."""
        run, entry = await self._read_run(run_id)
        if run.is_over:
            await asyncio.to_thread(self.waiting_runs.remove_ended, run_id, entry.attempts if entry is not None else 0)
        elif run.state == "queued" and (entry is None or entry.state == "released"):
            await asyncio.to_thread(self._queue.reopen_rewound, run, entry)
        retry_at = _retry_time(run)
        is_due = retry_at is not None and retry_at <= now_ms()
        if (is_due or run.state == "waiting") and not await self.open_approvals(run_id):
            is_canceled = entry is not None and entry.canceled
            await asyncio.to_thread(self._queue.reopen_run, run, entry, canceled=is_canceled)

    async def _store_session(self, session: StoredSession, prompt: str) -> None:
        """Stores the session and its input before the workflow is enqueued, so that a worker finds both."""
        try:
            await self.store.get(session.id)
        except SessionNotFoundError:
            await self.store.create(session)
        message = Message("user", [TextPart(prompt)])
        await self.store.put_inbox(InboxItem(session_id=session.id, message=message, id=session.id))


@asynccontextmanager
async def open_job_client(database: RunDatabase, store: Store) -> AsyncGenerator[JobClient, None]:
    """Creates or upgrades the tables, and yields a client."""
    await asyncio.to_thread(database.migrate)
    client = await asyncio.to_thread(database.open_client)
    try:
        yield JobClient(client, store, database)
    finally:
        await asyncio.to_thread(client.destroy)


def _shared_provider(providers: Mapping[str, str]) -> str:
    """Returns the provider of all agents if they have the same; a run without an agent uses the default one."""
    return next(iter(providers.values())) if len(set(providers.values())) == 1 else ""


def _retry_time(run: Run) -> int | None:
    """Returns when a run that was delayed by an error of its provider starts again; None for all other runs."""
    return run.outcome.retry_at if run.state == "delayed" and run.outcome is not None else None


def _decode_job(status: WorkflowStatus) -> JobSpec:
    if isinstance(status.input, str):  # DBOS returns data that it cannot decode as text
        return JobSpec(prompt="(the stored data of this run is damaged)", queue="")
    encoded: Any = status.input["args"][0] if status.input else {}
    return msgspec.convert(encoded, JobSpec, strict=False)


def _describe_workflow_error(status: WorkflowStatus) -> str:
    """Returns the reason of a workflow that ended without an outcome. DBOS returns the error as it was serialized."""
    if status.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
        return "the run was given up: too many workers died while they executed it"
    stored: Any = status.error
    match stored:
        case {"error": str(name), "message": str(message)}:
            return f"{name}: {message}" if message else name
        case None:
            return NO_REASON
        case problem:
            return f"{type(problem).__name__}: {problem}"


def _start_time(status: WorkflowStatus, outcome: RunOutcome | None) -> int | None:
    return outcome.retry_at if outcome is not None else status.delay_until_epoch_ms


def _decode_run(status: WorkflowStatus, entry: QueueEntry | None) -> Run:
    """Combines the workflow's status with the queue entry, which decides whether a run is queued: DBOS lists the run of
    a dead worker as pending until another worker starts it."""
    job = _decode_job(status)
    stored: Any = status.output
    outcome = msgspec.convert(stored, RunOutcome, strict=False) if stored else None
    state, after_run = derive_run_state(status.status, outcome), ""
    if outcome is None and state == "failed":
        outcome = RunOutcome(reason="error", error=_describe_workflow_error(status))
    if entry is not None and entry.state == "queued" and outcome is None and state in ("delayed", "queued", "running"):
        after_run = entry.after_run
        state = "delayed" if after_run or entry.ready > now_ms() else "queued"
    return Run(
        id=status.workflow_id,
        state=state,
        prompt=job.prompt,
        queue=job.queue,
        user=job.user,
        priority=status.priority or 0,
        worker=(entry.worker if entry else status.executor_id) or "",
        attempts=entry.attempts if entry else status.recovery_attempts or 0,
        created=status.created_at,
        ended=status.completed_at,
        begins=_start_time(status, outcome) if state == "delayed" and not after_run else None,
        after_run=after_run,
        outcome=outcome,
        waiting_for=f"provider {outcome.provider}".rstrip() if outcome and outcome.retry_at is not None else "",
    )
