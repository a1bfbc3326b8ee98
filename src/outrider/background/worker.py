"""A worker: takes runs from the queues, carries them to their ends, and watches over the other workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Self

import msgspec
from dbos import DBOS, DBOSClient, error
from sqlalchemy.exc import SQLAlchemyError

from outrider.background.database import Database, give_back, is_unordered
from outrider.background.executor import RunExecutor
from outrider.background.heartbeat import NOBODY, Heartbeat, Watch, WorkerRegistry
from outrider.background.jobs import WORKFLOW, Jobs
from outrider.background.queue import RunQueue, own_queue
from outrider.background.records import Job, state_of
from outrider.background.reports import OrphanedRuns, Reports
from outrider.background.worktrees import RunWorkspace
from outrider.config.file import BackgroundTable
from outrider.engine.archive import short_id
from outrider.engine.engine import Engine
from outrider.errors import ConfigurationError, OutriderError

_log = logging.getLogger("outrider.worker")
_USUAL = BackgroundTable()
ATTEMPTS = 100  # workers that a run may wear out before it is given up


class Worker:
    """Open it with `async with`; there is one per process, since the durable engine is one per process. It takes runs
    within its `terms`, looking for some every `poll` seconds."""

    def __init__(
        self,
        engine: Engine,
        database: Database,
        *,
        terms: BackgroundTable = _USUAL,
        poll: float = 0.25,
        beat: float = 1.0,
        patience: float = 4.0,
        ground: RunWorkspace | None = None,
    ) -> None:
        self._database = database
        self._engine = engine
        self._terms = terms
        self._poll = poll
        self._beat = beat
        self._line = RunQueue(database)
        self._roster = WorkerRegistry(database)
        self._reports = Reports(database, self._roster.me.id)
        self._leavings = OrphanedRuns(database)
        self._carrier = RunExecutor(engine, ground or RunWorkspace(engine.store), self._reports, self._owns)
        self._store = engine.store
        self._watch = Watch(patience)
        self._given_up = False

    @property
    def id(self) -> str:
        return self._roster.me.id

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._database.prepare)
        self._client: DBOSClient = await asyncio.to_thread(self._database.client)
        self.jobs = Jobs(self._client, self._store, self._database)
        await asyncio.to_thread(self._launch)
        await asyncio.to_thread(self._roster.beat)  # nobody gives up one that takes long to begin
        self._tasks = [
            asyncio.create_task(self._again(self._beat, self._one_beat), name="the worker's heart"),
            asyncio.create_task(self._again(self._poll, self._take), name="the worker's hand"),
            asyncio.create_task(self._again(self._beat, self._tell), name="the worker's voice"),
            asyncio.create_task(self._again(self._beat, self._settle), name="the worker's broom"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give everything back: another worker goes on with it at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._carrier.leave()
        await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
        await asyncio.to_thread(self._bury, self.id)
        await asyncio.to_thread(self._client.destroy)

    def _launch(self) -> None:
        async def work(given: Any) -> Any:
            return await self._work(given)

        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=ATTEMPTS)(work)
        DBOS(config=self._database.config(self.id))
        logging.getLogger("dbos").addFilter(is_unordered)
        DBOS.listen_queues([own_queue(self.id)])
        DBOS.launch()
        self._open_queue()

    def _open_queue(self) -> None:
        """What is in it was taken within all limits already."""
        DBOS.register_queue(own_queue(self.id), polling_interval_sec=self._poll)

    async def _work(self, given: Any) -> Any:
        """The workflow. It runs on a loop of the durable engine; the agents' engine has its own."""
        run_id = DBOS.workflow_id or ""
        carried = self._carry(run_id, msgspec.convert(given, Job, strict=False))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(carried, self._loop))

    async def _carry(self, run_id: str, job: Job) -> Any:
        _log.info("works on the run %s", short_id(run_id))
        outcome = await self._carrier.carry(run_id, job)
        _log.info("the run %s is %s", short_id(run_id), state_of("SUCCESS", outcome))
        if outcome.reason == "waiting":
            await asyncio.to_thread(self.jobs.waiting.add, run_id)
        return msgspec.to_builtins(outcome)

    async def _owns(self, run_id: str) -> bool:
        """A server that cannot be asked just now has given the run to nobody else either."""
        try:
            found = await self._client.list_workflows_async(workflow_ids=[run_id], load_input=False, load_output=False)
        except SQLAlchemyError:
            return True
        return any(status.status == "PENDING" and status.executor_id == self.id for status in found)

    async def _again(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except (SQLAlchemyError, error.DBOSException, OutriderError) as problem:
                _log.warning("this failed, and is tried again: %s", problem)
            except Exception:  # noqa: BLE001  one whose heart stands still takes runs that the others take back, for ever
                _log.exception("this failed, and is tried again")

    async def _take(self) -> None:
        await asyncio.to_thread(self._line.take, self.id, self._terms, self._provider_of)

    async def _tell(self) -> None:
        await self._reports.notices.tell(self._terms.webhooks)

    async def _settle(self) -> None:
        """Bring runs to their end that are over, and whose workers could not do it any more; one that cannot be is
        found again."""
        taken = await asyncio.to_thread(self._leavings.take, self.id, self._roster.names, self._carrier.carried)
        for left in taken:
            _log.warning("the run %s was left as it stood; it is brought to its end", short_id(left.run_id))
            with suppress(OutriderError):
                await self._carrier.settle(left.run_id, await self.jobs.job(left.run_id), left.reason)

    def _provider_of(self, agent: str) -> str:
        try:
            return self._engine.staff.agent(agent).provider
        except ConfigurationError:
            return ""  # the run will end with that error

    async def _one_beat(self) -> None:
        self._given_up |= not await asyncio.to_thread(self._roster.beat)
        if self._given_up:
            await self._begin_anew()
        beats = [*await asyncio.to_thread(self._roster.others), *await self._unknown()]
        for worker_id in self._watch.dead(beats):
            _log.warning("the worker %s has died; its runs go back to their queues", worker_id)
            await asyncio.to_thread(self._bury, worker_id)
        await self._cancel_unwanted()
        await self.jobs.submit_due()
        for run_id in await asyncio.to_thread(self.jobs.waiting.all):
            if await self.jobs.wake(run_id):
                await asyncio.to_thread(self.jobs.waiting.remove, run_id)

    async def _begin_anew(self) -> None:
        """The others had given this worker up. What it held is let go, after it has ceased to be this worker's."""
        _log.warning("the other workers had given up this one; it lets go of its runs")
        held = self._carrier.held
        await asyncio.to_thread(self._return_runs, self.id)
        await asyncio.to_thread(self._open_queue)
        for run_id, engine in held.items():
            await self._carrier.drop(run_id, engine)
        self._given_up = False

    async def _unknown(self) -> list[Heartbeat]:
        """Who has runs without being on the roster: given up while it was paused, it took some before it noticed."""
        running = await self._client.list_workflows_async(
            name=WORKFLOW, status="PENDING", load_input=False, load_output=False
        )
        workers = {status.executor_id for status in running if status.executor_id}
        workers |= await asyncio.to_thread(self._line.takers)
        return [Heartbeat(worker_id, NOBODY, 0) for worker_id in workers - await asyncio.to_thread(self._roster.names)]

    def _bury(self, worker_id: str) -> None:
        """First the runs, then the worker's name: whoever dies in between leaves it for the next one to do."""
        self._return_runs(worker_id)
        self._client.delete_queue(own_queue(worker_id))
        self._roster.strike(worker_id)

    def _return_runs(self, worker_id: str) -> None:
        give_back(self._client, worker_id)
        self._line.return_all(worker_id)

    async def _cancel_unwanted(self) -> None:
        held = list(self._carrier.held)
        if not held:
            return
        found = await self._client.list_workflows_async(workflow_ids=held, load_input=False, load_output=False)
        for status in found:
            if status.status == "CANCELLED":
                await self._carrier.cancel(status.workflow_id)
