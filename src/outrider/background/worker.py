"""The worker: dequeues runs, executes them, and takes over the runs of dead workers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Any, Self

import msgspec
from dbos import DBOS, DBOSClient, error
from sqlalchemy.exc import SQLAlchemyError

from outrider._sync import cancel_tasks
from outrider.background.database import (
    STARTED,
    WORKFLOW_NAME,
    QueueListener,
    RunDatabase,
    is_outage,
    is_unexpected_error,
    repeat_during_outage,
    skip_failed_entry,
    worker_queue,
)
from outrider.background.executor import FRESH_SECONDS, RunAssignment, RunExecutor
from outrider.background.health import WorkerMetrics
from outrider.background.heartbeat import (
    UNKNOWN_OWNER,
    FailureDetector,
    PendingWork,
    WorkerHeartbeat,
    WorkerRegistry,
    WorkerStatus,
)
from outrider.background.jobs import JobClient
from outrider.background.queue import QueueEntry, RunQueue
from outrider.background.records import JobSpec, RunOutcome, derive_run_state, describe_failure
from outrider.background.reports import OrphanedRunFinder, ReportTable
from outrider.background.retries import ProviderMonitor, RunRetries
from outrider.background.workspace_snapshots import SnapshotTable
from outrider.background.worktrees import RunWorkspace
from outrider.config.file import BackgroundTable
from outrider.engine.engine import Engine
from outrider.errors import ConfigurationError, OutriderError
from outrider.presentation.formats import short_id
from outrider.types.ids import now_ms

_log = logging.getLogger("outrider.worker")
_DEFAULT_LIMITS = BackgroundTable()
_WORKFLOW_POLL_SECONDS = 0.15  # how often DBOS polls this worker's queue, while it runs
_DEQUEUE_SECONDS = _WORKFLOW_POLL_SECONDS  # between two reads of the queue: DBOS starts nothing in between
# A workflow that DBOS has taken starts within milliseconds. Heartbeats are counted and not seconds: a process that was
# paused finds that much time has passed although DBOS had none to start the workflow, and it must not run twice.
_LOST_HEARTBEATS = 10
MAX_RECOVERY_ATTEMPTS = 100  # workers that may die during a run before it fails


class WorkflowRuntime:
    """DBOS in this process. A running DBOS makes four transactions a second, and as many more as it polls the worker's
    queue, so it runs only while the worker has runs. Starting it takes about 30 ms."""

    def __init__(
        self, database: RunDatabase, worker_id: str, work: Callable[[Any], Awaitable[Any]], *, poll: float
    ) -> None:
        self._database = database
        self._poll = poll
        self._queue_name = worker_queue(worker_id)
        self._worker_id = worker_id
        self._work = work
        self.is_running = False

    def register_queue(self) -> None:
        """Registers this worker's DBOS queue without limits: the run queue has already applied them."""
        DBOS.register_queue(self._queue_name, polling_interval_sec=min(self._poll, _WORKFLOW_POLL_SECONDS))

    def launch(self) -> None:
        """Starts DBOS unless it runs, and registers the worker's queue."""
        if self.is_running:
            return

        async def work(encoded_job: Any) -> Any:
            return await self._work(encoded_job)

        DBOS.workflow(name=WORKFLOW_NAME, max_recovery_attempts=MAX_RECOVERY_ATTEMPTS)(work)
        DBOS(config=self._database.dbos_config(self._worker_id))
        logging.getLogger("dbos").addFilter(is_unexpected_error)
        DBOS.listen_queues([self._queue_name])
        try:
            DBOS.launch()
            self.register_queue()
        except BaseException:
            DBOS.destroy(destroy_registry=True)
            raise
        self.is_running = True

    def stop(self) -> None:
        """Stops DBOS if it runs."""
        if self.is_running:
            DBOS.destroy(destroy_registry=True)
            self.is_running = False


class Worker:
    """Executes runs while it is open (`async with`). A process can have one, because DBOS has one runtime per process.

    - `engine`: executes the runs; its store must be the one that job clients use.
    - `database`: the database of the run queue.
    - `limits`: how many runs may start, by worker, queue and provider.
    - `poll`: seconds between two reads of the queue on SQLite; on Postgres the worker is notified.
    - `heartbeat`: seconds between two heartbeats. The worker looks for work with each of them.
    - `dead_after`: seconds without a heartbeat after which another worker is considered dead.
    - `grace`: seconds that running calls have to end when the worker closes.
    - `idle_after`: seconds without a run after which the DBOS runtime stops.
    - `workspace`: prepares the folders of runs.
    - `listen_url`: a Postgres address for notifications; by default that of the database, "" for none.
    - `version`: the program version that the worker reports.

    The attribute `runtime` is its DBOS runtime, and `job_client` submits and reads runs."""

    def __init__(
        self,
        engine: Engine,
        database: RunDatabase,
        *,
        limits: BackgroundTable = _DEFAULT_LIMITS,
        poll: float = 0.25,
        heartbeat: float = 1.0,
        dead_after: float = 6.0,
        grace: float = 0.0,
        idle_after: float = 5.0,
        workspace: RunWorkspace | None = None,
        listen_url: str | None = None,
        version: str = "",
    ) -> None:
        self._database = database
        self._engine = engine
        self._limits = limits
        self._poll = poll
        self._heartbeat = heartbeat
        self.grace = grace
        self._idle_after = idle_after
        self._queue = RunQueue(database)
        self._workers = WorkerRegistry(database)
        self._reports = ReportTable(database, self._workers.owner.id)
        self._retries = RunRetries(database, limits.retry)
        workspace = workspace or RunWorkspace(engine.store)
        workspace.store_snapshots(SnapshotTable(database, self.id), limits)
        self._executor = RunExecutor(engine, workspace, self._reports, self._owns_run, self._retries)
        self._store = engine.store
        self._failure_detector = FailureDetector(dead_after)
        self.runtime = WorkflowRuntime(database, self.id, self._run_workflow, poll=poll)
        self._assigning = asyncio.Lock()  # no run is assigned while the worker releases the runs that it has lost
        self._wake, self._post, self._beat = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._found_work: asyncio.Queue[PendingWork] = asyncio.Queue()
        self._listener: QueueListener | None = None
        if database.is_postgres:
            self._listener = QueueListener(database, self._handle_notification, listen_url)
        self._is_removed = False
        self._is_cut_off = False
        self._is_draining = False
        self._unstarted: set[str] = set()  # assigned runs that had not started at the last heartbeat
        self._executing = Counter[str]()  # workflows that DBOS executes in this process
        self._lost: dict[str, int] = {}  # workflows that it should execute and does not, and for how many heartbeats
        self._last_busy, self._last_dequeue = monotonic(), 0.0
        self._started, self._version = now_ms(), version
        self.metrics = WorkerMetrics()
        self._monitor = ProviderMonitor(self._retries)
        self._stop_monitor: Callable[[], None] = lambda: None

    @property
    def id(self) -> str:
        """The id under which the worker is registered."""
        return self._workers.owner.id

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._database.migrate)
        self._client: DBOSClient = await asyncio.to_thread(self._database.open_client)
        self._orphans = OrphanedRunFinder(self._database, self._client)
        self.job_client = JobClient(self._client, self._store, self._database)
        # Before the first heartbeat, so that a slow start is not a dead worker.
        await asyncio.to_thread(self._workers.record_heartbeat)
        self._tasks = [
            asyncio.create_task(self._beat_forever(), name="worker heartbeat"),
            asyncio.create_task(self._repeat_forever(self._do_pending_work), name="worker pending work"),
            asyncio.create_task(self._dequeue_forever(), name="worker dequeue loop"),
            asyncio.create_task(self._repeat_forever(self._post_webhooks), name="worker webhook sender"),
        ]
        self._tasks.append(
            asyncio.create_task(self._repeat_forever(self._monitor.store_changes), name="provider circuit breaker")
        )
        self._stop_monitor = self._monitor.attach(self._engine.bus)
        if self._listener is not None:
            self._tasks.append(asyncio.create_task(self._listener.listen_forever(), name="worker queue notifications"))
        self._wake.set()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets running calls end, then puts all runs back into the queue, so that another worker continues them
        immediately. Every step runs, also after an error or a cancellation."""
        async with AsyncExitStack() as stack:  # callbacks run in reverse order
            stack.push_async_callback(asyncio.to_thread, self._client.destroy)
            stack.push_async_callback(self._deregister)
            stack.push_async_callback(asyncio.to_thread, self.runtime.stop)
            stack.push_async_callback(self._executor.release_all)
            stack.push_async_callback(cancel_tasks, self._tasks)
            stack.callback(self._stop_monitor)
            stack.push_async_callback(self.drain)

    async def _deregister(self) -> None:
        try:
            await asyncio.to_thread(self.remove_worker, self.id)
        except SQLAlchemyError as problem:
            _log.warning("the runs of this worker are queued again when another worker finds it dead: %s", problem)

    async def drain(self) -> None:
        """Takes no more runs and lets running calls end, for up to `grace` seconds; runs without a running call
        continue in another worker at once."""
        if self._is_draining:
            return
        self._is_draining = True
        if self.grace:
            await self._executor.drain(self.grace, self._requeue_released)

    def export_telemetry(self, environ: Mapping[str, str]) -> Callable[[], None] | None:
        """Exports the events of all runs as the standard variables of OpenTelemetry define. Returns a function that
        sends the rest and stops; None if no variable asks for an export."""
        from outrider.tracing.otel import configure_telemetry

        return configure_telemetry(self._engine.bus, environ)

    @property
    def status(self) -> WorkerStatus:
        """What the worker reports about itself."""
        agents = self._engine.runtime.spec.agents
        return WorkerStatus(
            version=self._version,
            runs=len(self._executor.active_runs),
            capacity=self._limits.runs,
            started=self._started,
            is_draining=self._is_draining,
            is_pushed=self._listener is not None and self._listener.is_pushed,
            waits=self._executor.waiting_for_store,
            providers={name: agent.provider for name, agent in agents.items()},
        )

    async def _requeue_released(self, run_id: str) -> None:
        with suppress(SQLAlchemyError):  # `__aexit__` requeues it
            await asyncio.to_thread(self._queue.requeue_run, run_id, self.id)

    async def _dequeue_forever(self) -> None:
        """Starts runs when there is a reason to look for some: a notification, a heartbeat that has found one, the end
        of a run. On SQLite it polls."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._database.is_postgres else self._poll):
                    await self._wake.wait()
            if self.runtime.is_running:  # DBOS starts what was assigned with its next poll, so assign it together
                await asyncio.sleep(_DEQUEUE_SECONDS - (monotonic() - self._last_dequeue))
            self._wake.clear()
            self._last_dequeue = monotonic()
            await self._attempt(self._dequeue_runs)

    async def _repeat_forever(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeats work that begins with waiting for its reason."""
        while True:
            await self._attempt(work)

    async def _run_workflow(self, encoded_job: Any) -> Any:
        """Executes a run as a DBOS workflow. DBOS calls it on its own event loop; the engine runs on the loop that
        opened the worker."""
        run_id = DBOS.workflow_id or ""
        self._executing[run_id] += 1
        try:
            carried = self._execute_run(run_id, msgspec.convert(encoded_job, JobSpec, strict=False))
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(carried, self._loop))
        finally:
            self._executing[run_id] -= 1

    async def _execute_run(self, run_id: str, job: JobSpec) -> Any:
        read_at, start, assignment = monotonic(), None, None
        outcome, entry = RunOutcome(reason="aborted"), await self._load_entry(run_id)
        if entry.is_assigned_to(self.id) and not entry.canceled:
            _log.info("run %s started", short_id(run_id))
            start = monotonic()
            if entry.attempts > MAX_RECOVERY_ATTEMPTS:
                message = f"the run was given up: {MAX_RECOVERY_ATTEMPTS} workers died while they executed it"
                outcome = await self._executor.fail_run(run_id, job, message)
            else:
                assignment = RunAssignment(entry.attempts, read_at)
                outcome = await self._executor.execute_run(run_id, job, assignment)
            await self._finish_attempts(entry, outcome)
        elif entry.is_assigned_to(self.id):  # it was canceled before it started, and may have open calls
            await self._executor.finish_orphan(run_id, job, outcome.reason)
        is_own = assignment is not None and assignment.is_released
        if not is_own:
            is_own = await self._release_run(run_id, entry.attempts, is_waiting=outcome.reason == "waiting")
        if start is not None:
            state = derive_run_state("SUCCESS", outcome) if is_own else "moved"
            _log.info("run %s: %s", short_id(run_id), self._describe_end(outcome, state))
            self.metrics.record_run(state, monotonic() - start)
        self._last_busy = monotonic()
        self._wake.set()
        return msgspec.to_builtins(outcome)

    def _describe_end(self, outcome: RunOutcome, state: str) -> str:
        match state:
            case "moved":
                return "another worker continues it"
            case "failed":
                return f"failed: {self._engine.redact(describe_failure(outcome))}"
            case _:
                return state

    async def _load_entry(self, run_id: str) -> QueueEntry:
        entry = (await repeat_during_outage(self._queue.get_entries, [run_id])).get(run_id)
        return entry or QueueEntry(id=run_id, state="released")

    async def _finish_attempts(self, entry: QueueEntry, outcome: RunOutcome) -> None:
        """Forgets the failed attempts of a run that has ended, and ends the pause of its provider if it completed. Only
        a repeated run has failed attempts."""
        if outcome.reason == "waiting":
            return
        provider = entry.provider or self._provider_of(entry.agent) if outcome.reason == "completed" else ""
        provider = provider if provider in self._queue.paused_providers else ""
        if provider or entry.attempts > 1:
            await repeat_during_outage(self._retries.finish_run, entry.id, provider)

    async def _release_run(self, run_id: str, attempt: int, *, is_waiting: bool) -> bool:
        """Ends the assignment before the workflow returns. If the run is no longer assigned to this worker, waits until
        DBOS no longer lists it as executed here, and returns False: DBOS would store the outcome of this execution as
        the end of the run."""
        while True:
            try:
                if is_waiting:
                    await asyncio.to_thread(self.job_client.waiting_runs.add_run, run_id)
                if await asyncio.to_thread(self._queue.release_run, run_id, self.id, attempt):
                    return True
                status = await self._client.list_workflows_async(
                    workflow_ids=[run_id], load_input=False, load_output=False
                )
                if not any(workflow.status == "PENDING" and workflow.executor_id == self.id for workflow in status):
                    return False
                await asyncio.to_thread(self._queue.requeue_pending, run_id, "")  # if another worker has ended it
            except SQLAlchemyError as problem:
                _log.warning("cannot release run %s, will retry: %s", short_id(run_id), problem)
            await asyncio.sleep(self._poll)

    async def _owns_run(self, run_id: str) -> bool:
        """Returns whether the queue assigns the run to this worker now. If the database is unreachable it returns True,
        because then no other worker can have taken the run either."""
        try:
            entry = (await asyncio.to_thread(self._queue.get_entries, [run_id])).get(run_id)
        except SQLAlchemyError:
            return True
        return entry is not None and entry.is_assigned_to(self.id) and not entry.canceled

    async def _beat_forever(self) -> None:
        """Beats every `heartbeat` seconds, and earlier, within limits, if a started run was canceled or answered."""
        while True:
            await asyncio.sleep(self._heartbeat / 5)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat * 4 / 5):
                    await self._beat.wait()
            self._beat.clear()
            self.metrics.last_attempt = monotonic()
            await self._attempt(self._run_heartbeat)

    def _handle_notification(self, payload: str) -> None:
        self._wake.set()
        if payload == STARTED:
            self._beat.set()

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (SQLAlchemyError, error.DBOSException, OutriderError) as problem:
            self.metrics.failed_tasks += 1
            if not is_outage(problem):
                _log.warning("worker task failed, will retry: %s", problem)
            elif not self._is_cut_off:
                self._is_cut_off = True
                _log.warning("waiting for database: %s", getattr(problem, "orig", problem))
        except Exception:  # noqa: BLE001  a worker without heartbeat would lose its runs and start them again, forever
            self.metrics.failed_tasks += 1
            _log.exception("worker task failed, will retry")

    async def _dequeue_runs(self) -> None:
        """Assigns runs to this worker and moves their workflows into its DBOS queue. `resume_workflows` also revives a
        canceled workflow, so runs that were canceled in between are canceled again."""
        async with self._assigning:
            if self._is_removed or self._is_draining:
                return
            run_ids = await asyncio.to_thread(self._queue.dequeue_runs, self.id, self._limits, self._provider_of)
            if run_ids:
                self._last_busy = monotonic()
                await asyncio.to_thread(self._start_workflows, list(run_ids))

    def _start_workflows(self, run_ids: list[str]) -> None:
        """Launches DBOS, which can take seconds: a worker that is paused then may have lost its runs."""
        start = monotonic()
        self.runtime.launch()
        if monotonic() - start > FRESH_SECONDS:
            run_ids = [entry.id for entry in self._queue.get_entries(run_ids).values() if entry.is_assigned_to(self.id)]
        if run_ids:
            self._resume_workflows(run_ids)

    async def _stop_idle_runtime(self) -> None:
        """Stops DBOS when the worker has had no run for some time and DBOS has stored all outcomes."""
        if not self.runtime.is_running or self._executor.active_runs:
            return
        if monotonic() - self._last_busy < self._idle_after:
            return
        async with self._assigning:
            if await asyncio.to_thread(self._queue.list_assigned, self.id):
                return
            pending = await self._client.list_workflows_async(
                status="PENDING", executor_id=self.id, load_input=False, load_output=False, limit=1
            )
            if not pending:
                await asyncio.to_thread(self.runtime.stop)
                await asyncio.to_thread(self._database.close_idle_connections)

    def _resume_workflows(self, run_ids: list[str]) -> None:
        """Moves workflows into the DBOS queue of this worker. Moves those back that another worker has got in between,
        because DBOS would reject the outcome of that worker."""
        self._client.resume_workflows(run_ids, queue_name=worker_queue(self.id))
        entries = list(self._queue.get_entries(run_ids).values())
        if canceled := [entry.id for entry in entries if entry.canceled]:
            self._client.cancel_workflows(canceled)
        for entry in entries:
            if entry.worker in ("", self.id) or entry.canceled:
                continue
            if entry.state == "assigned":
                self._client.resume_workflows([entry.id], queue_name=worker_queue(entry.worker))
            else:
                self._queue.requeue_pending(entry.id, entry.worker)

    async def _resume_unstarted(self, assigned: set[str]) -> None:
        """Moves the workflows of assigned runs again that are not in this worker's DBOS queue, because the database was
        unreachable after the assignment."""
        unstarted = assigned - self._executor.active_runs
        repeated, self._unstarted = unstarted & self._unstarted, unstarted
        if not repeated:
            return
        workflows = await self._client.list_workflows_async(
            workflow_ids=list(repeated), status=["DELAYED", "ENQUEUED", "PENDING"], load_input=False, load_output=False
        )
        here = [("ENQUEUED", worker_queue(self.id)), ("PENDING", worker_queue(self.id))]
        if lost := [status.workflow_id for status in workflows if (status.status, status.queue_name) not in here]:
            await asyncio.to_thread(self._start_workflows, lost)

    async def _requeue_lost(self) -> None:
        """Requeues runs that DBOS lists as executed here although they are not: DBOS forgets a workflow if it loses the
        database between taking it and starting it, or gives up storing its outcome. DBOS rejects the outcome of an
        execution that was replaced."""
        pending = await self._client.list_workflows_async(
            name=WORKFLOW_NAME, status="PENDING", executor_id=self.id, load_input=False, load_output=False
        )
        lost = {status.workflow_id for status in pending} - set(+self._executing)
        self._lost = {run_id: self._lost.get(run_id, 0) + 1 for run_id in lost}
        overdue = [run_id for run_id, heartbeats in self._lost.items() if heartbeats > _LOST_HEARTBEATS]
        async with self._assigning:  # excludes runs that were assigned again but not resumed yet
            for run_id in overdue:
                del self._lost[run_id]
                if await asyncio.to_thread(self._queue.requeue_pending, run_id, self.id):
                    _log.warning("run %s was started but is not executed; it is queued again", short_id(run_id))

    async def _post_webhooks(self) -> None:
        await self._post.wait()
        self._post.clear()
        await self._reports.outbox.post_due(self._limits.webhooks, self._limits.webhook_secret)

    async def _finish_orphans(self, live_workers: Collection[str]) -> None:
        """Stores the reports of ended runs whose workers could not; a run that fails here is found again later."""
        claimed = await asyncio.to_thread(
            self._orphans.claim_orphans, self.id, live_workers, self._executor.active_runs
        )
        for orphan in claimed:
            _log.warning("run %s ended without a report; storing one", short_id(orphan.run_id))
            with suppress(OutriderError):
                job = await self.job_client.get_job(orphan.run_id)
                outcome = (await self.job_client.get_run(orphan.run_id)).outcome
                error = outcome.error if outcome and orphan.reason == "error" else ""
                await self._executor.finish_orphan(orphan.run_id, job, orphan.reason, error)
                await asyncio.to_thread(self._queue.release_run, orphan.run_id, self.id)

    def _provider_of(self, agent: str) -> str:
        try:
            return self._engine.runtime.find_agent(agent).provider
        except ConfigurationError:
            return ""  # the run itself fails with this error

    async def _run_heartbeat(self) -> None:
        """Stores the heartbeat. Another task does the work that it finds, which may take longer than the other workers
        wait for the next heartbeat."""
        pending = await asyncio.to_thread(self._workers.beat, self.status)
        if self._is_cut_off:
            self._is_cut_off = False
            _log.warning("the database is available again")
        self.metrics.last_heartbeat = monotonic()
        self._is_removed |= not pending.is_known
        if pending.startable:
            self._wake.set()
        if pending.noticed:
            self._post.set()
        self._found_work.put_nowait(pending)

    async def _do_pending_work(self) -> None:
        """Does what the last heartbeat has found."""
        pending = await self._found_work.get()
        while not self._found_work.empty():
            pending = self._found_work.get_nowait()
        self.metrics.last_work_check = monotonic()
        if self._is_removed:
            await self._rejoin_workers()
        await self._find_dead_workers(pending)
        if pending.started:
            assigned = await asyncio.to_thread(self._queue.list_assigned, self.id)
            await self._abort_canceled_runs(assigned)
            await self._resume_unstarted({entry.id for entry in assigned})
            await self._finish_orphans({worker.worker_id for worker in pending.others})
        if self.runtime.is_running and not self._is_draining:
            await self._requeue_lost()
        if pending.scheduled or pending.awaited:
            await self.job_client.submit_due()
        if pending.waiting:
            await self._resume_waiting()
        await self._stop_idle_runtime()

    async def _find_dead_workers(self, pending: PendingWork) -> None:
        unregistered = await self._unregistered_workers() if pending.unregistered else []
        for worker_id in self._failure_detector.find_dead_workers([*pending.others, *unregistered]):
            _log.warning("worker %s is dead; its runs are queued again", worker_id)
            await asyncio.to_thread(self.remove_worker, worker_id)

    async def _resume_waiting(self) -> None:
        for run_id in await asyncio.to_thread(self.job_client.waiting_runs.list_runs):
            with skip_failed_entry(f"waiting run {short_id(run_id)}"):
                await self.job_client.resume_if_answered(run_id)

    async def _rejoin_workers(self) -> None:
        """Releases all runs after other workers removed this one as dead. It requeues them first, so that none is lost,
        and takes no run until all are released: it could be assigned one that it is about to release."""
        _log.warning("other workers removed this worker as dead; releasing its runs")
        async with self._assigning:
            open_runs = self._executor.open_runs
            await asyncio.to_thread(self._requeue_runs, self.id)
            if self.runtime.is_running:
                await asyncio.to_thread(self.runtime.register_queue)
            for run_id, engine in open_runs.items():
                await self._executor.release_run(run_id, engine)
            self._is_removed = False

    async def _unregistered_workers(self) -> list[WorkerHeartbeat]:
        """Returns owners of runs that have no row in the registry: a worker that was removed while it was paused may
        have started runs before it noticed."""
        workers = await asyncio.to_thread(self._queue.list_workers) - {""}
        return [
            WorkerHeartbeat(worker_id, UNKNOWN_OWNER, 0)
            for worker_id in workers - await asyncio.to_thread(self._workers.worker_ids)
        ]

    def remove_worker(self, worker_id: str) -> None:
        """Removes a worker that takes no more runs. Requeues its runs first and deletes its row last, so that another
        worker repeats it after a crash in between."""
        self._requeue_runs(worker_id)
        self._client.delete_queue(worker_queue(worker_id))
        self._workers.remove_worker(worker_id)

    def _requeue_runs(self, worker_id: str) -> None:
        """Requeues the worker's assigned runs, and released runs whose outcome DBOS has not stored or that are in the
        worker's DBOS queue. Their workflows stay pending in DBOS until a worker starts them: a resume here could stop
        one that has just been started."""
        pending = self._client.list_workflows(
            name=WORKFLOW_NAME, status="PENDING", executor_id=worker_id, load_input=False, load_output=False
        ) + self._client.list_workflows(
            status="ENQUEUED", queue_name=worker_queue(worker_id), load_input=False, load_output=False
        )
        assigned = [entry.id for entry in self._queue.list_assigned(worker_id)]
        requeued = [run_id for run_id in assigned if self._queue.requeue_run(run_id, worker_id)]
        started = [status.workflow_id for status in pending if status.workflow_id not in requeued]
        requeued += [run_id for run_id in started if self._queue.requeue_pending(run_id, worker_id)]
        canceled = [entry.id for entry in self._queue.get_entries(requeued).values() if entry.canceled]
        if canceled:
            self._client.cancel_workflows(canceled)

    async def _abort_canceled_runs(self, assigned: Sequence[QueueEntry]) -> None:
        for entry in assigned:
            if entry.canceled and entry.id in self._executor.open_runs:
                await self._executor.abort_run(entry.id)
