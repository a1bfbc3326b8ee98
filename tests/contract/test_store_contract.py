"""The contract of every store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.agents.carried_context import search_messages
from outrider.errors import LeaseLostError, PartValidationError, SessionInUseError, SessionNotFoundError, StoreError
from outrider.event_bus import EventBus
from outrider.sessions.journal import resume_journal
from outrider.sessions.leases import current_process
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import (
    Approval,
    ApprovalChange,
    DeletedChange,
    InboxChange,
    InboxItem,
    MessageChange,
    PartChange,
    ProcessIdentity,
    SessionChange,
    SessionFilter,
    SessionUpdate,
    StoredSession,
    fingerprint_call,
    to_storable_text,
)
from outrider.sessions.recovery import delete_inactive_sessions
from outrider.sessions.rows.codec import LEFT_IN_STORE
from outrider.sessions.session import SessionTime
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.codec import UnknownPart
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CompactionPart, ModelRef, TextPart, Tokens, ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError, ToolPending
from tests.fixtures.postgres import ON_POSTGRES

START = 1_700_000_000_000
DAY = 86_400_000


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        self.now += 1000
        return self.now


@pytest.fixture(scope="session", params=["memory", "sqlite", ON_POSTGRES])
def kind(request: pytest.FixtureRequest) -> str:
    """`memory`, `sqlite`, or the address of a Postgres server, which is then started before any test looks at it."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else request.param


@pytest.fixture
async def store(kind: str, tmp_path: Path) -> AsyncIterator[Store]:
    async with make_store(kind, tmp_path, Clock()) as opened:
        yield opened


def make_store(kind: str, tmp_path: Path, clock: Clock) -> Store:
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "sqlite":
        return SqliteStore(tmp_path / "data" / "sessions.db", clock=clock)
    from outrider.sessions.postgres.store import PostgresStore

    return PostgresStore(kind, schema=f"test_{new_id().replace('-', '')}", clock=clock)


@pytest.fixture
async def session(store: Store) -> StoredSession:
    return await store.create(StoredSession(title="A walk", workspace_directory="/w", agent="writer"))


def text_message(session: StoredSession, text: str, role: str = "user", **fields: object) -> Message:
    message = Message(role, [TextPart(text)], time=MessageTime(START), **fields)
    message.join(session.id)
    return message


def call(message: Message, output: str = "", tool: str = "shell") -> ToolPart:
    state = ToolCompleted({}, output, EndedTime(START, START + 5)) if output else ToolPending({"a": 1}, "", "ready")
    part = ToolPart(call_id=new_id(), tool=tool, state=state)
    part.adopt(message.id, message.session_id)
    return part


async def fill(store: Store, session: StoredSession, *texts: str) -> list[Message]:
    messages = [text_message(session, text) for text in texts]
    await store.append(session.id, messages)
    return messages


def texts(messages: list[Message]) -> list[str]:
    return [message.get_text_content() for message in messages]


# Sessions


async def test_a_session_comes_back_as_it_was_created(store: Store, session: StoredSession):
    assert await store.get(session.id) == session
    assert session.seq == 1


async def test_a_session_that_is_not_there_is_reported_so(store: Store):
    for attempt in (
        store.get("x"),
        store.load("x"),
        store.append("x", []),
        store.delete("x"),
        store.fork("x"),
        store.update("x", SessionUpdate(title="t")),
        store.acquire("x", current_process()),
        store.inbox("x"),
    ):
        with pytest.raises(SessionNotFoundError):
            await attempt


async def test_the_same_session_is_not_created_twice(store: Store, session: StoredSession):
    with pytest.raises(StoreError):
        await store.create(session)


async def test_sessions_are_listed_by_last_activity_and_page_by_page(store: Store):
    made = [await store.create(StoredSession(title=str(number))) for number in range(7)]
    await fill(store, made[2], "hello again")
    seen, after = [], None
    while True:
        page = await store.list(limit=3, after=after)
        assert len(page.sessions) <= 3
        seen += [one.title for one in page.sessions]
        after = page.next
        if after is None:
            break
    assert seen == ["2", "6", "5", "4", "3", "1", "0"]


async def test_a_list_can_be_filtered(store: Store, session: StoredSession):
    child = await store.create(StoredSession(title="child", parent_id=session.id, mode="plan"))
    await store.update(child.id, SessionUpdate(archived=START))

    async def listed(**filter: object) -> set[str]:
        return {one.title for one in (await store.list(SessionFilter(**filter))).sessions}

    assert await listed() == {"A walk", "child"}
    assert await listed(roots=True) == {"A walk"}
    assert await listed(parent_id=session.id) == {"child"}
    assert await listed(workspace_directory="/w") == {"A walk"}
    assert await listed(agent="writer") == {"A walk"}
    assert await listed(mode="plan") == {"child"}
    assert await listed(archived=True) == {"child"}
    assert await listed(archived=False) == {"A walk"}
    assert await listed(active_since=START + DAY) == set()
    assert await listed(active_before=START + DAY) == {"A walk", "child"}


async def test_sessions_are_listed_and_found_by_owner_and_metadata(store: Store):
    owned = {
        "a": StoredSession(title="fox a", owner="ada", metadata={"tenant": "acme", "plan": 1, "trial": True}),
        "b": StoredSession(title="fox b", owner="ada", metadata={"tenant": "other", "plan": 1.0, "trial": 1}),
        "c": StoredSession(title="fox c", owner="eve", metadata={"tenant": "acme", 'odd " key': "it's", "none": None}),
        "d": StoredSession(title="fox d"),
    }
    for session in owned.values():
        await fill(store, await store.create(session), "a brown fox")

    async def listed(**filter: object) -> str:
        wanted = SessionFilter(**filter)
        found = {one.title[-1] for one in (await store.list(wanted)).sessions}
        assert {hit.title[-1] for hit in await store.search("brown", filter=wanted)} == found
        assert {hit.title[-1] for hit in await store.search("fox", filter=wanted) if hit.kind == "title"} == found
        return "".join(sorted(found))

    assert await listed(owner="ada") == "ab"
    assert await listed(owner="nobody") == ""
    assert await listed(owner="") == "d"
    assert await listed(metadata={"tenant": "acme"}) == "ac"
    assert await listed(owner="ada", metadata={"tenant": "acme"}) == "a"
    assert await listed(metadata={"plan": 1}) == "ab"
    assert await listed(metadata={"trial": True}) == "a"
    assert await listed(metadata={"trial": 1}) == "b"
    assert await listed(metadata={"none": None}) == "c"
    assert await listed(metadata={'odd " key': "it's"}) == "c"
    assert await listed(metadata={"tenant": "acme", "plan": 1}) == "a"
    assert await listed(metadata={"plan": "1"}) == ""
    again = await store.get(owned["c"].id)
    assert (again.owner, again.metadata) == ("eve", owned["c"].metadata)
    await store.update(owned["a"].id, SessionUpdate(metadata={"tenant": "new"}))
    assert await listed(metadata={"tenant": "new"}) == "a"
    assert await listed(metadata={"plan": 1}) == "b"
    copy = await store.fork(owned["a"].id)
    assert (copy.owner, copy.metadata) == ("ada", {"tenant": "new"})


async def test_owner_and_metadata_of_any_text_are_stored(store: Store):
    made = await store.create(StoredSession(owner="a\0\ud800", metadata={"k\0": ["\ud800", {"x": "\0"}]}))
    again = await store.get(made.id)
    assert (again.owner, again.metadata) == (made.owner, made.metadata)
    assert "\0" not in again.owner


async def test_an_update_changes_what_it_names_and_nothing_else(store: Store, session: StoredSession):
    renamed = await store.update(session.id, SessionUpdate(title="A run", metadata={"k": [1]}))
    assert (renamed.title, renamed.agent, renamed.seq) == ("A run", "writer", 2)
    again = await store.get(session.id)
    assert (again.title, again.metadata, again.workspace_directory) == ("A run", {"k": [1]}, "/w")


async def test_a_session_is_found_by_its_current_title_only(store: Store):
    made = await store.create(StoredSession())
    for before, title in (("", "heron"), ("heron", "otter"), ("otter", ""), ("", "badger")):
        await store.update(made.id, SessionUpdate(title=title))
        assert not before or not await store.search(before)
        assert not title or [hit.session_id for hit in await store.search(title)] == [made.id]


@pytest.mark.parametrize(
    "title", ["x" * 10_000, "🦊 مرحبا", "line\nbreak\0nul", "'; DROP TABLE sessions; --", "\ud800"]
)
async def test_sf_065_any_title_is_stored_listed_and_found(store: Store, title: str):
    made = await store.create(StoredSession(title=title))
    (listed,) = (await store.list()).sessions
    assert listed.id == made.id
    assert listed.title == to_storable_text(title)
    renamed = await store.update(made.id, SessionUpdate(title=title + "!"))
    assert (await store.get(made.id)).title == renamed.title == to_storable_text(title) + "!"


async def test_deleting_a_session_deletes_those_of_its_agents_too(store: Store, session: StoredSession):
    child = await store.create(StoredSession(parent_id=session.id))
    other = await store.create(StoredSession())
    await store.delete(session.id)
    assert [one.id for one in (await store.list()).sessions] == [other.id]
    with pytest.raises(SessionNotFoundError):
        await store.load(child.id)


async def test_a_deleted_session_can_be_created_anew_and_is_empty(store: Store, session: StoredSession):
    await fill(store, session, "before")
    await store.delete(session.id)
    await store.create(session)
    assert (await store.load(session.id)).messages == []
    assert list(await store.search("before")) == []


async def test_clearing_leaves_only_leased_sessions(store: Store, session: StoredSession):
    await store.create(StoredSession())
    await store.acquire(session.id, current_process())
    assert await store.clear() == 1
    assert [one.id for one in (await store.list()).sessions] == [session.id]


async def test_sf_049_old_sessions_are_forgotten_while_others_are_written(store: Store):
    old = [await store.create(StoredSession(title="old")) for _ in range(5)]
    await store.create(StoredSession(title="child", parent_id=old[0].id))
    owned = await store.create(StoredSession(title="owned"))
    await store.acquire(owned.id, current_process())
    young = await store.create(StoredSession(title="young", time=SessionTime(START + DAY, START + DAY)))
    async with asyncio.TaskGroup() as group:
        forgetting = group.create_task(delete_inactive_sessions(store, inactive_since=START + DAY))
        busy = group.create_task(store.update(young.id, SessionUpdate(metadata={"busy": True})))
    assert (forgetting.result(), busy.result().title) == (5, "young")
    assert {one.title for one in (await store.list()).sessions} == {"young", "owned"}


# The transcript


async def test_messages_and_parts_come_back_in_order_and_unchanged(store: Store, session: StoredSession):
    messages = [text_message(session, "one"), text_message(session, "two", "assistant", finish=None, metadata={"k": 1})]
    messages[1].add_part(TextPart("three"))
    messages[1].add_part(call(messages[1], "done"))
    await store.append(session.id, messages)
    loaded = await store.load(session.id)
    assert loaded.messages == messages
    assert (loaded.first, loaded.last, loaded.damaged) == (True, True, ())


async def test_numbers_are_gapless_over_everything_that_changes(store: Store, session: StoredSession):
    (message,) = await fill(store, session, "one")
    part = call(message)
    assert await store.append(session.id, [part]) == 4
    assert (await store.update(session.id, SessionUpdate(title="t"))).seq == 5
    await store.put_inbox(InboxItem(session_id=session.id, message=text_message(session, "later")))
    await store.ask(Approval(session_id=session.id, call_id=part.call_id, tool="shell"))
    changes = [change async for change in store.changes(session.id, follow=False)]
    assert [change.seq for change in changes] == [2, 3, 4, 5, 6, 7]
    kinds = [MessageChange, PartChange, PartChange, SessionChange, InboxChange, ApprovalChange]
    assert [type(change) for change in changes] == kinds


async def test_writing_a_part_again_replaces_it_in_its_place(store: Store, session: StoredSession):
    (message,) = await fill(store, session, "one")
    pending = call(message)
    await store.append(session.id, [pending])
    last = TextPart("last")
    last.adopt(message.id, session.id)
    await store.append(session.id, [last])
    running = pending.with_state(pending.state.start(START))
    seq = await store.append(session.id, [running])
    loaded = await store.load(session.id)
    assert [part.type for part in loaded.messages[0].parts] == ["text", "tool", "text"]
    assert loaded.messages[0].parts[1] == running
    assert [change.seq async for change in store.changes(session.id, after=seq - 1, follow=False)] == [seq]


async def test_an_append_is_all_or_nothing(store: Store, session: StoredSession):
    good, stray = text_message(session, "good"), TextPart("stray")
    stray.adopt(new_id(), session.id)
    with pytest.raises(PartValidationError):
        await store.append(session.id, [good, stray])
    with pytest.raises(PartValidationError):
        await store.append(session.id, [good, text_message(StoredSession(), "of another session")])
    assert (await store.load(session.id)).messages == []
    assert (await store.get(session.id)).seq == 1


async def test_an_append_of_an_owner_is_all_or_nothing(store: Store, session: StoredSession):
    lease = await store.acquire(session.id, current_process())
    item = await store.put_inbox(InboxItem(session_id=session.id, message=Message("user", [TextPart("input")])))
    good, stray, seq = text_message(session, "good"), TextPart("stray"), (await store.get(session.id)).seq
    stray.adopt(new_id(), session.id)
    with pytest.raises(PartValidationError, match=stray.message_id):
        await store.append(session.id, [good, stray], token=lease.token)
    with pytest.raises(LeaseLostError):
        await store.append(session.id, [good], token=lease.token - 1, takes=[item.id])
    with pytest.raises(StoreError, match="taken before"):
        await store.append(session.id, [good], token=lease.token, takes=[item.id, new_id()])
    assert (await store.load(session.id)).messages == []
    assert [waiting.id for waiting in await store.inbox(session.id)] == [item.id]
    assert (await store.get(session.id)).seq == seq
    assert await store.append(session.id, [good], token=lease.token, takes=[item.id]) == seq + 3
    with pytest.raises(StoreError, match="taken before"):
        await store.append(session.id, [text_message(session, "twice")], token=lease.token, takes=[item.id])
    assert texts((await store.load(session.id)).messages) == ["good"]
    with pytest.raises(SessionNotFoundError):
        await store.append(unknown := new_id(), [text_message(StoredSession(id=unknown), "good")], token=1)


async def test_a_value_that_is_appended_twice_at_once_is_stored_in_its_last_version(
    store: Store, session: StoredSession
):
    lease = await store.acquire(session.id, current_process())
    first, second = text_message(session, "first"), text_message(session, "second")
    head = replace(first, parts=[], agent="later")
    part, large = replace(first.parts[0], text="changed"), TextPart("x" * 70_000)
    large.adopt(second.id, session.id)
    await store.append(session.id, [first, second, large, part, head], token=lease.token)
    assert await store.append(session.id, [replace(large, text="y" * 70_000)], token=lease.token) == 9
    messages = (await store.load(session.id)).messages
    assert texts(messages) == ["changed", "second\n" + "y" * 70_000]
    assert [message.agent for message in messages] == ["later", second.agent]
    numbers = [change.seq async for change in store.changes(session.id, after=1, follow=False)]
    assert numbers == [4, 5, 7, 8, 9]


async def test_a_transcript_can_be_loaded_page_by_page(store: Store, session: StoredSession):
    messages = await fill(store, session, *"abcdefg")
    last = await store.load(session.id, limit=2)
    assert (texts(last.messages), last.first, last.last) == (["f", "g"], False, True)
    middle = await store.load(session.id, limit=3, before=last.messages[0].id)
    assert (texts(middle.messages), middle.first, middle.last) == (["c", "d", "e"], False, False)
    first = await store.load(session.id, limit=3, before=middle.messages[0].id)
    assert (texts(first.messages), first.first, first.last) == (["a", "b"], True, False)
    onward = await store.load(session.id, limit=2, after=messages[0].id)
    assert (texts(onward.messages), onward.first, onward.last) == (["b", "c"], False, False)
    start = await store.load(session.id, limit=2, after="")
    assert ([message.id for message in start.messages], start.first, start.last) == (
        [message.id for message in messages[:2]],
        True,
        False,
    )
    rest = await store.load(session.id, after=messages[4].id)
    assert (texts(rest.messages), rest.last) == (["f", "g"], True)
    with pytest.raises(StoreError):
        await store.load(session.id, limit=1, before=new_id())


async def test_a_part_of_an_unknown_kind_is_preserved_as_it_is(store: Store, session: StoredSession):
    (message,) = await fill(store, session, "one")
    raw = {"type": "hologram", "id": new_id(), "depth": 3.5, "nested": {"x": [None, True]}}
    unknown = UnknownPart(raw)
    unknown.adopt(message.id, session.id)
    await store.append(session.id, [unknown])
    part = (await store.load(session.id)).messages[0].parts[1]
    assert part == unknown
    fork = await store.fork(session.id)
    copied = (await store.load(fork.id)).messages[0].parts[1]
    assert copied.raw == unknown.raw | {"session_id": fork.id}


async def test_a_large_output_comes_back_whole(store: Store, session: StoredSession):
    (message,) = await fill(store, session, "one")
    parts = [call(message, "ä" * 100_000 + "\x00blob: end"), call(message, "\x00blob:" + "y" * 70_000)]
    await store.append(session.id, parts)
    assert (await store.load(session.id)).messages[0].parts[1:] == parts
    fork = await store.fork(session.id)
    await store.delete(session.id)
    copied = (await store.load(fork.id)).messages[0].parts[1:]
    assert [part.state for part in copied] == [part.state for part in parts]


async def test_sf_075_text_that_is_not_unicode_is_preserved_with_a_mark_and_nul_as_it_is(
    store: Store, session: StoredSession
):
    await fill(store, session, "cut \ud83d here, nul \0 there")
    assert texts((await store.load(session.id)).messages) == ["cut ? here, nul \0 there"]


async def test_drafts_are_distinguished_until_their_final_value(store: Store, session: StoredSession):
    message = text_message(session, "unfin")
    await store.append(session.id, [message], draft=True)
    assert (await store.load(session.id)).drafts == {message.parts[0].id}
    assert list(await store.search("unfin")) == []
    await store.append(session.id, [message])
    assert (await store.load(session.id)).drafts == frozenset()
    assert len(await store.search("unfin")) == 1


# Forks


async def test_a_fork_shares_everything_up_to_its_message_and_nothing_after(store: Store, session: StoredSession):
    messages = await fill(store, session, *"abcd")
    fork = await store.fork(session.id, at=messages[1].id, title="Another way")
    loaded = await store.load(fork.id)
    assert texts(loaded.messages) == ["a", "b"]
    assert {part.session_id for message in loaded.messages for part in message.parts} == {fork.id}
    assert (fork.title, fork.forked_from.session_id, fork.forked_from.message_id) == (
        "Another way",
        session.id,
        messages[1].id,
    )
    await fill(store, fork, "other")
    assert texts((await store.load(session.id)).messages) == list("abcd")
    seqs = [change.seq async for change in store.changes(fork.id, follow=False)]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_an_empty_session_can_be_forked_and_a_wrong_message_is_refused(store: Store, session: StoredSession):
    assert (await store.load((await store.fork(session.id)).id)).messages == []
    with pytest.raises(StoreError):
        await store.fork(session.id, at=new_id())


# Changes


async def test_sf_067_a_listener_that_reconnects_gets_every_newer_value_once_and_in_order(
    store: Store, session: StoredSession
):
    seen: list[int] = []

    async def write() -> None:
        for number in range(30):
            await fill(store, session, str(number))

    async def listen(until: int) -> None:
        async with aclosing(store.changes(session.id, after=seen[-1] if seen else 0)) as feed:
            async for change in feed:
                seen.append(change.seq)
                if change.seq >= until:
                    return

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        for until in (5, 6, 31, 61):
            await listen(until)
    assert seen == list(range(1, 62))


async def test_a_feed_that_follows_learns_of_a_change_at_once(store: Store, session: StoredSession):
    async with aclosing(store.changes(session.id, after=1)) as feed:
        waiting = asyncio.create_task(anext(feed))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await store.update(session.id, SessionUpdate(title="new"))
        change = await asyncio.wait_for(waiting, 30)
    assert change.session.title == "new"


async def test_a_feed_ends_when_its_session_is_deleted(store: Store, session: StoredSession):
    async with aclosing(store.changes(session.id, after=1)) as feed:
        waiting = asyncio.create_task(anext(feed))
        await asyncio.sleep(0.05)
        await store.delete(session.id)
        assert isinstance(await asyncio.wait_for(waiting, 30), DeletedChange)
        with pytest.raises(StopAsyncIteration):
            await anext(feed)


# Search and statistics


async def test_words_are_found_in_titles_text_and_tool_output_newest_first(store: Store, session: StoredSession):
    messages = await fill(store, session, "the quick brown fox", "a lazy dog")
    await store.append(session.id, [call(messages[1], "the fox ran: exit code 0")])
    titled = await store.create(StoredSession(title="Fox hunting"))
    hits = await store.search("fox")
    assert [(hit.kind, hit.session_id) for hit in hits] == [
        ("title", titled.id),
        ("tool", session.id),
        ("text", session.id),
    ]
    assert hits[2].snippet == "the quick brown «fox»"
    assert (hits[2].message_id, hits[2].part_id) == (messages[0].id, messages[0].parts[0].id)
    assert [hit.kind for hit in await store.search("fox", session_id=session.id)] == ["tool", "text"]
    assert len(await store.search("fox", limit=1)) == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("quick", True),
        ("QUICK fox", True),
        ("quick cat", False),
        ("qui*", True),
        ("qui", False),
        ('"brown fox"', True),
        ('"quick fox"', False),
        ("read_file", True),
        ("file_read", False),
        ("cafe", True),
        ("東京", True),
        ("京東", False),
        ('fox" OR "zebra', False),
        ("NEAR(fox", False),
        ("fox)", True),
        ("", False),
        ("*", False),
    ],
)
async def test_a_query_means_the_same_everywhere(store: Store, session: StoredSession, query: str, found: bool):
    await fill(store, session, "The quick brown fox called read_file in a Café in 東京都")
    assert bool(await store.search(query)) is found


async def test_a_renamed_session_is_found_by_its_new_title_only(store: Store, session: StoredSession):
    await store.update(session.id, SessionUpdate(title="Mountains"))
    assert [hit.session_id for hit in await store.search("mountains")] == [session.id]
    assert list(await store.search("walk")) == []


async def test_usage_is_counted_by_day_model_agent_and_tool(store: Store, session: StoredSession):
    tokens = Tokens(input=10, output=5)
    first = text_message(
        session, "a", "assistant", agent="writer", model=ModelRef("p", "m"), tokens=tokens, cost=Decimal("0.1")
    )
    second = text_message(session, "b", "assistant", agent="reviewer", model=ModelRef("p", "n"), tokens=tokens)
    second.time = MessageTime(START + DAY)
    failed = call(second).with_state(ToolError({}, "no", EndedTime(START + DAY, START + DAY + 7)))
    await store.append(session.id, [first, second, call(first, "ok"), failed, call(first, "ok", "read")])
    by_day = await store.statistics("day")
    assert [(row.key, row.messages, row.cost, row.unpriced) for row in by_day] == [
        ("2023-11-14", 1, Decimal("0.1"), 0),
        ("2023-11-15", 1, Decimal(0), 1),
    ]
    assert [row.key for row in await store.statistics("model")] == ["p/m", "p/n"]
    assert [row.tokens.total for row in await store.statistics("agent", session_id=session.id)] == [15, 15]
    by_tool = await store.statistics("tool")
    assert [(row.key, row.calls, row.errors, row.duration_ms) for row in by_tool] == [
        ("shell", 2, 1, 12),
        ("read", 1, 0, 5),
    ]
    assert [row.key for row in await store.statistics("day", since=START + DAY)] == ["2023-11-15"]
    assert [row.calls for row in await store.statistics("tool", until=START + DAY)] == [1, 1]


# Leases


async def test_sf_020_a_second_owner_is_informed_who_the_first_is_and_may_take_over(
    store: Store, session: StoredSession
):
    first, second = current_process(), current_process()
    held = await store.acquire(session.id, first)
    with pytest.raises(SessionInUseError) as refused:
        await store.acquire(session.id, second)
    assert (refused.value.details["pid"], refused.value.details["host"]) == (first.pid, first.host)
    assert refused.value.details["since"] == held.since
    lease = await store.acquire(session.id, second, take_over=True)
    assert lease.token > held.token
    for attempt in (store.append(session.id, [text_message(session, "late")], token=held.token), store.renew(held)):
        with pytest.raises(LeaseLostError):
            await attempt
    await store.append(session.id, [text_message(session, "mine")], token=lease.token)
    assert texts((await store.load(session.id)).messages) == ["mine"]


async def test_only_the_owner_writes_but_every_process_may_ask_rename_and_fork(store: Store, session: StoredSession):
    lease = await store.acquire(session.id, current_process())
    with pytest.raises(SessionInUseError):
        await store.append(session.id, [text_message(session, "x")])
    with pytest.raises(SessionInUseError):
        await store.delete(session.id)
    await store.update(session.id, SessionUpdate(title="renamed"))
    await store.put_inbox(InboxItem(session_id=session.id, message=text_message(session, "psst")))
    await store.fork(session.id)
    await store.delete(session.id, token=lease.token)


async def test_a_released_or_expired_lease_is_free_and_its_old_token_is_fenced_once_used(
    store: Store, session: StoredSession
):
    first = await store.acquire(session.id, current_process())
    await store.release(first)
    second = await store.acquire(session.id, current_process(), ttl_ms=1)
    await asyncio.sleep(0.02)
    await store.append(session.id, [text_message(session, "still mine")], token=second.token)
    assert await store.renew(second) == second
    await store.renew(second)
    await asyncio.sleep(0.02)
    third = await store.acquire(session.id, current_process())
    assert first.token < second.token < third.token
    with pytest.raises(LeaseLostError):
        await store.append(session.id, [text_message(session, "woke up")], token=second.token)


async def test_after_a_lease_expired_and_another_process_wrote_the_old_owner_is_fenced(
    store: Store, session: StoredSession
):
    lease = await store.acquire(session.id, current_process(), ttl_ms=1)
    await asyncio.sleep(0.02)
    await store.append(session.id, [text_message(session, "without a lease")])
    with pytest.raises(LeaseLostError):
        await store.append(session.id, [text_message(session, "woke up")], token=lease.token)


# Inbox and approvals


async def test_an_inbox_item_is_stored_once_and_consumed_once(store: Store, session: StoredSession):
    item = InboxItem(session_id=session.id, message=text_message(session, "do this"), delivery="steer", sender="web")
    stored = await store.put_inbox(item)
    assert await store.put_inbox(item) == stored
    later = await store.put_inbox(InboxItem(session_id=session.id, message=text_message(session, "then that")))
    assert [one.id for one in await store.inbox(session.id)] == [item.id, later.id]
    await store.append(session.id, [stored.message], takes=[item.id])
    assert [one.id for one in await store.inbox(session.id)] == [later.id]
    with pytest.raises(StoreError):
        await store.append(session.id, [text_message(session, "twice")], takes=[item.id])
    assert texts((await store.load(session.id)).messages) == ["do this"]
    again = await store.put_inbox(item)
    assert again.taken is not None


async def test_sf_006_a_question_is_asked_once_and_an_open_one_is_never_a_yes(store: Store, session: StoredSession):
    question = Approval(session_id=session.id, call_id="c1", tool="shell", input={"command": "rm x", "n": 1})
    asked = await store.ask(question)
    assert (asked.answer, asked.fingerprint) == ("open", fingerprint_call("shell", question.input))
    again = await store.ask(Approval(session_id=session.id, call_id="c1", tool="shell", input=dict(question.input)))
    assert again.id == asked.id
    assert [one.id for one in await store.approvals(session.id, only_open=True)] == [asked.id]


async def test_an_answer_is_bound_to_the_exact_call(store: Store, session: StoredSession):
    asked = await store.ask(Approval(session_id=session.id, call_id="c1", tool="shell", input={"a": 1, "b": 2}))
    yes = await store.answer(asked.id, "allowed", by="web")
    assert (yes.answer, yes.call_id) == ("allowed", "c1")
    assert yes.fingerprint == fingerprint_call("shell", {"b": 2, "a": 1})
    assert yes.fingerprint not in (
        fingerprint_call("shell", {"a": 1, "b": 3}), fingerprint_call("write", {"a": 1, "b": 2}),
    )  # fmt: skip
    another_call = await store.ask(Approval(session_id=session.id, call_id="c2", tool="shell", input={"a": 1, "b": 2}))
    assert another_call.answer == "open"
    other = await store.ask(Approval(session_id=session.id, call_id="c1", tool="shell", input={"a": 1, "b": 3}))
    assert other.id != asked.id
    assert other.answer == "open"


async def test_the_first_answer_applies(store: Store, session: StoredSession):
    asked = await store.ask(Approval(session_id=session.id, call_id="c1", tool="shell"))
    first, second = await asyncio.gather(store.answer(asked.id, "denied", by="a"), store.answer(asked.id, "allowed"))
    assert first == second
    assert (first.answer, first.answered_by) in {("denied", "a"), ("allowed", "")}
    assert await store.answer(asked.id, "denied", by="late") == first
    assert await store.approvals(only_open=True) == []
    assert [one.id for one in await store.approvals()] == [asked.id]
    with pytest.raises(StoreError):
        await store.answer("nothing", "allowed")


async def test_an_answer_can_be_revoked_once_and_for_all(store: Store, session: StoredSession):
    for answer in ("allowed", "denied", "revoked", "withdrawn"):
        asked = await store.ask(Approval(session_id=session.id, call_id=answer, tool="shell"))
        await store.answer(asked.id, answer)
        later = [(await store.answer(asked.id, later)).answer for later in ("revoked", "allowed", "denied")]
        assert later == ["revoked"] * 3
    assert [one.answer for one in await store.approvals()] == ["revoked"] * 4


async def test_a_withdrawal_revokes_an_open_request_and_leaves_an_answered_one(store: Store, session: StoredSession):
    ended = dict[str, str]()
    for answer in ("open", "allowed", "denied", "revoked"):
        asked = await store.ask(Approval(session_id=session.id, call_id=answer, tool="shell"))
        given = asked if answer == "open" else await store.answer(asked.id, answer, scope="session", by="web")
        withdrawn = await store.answer(asked.id, "withdrawn")
        assert answer == "open" or withdrawn == given
        ended[answer] = withdrawn.answer
    assert ended == {"open": "revoked", "allowed": "allowed", "denied": "denied", "revoked": "revoked"}
    assert [one.answer for one in await store.approvals()] == list(ended.values())


async def test_one_of_an_answer_and_a_withdrawal_at_the_same_time_applies(store: Store, session: StoredSession):
    for number in range(20):
        asked = await store.ask(Approval(session_id=session.id, call_id=str(number), tool="shell"))
        given, withdrawn = await asyncio.gather(
            store.answer(asked.id, "allowed", scope="always", by="web"), store.answer(asked.id, "withdrawn")
        )
        assert given == withdrawn
        assert (given.answer, given.scope) in {("allowed", "always"), ("revoked", "once")}


async def test_a_denial_stores_its_text_for_the_model(store: Store, session: StoredSession):
    asked = await store.ask(Approval(session_id=session.id, call_id="c1", tool="shell"))
    await store.answer(asked.id, "denied", by="web", words="use \0 pnpm, not npm")
    await store.answer(asked.id, "denied", words="too late")
    (known,) = await store.approvals(session.id)
    assert known.words == "use \N{REPLACEMENT CHARACTER} pnpm, not npm"
    assert (await store.answer(asked.id, "revoked")).words == known.words
    (change,) = [one async for one in store.changes(session.id, follow=False) if isinstance(one, ApprovalChange)]
    assert change.approval.words == known.words


# Many at once


async def test_concurrent_appends_keep_the_numbers_gapless_and_lose_nothing(store: Store, session: StoredSession):
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(fill(store, session, str(number)))
    loaded = await store.load(session.id)
    assert sorted(map(int, texts(loaded.messages))) == list(range(50))
    seqs = [change.seq async for change in store.changes(session.id, follow=False)]
    assert all(left + 1 == right for left, right in pairwise(seqs))
    assert loaded.session.seq == seqs[-1] == 101


async def test_one_bad_write_among_many_fails_alone(store: Store, session: StoredSession):
    stray = TextPart("stray")
    stray.adopt(new_id(), session.id)
    results = await asyncio.gather(
        *(fill(store, session, str(number)) for number in range(5)),
        store.append(session.id, [stray]),
        *(fill(store, session, str(number)) for number in range(5, 10)),
        return_exceptions=True,
    )
    assert [isinstance(result, PartValidationError) for result in results].count(True) == 1
    assert len((await store.load(session.id)).messages) == 10
    assert (await store.get(session.id)).seq == 21


def test_the_owner_of_another_process_is_another_owner():
    one, two = current_process(), current_process()
    assert isinstance(one, ProcessIdentity)
    assert one != two


async def test_the_approval_level_of_a_session_is_preserved_and_changed(store: Store):
    session = await store.create(StoredSession(approval="edits"))
    assert (await store.load(session.id)).session.approval == "edits"
    changed = await store.update(session.id, SessionUpdate(approval="auto"))
    assert (changed.approval, (await store.get(session.id)).approval) == ("auto", "auto")
    assert (await store.fork(session.id)).approval == "auto"


# Large texts


async def test_a_text_of_megabytes_is_stored_once_and_found(store: Store, session: StoredSession):
    (message,) = await fill(store, session, "question")
    texts_of_parts = [f"needle{letter} " + "äword " * 500_000 for letter in ("a", "a", "b")]
    parts = [TextPart(text) for text in texts_of_parts]
    for part in parts:
        part.adopt(message.id, session.id)
        await store.append(session.id, [part])
    found = (await store.load(session.id)).messages[0].parts[1:]
    assert found == parts
    assert {hit.part_id for hit in await store.search("needlea")} == {part.id for part in parts[:2]}
    fork = await store.fork(session.id)
    await store.delete(session.id)
    assert [part.text for part in (await store.load(fork.id)).messages[0].parts[1:]] == texts_of_parts


async def test_an_abridged_transcript_has_the_newest_large_texts_and_all_inputs(store: Store, session: StoredSession):
    if not hasattr(store, "load_abridged"):
        pytest.skip("the method is optional")
    old, newest = text_message(session, "old" * 9000), text_message(session, "newest" * 9000)
    answer = text_message(session, "short", "assistant")
    large = ToolCompleted({"text": "given" * 9000}, "output" * 9000, EndedTime(START, START + 5))
    answer.add_part(ToolPart(call_id="c", tool="write", state=large))
    await store.append(session.id, [old, answer, newest])
    complete = await store.load(session.id)

    found, is_abridged = await store.load_abridged(session.id, 50_000)  # type: ignore[attr-defined]
    first, second, last = found.messages
    assert is_abridged
    assert last == newest
    assert [message.id for message in found.messages] == [old.id, answer.id, newest.id]
    assert first.get_text_content() == LEFT_IN_STORE
    assert any(origin.private for origin in first.parts[0].origins), "its text cannot be checked for secrets"
    text, called = second.parts
    assert text.text == "short"
    assert (called.state.input, called.state.output) == (large.input, LEFT_IN_STORE)
    assert await store.load(session.id) == complete
    assert await store.load_abridged(session.id, 10**9) == (complete, False)  # type: ignore[attr-defined]


async def test_an_abridged_transcript_leaves_out_old_answers_that_no_prompt_has(store: Store, session: StoredSession):
    if not hasattr(store, "load_abridged"):
        pytest.skip("the method is optional")
    messages: list[Message] = []
    for number in range(1300):
        answer = text_message(session, f"{number} " + "word " * 100, "assistant")
        state = ToolCompleted({"number": number}, "result " * 100, EndedTime(START, START + 5))
        answer.add_part(ToolPart(call_id=f"c{number}", tool="plan" if number == 5 else "read", state=state))
        messages += [*([text_message(session, f"question {number}")] if number % 100 == 0 else []), answer]
    tail, compaction = messages[1010].id, text_message(session, "")
    compaction.parts.clear()
    compaction.add_part(CompactionPart(summary="what was done", tail_start_id=tail))
    messages.insert(1100, compaction)
    await store.append(session.id, messages)
    complete = (await store.load(session.id)).messages

    found, is_abridged = await store.load_abridged(session.id, 200_000)  # type: ignore[attr-defined]
    assert (is_abridged, found.first, found.last) == (True, False, True)
    assert found.messages[-100:] == complete[-100:]
    position = [message.id for message in found.messages].index(tail)
    old, preserved = found.messages[:position], found.messages[position:]
    assert [message.id for message in preserved] == [message.id for message in messages[1010:]]
    questions = [message.id for message in messages[:1010] if message.role == "user"]
    assert [message.id for message in old if message.role == "user"] == questions
    assert [call.tool for message in old for call in message.get_calls()] == ["plan"]
    assert await store.load_abridged(session.id, 10**9) == (await store.load(session.id), False)  # type: ignore[attr-defined]
    assert len((await store.load_abridged(session.id, 2_000_000))[0].messages) < len(messages)  # type: ignore[attr-defined]

    journal = await resume_journal(session.id, store, EventBus(), text_bytes=200_000)
    assert not journal.has_all_messages
    assert len(await journal.load_messages()) == len(messages)
    last = next(message for message in journal.session.messages if message.get_parts_by_type(CompactionPart))
    await journal.put_part(replace(last.parts[0], summary=""), last)
    await journal.reload_messages()
    assert journal.has_all_messages
    assert len(journal.session.messages) == len(messages)
    await journal.close()


async def test_an_open_session_leaves_large_texts_in_the_store_and_still_finds_them(
    store: Store, session: StoredSession
):
    if not hasattr(store, "load_abridged"):
        pytest.skip("the method is optional")
    await fill(store, session, "the boat house is green " * 1000, "filler " * 9000)
    async with await resume_journal(session.id, store, EventBus(), text_bytes=20_000) as journal:
        assert texts(journal.session.messages) == [LEFT_IN_STORE, "filler " * 9000]
        await journal.add_message(Message("user", [TextPart("next")]))
        (place, excerpt), *_ = search_messages(await journal.load_messages(), "boat house")
    assert (place, excerpt[:23]) == ("message 1, user", "the boat house is green")
    assert texts((await store.load(session.id)).messages)[0].startswith("the boat house")
