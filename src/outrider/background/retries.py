"""Retries of whole runs after errors of a provider, and the circuit breaker that leaves its runs in the queue."""

import asyncio
import random
from collections.abc import Callable

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.config.file import RunRetryTable
from outrider.errors import ProviderError
from outrider.event_bus import EventBus
from outrider.types.events import LLMRequestEvent, LLMResponseEvent, RetryScheduledEvent
from outrider.types.ids import now_ms


def choose_wait(policy: RunRetryTable, failures: int, error: ProviderError) -> float | None:
    """Returns the seconds until a run is started again after its failure number `failures` (from 1); None if it has
    failed for good. A delay that the provider requested is honoured, however long it is."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if failures >= policy.attempts or names.isdisjoint(policy.errors):
        return None
    window = min(policy.first_window * 2 ** min(failures - 1, 30), policy.largest_window)
    return (error.retry_after or 0.0) + window * random.uniform(0.5, 1.0)


class RunRetries:
    """Counts the failures of runs and of providers. A provider with a row in the breakers table is paused: none of its
    runs starts before `until`, then one at a time, until one of them completes."""

    def __init__(
        self, database: RunDatabase, policy: RunRetryTable | None = None, clock: Callable[[], int] = now_ms
    ) -> None:
        self._policy = policy or RunRetryTable()
        self._engine = database.engine
        self._clock = clock
        self._retries = f"{database.table_prefix}retries"
        self._breakers = f"{database.table_prefix}breakers"

    def plan_retry(self, run_id: str, error: ProviderError) -> int | None:
        """Counts a failure and returns the time in Unix milliseconds at which the run starts again; None if it has
        failed for good."""
        with self._engine.begin() as db:
            failures = self._count_failure(db, run_id)
            wait = choose_wait(self._policy, failures, error)
            if wait is None:
                return None
            retry_at = self._clock() + round(wait * 1000)
            if error.provider:
                self._pause_provider(db, error.provider, retry_at)
            return retry_at

    def pause_provider(self, provider: str, until: int) -> None:
        """Leaves the runs of a provider in the queue until then, because requests of started runs fail."""
        with self._engine.begin() as db:
            self._pause_provider(db, provider, until)

    def resume_provider(self, provider: str) -> None:
        """Ends the pause of a provider, because it has answered."""
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._breakers} WHERE id = :id"), {"id": provider})

    def finish_run(self, run_id: str, provider: str = "") -> None:
        """Forgets a run that has ended, and ends the pause of `provider`, because one of its runs has completed."""
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._retries} WHERE id = :id"), {"id": run_id})
            if provider:
                db.execute(sa.text(f"DELETE FROM {self._breakers} WHERE id = :id"), {"id": provider})

    def list_runs(self) -> list[str]:
        """Returns the runs that have failed and were not forgotten."""
        with self._engine.connect() as db:
            return list(db.execute(sa.text(f"SELECT id FROM {self._retries}")).scalars())

    def list_paused(self) -> dict[str, int]:
        """Returns the paused providers, and when each may be tried again."""
        with self._engine.connect() as db:
            rows = db.execute(sa.text(f"SELECT id, until FROM {self._breakers}"))
            return {row.id: row.until for row in rows}

    def _pause_provider(self, db: sa.Connection, provider: str, until: int) -> None:
        db.execute(
            sa.text(
                f"INSERT INTO {self._breakers} AS breaker VALUES (:id, :until) ON CONFLICT (id) DO UPDATE SET until ="
                " CASE WHEN excluded.until > breaker.until THEN excluded.until ELSE breaker.until END"
            ),
            {"id": provider, "until": until},
        )

    def _count_failure(self, db: sa.Connection, run_id: str) -> int:
        statement = (
            f"INSERT INTO {self._retries} AS retry VALUES (:id, 1)"
            " ON CONFLICT (id) DO UPDATE SET failures = retry.failures + 1"
        )
        db.execute(sa.text(statement), {"id": run_id})
        return db.execute(sa.text(f"SELECT failures FROM {self._retries} WHERE id = :id"), {"id": run_id}).scalar_one()


FAILURES_BEFORE_PAUSE = 3  # of one request in a row


class ProviderMonitor:
    """Watches the requests of a worker's runs: a provider is paused for all workers when a request has failed
    FAILURES_BEFORE_PAUSE times, long before its run fails, and resumed when it answers again."""

    def __init__(self, retries: RunRetries, clock: Callable[[], int] = now_ms) -> None:
        self._retries = retries
        self._clock = clock
        self._providers: dict[str, str] = {}  # of the open request of each session
        self._paused = set[str]()
        self._changes: asyncio.Queue[tuple[str, int | None]] = asyncio.Queue()

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Watches a bus from now on; returns a function that stops."""
        ends = [
            bus.subscribe(LLMRequestEvent, self._note_request),
            bus.subscribe(RetryScheduledEvent, self._note_failure),
            bus.subscribe(LLMResponseEvent, self._note_answer),
        ]

        def detach() -> None:
            for end in ends:
                end()

        return detach

    async def store_changes(self) -> None:
        """Waits for a change and stores it with all others."""
        changes = dict([await self._changes.get()])
        while not self._changes.empty():
            changes.update([self._changes.get_nowait()])
        for provider, until in changes.items():
            if until is None:
                await asyncio.to_thread(self._retries.resume_provider, provider)
            else:
                await asyncio.to_thread(self._retries.pause_provider, provider, until)

    def _note_request(self, event: LLMRequestEvent) -> None:
        self._providers[event.session_id] = event.provider

    def _note_failure(self, event: RetryScheduledEvent) -> None:
        provider = self._providers.get(event.session_id, "")
        if provider and not event.model and event.attempt >= FAILURES_BEFORE_PAUSE:
            self._paused.add(provider)
            self._changes.put_nowait((provider, self._clock() + event.delay_ms))

    def _note_answer(self, event: LLMResponseEvent) -> None:
        provider = self._providers.pop(event.session_id, "")
        if provider in self._paused and event.stop_reason is not None:
            self._paused.discard(provider)
            self._changes.put_nowait((provider, None))
