"""Executes runs: takes over the session's lease, continues the session until it ends, and stores a report."""

import asyncio
import errno
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from decimal import Decimal
from time import monotonic
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import TurnEnd, TurnOutcome
from outrider.background.database import outage_pause, repeat_during_outage
from outrider.background.records import EndReason, JobSpec, RunOutcome
from outrider.background.reports import JobReport, ReportTable, WebhookTarget
from outrider.background.retries import RunRetries
from outrider.background.worktrees import RunWorkspace
from outrider.engine.child_sessions import end_session
from outrider.engine.engine import Engine
from outrider.engine.results import RunResult
from outrider.errors import OutriderError, ProviderError, SessionNotFoundError, StorageFullError, StoreUnavailableError
from outrider.presentation.formats import short_id
from outrider.sessions.records import SessionFilter
from outrider.sessions.store import Store
from outrider.types.agents import Limits
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, Usage
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

T = TypeVar("T")
_log = logging.getLogger("outrider.worker")


class RunUsage(msgspec.Struct, frozen=True):
    """What a run has used. `seconds` is the time in which models and tools worked; time in the queue and time waiting
    for an approval do not count."""

    steps: int = 0
    usage: Usage = Usage()
    seconds: float = 0.0


async def compute_run_usage(
    store: Store, run_id: str, run_messages: Sequence[Message] | None = None, *, is_alone: bool = False
) -> RunUsage:
    """Returns the usage of a run and of all its child sessions. Only the run's own session adds seconds, because a
    child works while a call of its parent runs. `run_messages` are all messages of the run's session, if
    they are in memory; `is_alone` says that it has no child sessions."""
    steps, usage, intervals = 0, Usage(), list[tuple[int, int]]()
    async for session_id in _iterate_once(run_id) if is_alone else iterate_session_tree(store, run_id):
        is_known = run_messages is not None and session_id == run_id
        async for messages in _iterate_once(run_messages or ()) if is_known else _iterate_pages(store, session_id):
            answers = [message for message in messages if message.role == "assistant"]
            steps += len(answers)
            for message in answers:
                usage = usage.plus(message.tokens, message.cost)
            if session_id == run_id:
                intervals += _work_intervals(answers)
    return RunUsage(steps, usage, _merged_duration(intervals) / 1000)


async def _iterate_once(value: T) -> AsyncIterator[T]:
    yield value


async def _iterate_pages(store: Store, session_id: str) -> AsyncIterator[Sequence[Message]]:
    """Yields the messages of a stored session page by page: a long run may have more than fits into memory."""
    after = ""
    while messages := (await store.load(session_id, after=after, limit=_USAGE_PAGE)).messages:
        yield messages
        after = messages[-1].id


async def iterate_session_tree(store: Store, run_id: str) -> AsyncIterator[str]:
    """Yields the id of the run's session and of all its child sessions, at any depth."""
    pending = [run_id]
    while pending:
        yield (parent_id := pending.pop(0))
        after: str | None = None
        while True:
            page = await store.list(SessionFilter(parent_id=parent_id), after=after)
            pending += [session.id for session in page.sessions]
            if (after := page.next) is None:
                break


def remaining_limits(limits: Limits, run_usage: RunUsage) -> Limits:
    """Returns the limits less what the run has used. Limits apply to all workers of a run together."""
    usage = run_usage.usage
    return replace(
        limits,
        turns=None if limits.turns is None else max(limits.turns - run_usage.steps, 0),
        seconds=None if limits.seconds is None else max(limits.seconds - run_usage.seconds, 0.0),
        tokens=None if limits.tokens is None else max(limits.tokens - usage.tokens.total, 0),
        cost=None if limits.cost is None else max(limits.cost - (usage.total_cost or 0), Decimal(0)),
    )


def _work_intervals(answers: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Yields the start and end of every answer and call. It leaves out interrupted calls, because their end time is
    when a later worker found them, possibly days after the crash."""
    for message in answers:
        if message.time is not None and message.time.completed is not None:
            yield message.time.created, message.time.completed
        for call in message.get_calls():
            match call.state:
                case ToolCompleted(time=time):
                    yield time.start, time.end
                case ToolError(time=time, reason=reason) if reason != "interrupted":
                    yield time.start, time.end
                case ToolPending() | ToolRunning() | ToolError():
                    continue


def _merged_duration(spans: Iterable[tuple[int, int]]) -> int:
    """Returns the total length of the intervals in milliseconds; overlapping intervals are merged."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


async def is_waiting_for_approval(engine: Engine, run_id: str) -> bool:
    """Returns whether the run and all its child sessions make no progress until a user answers an approval."""
    live = engine.live.get(run_id)
    messages = live.journal.session.messages if live else []
    if not messages or not _has_open_call(messages[-1]):
        return False
    return bool(await engine.store.approvals(only_open=True)) and await _all_calls_wait(engine.store, messages)


async def _all_calls_wait(store: Store, messages: Sequence[Message]) -> bool:
    """Returns whether each open call of the last message waits for an approval, or for a child session that does. Each
    running call has at most one child session."""
    if not messages or not _has_open_call(messages[-1]):
        return False
    states = [call.state for call in messages[-1].get_calls()]
    if any(isinstance(state, ToolPending) and state.phase != "awaiting_approval" for state in states):
        return False
    running = sum(isinstance(state, ToolRunning) for state in states)
    children = [part.child_session_id for part in messages[-1].get_parts_by_type(SubtaskPart)] if running else []
    waiting_children = [
        child for child in children if child and await _all_calls_wait(store, await _load_last_message(store, child))
    ]
    return len(waiting_children) == running


async def _load_last_message(store: Store, session_id: str) -> Sequence[Message]:
    """Returns the last message in a list; an empty list if the session does not exist yet, because the subtask part is
    stored before the child session is created."""
    try:
        return (await store.load(session_id, limit=1)).messages
    except SessionNotFoundError:
        return ()


def _has_open_call(message: Message) -> bool:
    return any(not call.ended for call in message.get_calls())


def _has_running_call(engine: Engine, run_id: str) -> bool:
    """Returns whether a call runs, or is about to: its answer has arrived."""
    live = engine.live.get(run_id)
    messages = live.journal.session.messages if live else []
    states = [call.state for call in messages[-1].get_calls()] if messages else []
    return any(
        isinstance(state, ToolRunning) or (isinstance(state, ToolPending) and state.phase != "awaiting_approval")
        for state in states
    )


def is_disk_full(problem: BaseException) -> bool:
    """Returns whether a disk was full: that of the store, or one of this machine, also when git reports it."""
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return isinstance(problem, StorageFullError) or os.strerror(errno.ENOSPC) in str(problem)


def _measure_progress(engine: Engine, run_id: str) -> tuple[int, int]:
    """Returns numbers that change when a call of the run ends."""
    live = engine.live.get(run_id)
    messages = live.journal.session.messages if live else []
    calls = messages[-1].get_calls() if messages else []
    return len(messages), sum(call.ended for call in calls)


_USAGE_PAGE = 200
_DRAIN_POLL_SECONDS = 0.05
APPROVAL_POLL_SECONDS = 0.25  # interval at which a running turn is checked for waiting on an approval


# A check of the ownership is not repeated within this time: the lease is acquired some time after it in any case, and
# others consider a worker dead much later. A process that was paused finds that more time has passed, and checks again.
FRESH_SECONDS = 0.25


class RunAssignment(msgspec.Struct):
    """The queue's assignment of a run to this worker: its number, and when it was read, in monotonic seconds. The
    executor sets `is_released` if it has ended the assignment together with the report."""

    attempt: int
    read_at: float
    is_released: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether it was read a moment ago, so that it need not be read again."""
        return monotonic() - self.read_at < FRESH_SECONDS


OwnershipCheck = Callable[[str], Awaitable[bool]]
"""Returns whether the queue assigns a run to this worker now."""


async def _assume_owned(_: str) -> bool:
    return True


class RunExecutor:
    """Executes runs that DBOS has assigned to this worker, and so may take over their session leases. It asks `owns`
    again before each turn, because a worker that was paused may act on an assignment that has since moved. A run that
    a full disk has stopped is tried again every `full_disk_seconds`."""

    def __init__(
        self,
        engine: Engine,
        workspace: RunWorkspace,
        reports: ReportTable,
        owns: OwnershipCheck = _assume_owned,
        retries: RunRetries | None = None,
        *,
        full_disk_seconds: float = 5.0,
    ) -> None:
        self._retries = retries
        self._owns_run = owns
        self._engine = engine
        self._workspace = workspace
        self._reports = reports
        self._open_engines: dict[str, Engine] = {}
        self._active_counts = Counter[str]()
        self._full_disk_seconds = full_disk_seconds
        self._leaving = False
        self.waiting_for_store = 0  # runs that cannot continue before the store is available

    @property
    def open_runs(self) -> dict[str, Engine]:
        """The runs with an open engine, by run id."""
        return dict(self._open_engines)

    @property
    def active_runs(self) -> set[str]:
        """The ids of runs that are being executed or cleaned up."""
        return set(+self._active_counts)

    async def execute_run(self, run_id: str, job: JobSpec, assignment: RunAssignment | None = None) -> RunOutcome:
        """Executes a run until it ends or waits for an approval, and returns the outcome. If the store becomes
        unavailable for longer than it waits itself, or a disk is full, the run continues from its stored state
        afterwards. With an `assignment`, a run that has ended is released together with its report."""
        self._active_counts[run_id] += 1
        try:
            while True:
                try:
                    return await self._execute_run(run_id, job, assignment)
                except StoreUnavailableError as problem:
                    await self._wait_for_store(run_id, problem)
                except (OutriderError, OSError) as problem:
                    await self._wait_for_space(run_id, problem)
        finally:
            self._active_counts[run_id] -= 1

    async def fail_run(self, run_id: str, job: JobSpec, message: str) -> RunOutcome:
        """Ends a run with an error without executing it."""
        return await self._finish_unopened(run_id, job, RunOutcome(reason="error", error=message))

    async def finish_orphan(self, run_id: str, job: JobSpec, reason: EndReason, error: str = "") -> None:
        """Stores the report of a run that has ended and that no worker executes."""
        try:
            outcome = await self._build_outcome(run_id, reason)
            await self._finish_unopened(run_id, job, replace(outcome, error=error))
        except SessionNotFoundError:  # the session was deleted, so it has no open calls
            report = JobReport(outcome=RunOutcome(reason=reason, error=error))
            await repeat_during_outage(self._reports.store_report, run_id, report)

    async def _execute_run(self, run_id: str, job: JobSpec, assignment: RunAssignment | None) -> RunOutcome:
        """Releases an earlier execution of the same run first: DBOS has assigned the run to this worker again since
        then."""
        if previous := self._open_engines.get(run_id):
            await self.release_run(run_id, previous)
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(self._engine_for_job(run_id, job))
            except StoreUnavailableError:
                raise
            except OutriderError as problem:
                if is_disk_full(problem):
                    raise
                return await self._finish_unopened(run_id, job, RunOutcome(reason="error", error=str(problem)))
            self._open_engines[run_id] = engine
            try:
                end, reason = await self._run_to_end(engine, run_id, job.output_schema, assignment)
                outcome = await self._build_outcome(run_id, reason, end, engine)
                still_holds = self._still_holds(run_id, engine)
                if still_holds and isinstance(end.error, ProviderError):
                    outcome = await self._plan_retry(run_id, outcome, end.error)
            finally:
                await self.release_run(run_id, engine)
        if still_holds and outcome.reason != "waiting":
            await self._store_report(run_id, job, outcome, assignment)
        return outcome

    async def _plan_retry(self, run_id: str, outcome: RunOutcome, error: ProviderError) -> RunOutcome:
        """Returns the outcome of a run that starts again later, if the policy has an attempt left for this error."""
        retry_at = await repeat_during_outage(self._retries.plan_retry, run_id, error) if self._retries else None
        if retry_at is None:
            return outcome
        return replace(outcome, reason="waiting", retry_at=retry_at, provider=error.provider)

    async def abort_run(self, run_id: str) -> None:
        """Aborts the current turn and withdraws its open approvals."""
        if engine := self._open_engines.get(run_id):
            await engine.abort(run_id)

    async def release_run(self, run_id: str, engine: Engine) -> None:
        """Closes the session so that another worker can take it over. The executor then stores no report for this
        execution."""
        if self._open_engines.get(run_id) is engine:
            del self._open_engines[run_id]
            await engine.close(run_id)

    async def drain(self, seconds: float, released: Callable[[str], Awaitable[None]]) -> None:
        """Lets running calls end, for up to `seconds`, and starts nothing new. Each run without a running call is
        released at once, so that another worker continues it; `released` is called with its id."""
        self._leaving = True
        for run_id, engine in self.open_runs.items():
            if live := engine.live.get(run_id):
                live.hold_turn()
        deadline = monotonic() + seconds
        while (open_runs := self.open_runs) and monotonic() < deadline:
            for run_id, engine in open_runs.items():
                if _has_running_call(engine, run_id):
                    continue
                if await self._release_and_save(run_id, engine):
                    await released(run_id)
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    async def release_all(self) -> None:
        """Releases all runs. From then on no run starts or ends in this executor."""
        self._leaving = True
        for run_id, engine in self.open_runs.items():
            await self._release_and_save(run_id, engine)

    async def _release_and_save(self, run_id: str, engine: Engine) -> bool:
        """Releases a run, then stores its files with what its canceled calls have written; no call can start in
        between. Returns whether both succeeded. If not, another worker takes over the lease, and the other runs are
        released."""
        try:
            await self.release_run(run_id, engine)
            await self._workspace.save_snapshot(run_id, force=True)
        except (OutriderError, OSError) as problem:
            _log.warning("run %s is not released completely: %s", short_id(run_id), problem)
            return False
        return True

    async def _wait_for_store(self, run_id: str, problem: StoreUnavailableError) -> None:
        """Waits until the store can be read again."""
        _log.warning("run %s is waiting for database: %s", short_id(run_id), problem)
        attempt = 0
        self.waiting_for_store += 1
        try:
            while True:
                await self._block_if_leaving()
                await asyncio.sleep(outage_pause(attempt))
                attempt += 1
                with suppress(StoreUnavailableError):
                    await self._engine.store.approvals(run_id)
                    return
        finally:
            self.waiting_for_store -= 1

    async def _wait_for_space(self, run_id: str, problem: Exception) -> None:
        """Waits before the next attempt of a run that a full disk has stopped; raises any other problem."""
        if not is_disk_full(problem):
            raise problem
        _log.warning("run %s is waiting for disk space: %s", short_id(run_id), problem)
        await self._block_if_leaving()
        await asyncio.sleep(self._full_disk_seconds)

    def _still_holds(self, run_id: str, engine: Engine) -> bool:
        """Returns whether this execution still holds the run and its session lease."""
        live = engine.live.get(run_id)
        return self._open_engines.get(run_id) is engine and live is not None and not live.journal.is_lost

    async def _finish_unopened(self, run_id: str, job: JobSpec, outcome: RunOutcome) -> RunOutcome:
        """Ends the open calls of the session, which a previous worker may have left, and stores the report."""
        if await repeat_during_outage(self._reports.owns_run, run_id):
            await end_session(self._engine.store, run_id)
        await self._store_report(run_id, job, outcome)
        return outcome

    async def _store_report(
        self, run_id: str, job: JobSpec, outcome: RunOutcome, assignment: RunAssignment | None = None
    ) -> None:
        """Commits the worktree and stores the report, also for a canceled run; storing it twice is idempotent. If
        another worker owns the run by now, it leaves the report and the worktree alone."""
        changes = await self._workspace.finish_workspace(
            run_id, job, lambda: repeat_during_outage(self._reports.owns_run, run_id)
        )
        report = self._engine.redact(JobReport(outcome=outcome, changes=changes))
        target = WebhookTarget(job.webhook, self._engine.redact(job.prompt))
        ends = assignment.attempt if assignment is not None else None
        is_stored = await repeat_during_outage(self._reports.store_report, run_id, report, target, ends_attempt=ends)
        if assignment is not None:
            assignment.is_released = is_stored

    async def _block_if_leaving(self) -> None:
        """Waits forever once the executor is leaving. The run continues in another worker, so this execution must not
        return an outcome; closing the worker cancels the wait."""
        if self._leaving:
            await asyncio.Event().wait()

    async def _run_to_end(
        self, engine: Engine, run_id: str, output_schema: dict[str, Any] | None, assignment: RunAssignment | None
    ) -> tuple[TurnOutcome, EndReason]:
        """Runs turns until the session has no more input, and returns the last turn's end."""
        is_owned = assignment is not None and assignment.is_fresh
        while is_owned or await self._owns_run(run_id):
            is_owned = False
            await self._block_if_leaving()
            turn = asyncio.ensure_future(_resume_run(engine, run_id, output_schema))
            while not turn.done():
                await asyncio.wait([turn], timeout=APPROVAL_POLL_SECONDS)
                if turn.done():
                    break
                if await self._is_waiting(engine, run_id):
                    await self._workspace.save_snapshot(run_id, force=True)
                    await engine.close(run_id)
                    return await turn, "waiting"
                await self._workspace.save_snapshot(run_id, _measure_progress(engine, run_id))
            end = turn.result()
            if isinstance(end.error, StoreUnavailableError) or (end.error and is_disk_full(end.error)):
                raise end.error
            await self._block_if_leaving()
            if self._has_lost_lease(run_id, engine):
                continue  # a worker that was paused took the lease; the loop condition checks which of us owns the run
            if end.reason != "completed" or not await engine.queued(run_id):
                return end, end.reason
        return TurnEnd("aborted"), "aborted"

    async def _is_waiting(self, engine: Engine, run_id: str) -> bool:
        """Returns whether the run waits for an approval; False while the store cannot be read: the turn is not over."""
        try:
            return await is_waiting_for_approval(engine, run_id)
        except StoreUnavailableError:
            return False

    def _has_lost_lease(self, run_id: str, engine: Engine) -> bool:
        live = engine.live.get(run_id)
        return self._open_engines.get(run_id) is engine and live is not None and live.journal.is_lost

    @asynccontextmanager
    async def _engine_for_job(self, run_id: str, job: JobSpec) -> AsyncGenerator[Engine, None]:
        """Opens an engine with the job's options and with its limits less what the run has used."""
        workspace = await self._workspace.prepare_workspace(run_id, job)
        options = await self._workspace.engine_options(job, workspace)
        if job.limits is not None:
            options["limits"] = remaining_limits(job.limits, await compute_run_usage(self._engine.store, run_id))
        if not options:
            yield self._engine
            return
        async with self._engine.replace(**options) as engine:
            yield engine

    async def _build_outcome(
        self, run_id: str, reason: EndReason, end: TurnOutcome | None = None, engine: Engine | None = None
    ) -> RunOutcome:
        live = engine.live.get(run_id) if engine else None
        messages = live.journal.session.messages if live and live.journal.has_all_messages else None
        # Child sessions are created by calls and for titles.
        is_alone = (
            messages is not None and not self._engine.runtime.titles and not any(map(Message.get_calls, messages))
        )
        run_usage = await compute_run_usage(self._engine.store, run_id, messages, is_alone=is_alone)
        return RunOutcome(
            reason=reason,
            output=_text_of(end) if end else "",
            error=str(end.error) if end and end.error else "",
            steps=run_usage.steps,
            tokens=run_usage.usage.tokens,
            cost=run_usage.usage.total_cost,
            seconds=round(run_usage.seconds, 3),
        )


async def _resume_run(engine: Engine, run_id: str, output_schema: dict[str, Any] | None) -> RunResult[Any]:
    if output_schema is None:
        return await engine.resume(run_id, take_over=True)
    return await engine.resume(run_id, take_over=True, output_type=output_schema)


def _text_of(end: TurnOutcome) -> str:
    return end.text if isinstance(end, RunResult) else end.output
