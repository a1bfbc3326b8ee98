"""Carries runs to their ends: opens each session as its new owner, lets it go on, and says what came of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from outrider.agents.ends import TurnEnd
from outrider.app.below.descendants import end_session
from outrider.app.engine import Engine
from outrider.background.endings.reports import Report, Reports, Told
from outrider.background.parking import only_waits
from outrider.background.runs import EndReason, Job, Outcome
from outrider.background.used import limits_left, used_by
from outrider.background.worktrees.ground import Ground
from outrider.errors import OutriderError, SessionNotFoundError

LOOK_SECONDS = 0.25  # how often it is looked whether a run only waits for an answer


Owns = Callable[[str], Awaitable[bool]]
"""Whether the durable engine says, now, that a run is this worker's."""


async def _always(_: str) -> bool:
    return True


class Carrier:
    """Whoever calls `carry` has been given the run by the durable engine, and so may take its session over, as long as
    the durable engine does not say otherwise: a worker that was paused may believe for a moment in what is past."""

    def __init__(self, engine: Engine, ground: Ground, reports: Reports, owns: Owns = _always) -> None:
        self._owns = owns
        self._engine = engine
        self._ground = ground
        self._reports = reports
        self._held: dict[str, Engine] = {}
        self._carried = Counter[str]()
        self._leaving = False

    @property
    def held(self) -> dict[str, Engine]:
        """The runs that are carried now, each with the engine that does it."""
        return dict(self._held)

    @property
    def carried(self) -> set[str]:
        """The runs that are carried now, or tidied up after."""
        return set(+self._carried)

    async def carry(self, run_id: str, job: Job) -> Outcome:
        self._carried[run_id] += 1
        try:
            return await self._carry(run_id, job)
        finally:
            self._carried[run_id] -= 1

    async def settle(self, run_id: str, job: Job, reason: EndReason) -> None:
        """Bring a run to its end that is over and that nobody carries."""
        try:
            await self._ended_unopened(run_id, job, await self._outcome(run_id, reason))
        except SessionNotFoundError:  # it was deleted, and with it all that was open
            await asyncio.to_thread(self._reports.keep, run_id, Report(outcome=Outcome(reason=reason)))

    async def _carry(self, run_id: str, job: Job) -> Outcome:
        """One that this worker still holds from before is let go first: it has been given to us anew since then."""
        if previous := self._held.get(run_id):
            await self.drop(run_id, previous)
        async with AsyncExitStack() as opened:
            try:
                engine = await opened.enter_async_context(self._engine_for(run_id, job))
            except OutriderError as problem:
                return await self._ended_unopened(run_id, job, Outcome(reason="error", error=str(problem)))
            self._held[run_id] = engine
            try:
                end, reason = await self._to_the_end(engine, run_id)
                outcome = await self._outcome(run_id, reason, end)
                is_ours = self._has(run_id, engine)
            finally:
                await self.drop(run_id, engine)
        return await self._ended(run_id, job, outcome) if is_ours and reason != "waiting" else outcome

    async def cancel(self, run_id: str) -> None:
        """End the turn under way; its questions are withdrawn."""
        if engine := self._held.get(run_id):
            await engine.abort(run_id)

    async def drop(self, run_id: str, engine: Engine) -> None:
        """Let go of a run, so that somebody else can go on with it. Its end counts for nothing if it is not ours."""
        if self._held.get(run_id) is engine:
            del self._held[run_id]
            await engine.close(run_id)

    async def leave(self) -> None:
        """Let go of all runs; from now on none begins or ends here."""
        self._leaving = True
        for run_id, engine in self.held.items():
            await self.drop(run_id, engine)

    def _has(self, run_id: str, engine: Engine) -> bool:
        """Whether nobody else has taken the run over in the meantime."""
        live = engine.live.get(run_id)
        return self._held.get(run_id) is engine and live is not None and not live.journal.lost.is_set()

    async def _ended_unopened(self, run_id: str, job: Job, outcome: Outcome) -> Outcome:
        """What those before us left open in its session has no end yet."""
        if await asyncio.to_thread(self._reports.is_ours, run_id):
            await end_session(self._engine.store, run_id)
        return await self._ended(run_id, job, outcome)

    async def _ended(self, run_id: str, job: Job, outcome: Outcome) -> Outcome:
        """Also the end of a run that was canceled is reported; done twice, it is the same report. What another worker
        works on by now is left alone, and so is the folder that it works in."""
        if not await asyncio.to_thread(self._reports.is_ours, run_id):
            return outcome
        changes = await self._ground.tidy(run_id, job)
        report = self._engine.discreet(Report(outcome=outcome, changes=changes))
        told = Told(job.webhook, self._engine.discreet(job.prompt))
        await asyncio.to_thread(self._reports.keep, run_id, report, told)
        return outcome

    async def _stay(self) -> None:
        """Nothing is said of a run that goes on elsewhere: whoever waits for it here is cancelled."""
        if self._leaving:
            await asyncio.Event().wait()

    async def _to_the_end(self, engine: Engine, run_id: str) -> tuple[TurnEnd, EndReason]:
        while await self._owns(run_id):
            await self._stay()
            turn = asyncio.ensure_future(engine.go_on(run_id, take_over=True))
            while not turn.done():
                await asyncio.wait([turn], timeout=LOOK_SECONDS)
                if not turn.done() and await only_waits(engine, run_id):
                    await engine.close(run_id)
                    return await turn, "waiting"
            end = turn.result()
            await self._stay()
            if self._is_taken(run_id, engine):
                continue  # by one that was paused, and goes on in vain: the run is still ours, unless we are that one
            if end.reason != "completed" or not await engine.queued(run_id):
                return end, end.reason
        return TurnEnd("aborted"), "aborted"

    def _is_taken(self, run_id: str, engine: Engine) -> bool:
        live = engine.live.get(run_id)
        return self._held.get(run_id) is engine and live is not None and live.journal.lost.is_set()

    @asynccontextmanager
    async def _engine_for(self, run_id: str, job: Job) -> AsyncGenerator[Engine, None]:
        """An engine for what was ordered: the limits of the run, less what it has used before."""
        await self._ground.prepare(run_id, job)
        changes = await self._ground.engine(run_id, job)
        if job.limits is not None:
            changes["limits"] = limits_left(job.limits, await used_by(self._engine.store, run_id))
        if not changes:
            yield self._engine
            return
        async with self._engine.like(**changes) as engine:
            yield engine

    async def _outcome(self, run_id: str, reason: EndReason, end: TurnEnd | None = None) -> Outcome:
        used = await used_by(self._engine.store, run_id)
        return Outcome(
            reason=reason,
            output=end.output if end else "",
            error=str(end.error) if end and end.error else "",
            steps=used.steps,
            tokens=used.usage.tokens,
            cost=used.usage.total_cost,
            seconds=round(used.seconds, 3),
        )
