"""Events: what each carries, and that all of them survive JSON."""

import json
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import TextPart
from outrider import events as public
from outrider.types.events import EVENT_TYPES, Event, PartUpdatedEvent, event_from_dict
from tests.fixtures import strategies
from tests.fixtures.cases import for_each

DESIGNED = {
    "LoopStartedEvent": {"session_id": "s", "user_message": "hi"},
    "LoopCompletedEvent": {"session_id": "s", "termination_reason": "done", "total_turns": 2, "duration_ms": 5},
    "TurnStartedEvent": {"turn_number": 1, "max_turns": 10},
    "TurnCompletedEvent": {"turn_number": 1, "tool_calls_count": 3},
    "StateChangedEvent": {"old_state": "idle", "new_state": "calling"},
    "LLMRequestEvent": {"message_count": 3, "has_tools": True},
    "LLMResponseEvent": {
        "stop_reason": "stop",
        "has_tool_use": False,
        "input_tokens": 1,
        "output_tokens": 2,
        "duration_ms": 3,
    },
    "ToolExecutionStartedEvent": {"tool_name": "read", "tool_input": {"path": "a"}},
    "ToolExecutionCompletedEvent": {"tool_name": "read", "success": True, "duration_ms": 3, "output_preview": "x"},
    "ToolApprovalRequestedEvent": {"tool_name": "shell", "description": "rm"},
    "ToolApprovalResultEvent": {"tool_name": "shell", "approved": False},
    "MessageAddedEvent": {"role": "user", "part_count": 1},
    "ContextCompactionEvent": {"tokens_before": 10, "tokens_after": 2, "messages_removed": 4},
}
OTHER_FIELDS = [
    "PartUpdated",
    "PartDelta",
    "ToolOutput",
    "ToolInputDelta",
    "RetryScheduled",
    "BudgetExceeded",
    "AgentCalled",
    "AgentReturned",
    "SessionUpdated",
    "ProcessStarted",
    "ProcessOutput",
    "ProcessExited",
]


@for_each(("name", "fields"), DESIGNED.items())
def test_an_event_takes_its_fields_by_keyword(name, fields):
    event = getattr(public, name)(**fields)
    assert {field: getattr(event, field) for field in fields} == fields
    assert event.event_type == name
    assert event.timestamp > 0
    assert (event.agent_name, event.call_id, event.parent_call_id) == ("", "", "")


@for_each("name", OTHER_FIELDS)
def test_the_other_events_exist_and_can_be_imported(name):
    assert issubclass(getattr(public, f"{name}Event"), Event)


@for_each("name", public.__all__)
def test_every_name_of_the_facade_resolves(name):
    assert getattr(public, name) is not None


@st.composite
def any_event(draw: st.DrawFn) -> Event:
    cls = draw(st.sampled_from(sorted(EVENT_TYPES.values(), key=lambda cls: cls.__name__)))
    if cls is PartUpdatedEvent:
        return PartUpdatedEvent(part=draw(strategies.parts), seq=draw(st.none() | strategies.count))
    values = {"str": strategies.text, "int": strategies.count, "bool": st.booleans(), "float": st.floats(0, 1)}
    fields = {}
    for name, hint in cls.__annotations__.items():
        kinds = [kind for word, kind in values.items() if word in str(hint) and "ClassVar" not in str(hint)]
        if "dict" in str(hint):
            fields[name] = draw(strategies.objects)
        elif get_origin(hint) is tuple:
            entry = get_args(hint)[0]
            entries = strategies.text if entry is str else st.from_type(entry)
            fields[name] = tuple(draw(st.lists(entries, max_size=3)))
        elif kinds:
            fields[name] = draw(kinds[0])
    return cls(**fields, session_id=draw(strategies.text), agent_name=draw(strategies.text))


@given(any_event())
def test_every_event_survives_json_exactly(event):
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


def test_an_unknown_event_is_a_value_error():
    with pytest.raises(ValueError, match="unknown event type 'BogusEvent'"):
        event_from_dict({"type": "BogusEvent"})


def test_an_event_cannot_be_changed_by_a_listener():
    event = PartUpdatedEvent(part=TextPart("a"))
    with pytest.raises(AttributeError):
        event.seq = 3  # pyright: ignore[reportAttributeAccessIssue]
