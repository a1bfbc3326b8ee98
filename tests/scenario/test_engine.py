"""The engine: durable sessions, an inbox, approvals that wait, abort, resume, several front ends at once."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from outrider import (
    ConfigurationError,
    Engine,
    Limits,
    Provider,
    ProviderError,
    SessionInUseError,
    StorageFullError,
    Tool,
    ToolCompleted,
    ToolPart,
    is_tool_result_part,
)
from outrider.events import (
    ErrorEvent,
    LoopCompletedEvent,
    PartDeltaEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    TurnStartedEvent,
)
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.modes import MODES
from tests.scenario.scripted_runs import agent, call, scripted


def engine(script, *tools: Tool, **options) -> Engine:
    return Engine([agent()], [scripted(script)], tools, **options)


def calls_in(session) -> list[ToolPart]:
    return [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]


async def asked(events) -> ToolApprovalRequestedEvent:
    async for event in events:
        if isinstance(event, ToolApprovalRequestedEvent):
            return event
    raise AssertionError("nobody asked")


async def test_a_session_is_prompted_and_prompted_again():
    async with engine(["one", lambda request: f"{len(request.prompt)}"]) as held:
        session = await held.create()
        assert (await held.prompt(session, "first")).output == "one"
        assert (await held.prompt(session, "second")).output == "3"
        stored = await held.store.get(session)
        assert stored.title == "first"


async def test_sessions_survive_the_engine(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        async with engine(["I am Ada."], store=store) as first:
            session = await first.create()
            await first.prompt(session, "who are you?")
        async with engine([lambda request: f"{len(request.prompt)} messages"], store=store) as second:
            assert (await second.prompt(session, "still there?")).output == "3 messages"


async def test_only_one_engine_owns_a_session_and_another_may_take_it_over():
    store = MemoryStore()
    async with engine(["a"], store=store) as first, engine(["b"], store=store) as second:
        session = await first.create()
        await first.prompt(session, "x")
        with pytest.raises(SessionInUseError):
            await second.open(session)
        await first.close(session)
        assert (await second.prompt(session, "y")).output == "b"


async def test_queued_input_waits_for_its_turn_and_steering_is_consumed_at_the_next_step():
    release = asyncio.Event()

    async def slow() -> str:
        await release.wait()
        return "done"

    def second(request):
        return " | ".join(part.text for part in request.prompt[-1].content if part.type == "text")

    script = [[call("slow")], second, "the queued one"]
    async with engine(script, Tool(slow)) as held:
        session = await held.create()
        async with held.events(session) as events:
            first = asyncio.ensure_future(held.prompt(session, "start"))
            await anext(event async for event in events if event.event_type == "ToolExecutionStartedEvent")
        queued = asyncio.ensure_future(held.prompt(session, "later"))
        steered = asyncio.ensure_future(held.prompt(session, "be quick", delivery="steer"))
        while len(await held.store.inbox(session)) < 2:
            await asyncio.sleep(0.001)
        release.set()
        assert (await first).output == "be quick"
        assert (await steered).output == "be quick"
        assert (await queued).output == "the queued one"


async def test_the_same_input_put_twice_is_consumed_once():
    async with engine(["one", "two"]) as held:
        session = await held.create()
        await held.prompt(session, "x", input_id="01a00000-0000-7000-8000-000000000001")
        loaded = await held.store.load(session)
        assert [message.role for message in loaded.messages] == ["user", "assistant"]


async def test_an_approval_waits_and_is_answered_by_another_process():
    ran: list[str] = []
    risky = Tool(lambda name: str(ran.append(name)), name="risky", policy="ask")
    async with engine([[call("risky", name="a")], "done"], risky) as held:
        session = await held.create()
        async with held.events(session) as events:
            prompting = asyncio.ensure_future(held.prompt(session, "go"))
            question = await asked(events)
        assert ran == []
        (waiting,) = await held.approvals(session)
        assert (waiting.tool, waiting.input) == ("risky", {"name": "a"})
        await held.answer(question.approval_id, allow=True, by="the web page")
        assert (await prompting).output == "done"
        assert ran == ["a"]
        assert not await held.approvals(session)


async def test_of_two_front_ends_that_answer_the_first_applies():
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with engine([[call("risky")], "done"], risky) as held:
        session = await held.create()
        async with held.events(session) as events:
            prompting = asyncio.ensure_future(held.prompt(session, "go"))
            question = await asked(events)
        first = await held.answer(question.approval_id, allow=False, by="terminal", words="not today")
        second = await held.answer(question.approval_id, allow=True, by="web")
        assert (first.answer, second.answer, second.answered_by) == ("denied", "denied", "terminal")
        await prompting
        (part,) = calls_in(await held.open(session))
        assert part.state.error == "The user denied this call: not today"  # pyright: ignore


async def test_an_answer_for_the_session_is_not_asked_again():
    risky = Tool(lambda number: f"ran {number}", name="risky", policy="ask")
    async with engine([[call("risky", number=1)], [call("risky", number=2)], "done"], risky) as held:
        session = await held.create()
        async with held.events(session) as events:
            prompting = asyncio.ensure_future(held.prompt(session, "go"))
            question = await asked(events)
            await held.answer(question.approval_id, allow=True, scope="session")
            assert (await prompting).output == "done"
        assert len(await held.store.approvals(session)) == 1


async def test_in_unattended_mode_ask_means_deny():
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with engine([[call("risky")], "went on"], risky, attended=False) as held:
        session = await held.create()
        assert (await held.prompt(session, "go")).output == "went on"


async def test_abort_ends_the_turn_within_a_second_and_the_session_continues():
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.sleep(60)

    async with engine([["working", call("slow")], "fresh start"], Tool(slow)) as held:
        session = await held.create()
        prompting = asyncio.ensure_future(held.prompt(session, "go"))
        await started.wait()
        await asyncio.wait_for(held.abort(session), 30)
        assert (await prompting).reason == "aborted"
        (part,) = calls_in(await held.open(session))
        assert part.state.reason == "canceled"  # pyright: ignore
        assert (await held.prompt(session, "again")).output == "fresh start"


async def test_a_question_survives_a_kill_and_is_asked_again_once(tmp_path: Path):
    path = tmp_path / "sessions.db"
    command = [sys.executable, "-m", "tests.scenario.waiting_engine", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        session, question = (await asyncio.to_thread(program.stdout.readline)).split()
        program.kill()
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with SqliteStore(path) as store, engine(["and on it went"], risky, store=store) as held:
        events = held.events(session)
        await held.open(session, take_over=True)
        again = await asked(events)
        assert again.approval_id == question
        await held.answer(again.approval_id, allow=True)
        ended = await anext(event async for event in events if isinstance(event, LoopCompletedEvent))
        assert ended.output == "and on it went"
        (part,) = calls_in(await held.open(session))
        assert isinstance(part.state, ToolCompleted)
        assert len(await store.approvals(session)) == 1
        await events.aclose()


async def test_the_mode_of_a_session_can_be_changed_and_holds_from_the_next_turn():
    def tools(request):
        return ",".join(tool.name for tool in request.tools) or "none"

    def try_tools(_):
        return [call("look"), call("touch")]

    def results(request):
        return " | ".join(part.content for part in request.prompt[-1].content if is_tool_result_part(part))

    look = Tool(lambda: "seen", name="look", read_only=True)
    touch = Tool(lambda: "touched", name="touch")
    async with engine([tools, try_tools, results, tools, try_tools, results, tools], look, touch) as held:
        session = await held.create(mode="plan")
        assert (await held.prompt(session, "1")).output == "look"
        assert (await held.prompt(session, "2")).output.startswith("seen | There is no tool called 'touch'")
        await held.set_mode(session, "agent")
        assert (await held.prompt(session, "3")).output == "look,touch"
        await held.set_mode(session, "plan")
        assert (await held.prompt(session, "4")).output == "seen | The tool 'touch' is not available in plan mode."
        await held.set_mode(session, "chat")
        assert (await held.prompt(session, "5")).output == "look,touch"  # sent as before, for the provider's cache


async def test_after_a_compaction_the_system_prompt_names_the_current_mode():
    systems: list[bool] = []

    def answer(request):
        systems.append("plan mode" in request.system)
        return "fine. " * 100

    async with engine(answer) as held:
        session = await held.create(mode="plan")
        for text in ("one " * 200, "two " * 200):
            await held.prompt(session, text)
        await held.set_mode(session, "agent")
        for text in ("three " * 200, "four " * 200, "five " * 200):
            await held.prompt(session, text)
        assert await held.compact(session) is not None
        systems.clear()
        await held.prompt(session, "six")
        await held.prompt(session, "seven")
        store = held.store
        async with Engine([agent()], [scripted(answer)], store=store) as other:
            await held.close(session)
            await other.prompt(session, "eight")
    assert systems == [False, False, False]


async def test_the_prompt_of_a_session_without_stored_settings_follows_its_mode():
    def answer(request):
        return f"{'plan mode' in request.system} {len(request.prompt[-1].content)}"

    store = MemoryStore()
    async with engine(["fine."], store=store) as held:
        session = await held.create(mode="agent")
        await held.prompt(session, "one")
    stored = await store.load(session)
    del stored.messages[0].metadata["settings"]  # as earlier versions stored it
    await store.append(session, [stored.messages[0]])
    async with engine(answer, store=store) as held:
        await held.set_mode(session, "plan")
        assert (await held.prompt(session, "two")).output == "True 1"
        await held.set_mode(session, "agent")
        assert (await held.prompt(session, "three")).output == "True 2"


async def test_several_sessions_work_at_once():
    async with engine(lambda request: request.prompt[-1].content[-1].text.upper()) as held:
        sessions = [await held.create() for _ in range(10)]
        ends = await asyncio.gather(*(held.prompt(session, f"n{number}") for number, session in enumerate(sessions)))
        assert [end.output for end in ends] == [f"N{number}" for number in range(10)]


async def test_listeners_receive_only_the_session_they_ask_for():
    async with engine(lambda _: "hello") as held:
        one, two = await held.create(), await held.create()
        async with held.events(one) as events:
            await held.prompt(two, "x")
            await held.prompt(one, "y")
            held.bus.clear()
            received = [event async for event in events]
        assert {event.session_id for event in received} == {one}
        assert any(isinstance(event, PartDeltaEvent) for event in received)
        assert any(isinstance(event, TurnStartedEvent) for event in received)


def test_an_engine_reports_what_it_lacks():
    with pytest.raises(ConfigurationError, match="at least one agent"):
        Engine([], [])
    with pytest.raises(ConfigurationError, match="has no option colour"):
        engine([], colour="red")


async def test_a_question_survives_the_end_of_its_engine_and_is_asked_again_once():
    store, ran = MemoryStore(), []
    risky = Tool(lambda: str(ran.append(1)), name="risky", policy="ask")
    async with engine([[call("risky"), call("quick")]], risky, Tool(lambda: "q", name="quick"), store=store) as first:
        session = await first.create()
        async with first.events(session) as events:
            prompting = asyncio.ensure_future(first.prompt(session, "go"))
            question = await asked(events)
    assert (await prompting).reason == "aborted"
    async with engine(["done"], risky, Tool(lambda: "q", name="quick"), store=store) as second:
        async with second.events(session) as events:
            await second.open(session)
            again = await asked(events)
            assert again.approval_id == question.approval_id
            assert ran == []
            await second.answer(again.approval_id, allow=True)
            ended = await anext(event async for event in events if isinstance(event, LoopCompletedEvent))
        assert ended.output == "done"
        assert len(await store.approvals(session)) == 1
    assert ran == [1]


async def test_after_an_abort_no_question_is_asked():
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with engine([[call("risky")], "fresh"], risky) as held:
        session = await held.create()
        async with held.events(session) as events:
            prompting = asyncio.ensure_future(held.prompt(session, "go"))
            question = await asked(events)
            await asyncio.wait_for(held.abort(session), 30)
            assert (await prompting).reason == "aborted"
            result = await anext(event async for event in events if isinstance(event, ToolApprovalResultEvent))
        assert (result.approval_id, result.approved) == (question.approval_id, False)
        assert not await held.approvals(session)
        late = await held.answer(question.approval_id, allow=True)
        assert late.answer == "revoked"
        (part,) = calls_in(await held.open(session))
        assert part.state.reason == "canceled"  # pyright: ignore
        assert (await held.prompt(session, "again")).output == "fresh"


async def test_a_turn_that_a_limit_ended_continues_when_it_is_reported_to():
    look = Tool(lambda number: f"seen {number}", name="look")
    script = [[call("look", number=1)], [call("look", number=2)], "done"]
    async with engine(script, look, limits=Limits(turns=2)) as held:
        session = await held.create()
        assert (await held.prompt(session, "go")).reason == "limit"
        end = await held.resume(session)
        assert (end.reason, end.output) == ("completed", "done")
        assert [part.state.output for part in calls_in(await held.open(session))] == ["seen 1", "seen 2"]  # pyright: ignore


async def test_a_defect_ends_the_turn_as_an_error_and_the_session_continues(caplog: pytest.LogCaptureFixture):
    errors: list[ErrorEvent] = []
    ends: list[tuple[str, int]] = []
    async with engine([KeyError("a defect"), "all is well"]) as held:
        held.bus.subscribe(ErrorEvent, errors.append)
        held.bus.subscribe(LoopCompletedEvent, lambda event: ends.append((event.termination_reason, len(errors))))
        session = await held.create()
        end = await held.prompt(session, "go")
        assert (end.reason, end.error is not None and "a defect" in end.error.message) == ("error", True)
        assert [(event.session_id, "a defect" in event.message) for event in errors] == [(session, True)]
        assert (await held.prompt(session, "again")).output == "all is well"
    assert ends == [("error", 1), ("completed", 1)]  # a webhook sends the error that was published before the end
    assert "a defect" in caplog.text


async def test_an_engine_that_is_not_open_reports_it():
    held = engine(["never"])
    with pytest.raises(ConfigurationError, match="async with"):
        await held.create()


async def test_a_mode_that_does_not_exist_is_refused():
    async with engine(["never"]) as held:
        with pytest.raises(ConfigurationError, match=f"modes: {', '.join(MODES)}"):
            await held.create(mode="fast")  # pyright: ignore[reportArgumentType]
        session = await held.create()
        with pytest.raises(ConfigurationError, match="'fast'"):
            await held.set_mode(session, "fast")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_half_a_character_in_an_input_is_replaced_and_nothing_lost(kind: str, tmp_path: Path):
    """As names of files and broken pastes have it."""
    opened = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "sessions.db")
    async with opened as store, engine(["fine"], store=store) as held:
        session = await held.create()
        assert (await held.prompt(session, "caf\udce9")).output == "fine"
        assert (await store.load(session)).messages[0].get_text_content() == "caf?"


class SmallStore(MemoryStore):
    full = False

    async def append(self, session_id, values, **options):
        if self.full:
            raise StorageFullError("no space left")
        return await super().append(session_id, values, **options)


@pytest.mark.parametrize("then", [[], [ProviderError("it broke off")]])
async def test_sf_040_calls_that_a_full_disk_stopped_have_ended_and_never_run(then):
    store, ran = SmallStore(), []

    def fills_the_disk(_):
        store.full = True
        return [call("act", "c1"), call("act", "c2"), *then]

    async with engine([fills_the_disk, "well"], Tool(lambda: ran.append(1) or "", name="act"), store=store) as held:
        session_id = await held.create()
        ended = await asyncio.wait_for(held.prompt(session_id, "go"), 30)
        assert isinstance(ended.error, StorageFullError)
        store.full = False
        assert (await asyncio.wait_for(held.prompt(session_id, "again"), 30)).output == "well"
        stored = calls_in(await store.load(session_id))
        assert stored == calls_in(await held.open(session_id))
        assert [part.state.reason for part in stored] == ["canceled"] * 2
        assert ran == []


async def test_names_of_version_0_1_work_and_name_their_replacement():
    async with engine(["one", "two"]) as held:
        session = await held.create()
        with pytest.warns(DeprecationWarning, match=r"Engine\.put is deprecated, use Engine\.enqueue"):
            end = await held.put(session, "go")
        assert (await end).output == "one"
        with pytest.warns(DeprecationWarning, match=r"use Engine\.resume"):
            assert (await held.go_on(session)).output == "one"
        with pytest.warns(DeprecationWarning, match=r"use Engine\.redact"):
            assert held.discreet(["open"]) == ["open"]
        with pytest.warns(DeprecationWarning, match=r"use Engine\.replace"):
            assert not held.like(attended=False).attended


async def test_an_engine_that_is_open_in_another_event_loop_says_so():
    async with engine(["One.", "Two."]) as held:
        session = await held.create()
        await held.prompt(session, "x")
        uses: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            held.create,
            lambda: held.prompt(session, "y"),
            lambda: held.open(session),
            lambda: held.abort(session),
            lambda: held.answer("x", allow=True),
        ]
        for use in uses:
            with pytest.raises(ConfigurationError, match=r"opened in another event loop.*run_coroutine_threadsafe"):
                await asyncio.to_thread(lambda use=use: asyncio.run(use()))
        assert (await held.prompt(session, "y")).output == "Two."


def test_an_engine_can_be_opened_again_in_another_event_loop():
    held = engine(["One."])

    async def use() -> str:
        async with held:
            return (await held.prompt(await held.create(), "x")).output

    assert [asyncio.run(use()), asyncio.run(use())] == ["One.", "One."]


async def test_an_engine_that_could_not_be_opened_can_be_opened_again():
    held = Engine([agent()], [Provider("scripted", "anthropic")])
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has no key"):
            await held.__aenter__()


async def test_an_answer_with_an_unknown_scope_is_refused_before_it_is_stored():
    @Tool(policy="ask")
    def send() -> str:
        return "sent"

    async with engine([[call("send")], "Done."], send) as held:
        end = await held.enqueue(await held.create(), "x")
        while not (questions := await held.approvals()):
            await asyncio.sleep(0.01)
        with pytest.raises(ConfigurationError, match=r"scope is .*'forever'.*once, session, project and always"):
            await held.answer(questions[0].id, allow=True, scope="forever")
        await held.answer(questions[0].id, allow=True, scope="session")
        assert (await end).output == "Done."
