"""How long an answer holds: once, for the session, for the project, always; and what the model receives of a no."""

import asyncio
from pathlib import Path

import pytest

from outrider import Engine, Tool, ToolPart
from outrider.events import ToolApprovalRequestedEvent
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.sqlite.store import SqliteStore
from tests.scenario.scripted_runs import agent, call, scripted

RISKY = Tool(lambda number: f"ran {number}", name="risky", policy="ask")


def engine(**options) -> Engine:
    def answer(request):
        done = any(part.type == "tool_result" for part in request.prompt[-1].content)
        return "done" if done else [call("risky", number=len(request.prompt))]

    return Engine([agent()], [scripted(answer)], [RISKY], **options)


async def questions(held: Engine, session: str, **answer) -> int:
    """How often the user is asked in one turn, with these answers."""
    asked = 0

    async def reply(event: ToolApprovalRequestedEvent) -> None:
        nonlocal asked
        asked += 1
        await held.answer(event.approval_id, **{"allow": True, **answer})

    stop = held.bus.subscribe(ToolApprovalRequestedEvent, reply)
    await asyncio.wait_for(held.prompt(session, "go"), 30)
    stop()
    return asked


@pytest.mark.parametrize(
    ("scope", "same_session", "same_project", "other_project"),
    [("once", 1, 1, 1), ("session", 0, 1, 1), ("project", 0, 0, 1), ("always", 0, 0, 0)],
)
async def test_an_answer_applies_to_the_scope_it_names(
    scope, same_session, same_project, other_project, tmp_path: Path
):
    store = MemoryStore()
    here, there = tmp_path / "here", tmp_path / "there"
    async with engine(store=store) as held:
        session = await held.create(workspace=here)
        assert await questions(held, session, scope=scope) == 1
        assert await questions(held, session) == same_session
    async with engine(store=store) as later:
        assert await questions(later, await later.create(workspace=here)) == same_project
        assert await questions(later, await later.create(workspace=there)) == other_project


async def test_a_lasting_answer_that_was_revoked_holds_no_longer(tmp_path: Path):
    async with engine() as held:
        session = await held.create(workspace=tmp_path)
        await questions(held, session, scope="always")
        (approval,) = await held.store.approvals(session)
        await held.approval_queue.revoke(approval.id)
        assert await questions(held, session) == 1


async def test_a_word_to_the_model_is_preserved_with_the_answer(tmp_path: Path):
    """The answer is given in one engine, and the call continues in another."""
    async with SqliteStore(tmp_path / "sessions.db") as store:
        async with engine(store=store) as first:
            session = await first.create()
            asked: asyncio.Queue[ToolApprovalRequestedEvent] = asyncio.Queue()
            first.bus.subscribe(ToolApprovalRequestedEvent, asked.put_nowait)
            prompting = asyncio.ensure_future(first.prompt(session, "go"))
            question = await asyncio.wait_for(asked.get(), 30)
        await prompting
        await store.answer(question.approval_id, "denied", by="web", words="use the other one")
        async with engine(store=store) as second:
            opened = await second.open(session)
            while second.live[session].is_busy:
                await asyncio.sleep(0.005)
    (part,) = [part for message in opened.messages for part in message.get_parts_by_type(ToolPart)]
    assert part.state.error == "The user denied this call: use the other one"  # pyright: ignore
