"""Details of the original specification that programs rely on."""

import asyncio
import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from outrider import (
    Agent,
    AgentPart,
    ApprovalRequest,
    Engine,
    EventBus,
    FilePart,
    Limits,
    Message,
    PatchPart,
    Provider,
    ProviderError,
    Session,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    TextPart,
    TextRange,
    Tool,
    ToolPart,
    async_run,
    decode_parts,
    part_from_anthropic,
    part_from_dict,
)
from outrider.errors import ServerError
from outrider.events import (
    BudgetExceededEvent,
    EventLogger,
    LoopStartedEvent,
    ToolInputDeltaEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)
from outrider.providers.scripted import call
from outrider.stores import MemoryStore
from outrider.types.parts import ReasoningPart
from outrider.types.tool_state import Attachment, EndedTime, ToolCompleted
from outrider.workspace import Workspace

AGENT = Agent("helper", "You help.", model="m", provider="demo")


def scripted(*answers: Any, **options: Any) -> Provider:
    return Provider("demo", kind="scripted", options={"script": list(answers), **options})


def test_a_logger_can_be_detached():
    bus, other, out = EventBus(), EventBus(), io.StringIO()
    logger = EventLogger(out)
    logger.attach(bus)
    logger.attach(other)
    bus.publish(LoopStartedEvent(user_message="hi"))
    before = out.getvalue()
    assert before
    logger.detach()
    logger.detach()
    for one in (bus, other):
        one.publish(LoopStartedEvent(user_message="hi"))
    assert out.getvalue() == before


def test_clearing_a_session_assigns_a_new_id():
    session = Session()
    session.add_user_message("hi")
    before = session.id
    session.clear()
    assert session.id != before
    assert len(session) == 0
    session.add_user_message("again")
    assert session.messages[0].session_id == session.id


def test_the_text_of_separate_parts_is_separated_by_lines():
    message = Message("user", [TextPart("a"), TextPart("b")])
    assert message.get_text_content() == "a\nb"
    assert message.join_text() == "ab"


class Slotted:
    __slots__ = ("text", "type")

    def __init__(self) -> None:
        self.type, self.text = "text", "hi"


class Computed:
    type = "tool_use"
    id = "c1"
    name = "search"

    @property
    def input(self) -> dict[str, Any]:
        return {"word": "x"}


@pytest.mark.parametrize(
    ("block", "api"),
    [
        (SimpleNamespace(type="text", text="hi"), {"type": "text", "text": "hi"}),
        (Slotted(), {"type": "text", "text": "hi"}),
        (Computed(), {"type": "tool_use", "id": "c1", "name": "search", "input": {"word": "x"}}),
        (
            SimpleNamespace(
                type="tool_result", tool_use_id="c1", content=[SimpleNamespace(type="text", text="done")], is_error=True
            ),
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [{"type": "text", "text": "done"}],
                "is_error": True,
            },
        ),
    ],
)
def test_content_blocks_are_read_from_any_object_by_attribute(block: Any, api: dict[str, Any]):
    assert part_from_anthropic(block).to_api_format() == api  # pyright: ignore


def test_an_object_without_a_type_is_no_content_block():
    with pytest.raises(ValueError, match="attribute `type`"):
        part_from_anthropic(object())


def test_the_older_spelling_of_the_type_is_read():
    assert part_from_dict({"part_type": "text", "text": "hi"}).text == "hi"
    message = Message.from_dict({"role": "user", "parts": [{"part_type": "text", "text": "hi"}]})
    assert message.get_text_content() == "hi"
    session = Session.from_dict({"messages": [{"role": "user", "parts": [{"part_type": "text", "text": "hi"}]}]})
    assert session.messages[0].get_text_content() == "hi"


async def test_declared_fields_of_messages_parts_and_events_are_filled():
    seen: list[ToolInputDeltaEvent] = []
    bus = EventBus()
    bus.subscribe(ToolInputDeltaEvent, seen.append)
    answers = [[ReasoningPart("hm"), "first", call("look", word="x" * 30)], "done"]
    result = await async_run(
        AGENT, "go", tools=[Tool(lambda word: word, name="look")], providers=[scripted(*answers, chunk=4)], bus=bus
    )
    user, answer, *_ = result.session.messages
    assert user.model is not None
    assert (user.agent, user.model.provider, user.model.model, user.mode) == ("helper", "demo", "m", "agent")
    for kind in (TextPart, ReasoningPart):
        (part,) = answer.get_parts_by_type(kind)
        assert part.time is not None and part.time.end is not None and part.time.start <= part.time.end
    assert {event.tool_name for event in seen} == {"look"}


async def test_the_input_of_an_engine_has_its_model_and_mode():
    async with Engine([AGENT], [scripted("ok")]) as engine:
        session_id = await engine.create()
        await engine.prompt(session_id, "hi")
        user = (await engine.open(session_id)).messages[0]
    assert user.model is not None
    assert (user.agent, user.model.model, user.mode) == ("helper", "m", "agent")


async def test_an_input_has_its_effort_its_tools_and_the_agents_that_it_mentions():
    tools = [Tool(lambda: "", name="look", read_only=True), Tool(lambda: "", name="touch")]
    critic = Agent("critic", "You criticise.", model="m", provider="demo")
    async with Engine([AGENT, critic], [scripted("a", "b")], tools) as engine:
        session_id = await engine.create(mode="plan")
        await engine.prompt(session_id, "Ask @critic, not me@critic.example or @nobody.")
        await engine.prompt(session_id, "Again.")
        first, second = (m for m in (await engine.open(session_id)).messages if m.role == "user")
    assert (first.variant, first.tools) == ("medium", {"look": True})
    assert (second.variant, second.tools) == ("medium", None)  # None: as before
    mentions = [(part.name, part.source) for part in first.get_parts_by_type(AgentPart)]
    assert mentions == [("critic", TextRange("@critic", 4, 11))]


async def test_steps_name_the_last_change_of_files_and_an_undo_its_snapshot(tmp_path):
    model = scripted([call("write", file_path="a.txt", content="one")], "Done.")
    async with Workspace(tmp_path, AGENT, [model], approve=lambda _: True) as workspace:
        await workspace.prompt("Write.")
        await workspace.undo()
        messages = (await workspace.engine.open(workspace.session_id)).messages
    change = messages[1].get_parts_by_type(PatchPart)[0].hash
    assert [m.get_parts_by_type(StepStartPart)[0].snapshot for m in messages if m.role == "assistant"] == [None, change]
    assert messages[2].get_parts_by_type(StepFinishPart)[0].snapshot == change
    undo = messages[-1]
    assert undo.get_parts_by_type(SnapshotPart)[0].snapshot == undo.get_parts_by_type(PatchPart)[0].hash


async def test_a_reached_limit_is_named():
    bus, found = EventBus(), list[BudgetExceededEvent]()
    bus.subscribe(BudgetExceededEvent, found.append)
    look = Tool(lambda: "", name="look")
    await async_run(AGENT, "hi", tools=[look], providers=[scripted([call("look")])], limits=Limits(turns=1), bus=bus)
    assert [(event.limit, event.maximum, event.reached) for event in found] == [("turns", "1", "1")]


async def test_a_compaction_has_a_time_and_a_short_summary():
    async with Engine([AGENT], [scripted(*["fine. " * 100] * 3, "## Goal\n\nTo be short.")]) as engine:
        session_id = await engine.create()
        for text in ("one", "two", "three"):
            await engine.prompt(session_id, text * 100)
        await engine.compact(session_id)
        session = await engine.open(session_id)
    assert session.messages[-1].summary == "To be short."
    assert session.time.compacting


async def test_every_started_step_completes_also_after_a_provider_error():
    bus, seen = EventBus(), list[str]()
    bus.subscribe(TurnStartedEvent, lambda event: seen.append(f"started {event.turn_number}"))
    bus.subscribe(TurnCompletedEvent, lambda event: seen.append(f"completed {event.turn_number}"))
    broken = scripted([ProviderError("no")])
    with pytest.raises(ProviderError):
        await async_run(AGENT, "hi", providers=[broken], bus=bus)
    assert seen == ["started 1", "completed 1"]
    seen.clear()
    await async_run(AGENT, "hi", tools=[Tool(lambda: "", name="a")], providers=[scripted([call("a")], "ok")], bus=bus)
    assert seen == ["started 1", "completed 1", "started 2", "completed 2"]


async def test_an_aborted_turn_has_the_text_so_far():
    shown = asyncio.Event()
    async with Engine([AGENT], [scripted("some words that arrive slowly", chunk=5, delay=0.05)]) as engine:
        session_id = await engine.create()
        engine.bus.subscribe_all(lambda event: shown.set() if type(event).__name__ == "PartDeltaEvent" else None)
        end = await engine.enqueue(session_id, "hi")
        await asyncio.wait_for(shown.wait(), 10)
        await engine.abort(session_id)
        result = await end
        assert result.reason == "aborted"
        assert result.text.startswith("some")
        assert result.text == (await engine.open(session_id)).messages[-1].join_text()


def test_files_can_be_attachments_of_a_completed_call():
    inline = FilePart("image/png", "data:image/png;base64,QUJD", "a.png")
    linked = FilePart("image/png", "https://example.org/b.png")
    state = ToolCompleted({}, "done", EndedTime(1, 2), attachments=[inline, linked])  # pyright: ignore
    assert state.attachments == (
        Attachment("image/png", data="QUJD", name="a.png"),
        Attachment("image/png", url="https://example.org/b.png"),
    )
    part = ToolPart("c1", "look", state)
    stored = part.to_dict()
    assert part_from_dict(stored) == part
    stored["state"]["attachments"] = [inline.to_dict(), linked.to_dict()]  # as earlier versions stored it
    assert part_from_dict(stored) == part
    assert decode_parts(json.dumps([stored])) == [part]
    assert Message.from_dict({"role": "assistant", "parts": [stored]}).parts[0].state == state


@pytest.mark.parametrize(("answer", "asked"), [(True, 3), ("once", 3), ("session", 1), ("always", 1)])
async def test_an_approval_can_have_a_scope(answer: Any, asked: int):
    questions: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Any:
        questions.append(request)
        return answer

    ran: list[str] = []

    @Tool(policy="ask")
    def send(to: str) -> None:
        ran.append(to)

    steps = [[call("send", to=name)] for name in "abc"]
    await async_run(AGENT, "go", tools=[send], providers=[scripted(*steps, "done")], approve=approve)
    assert ran == ["a", "b", "c"]
    assert len(questions) == asked


async def test_a_lasting_approval_is_stored_with_the_session():
    async with MemoryStore() as store:
        send = Tool(lambda: "sent", name="send", policy="ask")
        first = await async_run(
            AGENT, "go", tools=[send], providers=[scripted([call("send")], "done")], store=store,
            approve=lambda _: "session",
        )  # fmt: skip
        (stored,) = await store.approvals()
        assert (stored.answer, stored.scope, stored.offers) == ("allowed", "session", ("send",))
        second = await async_run(
            AGENT, "go", tools=[send], providers=[scripted([call("send")], "done")], store=store,
            session=first.session.id, approve=lambda _: "no more",
        )  # fmt: skip
        (used,) = second.session.messages[-2].get_calls()
        assert used.state.status == "completed"
        other = await async_run(
            AGENT, "go", tools=[send], providers=[scripted([call("send")], "done")], store=store,
            approve=lambda _: "no more",
        )  # fmt: skip
        (denied,) = other.session.messages[-2].get_calls()
        assert denied.state.status == "error"


async def test_a_server_error_after_text_completes_the_step():
    bus, seen = EventBus(), list[str]()
    bus.subscribe_all(lambda event: seen.append(event.event_type))
    with pytest.raises(ServerError):
        agent = AGENT.replace(retry=None)
        await async_run(agent, "hi", providers=[scripted(["some ", ServerError("down", retryable=False)])], bus=bus)
    assert seen.count("TurnStartedEvent") == seen.count("TurnCompletedEvent") == 1


def polling(times: int) -> list[Any]:
    return [[call("poll")] for _ in range(times)]


@pytest.mark.parametrize(
    ("answers", "reason", "asked"),
    [([True, True], "completed", 2), ([False], "repetition", 1), ([True, "no"], "repetition", 2)],
)
async def test_a_repetition_is_a_question_in_attended_mode(answers: list[Any], reason: str, asked: int):
    questions: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Any:
        questions.append(request)
        return answers[len(questions) - 1]

    poll = Tool(lambda: "pending", name="poll", repeats=4)
    result = await async_run(AGENT, "go", tools=[poll], providers=[scripted(*polling(9), "done")], approve=approve)
    assert result.reason == reason
    assert len(questions) == asked
    assert "poll 4 times in a row" in questions[0].description


async def test_a_repetition_ends_the_turn_where_no_one_can_be_asked():
    poll = Tool(lambda: "pending", name="poll")
    result = await async_run(
        AGENT, "go", tools=[poll], providers=[scripted(*polling(9), "done")], limits=Limits(repeats=5)
    )
    assert (result.reason, len(result.session.messages[-1].get_calls())) == ("repetition", 1)


async def test_an_engine_asks_about_a_repetition():
    poll = Tool(lambda: "pending", name="poll", repeats=3)
    async with Engine([AGENT], [scripted(*polling(4), "done")], [poll], attended=True) as engine:
        session_id = await engine.create()
        end = await engine.enqueue(session_id, "go")
        while not (waiting := await engine.approvals()):
            await asyncio.sleep(0.01)
        assert "May it continue?" in waiting[0].description
        await engine.answer(waiting[0].id, allow=True)
        assert (await end).output == "done"
        assert not await engine.approvals()
