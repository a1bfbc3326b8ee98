"""The event log: which events are recorded as what, how much is stored, and that JSON gives it back."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.event_bus import EventBus
from outrider.tracing.event_log import AgentEvent, EventLog
from outrider.tracing.records import EVENT_KINDS, ITEM_LIMIT, TEXT_LIMIT
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    PartDeltaEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    TurnStartedEvent,
)
from tests.unit.tracing.event_builders import log_of


def test_each_kind_of_event_is_recorded_under_its_type():
    log = log_of(
        LoopStartedEvent(session_id="s", agent_name="writer", user_message="hello"),
        LLMRequestEvent(message_count=1),
        LLMResponseEvent(),
        ToolExecutionStartedEvent(tool_name="read", call_id="1"),
        ToolExecutionCompletedEvent(tool_name="read", call_id="1"),
        AgentCalledEvent(callee="reviewer"),
        AgentReturnedEvent(callee="reviewer"),
        ErrorEvent(error_type="ProviderError", message="no"),
        LoopCompletedEvent(session_id="s", agent_name="writer", termination_reason="completed"),
    )
    assert [event.type for event in log] == [
        "llm_call", "llm_response", "tool_exec", "agent_call", "agent_return", "error", "finish",
    ]  # fmt: skip
    assert len(log) == 7
    assert not log.unfinished


@pytest.mark.parametrize("reason", ["error", "provider_error", "tool_failed", "crashed"])
def test_a_loop_that_failed_ends_in_an_error_record(reason: str):
    (record,) = log_of(LoopCompletedEvent(termination_reason=reason))
    assert record.type == "error"
    assert record.data["termination_reason"] == reason


@pytest.mark.parametrize("reason", ["completed", "max_turns", "aborted", ""])
def test_a_loop_that_ended_otherwise_ends_in_a_finish_record(reason: str):
    (record,) = log_of(LoopCompletedEvent(termination_reason=reason))
    assert record.type == "finish"


def test_the_record_of_a_tool_call_holds_its_input_and_start():
    (record,) = log_of(
        ToolExecutionStartedEvent(timestamp=5, tool_name="read", tool_input={"path": "a"}, call_id="1", session_id="s"),
        ToolExecutionCompletedEvent(
            timestamp=9, tool_name="read", call_id="1", session_id="s", output_preview="x", duration_ms=4
        ),
    )
    assert record.timestamp == 9
    assert record.data["started"] == 5
    assert record.data["input"] == {"path": "a"}
    assert record.data["output"] == "x"
    assert "open" not in record.data


def test_calls_with_the_same_id_in_two_sessions_are_stored_apart():
    log = log_of(
        ToolExecutionStartedEvent(tool_name="read", tool_input={"path": "a"}, call_id="1", session_id="s"),
        ToolExecutionStartedEvent(tool_name="read", tool_input={"path": "b"}, call_id="1", session_id="t"),
        ToolExecutionCompletedEvent(tool_name="read", call_id="1", session_id="s"),
    )
    assert log.events[0].data["input"] == {"path": "a"}
    assert [event.data["input"] for event in log.unfinished] == [{"path": "b"}]


def test_what_has_started_and_not_ended_is_listed_as_unfinished():
    log = log_of(
        LoopStartedEvent(session_id="s", user_message="hello"),
        ToolExecutionStartedEvent(tool_name="shell", call_id="1", session_id="s"),
    )
    assert len(log) == 0
    assert [(event.type, event.data["open"]) for event in log.unfinished] == [("finish", True), ("tool_exec", True)]


def test_an_answer_has_the_number_of_its_retries():
    log = log_of(
        LLMRequestEvent(message_count=1, session_id="s"),
        RetryScheduledEvent(attempt=1, delay_ms=500, error="overloaded", session_id="s"),
        RetryScheduledEvent(attempt=2, delay_ms=700, error="overloaded", session_id="s"),
        LLMResponseEvent(session_id="s"),
        LLMResponseEvent(session_id="s"),
    )
    _, first, second = log
    assert (first.data["retries"], first.data["retry_wait_ms"]) == (2, 1200)
    assert "retries" not in second.data


def test_a_call_has_the_time_it_waited_for_approval():
    (record,) = log_of(
        ToolApprovalRequestedEvent(timestamp=100, tool_name="shell", call_id="1"),
        ToolApprovalResultEvent(timestamp=350, tool_name="shell", call_id="1", approved=True),
        ToolExecutionStartedEvent(timestamp=351, tool_name="shell", call_id="1"),
        ToolExecutionCompletedEvent(timestamp=360, tool_name="shell", call_id="1"),
    )
    assert (record.data["approved"], record.data["approval_ms"]) == (True, 250)


def test_deltas_and_turns_leave_no_record():
    assert len(log_of(PartDeltaEvent(message_id="m", part_id="p", delta="x"), TurnStartedEvent(turn_number=1))) == 0


def test_nothing_is_recorded_after_detaching():
    bus, log = EventBus(), EventLog()
    detach = log.attach(bus)
    bus.publish(LLMResponseEvent())
    detach()
    bus.publish(LLMResponseEvent())
    assert len(log) == 1


def test_records_can_be_filtered_by_agent_and_by_type():
    log = log_of(
        LLMRequestEvent(message_count=1, agent_name="writer"),
        LLMResponseEvent(agent_name="writer"),
        LLMRequestEvent(message_count=1, agent_name="reviewer"),
    )
    assert len(log.filter()) == 3
    assert len(log.filter(agent_name="writer")) == 2
    assert len(log.filter(event_type="llm_call")) == 2
    (only,) = log.filter(agent_name="reviewer", event_type="llm_call")
    assert only.agent_name == "reviewer"
    assert log.filter(agent_name="nobody") == []


def test_a_full_log_drops_the_oldest_and_reports_what_is_gone():
    log = EventLog(maximum=3)
    for number in range(4):
        log.record(AgentEvent("llm_call", timestamp=number))
    log.record(AgentEvent("error", timestamp=9))
    assert [event.timestamp for event in log] == [2, 3, 9]
    assert log.dropped.count == 2
    assert log.dropped.by_type == {"llm_call": 2}
    assert (log.dropped.first_timestamp, log.dropped.last_timestamp) == (0, 1)
    assert log.format().startswith("(2 older records were dropped)")


def test_a_log_without_capacity_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        EventLog(maximum=0)


def test_calls_that_never_end_do_not_pile_up():
    log = EventLog()
    for number in range(10_050):
        log.record(ToolExecutionStartedEvent(tool_name="shell", call_id=str(number)))
    assert len(log.unfinished) == 10_000


def test_large_values_are_cut_and_say_so():
    log = log_of(
        ToolExecutionStartedEvent(
            tool_name="write", call_id="1", tool_input={"content": "x" * (TEXT_LIMIT + 7), "many": list(range(1000))}
        ),
        ToolExecutionCompletedEvent(tool_name="write", call_id="1"),
    )
    given_input = log.events[0].data["input"]
    assert given_input["content"].endswith("(7 more characters)")
    assert len(given_input["many"]) == ITEM_LIMIT + 1


def test_a_record_does_not_change_when_the_tool_changes_its_input():
    tool_input = {"paths": ["a"]}
    log = log_of(
        ToolExecutionStartedEvent(tool_name="read", call_id="1", tool_input=tool_input),
        ToolExecutionCompletedEvent(tool_name="read", call_id="1"),
    )
    tool_input["paths"].append("b")
    assert log.events[0].data["input"] == {"paths": ["a"]}


def test_the_text_form_has_one_line_per_record_for_any_text():
    log = log_of(
        ErrorEvent(timestamp=1000, agent_name="writer", error_type="X", message="one\ntwo\x1b[2J"),
        ErrorEvent(timestamp=3500, error_type="Y", message="three"),
    )
    first, second = log.format().split("\n")
    assert "writer" in first
    assert "one two\\x1b[2J" in first
    assert second.lstrip().startswith("2.500s  error")


def test_threads_can_record_at_the_same_time():
    log = EventLog(maximum=5_000)

    def fill() -> None:
        for _ in range(2_000):
            log.record(LLMResponseEvent())

    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(log), log.dropped.count) == (5_000, 3_000)


def test_a_log_read_back_continues_where_it_was():
    log = log_of(
        LLMRequestEvent(message_count=1),
        ToolExecutionStartedEvent(timestamp=1, tool_name="shell", call_id="1", tool_input={"command": "ls"}),
    )
    again = EventLog.from_json(log.to_json())
    assert (again.events, again.unfinished, again.dropped) == (log.events, log.unfinished, log.dropped)
    again.record(ToolExecutionCompletedEvent(tool_name="shell", call_id="1"))
    assert again.events[-1].data["input"] == {"command": "ls"}
    assert not again.unfinished


@pytest.mark.parametrize("text", [b"", b"[]", b'{"events": [{"type": "party"}]}'])
def test_what_is_not_a_stored_log_is_a_value_error(text: bytes):
    with pytest.raises(ValueError, match="not a stored event log"):
        EventLog.from_json(text)


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(Odd)
    | st.just("\ud800"),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.sets(st.integers())
    ),
)


@given(st.sampled_from(EVENT_KINDS), st.dictionaries(st.text(), values))
def test_any_record_survives_json(kind, data):
    log = EventLog()
    log.record(AgentEvent(kind, "writer", 1, "call", "parent", "session", data))
    assert EventLog.from_json(log.to_json()).events == log.events
    assert AgentEvent.from_dict(log.events[0].to_dict()) == log.events[0]


def test_a_value_nested_without_end_is_cut():
    endless: list[object] = []
    endless.append(endless)
    log = EventLog()
    log.record(AgentEvent("error", data={"x": endless}))
    assert "nested too deeply" in log.to_json().decode()
