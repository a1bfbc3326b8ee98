"""Events and stored messages become the same entries, whatever was missed on the way."""

from decimal import Decimal

from outrider.tui.conversation import ConversationModel
from outrider.tui.entries import AssistantEntry, CommandEntry, NoticeEntry, ReasoningEntry, ToolCallEntry, UserEntry
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessStartedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import EndedTime, RunningTime, ToolCompleted, ToolPending, ToolRunning

SESSION = "s1"


def delta(part_id: str, text: str, field: str = "text") -> PartDeltaEvent:
    return PartDeltaEvent(session_id=SESSION, message_id="m1", part_id=part_id, delta=text, field=field)


def updated(part: object) -> PartUpdatedEvent:
    return PartUpdatedEvent(session_id=SESSION, part=part)


def test_text_grows_with_its_deltas_and_ends_with_its_full_value():
    conversation = ConversationModel(SESSION)
    part = TextPart("all of it, also what was missed")
    for piece in ("all ", "of it"):
        conversation.apply_event(delta(part.id, piece))
    (entry,) = conversation.entries
    assert isinstance(entry, AssistantEntry)
    assert entry.text == "all of it"
    conversation.apply_event(updated(part))
    assert entry.text == part.text
    assert not entry.open


def test_reasoning_is_an_entry_of_its_own_with_its_time():
    now = [0.0]
    conversation = ConversationModel(SESSION, clock=lambda: now[0])
    part = ReasoningPart("I think")
    conversation.apply_event(delta(part.id, "I think", "reasoning"))
    now[0] = 4.0
    conversation.apply_event(updated(part))
    (entry,) = conversation.entries
    assert isinstance(entry, ReasoningEntry)
    assert entry.seconds == 4.0


def test_a_call_is_followed_through_the_six_words():
    conversation = ConversationModel(SESSION)
    part = ToolPart(call_id="c1", tool="shell")
    seen = []
    conversation.apply_event(updated(part))
    (entry,) = conversation.entries
    assert isinstance(entry, ToolCallEntry)
    seen.append(entry.part.display_status)
    conversation.apply_event(
        ToolInputDeltaEvent(session_id=SESSION, message_id="m1", part_id=part.id, delta='{"command": "l')
    )
    assert entry.raw_input == '{"command": "l'
    for state in (
        ToolPending(input={"command": "ls"}, phase="ready"),
        ToolRunning({"command": "ls"}, RunningTime(1)),
        ToolCompleted({"command": "ls"}, "a\nb", EndedTime(1, 2)),
    ):
        conversation.apply_event(updated(part.update_state(state)))
        part = entry.part
        seen.append(part.display_status)
    assert seen == ["generating", "generated", "calling", "done"]


def test_live_output_is_bounded():
    conversation = ConversationModel(SESSION)
    conversation.apply_event(updated(ToolPart(call_id="c1", tool="shell", state=ToolRunning({}, RunningTime(1)))))
    for number in range(5000):
        conversation.apply_event(
            ToolOutputEvent(session_id=SESSION, call_id="c1", tool_name="shell", output=f"line {number}\n")
        )
    (entry,) = conversation.entries
    assert isinstance(entry, ToolCallEntry)
    assert list(entry.live_output)[-2:] == ["line 4999", ""]
    assert len(entry.live_output) <= 400


def test_what_the_user_says_is_taken_from_the_session_that_the_event_names():
    message = Message("user", [TextPart("hello")])
    conversation = ConversationModel(SESSION, lambda found: message if found == message.id else None)
    conversation.apply_event(MessageAddedEvent(session_id=SESSION, role="user", message_id=message.id))
    conversation.apply_event(MessageAddedEvent(session_id=SESSION, role="user", message_id=message.id))
    (entry,) = conversation.entries
    assert isinstance(entry, UserEntry)
    assert entry.text == "hello"


def test_another_session_changes_nothing_here():
    conversation = ConversationModel(SESSION)
    conversation.apply_event(PartDeltaEvent(session_id="other", message_id="m", part_id="p", delta="x"))
    assert conversation.entries == []


def test_agents_and_processes_beside_are_followed_to_their_ends():
    conversation = ConversationModel(SESSION)
    conversation.apply_event(
        AgentCalledEvent(session_id=SESSION, call_id="c1", callee="reviewer", message="look", child_session_id="s2")
    )
    conversation.apply_event(ToolExecutionStartedEvent(session_id="s2", tool_name="grep"))
    agent = conversation.side_activity.agents["s2"]
    assert (agent.state, agent.doing) == ("working", "grep")
    conversation.apply_event(
        AgentReturnedEvent(session_id=SESSION, call_id="c1", callee="reviewer", child_session_id="s2")
    )
    assert agent.state == "done"
    conversation.apply_event(ProcessStartedEvent(session_id=SESSION, process_id="p1", command="npm start"))
    assert conversation.side_activity.background_processes() == []
    done = ToolCompleted({}, "runs", EndedTime(1, 2), metadata={"process_id": "p1", "running": True})
    conversation.apply_event(updated(ToolPart(call_id="p1", tool="shell", state=done)))
    (process,) = conversation.side_activity.background_processes()
    conversation.apply_event(ProcessExitedEvent(session_id=SESSION, process_id="p1", exit_code=3))
    assert process.ended == "exit 3"


def test_tokens_and_cost_add_up_and_an_unknown_price_is_said():
    conversation = ConversationModel(SESSION)
    conversation.apply_event(LoopStartedEvent(session_id=SESSION))
    assert conversation.activity.busy
    conversation.apply_event(LLMResponseEvent(session_id=SESSION, input_tokens=100, output_tokens=20, cost="0.5"))
    assert conversation.activity.known_cost == Decimal("0.5")
    assert conversation.activity.context_tokens == 120
    conversation.apply_event(LLMResponseEvent(session_id=SESSION, input_tokens=1, output_tokens=1))
    assert conversation.activity.known_cost is None
    conversation.apply_event(LoopCompletedEvent(session_id=SESSION, termination_reason="completed"))
    assert not conversation.activity.busy


def test_an_error_is_said_once():
    conversation = ConversationModel(SESSION)
    for _ in range(2):
        conversation.apply_event(ErrorEvent(session_id=SESSION, error_type="ProviderError", message="overloaded"))
    (entry,) = conversation.entries
    assert isinstance(entry, NoticeEntry)
    assert entry.text == "ProviderError: overloaded"


def test_stored_messages_read_like_live_ones_and_older_ones_go_to_the_top():
    by_hand = TextPart("The user ran…", synthetic=True, metadata={"command": "ls", "output": "a"})
    first = Message("user", [by_hand, TextPart("first")])
    second = Message("assistant", [ReasoningPart("hm"), TextPart("answer"), ToolPart(call_id="c", tool="read")])
    conversation = ConversationModel(SESSION)
    conversation.load_messages([second])
    assert conversation.prepend_messages([first]) == 2
    assert [type(entry) for entry in conversation.entries] == [
        CommandEntry,
        UserEntry,
        ReasoningEntry,
        AssistantEntry,
        ToolCallEntry,
    ]
    assert conversation.prepend_messages([first]) == 0
