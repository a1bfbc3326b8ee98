"""Traces: the tree is right when records are right, and still a tree when they are not."""

import random
import sys
import time
from decimal import Decimal
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.tracing.event_log import AgentEvent, EventLog
from outrider.tracing.records import EVENT_KINDS
from outrider.tracing.trace import Trace
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)
from outrider.types.parts import CacheTokens, Tokens
from tests.unit.tracing.event_builders import called, log_of, names, returned, shape, trace_of

WRITER = {"session_id": "s1", "agent_name": "writer"}
REVIEWER = {"session_id": "s2", "agent_name": "reviewer", "parent_call_id": "c1"}


def a_run() -> list:
    return [
        LoopStartedEvent(timestamp=1_000, user_message="write", **WRITER),
        LLMRequestEvent(timestamp=1_010, message_count=1, model="large", call_id="m1", **WRITER),
        LLMResponseEvent(
            timestamp=2_010, model="large", call_id="m1", duration_ms=1_000, stop_reason="tool_use",
            input_tokens=100, cache_read_tokens=50, output_tokens=20, cost="0.5", **WRITER,
        ),
        ToolExecutionStartedEvent(timestamp=2_020, tool_name="read", tool_input={"path": "a"}, call_id="t1", **WRITER),
        ToolExecutionCompletedEvent(timestamp=2_050, tool_name="read", output_preview="text", call_id="t1", **WRITER),
        AgentCalledEvent(timestamp=2_060, callee="reviewer", child_session_id="s2", call_id="c1", **WRITER),
        LLMRequestEvent(timestamp=2_070, message_count=1, model="small", call_id="m2", **REVIEWER),
        LLMResponseEvent(
            timestamp=2_570, model="small", call_id="m2", input_tokens=10, output_tokens=2, cost="0.25", **REVIEWER
        ),
        LoopCompletedEvent(timestamp=2_580, termination_reason="completed", **REVIEWER),
        AgentReturnedEvent(
            timestamp=2_600, callee="reviewer", output="fine", child_session_id="s2", call_id="c1", **WRITER
        ),
        LoopCompletedEvent(timestamp=3_000, termination_reason="completed", total_turns=2, output="done", **WRITER),
    ]  # fmt: skip


def test_a_run_becomes_a_tree_of_agents_models_and_tools():
    root = trace_of(*a_run()).root
    assert shape(root) == ["writer", ["large"], ["read"], ["reviewer", ["small"]]]
    assert [child.kind for child in root.children] == ["model", "tool", "agent"]
    assert names(root.tool_calls) == ["read"]
    assert names(root.model_calls) == ["large"]
    assert names(root.agent_calls) == ["reviewer"]
    assert {span.status for _, span in root.walk()} == {"ok"}


def test_spans_know_their_times_and_results():
    root = trace_of(*a_run()).root
    large, read, reviewer = root.children
    assert (root.start, root.end, root.duration, root.result) == (1_000, 3_000, 2_000, "done")
    assert (large.start, large.duration, large.outcome) == (1_010, 1_000, "tool_use")
    assert (read.duration, read.result, read.tool_input) == (30, "text", {"path": "a"})
    assert (reviewer.duration, reviewer.result) == (540, "fine")
    assert root.details["message"] == "write"


def test_tokens_and_cost_add_up_towards_the_root():
    root = trace_of(*a_run()).root
    assert root.children[0].tokens == Tokens(100, 20, 0, CacheTokens(read=50))
    assert root.children[2].cost == Decimal("0.25")
    assert root.tokens == Tokens(110, 22, 0, CacheTokens(read=50))
    assert root.cost == Decimal("0.75")


def test_the_cost_is_unknown_as_soon_as_one_answer_has_no_price():
    root = trace_of(*a_run(), LLMResponseEvent(timestamp=2_900, model="home", input_tokens=1, **WRITER)).root
    assert root.cost is None
    assert (root.known_cost, root.unpriced, root.answers) == (Decimal("0.75"), 1, 3)
    assert root.children[2].cost == Decimal("0.25")


def test_a_log_read_back_from_json_gives_the_same_tree():
    log = log_of(*a_run()[:-3])
    assert Trace(EventLog.from_json(log.to_json())).format_tree() == Trace(log).format_tree()


def test_the_order_of_records_does_not_matter_where_ids_define_it():
    expected = trace_of(*a_run())
    for seed in range(30):
        events = a_run()
        random.Random(seed).shuffle(events)
        # The log itself joins starts to ends in order; the tree must not mind the rest.
        starts = [event for event in events if isinstance(event, LoopStartedEvent | ToolExecutionStartedEvent)]
        events = starts + [event for event in events if event not in starts]
        assert trace_of(*events).format_tree() == expected.format_tree()


def test_records_that_come_twice_count_once():
    events = [event for event in a_run() for _ in range(2)]
    once, twice = trace_of(*a_run()).root, trace_of(*events).root
    assert shape(twice) == shape(once)
    assert (twice.tokens, twice.cost) == (once.tokens, once.cost)


def test_a_log_that_was_replayed_is_counted_once():
    records = log_of(*a_run()).events
    once, twice = Trace(records).root, Trace([*records, *records]).root
    assert shape(twice) == shape(once)
    assert twice.tokens == once.tokens


def test_two_steps_that_look_alike_in_the_same_millisecond_are_two():
    step = [
        LLMRequestEvent(timestamp=1, message_count=1, **WRITER),
        LLMResponseEvent(timestamp=1, input_tokens=5, **WRITER),
    ]
    root = trace_of(*step, *step, *step).root
    assert len(root.model_calls) == 3
    assert root.tokens.input == 15


def test_after_a_crash_open_spans_are_marked_unfinished():
    root = trace_of(
        *a_run()[:7], ToolExecutionStartedEvent(timestamp=2_300, tool_name="shell", call_id="t2", **REVIEWER)
    ).root
    reviewer = root.children[2]
    assert shape(root) == ["writer", ["large"], ["read"], ["reviewer", ["small"], ["shell"]]]
    assert [span.status for span in (root, reviewer, *reviewer.children)] == ["unfinished"] * 4
    assert not root.finished
    assert root.end is None
    assert root.duration == 1_300  # up to the latest moment that is known


def test_an_error_ends_the_request_and_the_loop_that_it_happened_in():
    root = trace_of(
        *a_run()[:1],
        LLMRequestEvent(timestamp=1_100, message_count=1, model="large", **WRITER),
        ErrorEvent(timestamp=1_500, error_type="OverloadedError", message="no capacity", **WRITER),
        LoopCompletedEvent(timestamp=1_600, termination_reason="provider_error", **WRITER),
    ).root
    (model,) = root.children
    assert (model.status, model.error, model.duration) == ("failed", "OverloadedError: no capacity", 400)
    assert (root.status, root.error, root.outcome) == ("failed", "OverloadedError: no capacity", "provider_error")


def test_an_error_that_names_a_call_is_that_calls_error():
    root = trace_of(*a_run(), ErrorEvent(timestamp=2_055, error_type="X", message="broke", call_id="t1", **WRITER)).root
    assert root.tool_calls[0].error == "X: broke"
    assert root.error is None


def test_a_failed_call_shows_why():
    root = trace_of(
        ToolExecutionCompletedEvent(
            tool_name="shell", success=False, reason="denied", output_preview="not allowed", call_id="1"
        )
    ).root
    (call,) = root.tool_calls
    assert (call.status, call.outcome, call.error) == ("failed", "denied", "not allowed")


def test_a_loop_that_hit_a_limit_is_stopped_not_failed():
    root = trace_of(LoopCompletedEvent(termination_reason="max_turns", **WRITER)).root
    assert (root.status, root.outcome) == ("stopped", "max_turns")


def test_an_agent_that_hit_a_limit_is_stopped_for_any_return_value():
    events = [
        called("c1", "reviewer", 1, session="s1", child_session_id="s2"),
        AgentEvent("finish", "reviewer", 5, "", "c1", "s2", {"termination_reason": "max_cost"}),
        returned("c1", "reviewer", 6, session="s1", child_session_id="s2", success=False, output="half"),
    ]
    for order in permutations(events):
        (reviewer,) = Trace(order).root.find("reviewer")
        assert (reviewer.status, reviewer.error, reviewer.result) == ("stopped", None, "half")


def test_an_unknown_parent_is_the_root():
    root = trace_of(
        *a_run(), AgentCalledEvent(timestamp=2_700, callee="ghost", call_id="c9", parent_call_id="nowhere")
    ).root
    assert names(root.children) == ["large", "read", "reviewer", "ghost"]


def test_several_roots_get_one_above_them():
    root = trace_of(
        LoopCompletedEvent(
            timestamp=10, termination_reason="completed", duration_ms=10, session_id="a", agent_name="one"
        ),
        LoopCompletedEvent(
            timestamp=30, termination_reason="max_turns", duration_ms=5, session_id="b", agent_name="two"
        ),
    ).root
    assert (root.kind, shape(root)) == ("run", ["run", ["one"], ["two"]])
    assert (root.start, root.end, root.status) == (0, 30, "stopped")


def test_each_turn_of_a_session_is_a_separate_span():
    def turn(at: int) -> list:
        return [
            LoopStartedEvent(timestamp=at, **WRITER),
            LLMRequestEvent(timestamp=at + 1, message_count=1, model=f"at {at}", **WRITER),
            LLMResponseEvent(timestamp=at + 5, model=f"at {at}", **WRITER),
            LoopCompletedEvent(timestamp=at + 9, termination_reason="completed", **WRITER),
        ]

    root = trace_of(*turn(100), *turn(200), *turn(300)[:3]).root
    assert shape(root) == ["run", ["writer", ["at 100"]], ["writer", ["at 200"]], ["writer", ["at 300"]]]
    assert [child.status for child in root.children] == ["ok", "ok", "unfinished"]


def test_an_empty_log_is_an_empty_run():
    root = Trace(EventLog()).root
    assert (root.kind, root.children, root.duration, root.status) == ("run", [], 0, "ok")


def test_without_ids_the_innermost_open_agent_of_that_name_is_meant():
    root = trace_of(
        AgentEvent("llm_call", "a", 1),
        called("", "b", 2, by="a"),
        AgentEvent("llm_call", "b", 3),
        called("", "a", 4, by="b"),
        AgentEvent("llm_call", "a", 5),
        returned("", "a", 6, by="b"),
        returned("", "b", 7, by="a"),
        AgentEvent("llm_call", "a", 8),
        AgentEvent("finish", "a", 9),
    ).root
    assert shape(root) == ["a", ["model"], ["b", ["model"], ["a", ["model"]]], ["model"]]


def test_a_log_that_gives_an_agents_id_to_all_it_does_is_understood():
    root = trace_of(
        AgentEvent("llm_call", "writer", 1, "root"),
        AgentEvent("llm_response", "writer", 2, "root"),
        called("sub", "reviewer", 3, "root", by="writer"),
        AgentEvent("llm_call", "reviewer", 4, "sub", "root"),
        AgentEvent("llm_response", "reviewer", 5, "sub", "root"),
        AgentEvent("tool_exec", "reviewer", 6, "sub", "root", data={"tool_name": "search"}),
        AgentEvent("tool_exec", "reviewer", 7, "sub", "root", data={"tool_name": "read"}),
        AgentEvent("finish", "reviewer", 8, "sub", "root", data={"output": "fine"}),
        returned("sub", "reviewer", 9, by="writer"),
        AgentEvent("finish", "writer", 10, "root", data={"output": "done"}),
    ).root
    assert shape(root) == ["writer", ["model"], ["reviewer", ["model"], ["search"], ["read"]]]
    assert (root.result, root.children[1].result, root.duration) == ("done", "fine", 9)


def test_the_tool_call_that_calls_an_agent_is_drawn_as_that_agent():
    where = {"call_id": "x", **WRITER}
    root = trace_of(
        ToolExecutionStartedEvent(timestamp=1, tool_name="call_agent", tool_input={"agent_name": "reviewer"}, **where),
        AgentCalledEvent(timestamp=2, callee="reviewer", child_session_id="s2", **where),
        LLMResponseEvent(timestamp=5, model="small", **REVIEWER | {"parent_call_id": "x"}),
        AgentReturnedEvent(timestamp=8, callee="reviewer", child_session_id="s2", **where),
        ToolExecutionCompletedEvent(timestamp=9, tool_name="call_agent", **where),
        LoopCompletedEvent(timestamp=10, termination_reason="completed", **WRITER),
    ).root
    assert shape(root) == ["writer", ["reviewer", ["small"]]]
    assert root.children[0].tool_input == {"agent_name": "reviewer"}


def test_an_agent_may_stand_below_the_tool_call_that_called_it():
    root = trace_of(
        ToolExecutionStartedEvent(timestamp=1, tool_name="call_agent", call_id="t", **WRITER),
        AgentCalledEvent(timestamp=2, callee="reviewer", call_id="c", **WRITER | {"parent_call_id": "t"}),
        AgentReturnedEvent(timestamp=8, callee="reviewer", call_id="c", **WRITER | {"parent_call_id": "t"}),
        ToolExecutionCompletedEvent(timestamp=9, tool_name="call_agent", call_id="t", **WRITER),
        LoopCompletedEvent(timestamp=10, termination_reason="completed", **WRITER),
    ).root
    assert shape(root) == ["writer", ["call_agent", ["reviewer"]]]


def test_ids_that_models_use_again_do_not_mix_calls():
    """Models that number their calls from 1 in each answer give the same id to calls of different sessions."""

    def reads(session: str, agent: str, at: int) -> list:
        where = {"session_id": session, "agent_name": agent, "call_id": "call_1"}
        started = ToolExecutionStartedEvent(timestamp=at, tool_name="read", **where)
        return [started, ToolExecutionCompletedEvent(timestamp=at + 5, tool_name="read", **where)]

    def calls(callee: str, child: str, at: int) -> list:
        where = {"callee": callee, "child_session_id": child, "call_id": "call_1", **WRITER}
        return [
            AgentCalledEvent(timestamp=at, **where),
            *reads(child, callee, at + 1),
            AgentReturnedEvent(timestamp=at + 9, **where),
        ]

    end = LoopCompletedEvent(timestamp=500, termination_reason="completed", **WRITER)
    root = trace_of(
        *reads("s1", "writer", 10), *calls("a", "s2", 100), *calls("b", "s3", 200), *reads("s1", "writer", 300), end
    ).root
    assert shape(root) == ["writer", ["read"], ["a", ["read"]], ["b", ["read"]], ["read"]]
    assert [child.duration for child in root.children] == [5, 9, 9, 5]


def test_agents_that_run_side_by_side_keep_their_own_work():
    root = trace_of(
        called("c1", "r", 1, session="s", child_session_id="x"),
        called("c2", "r", 2, session="s", child_session_id="y"),
        AgentEvent("llm_call", "r", 3, "m1", "c1", "x", {"model": "one"}),
        AgentEvent("llm_call", "r", 4, "m2", "c2", "y", {"model": "two"}),
        AgentEvent("llm_response", "r", 5, "m2", "c2", "y", {"model": "two"}),
        AgentEvent("llm_response", "r", 9, "m1", "c1", "x", {"model": "one"}),
        returned("c1", "r", 10, session="s", child_session_id="x"),
        returned("c2", "r", 11, session="s", child_session_id="y"),
    ).root
    assert [shape(child) for child in root.children] == [["r", ["one"]], ["r", ["two"]]]
    assert [child.children[0].duration for child in root.children] == [6, 1]


def test_a_clock_that_goes_back_never_gives_a_negative_duration():
    root = trace_of(
        called("c1", "a", 1_000),
        AgentEvent("llm_call", "a", 990, "m", "c1"),
        AgentEvent("llm_response", "a", 400, "m", "c1"),
        AgentEvent("tool_exec", "a", 300, "t", "c1", data={"tool_name": "x", "started": 800}),
        returned("c1", "a", 100),
    ).root
    assert all(span.duration >= 0 for _, span in root.walk())


def test_a_measured_duration_overrides_the_clock():
    root = trace_of(
        AgentEvent("llm_call", "a", 1_000, "m"), AgentEvent("llm_response", "a", 400, "m", data={"duration_ms": 70})
    ).root
    assert root.children[0].duration == 70


def test_parents_that_contradict_each_other_are_cut_loose():
    root = trace_of(
        called("a", "a", 1, "b"), called("b", "b", 2, "a"), called("c", "c", 3, "c"), called("d", "d", 4, "b")
    ).root
    assert sorted(names([span for _, span in root.walk()])) == ["a", "b", "c", "d", "run"]


def test_five_thousand_levels_are_no_problem():
    depth = 5_000
    assert depth > sys.getrecursionlimit()
    calls = [called(f"c{level}", f"a{level}", level, f"c{level - 1}") for level in range(depth)]
    trace = Trace(calls)
    assert max(level for level, _ in trace.root.walk()) >= depth - 1
    assert len(trace.format_tree().splitlines()) > depth
    assert '"rows"' in trace.to_html()
    assert "a0" in repr(trace.root) or trace.root.kind == "run"


@pytest.mark.slow
def test_a_hundred_thousand_records_take_seconds_not_minutes():
    records: list[AgentEvent] = []
    for number in range(12_500):
        at, child = number * 10, f"x{number}"
        where = ("r", at + 1, f"m{number}", f"c{number}", child)
        records.append(called(f"c{number}", "r", at, session="s", child_session_id=child))
        for step in range(3):
            records.append(AgentEvent("llm_call", "r", at + step, f"{where[2]}-{step}", where[3], child))
            records.append(AgentEvent("llm_response", "r", at + step, f"{where[2]}-{step}", where[3], child))
        records.append(returned(f"c{number}", "r", at + 9, session="s", child_session_id=child))
    start = time.process_time()
    root = Trace(records).root
    assert time.process_time() - start < 8  # about 1 s on an idle machine; anything quadratic takes minutes
    assert sum(1 for _ in root.walk()) == 50_001


ids = st.sampled_from(["", "a", "b", "c"])
few = st.integers(-3, 12)
anything = (
    st.none()
    | st.floats()
    | st.text(max_size=3)
    | st.integers(-5, 50)
    | st.booleans()
    | st.lists(st.integers(), max_size=2)
)
data = st.fixed_dictionaries(
    {},
    optional={
        "callee": ids, "child_session_id": ids, "started": few | st.none(), "duration_ms": few, "open": st.booleans(),
        "tool_name": st.sampled_from(["call_agent", "read", ""]), "termination_reason": anything, "success": anything,
        "input_tokens": anything, "cost": anything, "output": anything,
        "input": anything | st.dictionaries(st.text(), st.text()),
        "model": anything, "retries": anything, "approval_ms": anything, "message": anything, "error_type": anything,
    },
)  # fmt: skip
records = st.lists(st.builds(AgentEvent, st.sampled_from(EVENT_KINDS), ids, few, ids, ids, ids, data), max_size=25)


@given(records)
def test_any_records_give_a_trace_that_can_be_rendered(events: list[AgentEvent]):
    trace = Trace(events)
    spans = [span for _, span in trace.root.walk()]
    assert len({id(span) for span in spans}) == len(spans)
    assert all(span.duration >= 0 and span.start >= 0 for span in spans)
    tools = sum(event.type == "tool_exec" for event in events)
    assert sum(span.kind == "tool" for span in spans) <= tools
    assert trace.format_tree()
    assert trace.to_html()
