"""A follower receives each event of called agents once, and before the end of their calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Engine, Tool
from outrider.background.follow import (
    ChildChange,
    RunChangeReader,
    child_session_of,
    ends_call,
    follow_run,
    stored_changes,
)
from outrider.background.records import Run
from outrider.providers.scripted import call
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Change, PartChange, StoredSession
from outrider.types.messages import Message, MessageTime, Role
from outrider.types.parts import Part, SubtaskPart, TextPart, ToolResultPart
from outrider.types.request import Request
from tests.scenario.scripted_runs import agent, scripted

SECONDS = 30
News = Change | ChildChange | Run


def answer(request: Request) -> Any:
    """The writer calls two reviewers in parallel; one of them calls the checker, which waits for an event."""
    parts = [part for message in request.prompt for part in message.content]
    text = "".join(getattr(part, "text", "") for part in parts)
    if any(isinstance(part, ToolResultPart) for part in parts):
        return "That is all."
    if "check" in text:
        return call("wait", "wait-1")
    if "twice" in text:
        return call("call_agent", "call-3", agent_name="checker", message="check it")
    if "once" in text:
        return "It is fine."
    return [
        call("call_agent", f"call-{number}", agent_name="reviewer", message=f"look {times}")
        for number, times in enumerate(("once", "twice"), 1)
    ]


class Story:
    """A run with its engine; it continues to its end once the gate is open."""

    def __init__(self, engine: Engine, run_id: str, gate: asyncio.Event) -> None:
        self.store = engine.store
        self.run_id = run_id
        self.gate = gate
        self.turn_usage = asyncio.create_task(engine.prompt(run_id, "go"))

    async def get_run(self, run_id: str) -> Run:
        return Run(id=run_id, state="done" if self.turn_usage.done() else "running", prompt="go", queue="runs")


@asynccontextmanager
async def followed_story() -> AsyncIterator[Story]:
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "open"

    agents = [agent(), agent("reviewer", "You review."), agent("checker", "You check.")]
    async with Engine(agents, [scripted(answer)], [Tool(wait)], store=MemoryStore()) as engine:
        story = Story(engine, await engine.create(agent="writer"), gate)
        yield story
        gate.set()
        await story.turn_usage


async def gathered(story: Any, seen: list[News], **given: Any) -> None:
    async for news in follow_run(story, story.run_id, called=True, poll=0.02, **given):
        seen.append(news)
        if "wait" in calls_of(seen):
            story.gate.set()


def calls_of(seen: list[News]) -> list[str]:
    parts = [new.change.part for new in seen if isinstance(new, ChildChange) and isinstance(new.change, PartChange)]
    return [part.tool for part in parts if hasattr(part, "tool")]


def numbers(seen: list[News]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for new in seen:
        if isinstance(new, ChildChange):
            found.setdefault(new.session_id, []).append(new.change.seq)
    return found


def ends_after_its_agent(seen: list[News]) -> bool:
    """Checks that the result of each agent call follows everything that the agent did."""
    plain = [new.change if isinstance(new, ChildChange) else new for new in seen]
    at = {
        child_session_of(new): number for number, new in enumerate(plain) if not isinstance(new, Run) and ends_call(new)
    }
    last = {new.session_id: number for number, new in enumerate(seen) if isinstance(new, ChildChange)}
    return all(last[session_id] < at[session_id] for session_id in last)


async def test_agents_are_received_while_they_work_each_in_its_order_and_before_the_end_of_their_calls():
    seen: list[News] = []
    async with followed_story() as story:
        await asyncio.wait_for(gathered(story, seen), SECONDS)
        stored = {
            session: [one.seq async for one in story.store.changes(session, follow=False)] for session in numbers(seen)
        }
    depths = sorted({(new.agent, new.depth, new.session_id) for new in seen if isinstance(new, ChildChange)})
    assert [(name, depth) for name, depth, _ in depths] == [("checker", 2), ("reviewer", 1), ("reviewer", 1)]
    for session_id, given in numbers(seen).items():
        assert given == sorted(set(given)), "each number once, in its order"
        assert given[-1] == stored[session_id][-1], "to the end"
    assert ends_after_its_agent(seen)


async def test_what_was_preserved_until_now_holds_what_agents_did_each_before_the_end_of_its_call():
    async with followed_story() as story:
        story.gate.set()
        await story.turn_usage
        jobs: Any = story
        seen = [new async for new in stored_changes(jobs, story.run_id)]
        own = [new.seq async for new in story.store.changes(story.run_id, follow=False)]
    assert [new.seq for new in seen if not isinstance(new, ChildChange)] == own
    assert sorted({(new.agent, new.depth) for new in seen if isinstance(new, ChildChange)}) == [
        ("checker", 2),
        ("reviewer", 1),
    ]
    assert ends_after_its_agent([*seen])


async def test_a_reconnected_client_receives_the_running_agents():
    first: list[News] = []
    async with followed_story() as story:
        async with aclosing(follow_run(story, story.run_id, called=True, poll=0.02)) as news, asyncio.timeout(SECONDS):
            while "wait" not in calls_of(first):
                first.append(await anext(news))
        last = max(new.seq for new in first if not isinstance(new, ChildChange | Run))
        seen: list[News] = []
        await asyncio.wait_for(gathered(story, seen, after=last), SECONDS)
    assert "wait" in calls_of(seen)
    assert all(new.seq > last for new in seen if not isinstance(new, ChildChange | Run))
    assert ends_after_its_agent(seen)


async def say(store: MemoryStore, session_id: str, role: Role, part: Part) -> None:
    message = Message(role, session_id=session_id, time=MessageTime(1))
    message.add_part(part)
    await store.append(session_id, [message])


async def test_an_agent_that_is_named_before_its_session_exists_is_followed_once_it_does():
    store = MemoryStore()
    run = await store.create(StoredSession())
    child = StoredSession(agent="reviewer", parent_id=run.id)
    await say(store, run.id, "assistant", SubtaskPart("reviewer", "", "look", None, child.id))
    async with RunChangeReader(store, run.id, called=True, pause=0.01) as reader, asyncio.timeout(SECONDS):
        while (new := await reader.next_change(0.05)) is not None:
            assert not isinstance(new, ChildChange)
        await store.create(child)
        await say(store, child.id, "user", TextPart("look"))
        while not isinstance(new, ChildChange):
            new = await reader.next_change(0.05)
    assert (new.session_id, new.agent, new.depth) == (child.id, "reviewer", 1)


async def test_an_agent_whose_caller_was_killed_before_its_session_existed_adds_no_changes():
    store = MemoryStore()
    run = await store.create(StoredSession())
    await say(store, run.id, "assistant", SubtaskPart("reviewer", "", "look", None, StoredSession().id))
    seen = [new async for new in RunChangeReader(store, run.id, called=True).remaining_changes()]
    assert [type(new) for new in seen] == [
        type(new) for new in [one async for one in store.changes(run.id, follow=False)]
    ]
