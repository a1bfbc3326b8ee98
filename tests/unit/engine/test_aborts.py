"""A turn ends on the word of another process, which receives that it did, or who would have to end it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from outrider import Agent, Engine, OutriderError, Provider, SessionInUseError, Tool
from outrider.engine.inbox import (
    ABORT_KEY,
    ABORT_TIMEOUT_SECONDS,
    POLL_SECONDS,
    AbortListener,
    abort_in_other_process,
)
from outrider.errors import SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.providers.scripted import call
from outrider.sessions.journal import Journal, create_journal
from outrider.sessions.leases import current_process
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import InboxItem, Lease, ProcessIdentity, StoredSession
from outrider.sessions.session import Session
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart, ToolPart
from tests.unit.engine.busy_engine import Endless, engine_on


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "sessions.db") as opened:
        yield opened


async def start_turn(store: Store, session_id: str, owner: ProcessIdentity) -> Lease:
    """A turn whose owner does nothing more."""
    lease = await store.acquire(session_id, owner)
    asked = Message("user", [TextPart("go")], time=MessageTime(1))
    asked.join(session_id)
    await store.append(session_id, [asked], token=lease.token)
    return lease


async def test_the_owner_ends_its_turn_and_what_was_asked_for_leaves_no_trace(store: Store):
    endless = Endless()
    async with (
        engine_on(store, [[call("work")], "went on"], endless.tool()) as owner,
        engine_on(store, []) as other,
    ):
        session_id = await owner.create()
        turn = asyncio.ensure_future(owner.prompt(session_id, "go"))
        await endless.began.wait()
        await other.abort(session_id)
        assert not owner.live[session_id].is_busy, "it returns when the turn has ended"
        assert (await turn).reason == "aborted"
        [ended] = owner.live[session_id].session.messages[-1].get_parts_by_type(ToolPart)
        assert (ended.state.status, ended.state.reason) == ("error", "canceled")
        await other.abort(session_id)  # once more: no turn runs, and no caller waits for the owner
        assert (await owner.prompt(session_id, "and now?")).output == "went on"
        texts = [message.get_text_content() for message in owner.live[session_id].session.messages]
        assert [text for text in texts if text] == ["go", "and now?", "went on"]


async def test_what_waits_in_line_is_left_there_and_shows_no_abort():
    endless, store = Endless(), MemoryStore()
    async with (
        engine_on(store, [[call("work")], "never"], endless.tool()) as owner,
        engine_on(store, []) as other,
    ):
        session_id = await owner.create()
        await owner.enqueue(session_id, "go")
        await endless.began.wait()
        await owner.enqueue(session_id, "and then this")
        ending = asyncio.create_task(other.abort(session_id))
        while not ending.done():
            assert [item.message.get_text_content() for item in await other.queued(session_id)] == ["and then this"]
            await asyncio.sleep(0.01)
        await ending


async def test_an_abort_after_the_next_input_does_not_end_its_turn(store: Store):
    began, gate = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        """Work."""
        began.set()
        await gate.wait()
        return "worked"

    async with engine_on(store, [[call("work")], "one", "two"], Tool(work)) as owner:
        session_id = await owner.create()
        first = await owner.enqueue(session_id, "go")
        await began.wait()
        second = await owner.enqueue(session_id, "and then this")
        ending = asyncio.create_task(abort_in_other_process(store, session_id))
        while len(await store.inbox(session_id)) < 2:
            await asyncio.sleep(0)
        gate.set()  # before the owner has looked
        assert (await first).output == "one"
        assert (await second).output == "two"
        await ending
        assert not await store.inbox(session_id)


class Looked(MemoryStore):
    """Counts the reads of each inbox, and the iterations of the event loop in which they happened."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: Counter[str] = Counter()
        self.rounds = 0
        self._in_round = False

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        self.looks[session_id] += 1
        if not self._in_round:
            self.rounds += 1
            self._in_round = True
            asyncio.get_running_loop().call_soon(self._end_round)
        return await super().inbox(session_id)

    def _end_round(self) -> None:
        self._in_round = False


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="this Python has no eager tasks")
async def test_the_owner_receives_also_where_tasks_start_eagerly_as_in_terminal_applications():
    loop, endless, store = asyncio.get_running_loop(), Endless(), Looked()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  not known to the oldest Python
    try:
        async with (
            engine_on(store, [[call("work")]], endless.tool()) as owner,
            engine_on(store, []) as other,
        ):
            session_id = await owner.create()
            turn = asyncio.ensure_future(owner.prompt(session_id, "go"))
            await endless.began.wait()
            before = store.looks[session_id]
            while store.looks[session_id] == before:
                await asyncio.sleep(0.01)
            await other.abort(session_id)
            assert (await turn).reason == "aborted"
    finally:
        loop.set_task_factory(None)


async def test_of_many_at_work_each_is_looked_at_before_patience_ends():
    class Busy:
        def __init__(self, journal: Journal) -> None:
            self.journal = journal

        async def abort(self) -> None:
            raise AssertionError("nobody asked for it")

    store = Looked()
    listener = AbortListener(store, interval=0.001)
    busy = [Busy(await create_journal(Session(), store, EventBus())) for _ in range(1000)]
    for session in busy:
        listener.add_session(session)
    while len(store.looks) < len(busy):
        await asyncio.sleep(0)
    assert store.rounds * POLL_SECONDS < ABORT_TIMEOUT_SECONDS
    for session in busy:
        listener.remove_session(session)
    await listener.close()


async def test_a_turn_that_ignores_an_abort_is_cancelled_once_per_request(caplog: pytest.LogCaptureFixture):
    class Stuck:
        aborts = 0

        def __init__(self, journal: Journal) -> None:
            self.journal = journal

        async def abort(self) -> None:
            self.aborts += 1
            raise OutriderError("the turn did not end")

    async def ask_to_abort(expected: int) -> None:
        text = Message("user", [TextPart("abort")], metadata={ABORT_KEY: True})
        await store.put_inbox(InboxItem(session_id=stuck.journal.session.id, message=text))
        before = store.looks[stuck.journal.session.id]
        async with asyncio.timeout(20):
            while store.looks[stuck.journal.session.id] < before + 5:
                await asyncio.sleep(0.001)
        assert stuck.aborts == expected

    store = Looked()
    listener, stuck = AbortListener(store, interval=0.001), Stuck(await create_journal(Session(), store, EventBus()))
    listener.add_session(stuck)
    await ask_to_abort(1)
    await ask_to_abort(2)
    listener.remove_session(stuck)
    await listener.close()
    assert len(await store.inbox(stuck.journal.session.id)) == 2  # the other process sees that the turn runs on
    assert caplog.text.count("the turn did not end") == 2


async def test_an_owner_that_does_not_answer_is_named(store: Store):
    session = await store.create(StoredSession())
    me = current_process()
    await start_turn(store, session.id, me)
    with pytest.raises(SessionInUseError, match=rf"in use by process {me.pid} on .*take the session over") as raised:
        await abort_in_other_process(store, session.id, timeout_seconds=0.05)
    assert raised.value.details["pid"] == me.pid


async def test_a_word_that_came_too_late_ends_no_later_turn(store: Store):
    async with engine_on(store, ["begun", "went on"]) as owner:
        session_id = await owner.create()
        await owner.close(session_id)
        lease = await start_turn(store, session_id, current_process())
        with pytest.raises(SessionInUseError):
            await abort_in_other_process(store, session_id, timeout_seconds=0.05)
        await store.release(lease)
        assert (await owner.resume(session_id)).output == "begun"
        assert not await store.inbox(session_id)


async def test_without_a_running_turn_there_is_nothing_to_abort(store: Store):
    async with engine_on(store, ["done"]) as owner, engine_on(store, []) as other:
        session_id = await owner.create()
        await owner.prompt(session_id, "go")
        await other.abort(session_id)
        assert not await store.inbox(session_id)
        await owner.close(session_id)
        await other.abort(session_id)
        with pytest.raises(SessionNotFoundError):
            await other.abort("nowhere")


async def test_an_agent_that_was_called_ends_with_the_turn_that_called_it(store: Store):
    endless = Endless()
    agents = [Agent("main", "You lead.", "m", "main"), Agent("helper", "You help.", "m", "helper")]
    providers = [
        Provider("main", "scripted", options={"script": [[call("call_agent", agent_name="helper", message="go")]]}),
        Provider("helper", "scripted", options={"script": [[call("work")]]}),
    ]
    async with Engine(agents, providers, [endless.tool()], store=store) as engine:
        session_id = await engine.create()
        turn = asyncio.ensure_future(engine.prompt(session_id, "go"))
        await endless.began.wait()
        [child] = [found for found in (await store.list()).sessions if found.parent_id == session_id]
        with pytest.raises(OutriderError, match=f"called by session {session_id}"):
            await engine.abort(child.id)
        await engine.abort(session_id)
        assert (await turn).reason == "aborted"
        await engine.abort(child.id)
