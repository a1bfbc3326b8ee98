"""What a run has used so far, read from what was kept: the same for every worker that carries it on."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from outrider.sessions.records import SessionFilter
from outrider.sessions.store import Store
from outrider.types.agents import Limits
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError
from outrider.types.usage import Usage


class Used(msgspec.Struct, frozen=True):
    """`seconds` is how long models and tools were at work: neither waiting in line nor for an answer counts."""

    steps: int = 0
    usage: Usage = Usage()
    seconds: float = 0.0


async def used_by(store: Store, run_id: str) -> Used:
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
    return Used(steps, usage, seconds)


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


def limits_left(limits: Limits, used: Used) -> Limits:
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
