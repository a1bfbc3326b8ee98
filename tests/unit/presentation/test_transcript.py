"""Messages and events fold into the same items."""

from types import NoneType

import msgspec
import pytest

from outrider.presentation.item_views import part_view
from outrider.presentation.items import (
    LIVE_OUTPUT_LINES,
    MAX_DAMAGE_NOTICES,
    CommandItem,
    FileItem,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    UserItem,
    damage_notice,
    damage_notices,
    event_notice,
    file_name,
    file_summary,
    has_other_display,
    message_items,
    part_item,
)
from outrider.presentation.share_page import render_share_page
from outrider.presentation.transcript import TranscriptView
from outrider.sessions.records import DamagedRow, SessionTranscript, StoredSession
from outrider.tui.rendering.items import item_lines
from outrider.tui.theme import DARK
from outrider.types.codec import UnknownPart
from outrider.types.events import (
    EVENT_TYPES,
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ErrorEvent,
    Event,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    ModelProgressEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.messages import Message, MessageError
from outrider.types.parts import (
    STORED_KINDS,
    AgentPart,
    CompactionPart,
    FilePart,
    ModelRef,
    PatchPart,
    ReasoningPart,
    RetryPart,
    RetryTime,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    Tokens,
    ToolPart,
)
from outrider.types.tool_state import EndedTime, TodoItem, ToolCompleted, ToolPending
from tests.fixtures.cases import for_each

SESSION = "s1"


def applied(view: TranscriptView, *events: Event) -> list[str]:
    return [item.id for event in events for item in view.apply(event)]


def test_stored_messages_give_items_in_order():
    user = Message(
        "user", [TextPart("hello"), FilePart("image/png", "data:,x", "x.png"), TextPart("h", synthetic=True)]
    )
    answer = Message(
        "assistant", [ReasoningPart("hm"), TextPart("hi"), ToolPart("c", "read", ToolPending({}, "", "ready"))]
    )
    items = [item for message in (user, answer) for item in message_items(message)]
    assert [type(item) for item in items] == [UserItem, ReasoningItem, TextItem, ToolCallItem]
    assert isinstance(items[0], UserItem)
    assert (items[0].text, len(items[0].files)) == ("hello", 1)


def test_streamed_text_ends_with_the_stored_value():
    view = TranscriptView(SESSION)
    part = TextPart("hello world", id="p1")
    changed = applied(
        view,
        PartDeltaEvent(session_id=SESSION, part_id="p1", message_id="m1", field="text", delta="hel"),
        PartDeltaEvent(session_id=SESSION, part_id="p1", message_id="m1", field="text", delta="lo"),
        PartUpdatedEvent(session_id=SESSION, part=part),
    )
    assert changed == ["p1", "p1", "p1"]
    (item,) = view.items
    assert isinstance(item, TextItem)
    assert (item.text, item.streaming, item.version) == ("hello world", False, 3)


def test_a_call_collects_input_output_and_its_end():
    view = TranscriptView(SESSION)
    part = ToolPart("c1", "shell", ToolPending({}, "", "streaming"), id="p1")
    view.apply(PartUpdatedEvent(session_id=SESSION, part=part))
    view.apply(ToolInputDeltaEvent(session_id=SESSION, part_id="p1", call_id="c1", message_id="m", delta='{"command'))
    view.apply(ToolOutputEvent(session_id=SESSION, call_id="c1", tool_name="shell", output="a\nb"))
    (item,) = view.items
    assert isinstance(item, ToolCallItem)
    assert (item.raw_input, list(item.live_output)) == ('{"command', ["a", "b"])
    done = msgspec.structs.replace(part, state=ToolCompleted({}, "ok", time=EndedTime(1, 2)))
    assert view.apply(PartUpdatedEvent(session_id=SESSION, part=done)) == [item]
    assert item.part is done


def test_a_user_message_is_found_by_its_id_and_shown_once():
    message = Message("user", [TextPart("hello")])
    view = TranscriptView(SESSION, {message.id: message}.get)
    event = MessageAddedEvent(session_id=SESSION, role="user", part_count=1, message_id=message.id)
    assert len(applied(view, event, event)) == 1


def test_an_error_is_shown_once():
    message = Message("assistant", [TextPart("par")], error=MessageError("NetworkError", "gone"))
    view = TranscriptView(SESSION, {message.id: message}.get)
    finish = StepFinishPart("error", message_id=message.id)
    view.apply(PartUpdatedEvent(session_id=SESSION, part=finish))
    view.apply(ErrorEvent(session_id=SESSION, error_type="NetworkError", message="gone"))
    assert [item.text for item in view.items if isinstance(item, NoticeItem)] == [
        'the connection failed: gone. Send "continue" to try again, or choose another model'
    ]


def test_limits_and_ends_are_notices():
    view = TranscriptView(SESSION)
    view.apply(BudgetExceededEvent(session_id=SESSION, limit="turns", reached="5", maximum="5"))
    view.apply(LoopCompletedEvent(session_id=SESSION, termination_reason="length"))
    assert [item.level for item in view.items if isinstance(item, NoticeItem)] == ["warning", "warning"]


def test_agents_that_are_called_are_followed_on_request():
    view = TranscriptView(SESSION, follow_children=True)
    call = ToolPart("c1", "call_agent", ToolPending({}, "", "ready"), id="p1")
    view.apply(PartUpdatedEvent(session_id=SESSION, part=call))
    called = AgentCalledEvent(session_id=SESSION, call_id="c1", callee="bob", message="hi", child_session_id="s2")
    view.apply(called)
    started = ToolExecutionStartedEvent(session_id="s2", call_id="c2", tool_name="grep", tool_input={})
    assert applied(view, started) == ["p1"]
    assert isinstance(view.items[0], ToolCallItem)
    assert view.items[0].child_activity == "grep"
    view.apply(PartUpdatedEvent(session_id="s2", part=TextPart("from bob", id="p2")))
    assert view.children["s2"].agent == "bob"
    assert [item.id for item in view.children["s2"].items] == ["p2"]
    assert view.apply(PartUpdatedEvent(session_id="other", part=TextPart("x"))) == []


def test_usage_is_added_up_and_unknown_prices_stay_unknown():
    view = TranscriptView(SESSION)
    view.apply(LoopStartedEvent(session_id=SESSION))
    view.apply(LLMResponseEvent(session_id=SESSION, stop_reason="stop", input_tokens=10, output_tokens=5, cost="0.5"))
    assert (str(view.activity.cost), view.activity.tokens, view.activity.context_tokens) == ("0.5", 5, 15)
    view.apply(LLMResponseEvent(session_id=SESSION, stop_reason="stop", input_tokens=10, output_tokens=5))
    assert view.activity.cost is None


def test_an_answer_whose_attempts_all_failed_leaves_the_size_of_the_context():
    view = TranscriptView(SESSION)
    view.apply(LLMResponseEvent(session_id=SESSION, stop_reason="stop", input_tokens=10, output_tokens=5))
    view.apply(LLMResponseEvent(session_id=SESSION, stop_reason="error", input_tokens=40, withdrawn_tokens=40))
    assert view.activity.context_tokens == 15


def test_older_messages_are_put_on_top_and_forgotten_ones_can_come_back():
    old, new = Message("user", [TextPart("old")]), Message("user", [TextPart("new")])
    view = TranscriptView(SESSION)
    view.load([new])
    assert view.prepend([old, new]) == 1
    assert [item.id for item in view.items] == [old.id, new.id]
    view.forget_first(1)
    assert view.prepend([old]) == 1


def test_a_part_of_an_unknown_kind_is_shown_as_a_detail():
    item = part_item(UnknownPart({"type": "hologram", "id": "p9", "shape": "cube"}))
    assert isinstance(item, NoticeItem)
    assert (item.level, item.text) == ("detail", "hologram")
    assert "cube" in item.body


SHOWN = {
    "text": (TextPart("hello"), TextItem),
    "reasoning": (ReasoningPart("hm"), ReasoningItem),
    "tool": (ToolPart("c", "read", ToolPending({}, "", "ready")), ToolCallItem),
    "file": (FilePart("image/png", "data:,x"), FileItem),
    "step-start": (StepStartPart(), NoneType),
    "step-finish": (StepFinishPart("stop"), NoneType),
    "snapshot": (SnapshotPart("tree"), NoneType),
    "patch": (PatchPart("h", ("a.py",)), NoticeItem),
    "agent": (AgentPart("bob"), NoneType),
    "subtask": (SubtaskPart("bob", "count"), NoticeItem),
    "retry": (RetryPart(1, "busy", RetryTime(1)), NoticeItem),
    "compaction": (CompactionPart(auto=True, summary="so far"), NoticeItem),
}


@for_each("kind", STORED_KINDS)
def test_every_kind_of_part_has_its_item_or_is_bookkeeping(kind: type):
    part, item = SHOWN[kind.type]
    assert isinstance(part, kind)
    assert type(part_item(part)) is item


def smallest_event(cls: type[Event]) -> Event:
    required = {
        field.name: {int: 1, bool: True, dict: {}, Tokens: Tokens()}.get(field.type, "x")  # type: ignore[call-overload]
        for field in msgspec.structs.fields(cls)
        if field.required
    }
    return cls(session_id=SESSION, **required)


@for_each("cls", EVENT_TYPES.values())
def test_every_event_is_handled(cls: type[Event]):
    notice = event_notice(smallest_event(cls))
    assert notice is None or notice.text


@for_each("cls", EVENT_TYPES.values())
def test_a_notice_is_an_item_unless_a_part_or_the_activity_shows_it(cls: type[Event]):
    event = smallest_event(cls)
    if event_notice(event) is not None:
        assert bool(applied(TranscriptView(SESSION), event)) is not has_other_display(event)


def test_an_event_of_a_program_is_a_detail():
    class DeployedEvent(Event, frozen=True):
        where: str = ""

    notice = event_notice(DeployedEvent())
    assert notice is not None
    assert (notice.level, notice.text) == ("detail", "DeployedEvent")


def test_an_event_of_a_program_is_an_item_of_the_session():
    class DeployedEvent(Event, frozen=True):
        where: str = ""

    view = TranscriptView(SESSION)
    assert len(applied(view, DeployedEvent(session_id=SESSION), DeployedEvent(session_id=SESSION))) == 1


def test_reasoning_has_the_time_that_it_took():
    now = [0.0]
    view = TranscriptView(SESSION, clock=lambda: now[0])
    part = ReasoningPart("I think")
    view.apply(PartDeltaEvent(session_id=SESSION, message_id="m1", part_id=part.id, delta="I", field="reasoning"))
    now[0] = 4.0
    view.apply(PartUpdatedEvent(session_id=SESSION, part=part))
    (item,) = view.items
    assert isinstance(item, ReasoningItem)
    assert item.seconds == 4.0


def test_text_that_turns_into_reasoning_is_shown_as_reasoning_in_its_place():
    view = TranscriptView(SESSION)
    for part_id in ("p1", "p2"):
        view.apply(PartDeltaEvent(session_id=SESSION, message_id="m1", part_id=part_id, delta="I thi"))
    first, second = view.items
    first.toggle()
    (changed,) = view.update_part(ReasoningPart("I think", id="p1", message_id="m1"))
    assert view.items == [changed, second]
    assert isinstance(changed, ReasoningItem)
    assert (changed.text, changed.streaming, changed.expanded) == ("I think", False, True)
    (back,) = view.update_part(TextPart("I say", id="p1", message_id="m1"))
    assert type(back) is TextItem


def test_live_output_is_bounded():
    view = TranscriptView(SESSION)
    part = ToolPart("c1", "shell", ToolPending({}, "", "ready"))
    view.apply(PartUpdatedEvent(session_id=SESSION, part=part))
    for number in range(5000):
        view.apply(ToolOutputEvent(session_id=SESSION, call_id="c1", tool_name="shell", output=f"line {number}\n"))
    (item,) = view.items
    assert isinstance(item, ToolCallItem)
    assert list(item.live_output)[-2:] == ["line 4999", ""]
    assert len(item.live_output) == LIVE_OUTPUT_LINES
    assert item.dropped_lines == 5001 - LIVE_OUTPUT_LINES


def test_input_that_was_written_before_the_session_was_opened_is_continued():
    view = TranscriptView(SESSION)
    part = ToolPart("c1", "shell", ToolPending({}, '{"comm', "streaming"), id="p1")
    view.load([Message("assistant", [part])])
    view.apply(ToolInputDeltaEvent(session_id=SESSION, message_id="m1", part_id="p1", delta='and": "ls'))
    (item,) = view.items
    assert isinstance(item, ToolCallItem)
    assert item.raw_input == '{"command": "ls'


def test_agents_and_processes_are_followed_to_their_end():
    view = TranscriptView(SESSION)
    called = AgentCalledEvent(session_id=SESSION, call_id="c1", callee="bob", message="look", child_session_id="s2")
    view.apply(called)
    view.apply(ToolExecutionStartedEvent(session_id="s2", tool_name="grep"))
    agent = view.side.agents["s2"]
    assert (agent.state, agent.activity) == ("working", "grep")
    view.apply(AgentReturnedEvent(session_id=SESSION, call_id="c1", callee="bob", child_session_id="s2"))
    assert agent.state == "done"
    view.apply(ProcessStartedEvent(session_id=SESSION, process_id="p1", command="npm start"))
    assert view.side.background_processes() == []
    state = ToolCompleted({}, "runs", EndedTime(1, 2), metadata={"process_id": "p1", "running": True})
    view.apply(PartUpdatedEvent(session_id=SESSION, part=ToolPart("c2", "shell", state)))
    (process,) = view.side.background_processes()
    view.apply(ProcessExitedEvent(session_id=SESSION, process_id="p1", exit_code=3))
    assert process.exit_text == "exit code 3"


def test_the_task_list_of_stored_messages_is_the_latest_one():
    def listed(content: str) -> Message:
        state = ToolCompleted({}, "ok", EndedTime(1, 2), metadata={"todos": [{"content": content}]})
        return Message("assistant", [ToolPart(f"c-{content}", "todo", state)])

    view = TranscriptView(SESSION)
    view.load([listed("new")])
    view.prepend([listed("old")])
    assert view.side.todos == (TodoItem("new"),)
    later = TranscriptView(SESSION)
    later.prepend([listed("older"), listed("old")])
    assert later.side.todos == (TodoItem("old"),)


def test_a_notice_and_a_file_take_the_new_value_of_their_part():
    view = TranscriptView(SESSION)
    patch, file = PatchPart("h", ("a.py",)), FilePart("image/png", "data:,x", "a.png")
    for part in (patch, file):
        view.apply(PartUpdatedEvent(session_id=SESSION, part=part))
    notice, shown = view.items
    assert view.apply(PartUpdatedEvent(session_id=SESSION, part=msgspec.structs.replace(patch, files=("b.py",))))
    assert view.apply(PartUpdatedEvent(session_id=SESSION, part=msgspec.structs.replace(file, filename="b.png")))
    assert isinstance(notice, NoticeItem)
    assert isinstance(shown, FileItem)
    assert (notice.text, file_name(shown.part)) == ("changed: b.py", "b.png")


@pytest.mark.parametrize(
    ("file", "summary"),
    [
        (FilePart("image/png", "data:image/png;base64,QUJDRA==", "a.png"), "a.png · image/png · 4 B"),
        (FilePart("text/plain", "data:text/plain,a%20b"), "data:text/plain · text/plain · 3 B"),
        (FilePart("image/png", "https://example.com/a.png"), "https://example.com/a.png · image/png"),
    ],
)
def test_a_file_is_shown_by_name_type_and_size(file: FilePart, summary: str):
    assert file_summary(file) == summary


def test_a_command_of_the_user_is_an_item_before_the_message():
    ran = TextPart("The user ran…", synthetic=True, metadata={"command": "ls", "output": "a"})
    command, user = message_items(Message("user", [ran, TextPart("first")]))
    assert isinstance(command, CommandItem)
    assert isinstance(user, UserItem)
    assert (command.command, command.output, command.exit_status) == ("ls", "a", "")


def withdrawn_parts(message: Message) -> list[TextPart | ReasoningPart | ToolPart]:
    mark = {"withdrawn": True}
    canceled = ToolPending().fail("not run", 1, reason="canceled")
    parts: list[TextPart | ReasoningPart | ToolPart] = [
        TextPart("half a sen", ignored=True, metadata=mark),
        ReasoningPart("half a thou", metadata=mark),
        ToolPart("c1", "read", canceled, mark),
    ]
    for part in parts:
        part.adopt(message.id, SESSION)
    return parts


def test_parts_of_a_failed_attempt_are_withdrawn_in_every_view():
    message = Message("assistant", [TextPart("whole")])
    message.join(SESSION)
    parts = withdrawn_parts(message)
    view = TranscriptView(SESSION)
    for part in parts[:2]:
        field = "text" if isinstance(part, TextPart) else "reasoning"
        view.apply(
            PartDeltaEvent(session_id=SESSION, message_id=message.id, part_id=part.id, delta="half", field=field)
        )
    assert not any(item.withdrawn for item in view.items)
    for part in parts:
        view.apply(PartUpdatedEvent(session_id=SESSION, part=part))
    assert [item.withdrawn for item in view.items] == [True, True, True]
    assert view.find_call("c1") is None  # the next attempt may use the same id
    assert [part_view(part).withdrawn for part in parts] == [True, True, True]
    message.parts[:0] = parts
    assert [item.withdrawn for item in message_items(message)] == [True, True, True, False]
    transcript = SessionTranscript(StoredSession(id=SESSION), [message])
    page = render_share_page(transcript)
    assert page.count('<del class="withdrawn">') == 3
    for item in list(message_items(message))[:3]:
        assert all(any(span.style.strike for span in line.spans) for line in item_lines(item, 60, DARK))


def test_failed_attempts_without_output_are_one_line():
    message = Message("assistant", [])
    message.join(SESSION)
    retries = [RetryPart(number, f"busy {number}", RetryTime(1)) for number in (1, 2, 3)]
    half = TextPart("half", ignored=True, metadata={"withdrawn": True})
    moved = RetryPart(1, "gone", RetryTime(1), model=ModelRef("p", "m"))
    parts = [*retries, half, RetryPart(4, "busy 4", RetryTime(1)), moved]
    view = TranscriptView(SESSION)
    for part in parts:
        message.add_part(part)
        view.apply(PartUpdatedEvent(session_id=SESSION, part=part))
    expected = ["attempt 3 failed: busy 3", "half", "attempt 4 failed: busy 4", "continued with p/m: gone"]
    assert [item.text for item in view.items] == expected
    assert [item.text for item in message_items(message)] == expected
    view.apply(PartUpdatedEvent(session_id=SESSION, part=retries[2]))  # stored once more
    assert [item.text for item in view.items] == expected


def test_a_wait_is_counted_down_and_silence_is_shown():
    now = [100.0]
    view = TranscriptView(SESSION, clock=lambda: now[0])
    view.apply(LoopStartedEvent(session_id=SESSION))
    view.apply(RetryScheduledEvent(session_id=SESSION, attempt=2, delay_ms=9000, error="overloaded", max_attempts=12))
    assert view.activity.retry_text == "retrying in 9s: attempt 2 of 12 failed: overloaded"
    now[0] = 106.5
    assert view.activity.retry_text == "retrying in 3s: attempt 2 of 12 failed: overloaded"
    now[0] = 120.0
    assert view.activity.retry_text == "sending the request again"
    view.apply(ModelSilentEvent(session_id=SESSION, silent_ms=30_000, model="p/m"))
    assert view.activity.retry_text == "no data from p/m for 30s"
    view.apply(ModelProgressEvent(session_id=SESSION, stage="loading"))
    assert (view.activity.retry_text, view.activity.label) == ("", "loading the model")
    view.apply(ModelProgressEvent(session_id=SESSION, stage="reading", done=48, total=200))
    assert view.activity.label == "reading the prompt 24 %"
    view.apply(PartDeltaEvent(session_id=SESSION, message_id="m", part_id="p", delta="x"))
    assert view.activity.retry_text == ""


def test_many_damaged_rows_are_named_up_to_a_limit_and_then_counted():
    rows = tuple(DamagedRow("part", str(number), "m", "no JSON", b"{") for number in range(MAX_DAMAGE_NOTICES + 3))
    notices = [notice.text for notice in damage_notices(SessionTranscript(StoredSession(), [], rows))]
    assert len(notices) == MAX_DAMAGE_NOTICES + 1
    assert (notices[0], notices[-1]) == ("a damaged part is skipped: no JSON", "3 more damaged rows skipped")
    assert list(damage_notices(SessionTranscript(StoredSession(), []))) == []


def test_notices_about_older_messages_are_above_them():
    view = TranscriptView(SESSION)
    older = Message("assistant", [TextPart("hello")])
    assert view.prepend([older], [damage_notice("part", "no JSON")]) == 2
    assert [type(item) for item in view.items] == [NoticeItem, TextItem]


def test_the_notice_names_each_server_that_cannot_be_used():
    servers = [
        {"name": "web", "state": "ready", "error": ""},
        {"name": "db", "state": "failed", "error": "no such file"},
        {"name": "new", "state": 3},
    ]
    notice = event_notice(SessionUpdatedEvent(session_id=SESSION, changes={"mcp_servers": servers}))
    assert notice is not None
    assert notice.text == "MCP: db is not available (failed): no such file; new is in an unknown state"


def test_parts_of_a_user_message_are_shown_as_in_an_answer():
    parts = [TextPart("look"), SubtaskPart("reviewer", "reads it", "prompt"), SnapshotPart("hash")]
    items = list(message_items(Message("user", parts)))
    assert [type(item) for item in items] == [NoticeItem, UserItem]
    assert items[0].notice.text == "reviewer: reads it"
