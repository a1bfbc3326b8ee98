"""Carries runs to their ends: opens each session as its new owner, lets it go on, and says what came of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import TurnEnd
from outrider.background.records import EndReason, Job, Outcome
from outrider.background.reports import Report, Reports, Told
from outrider.background.worktrees import RunWorkspace
from outrider.engine.child_sessions import end_session
from outrider.engine.engine import Engine
from outrider.errors import OutriderError, SessionNotFoundError
from outrider.sessions.records import SessionFilter
from outrider.sessions.store import Store
from outrider.types.agents import Limits
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning
from outrider.types.usage import Usage


class RunUsage(msgspec.Struct, frozen=True):
    """`seconds` is how long models and tools were at work: neither waiting in line nor for an answer counts."""

    steps: int = 0
    usage: Usage = Usage()
    seconds: float = 0.0


async def used_by(store: Store, run_id: str) -> RunUsage:
    """By a run and all the agents that it called; those work while a call of their caller's does."""
    steps, usage, seconds = 0, Usage(), 0.0
    async for session_id in family(store, run_id):
        messages = (await store.load(session_id)).messages
        answers = [message for message in messages if message.role == "assistant"]
        steps += len(answers)
        for message in answers:
            usage = usage.plus(message.tokens, message.cost)
        if session_id == run_id:
            seconds = _covered(_at_work(answers)) / 1000
    return RunUsage(steps, usage, seconds)


async def family(store: Store, run_id: str) -> AsyncIterator[str]:
    """A run's session, and those that its agents opened, at any depth."""
    waiting = [run_id]
    while waiting:
        yield (above := waiting.pop(0))
        after: str | None = None
        while True:
            page = await store.list(SessionFilter(parent_id=above), after=after)
            waiting += [session.id for session in page.sessions]
            if (after := page.next) is None:
                break


def limits_left(limits: Limits, used: RunUsage) -> Limits:
    """What a run may still use: its limits hold for all its workers together."""
    spent = used.usage
    return replace(
        limits,
        turns=None if limits.turns is None else max(limits.turns - used.steps, 0),
        seconds=None if limits.seconds is None else max(limits.seconds - used.seconds, 0.0),
        tokens=None if limits.tokens is None else max(limits.tokens - spent.tokens.total, 0),
        cost=None if limits.cost is None else max(limits.cost - (spent.total_cost or 0), Decimal(0)),
    )


def _at_work(answers: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Calls that a crash cut off end when somebody finds them, which may be days later: they are left out."""
    for message in answers:
        if message.time is not None and message.time.completed is not None:
            yield message.time.created, message.time.completed
        for call in message.get_parts_by_type(ToolPart):
            match call.state:
                case ToolCompleted(time=time):
                    yield time.start, time.end
                case ToolError(time=time, reason=reason) if reason != "interrupted":
                    yield time.start, time.end
                case _:
                    pass


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """Milliseconds; what happened side by side counts once."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


async def only_waits(engine: Engine, run_id: str) -> bool:
    """Whether nothing happens in the run, nor in what its agents work on, until somebody has answered."""
    live = engine.live.get(run_id)
    messages = live.journal.session.messages if live else []
    if not messages or not _is_open(messages[-1]):
        return False
    return bool(await engine.store.approvals(only_open=True)) and await _waits(engine.store, messages)


async def _waits(store: Store, messages: Sequence[Message]) -> bool:
    """Each open call waits for an answer, or for an agent that does; an agent works for one call alone."""
    if not messages or not _is_open(messages[-1]):
        return False
    states = [call.state for call in messages[-1].get_parts_by_type(ToolPart)]
    if any(isinstance(state, ToolPending) and state.phase != "awaiting_approval" for state in states):
        return False
    running = sum(isinstance(state, ToolRunning) for state in states)
    children = [part.child_session_id for part in messages[-1].get_parts_by_type(SubtaskPart)] if running else []
    waiting = [child for child in children if child and await _waits(store, await _last(store, child))]
    return len(waiting) == running


async def _last(store: Store, session_id: str) -> Sequence[Message]:
    """An agent is told of before its session is there, and begins with work."""
    try:
        return (await store.load(session_id, limit=1)).messages
    except SessionNotFoundError:
        return ()


def _is_open(message: Message) -> bool:
    return any(not call.ended for call in message.get_parts_by_type(ToolPart))


LOOK_SECONDS = 0.25  # how often it is looked whether a run only waits for an answer


Owns = Callable[[str], Awaitable[bool]]
"""Whether the durable engine says, now, that a run is this worker's."""


async def _always(_: str) -> bool:
    return True


class RunExecutor:
    """Whoever calls `carry` has been given the run by the durable engine, and so may take its session over, as long as
    the durable engine does not say otherwise: a worker that was paused may believe for a moment in what is past."""

    def __init__(self, engine: Engine, ground: RunWorkspace, reports: Reports, owns: Owns = _always) -> None:
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
