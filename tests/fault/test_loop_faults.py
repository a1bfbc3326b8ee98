"""What happens to an engine at work, short of its death: owners that meet, sleep, aborts, circles, old histories."""

import asyncio
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from outrider import (
    Agent,
    Engine,
    LeaseLostError,
    Limits,
    Message,
    Session,
    SessionInUseError,
    StorageFullError,
    SubtaskPart,
    TextPart,
    Tool,
    ToolError,
    ToolPart,
    ToolPending,
    async_run,
)
from outrider.events import ToolOutputEvent
from outrider.providers.scripted import call
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Approval, StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS
from outrider.tools.tool import Progress, ToolContext
from outrider.types.ids import now_ms
from outrider.types.messages import MessageTime
from tests.fault.processes import ROOT
from tests.scenario.scripted_runs import Story, agent, scripted


def engine(script, *tools: Tool, **options) -> Engine:
    return Engine([agent()], [scripted(script)], tools, **options)


def calls_in(session: Session) -> list[ToolPart]:
    return [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]


async def stored_text(store: MemoryStore | SqliteStore, session: Session) -> str:
    await store.create(StoredSession.from_session(session))
    await store.append(session.id, session.messages)
    return session.id


async def until(what) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.005)


def chatty(seen: list[str]) -> Tool:
    """Writes a line now and then without end, and reports when it was ended."""

    @Tool
    async def watch(context: ToolContext, number: int = 0) -> str:
        try:
            for line in range(10_000):
                context.report(Progress(output=f"watch {number} line {line}\n"))
                await asyncio.sleep(0.02)
        finally:
            seen.append("ended")
        return "never"

    return watch


async def test_sf_002_what_a_running_call_has_written_is_preserved_and_reported_after_a_crash():
    """The first engine is never closed: to the store it has died with the call running."""
    store, ended = MemoryStore(), []
    async with engine([[call("watch", "c1")]], chatty(ended), store=store) as first:
        session_id = await first.create()
        prompting = asyncio.ensure_future(first.prompt(session_id, "go"))
        async with asyncio.timeout(30):
            while "watch 0 line 5" not in str((await store.load(session_id)).messages):
                await asyncio.sleep(0.05)
        async with engine([lambda request: request.prompt[-1].content[0].content], store=store) as second:
            (part,) = calls_in(await second.open(session_id, take_over=True))
            assert isinstance(part.state, ToolError)
            assert part.state.reason == "interrupted"
            assert "may have had all, some or none of its effects" in part.state.error
            assert "watch 0 line 5" in part.state.error
            assert "watch 0 line 5" in (await second.resume(session_id)).output
        await prompting


async def test_a_plain_function_may_report_from_its_thread_even_after_its_call_has_ended():
    """Its late output is not published, and never replaces the end of the call."""
    store, release, over = MemoryStore(), threading.Event(), threading.Event()

    def stubborn(context: ToolContext) -> str:
        context.report(Progress(output="first words\n"))
        release.wait(60)
        context.report(Progress(output="late words\n"))
        over.set()
        return "too late"

    async with engine([[call("stubborn", "c1")], "gave up"], Tool(stubborn, timeout=1), store=store) as held:
        session_id = await held.create()
        assert (await held.prompt(session_id, "go")).output == "gave up"
        release.set()
        await asyncio.to_thread(over.wait, 30)
        await asyncio.sleep(0.3)
        (part,) = [part for m in (await store.load(session_id)).messages for part in m.get_parts_by_type(ToolPart)]
        assert isinstance(part.state, ToolError)
        assert part.state.reason == "timeout"
        assert "first words" in part.state.error


async def test_sf_003_a_call_that_may_have_written_a_file_names_it_and_what_it_is_now(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("half")
    session = Session(workspace_directory=str(tmp_path))
    session.add_user_message("write")
    written = ToolPart("c1", "write", ToolPending({"file_path": "notes.txt"}, phase="ready"))
    gone = ToolPart("c2", "write", ToolPending({"file_path": "other.txt"}, phase="ready"))
    outside = ToolPart("c3", "write", ToolPending({"file_path": "/etc/hostname"}, phase="ready"))
    parts = [part.with_state(part.state.start(now_ms())) for part in (written, gone, outside)]  # pyright: ignore
    session.add_message(Message("assistant", parts, finish="tool_use", time=MessageTime(1, 2)))
    store = MemoryStore()
    await stored_text(store, session)
    async with engine(["I see."], store=store) as held:
        first, second, third = (part.state.error for part in calls_in(await held.open(session.id)))  # pyright: ignore
        assert "notes.txt now has 4 bytes, sha256 " in first
        assert "other.txt does not exist now." in second
        assert "sha256" not in third
        assert (await held.resume(session.id)).output == "I see."


async def test_sf_014_orphans_in_the_middle_of_an_old_history_are_ended_once_and_the_next_request_is_accepted():
    session = Session()
    session.add_user_message("first")
    session.add_message(Message("assistant", [ToolPart("c1", "look", ToolPending({"a": 1}, phase="ready"))]))
    session.add_user_message("second")
    session.add_message(
        Message("assistant", [TextPart("hm"), ToolPart("c2", "look", ToolPending({}, phase="streaming"))])
    )
    session.add_user_message("third")
    session.add_assistant_message("all right", finish="stop")
    store = MemoryStore()
    await stored_text(store, session)
    async with engine(["fine"], store=store) as held:
        assert all(part.ended for part in calls_in(await held.open(session.id)))
        stored = (await store.get(session.id)).seq
    async with engine(["fine"], store=store) as held:
        await held.open(session.id)
        assert (await store.get(session.id)).seq == stored
        assert (await held.prompt(session.id, "fourth")).output == "fine"


async def test_sf_015_a_history_that_starts_with_a_result_is_accepted():
    session = Session()
    session.set_messages(
        [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "gone", "content": "42"}]},
            {"role": "assistant", "content": "It is 42."},
        ]
    )
    result = await Story([lambda request: request.prompt[0].content[0].text]).run("why?", session=session)
    assert "42" in result.output


@pytest.mark.parametrize("kind", list(SIMULATED_APIS))
async def test_sf_016_a_program_that_slept_in_mid_stream_has_one_turn_and_continues(kind: str, tmp_path: Path):
    release = asyncio.Event()
    async with Simulator([["half an answer", release, " and the rest"], "awake"]) as server:
        command = [sys.executable, "-m", "tests.fault.suspended_engine", kind, server.url(kind), str(tmp_path / "s.db")]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            session_id = (await asyncio.to_thread(child.stdout.readline)).strip()
            assert (await asyncio.to_thread(child.stdout.readline)).strip() == "half an answer"
            child.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.7)  # longer than the child waits for a silent server
            release.set()
            await asyncio.sleep(0.2)
            child.send_signal(signal.SIGCONT)
            reason = (await asyncio.to_thread(child.stdout.readline)).strip()
            assert await asyncio.to_thread(child.wait) == 0
        assert len(server.requests) == 1
        provider = server.provider(kind, "vendor")
        entry = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "vendor")
        async with SqliteStore(tmp_path / "s.db") as store, Engine([entry], [provider], store=store) as held:
            session = await held.open(session_id)
            assert [message.role for message in session.messages] == ["user", "assistant"]
            text = session.messages[-1].join_text()
            assert text == "half an answer and the rest" if reason == "completed" else text.startswith("half an answer")
            assert (await held.prompt(session_id, "are you there?")).output == "awake"


async def test_sf_020_a_session_in_use_names_its_owner_and_can_be_taken_over(tmp_path: Path):
    path = tmp_path / "sessions.db"
    command = [sys.executable, "-m", "tests.scenario.waiting_engine", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        session_id, _ = (await asyncio.to_thread(program.stdout.readline)).split()
        risky = Tool(lambda: "ran", name="risky", policy="ask")
        async with SqliteStore(path) as store, engine(["on it goes"], risky, store=store) as held:
            with pytest.raises(SessionInUseError, match=str(program.pid)):
                await held.open(session_id)
            await held.open(session_id, take_over=True)
            (question,) = await held.approvals(session_id)
            await held.answer(question.id, allow=True)
            assert (await held.resume(session_id)).output == "on it goes"
            assert [part.state.status for part in calls_in(await held.open(session_id))] == ["completed"]
        program.kill()


async def test_sf_021_an_engine_that_lost_its_session_writes_nothing_more_and_ends_its_call(tmp_path: Path):
    ended: list[str] = []
    async with (
        SqliteStore(tmp_path / "s.db") as store,
        SqliteStore(tmp_path / "s.db") as other,
        engine([[call("watch", "c1")]], chatty(ended), store=store) as first,
        engine(["mine now"], store=other) as second,
    ):
        session_id = await first.create()
        prompting = asyncio.ensure_future(first.prompt(session_id, "go"))
        events = first.events(session_id)
        await anext(event async for event in events if isinstance(event, ToolOutputEvent))
        await events.aclose()
        await second.open(session_id, take_over=True)
        await until(lambda: ended)
        assert isinstance((await prompting).error, LeaseLostError)
        assert (await second.resume(session_id)).output == "mine now"
        (part,) = calls_in(await second.open(session_id))
        assert part.state.reason == "interrupted"  # pyright: ignore
        with pytest.raises(SessionInUseError):
            await first.open(session_id)


async def test_sf_081_the_same_call_three_times_is_stopped_with_a_reason():
    story = Story(lambda _: [call("look", at="x")])
    result = await story.run(tools=[Tool(lambda at: "nothing", name="look")], limits=Limits(repeats=3))
    assert result.termination_reason == "repetition"
    assert "look" in result.text
    assert len(calls_in(result.session)) == 3


async def test_sf_085_five_running_calls_are_canceled_within_a_second_with_what_they_had_written():
    ended: list[str] = []
    asks = [call("watch", f"c{number}", number=number) for number in range(5)]
    async with engine([asks, "afresh"], chatty(ended)) as held:
        outputs: list[ToolOutputEvent] = []
        held.bus.subscribe(ToolOutputEvent, outputs.append)
        session_id = await held.create()
        prompting = asyncio.ensure_future(held.prompt(session_id, "go"))
        await until(lambda: len({event.call_id for event in outputs}) == 5)
        await asyncio.wait_for(held.abort(session_id), 30)
        assert (await prompting).reason == "aborted"
        assert len(ended) == 5
        for number, part in enumerate(calls_in(await held.open(session_id))):
            assert part.state.reason == "canceled"  # pyright: ignore
            assert f"watch {number} line 0" in part.state.error  # pyright: ignore
        assert (await held.prompt(session_id, "again")).output == "afresh"


class FullStore(MemoryStore):
    """Has no room for results."""

    async def append(self, session_id, values, **options):
        if any(isinstance(value, ToolPart) and value.ended for value in values):
            raise StorageFullError("no space left on device")
        return await super().append(session_id, values, **options)


async def test_sf_040_a_full_disk_in_the_middle_of_parallel_calls_is_one_error_that_names_it():
    entry, tool = agent(), Tool(lambda: "x", name="look")
    provider = scripted([[call("look", "c1"), call("look", "c2")], "never"])
    with pytest.raises(StorageFullError, match="no space left"):
        await async_run(entry, "go", [entry], [tool], [provider], store=FullStore())


async def test_a_turn_that_has_its_end_does_not_continue():
    async with engine(["done", "never"]) as held:
        session_id = await held.create()
        await held.prompt(session_id, "go")
        assert (await held.resume(session_id)).output == "done"
        assert len((await held.open(session_id)).messages) == 2


async def test_a_turn_that_was_aborted_continues_when_it_is_reported_to():
    ended: list[str] = []
    async with engine([[call("watch", "c1")], "went on"], chatty(ended)) as held:
        outputs: list[ToolOutputEvent] = []
        held.bus.subscribe(ToolOutputEvent, outputs.append)
        session_id = await held.create()
        prompting = asyncio.ensure_future(held.prompt(session_id, "go"))
        await until(lambda: outputs)
        await held.abort(session_id)
        await prompting
        assert (await held.resume(session_id)).output == "went on"
        assert [m.role for m in (await held.open(session_id)).messages] == ["user", "assistant", "assistant"]


async def test_what_a_crash_left_open_in_the_sessions_of_called_agents_is_ended_with_their_callers():
    """Two agents deep: one has a running call, the one below it waits for an approval that is not needed any more."""
    store = MemoryStore()
    sessions = [Session(agent="writer") for _ in range(3)]
    for above, below in pairwise(sessions):
        below.parent_id = above.id
    await asyncio.gather(*(store.create(StoredSession.from_session(session)) for session in sessions))
    for number, session in enumerate(sessions[:2]):
        running = ToolPart(f"c{number}", "call_agent", ToolPending(phase="ready").start(1))
        task = SubtaskPart("writer", child_session_id=sessions[number + 1].id)
        await store.append(session.id, [asked(session), answered(session, running, task)])
    waiting = ToolPart("c2", "risky", ToolPending(phase="awaiting_approval"))
    await store.append(sessions[2].id, [asked(sessions[2]), answered(sessions[2], waiting)])
    await store.ask(Approval(session_id=sessions[2].id, call_id="c2", tool="risky"))
    async with Engine([agent()], [scripted(["I see."])], store=store) as held:
        assert (await held.resume(sessions[0].id)).output == "I see."
        assert not await held.approvals()
        for session in sessions:
            (call_,) = [p for m in (await store.load(session.id)).messages for p in m.get_parts_by_type(ToolPart)]
            assert call_.state.reason == "interrupted"  # pyright: ignore


def asked(session: Session) -> Message:
    message = Message("user", [TextPart("go")], time=MessageTime(1))
    message.join(session.id)
    return message


def answered(session: Session, *parts) -> Message:
    message = Message("assistant", [*parts], time=MessageTime(1, 2), finish="tool_use")
    message.join(session.id)
    return message
