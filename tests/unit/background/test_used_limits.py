"""The usage of a run is read from its session and subtracted from its limits, whichever worker continues it."""

from decimal import Decimal

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.executor import RunUsage, compute_run_usage, remaining_limits
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.types.agents import Limits
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import Tokens, ToolPart, Usage
from outrider.types.tool_state import ToolPending


def answer(session_id: str, start: int, end: int, *calls: ToolPart, cost: str = "0.1") -> Message:
    message = Message(
        "assistant",
        [],
        session_id=session_id,
        tokens=Tokens(input=10, output=5),
        cost=Decimal(cost),
        time=MessageTime(start, end),
    )
    for one in calls:
        message.add_part(one)
    return message


def call(start: int, end: int, reason: str = "") -> ToolPart:
    running = ToolPending().ready({}).start(at=start)
    ended = running.fail("cut", end, reason=reason) if reason else running.complete("yes", at=end)  # pyright: ignore[reportArgumentType]
    return ToolPart(f"call-{start}", "effect", ended)


class SmallPages(MemoryStore):
    """Returns one message for each request."""

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> SessionTranscript:
        return await super().load(session_id, limit=1, before=before, after=after)


async def test_called_agents_are_included_and_time_is_counted_once():
    store = SmallPages()
    run, child, grandchild, another = (new_id() for _ in range(4))
    for name, above in ((run, None), (child, run), (grandchild, child), (another, None)):
        await store.create(StoredSession(id=name, parent_id=above))
    for message in (
        answer(run, 0, 1000, call(1000, 3000), call(2000, 4000)),
        answer(run, 10_000, 11_000, call(11_000, 99_000, "interrupted")),
        answer(child, 1000, 2000),
        answer(child, 2000, 3000),
        answer(grandchild, 1000, 1500, cost="0.5"),
        answer(another, 0, 50_000, cost="9"),
    ):
        await store.append(message.session_id, [message])
    used = await compute_run_usage(store, run)
    assert (used.steps, used.usage.tokens.total, used.usage.total_cost) == (5, 75, Decimal("0.9"))
    assert used.seconds == 5


def test_what_a_run_has_used_is_subtracted_from_its_limits():
    used = RunUsage(1, Usage(Tokens(input=30, output=10), Decimal("0.4")), 45.0)
    left = remaining_limits(Limits(turns=3, seconds=60, tokens=100, cost=Decimal(1)), used)
    assert (left.turns, left.seconds, left.tokens, left.cost) == (2, 15, 60, Decimal("0.6"))
    assert remaining_limits(Limits(turns=None), used) == Limits(turns=None)
    over = remaining_limits(Limits(turns=0, seconds=1, tokens=1, cost=Decimal("0.1")), used)
    assert (over.turns, over.seconds, over.tokens, over.cost) == (0, 0, 0, 0)
