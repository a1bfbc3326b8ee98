"""The tool state machine: every rule of the design, one test each."""

import threading

import msgspec
import pytest
from hypothesis import given

from outrider import (
    EndedTime,
    InvalidStateTransition,
    Message,
    PartValidationError,
    RunningTime,
    ToolCompleted,
    ToolError,
    ToolPart,
    ToolPending,
    ToolRunning,
    new_id,
    validate_part,
)
from outrider.types.tool_state import TOOL_STATES, VALID_TRANSITIONS, transition
from tests.fixtures import strategies
from tests.fixtures.cases import for_each

PENDING = ToolPending(input={"path": "a"}, raw='{"path": "a"}', phase="ready")
RUNNING = PENDING.start(1_000, title="read a")
COMPLETED = RUNNING.complete("text", 1_500)
ERROR = RUNNING.fail("no such file", 1_200)
STATES = {"pending": PENDING, "running": RUNNING, "completed": COMPLETED, "error": ERROR}


@for_each("before", STATES)
@for_each("after", STATES)
def test_the_order_is_pending_then_running_then_completed_or_error(before, after):
    current, to = STATES[before], STATES[after]
    if after == before:
        assert transition(current, to) is current
    elif after in VALID_TRANSITIONS[before]:
        assert transition(current, to) is to
    else:
        with pytest.raises(InvalidStateTransition) as caught:
            transition(current, to)
        assert caught.value.details == {
            "current_status": before,
            "attempted_status": after,
            "valid_transitions": list(VALID_TRANSITIONS[before]),
        }


@given(strategies.tool_states, strategies.tool_states)
def test_repeating_a_move_is_allowed_and_changes_nothing(first, second):
    part = ToolPart("c", "read", first)
    if second.status == first.status:
        assert part.with_state(second) is part


@given(strategies.tool_states, strategies.tool_states)
def test_an_ended_call_never_changes_its_end(first, second):
    part = ToolPart("c", "read", first)
    if part.ended and second.status != first.status:
        with pytest.raises(InvalidStateTransition):
            part.with_state(second)


def test_moves_return_new_values_and_leave_the_old_one_alone():
    part = ToolPart("c", "read", PENDING)
    started = part.with_state(RUNNING)
    assert part.state is PENDING
    assert started.state is RUNNING
    assert started.id == part.id
    with pytest.raises(AttributeError):
        part.state = RUNNING  # pyright: ignore[reportAttributeAccessIssue]


def test_a_state_offers_only_its_legal_moves():
    assert not hasattr(PENDING, "complete")
    assert not hasattr(RUNNING, "start")
    for end in (COMPLETED, ERROR):
        assert not any(hasattr(end, name) for name in ("start", "complete", "fail"))


def test_pending_has_the_raw_input():
    cut = ToolPending(raw='{"path": "a')
    assert cut.raw == '{"path": "a'
    assert cut.fail("not valid JSON", 5, reason="invalid_input").metadata["raw"] == cut.raw


def test_running_has_a_start_time():
    assert RUNNING.time == RunningTime(1_000)
    with pytest.raises(TypeError):
        ToolRunning(input={})  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("end", [COMPLETED, ERROR, PENDING.fail("refused", 7, reason="denied")])
def test_completed_and_error_have_an_end_time_that_is_not_before_the_start(end):
    assert end.time.end >= end.time.start


def test_a_clock_that_went_back_gives_no_negative_duration():
    assert RUNNING.complete("x", 10).time == EndedTime(1_000, 1_000)
    assert RUNNING.fail("x", 10).time == EndedTime(1_000, 1_000)


def test_an_end_before_the_start_is_not_stored():
    part = ToolPart("c", "t", ToolCompleted({}, "x", EndedTime(10, 5)), session_id=new_id(), message_id=new_id())
    with pytest.raises(PartValidationError) as caught:
        validate_part(part)
    assert caught.value.details["field"] == "state.time.end"


@pytest.mark.parametrize("nothing", ["", "  ", "\n"])
def test_completed_output_is_not_empty(nothing):
    assert RUNNING.complete(nothing, 2_000).output == "(no output)"
    assert ToolCompleted({}, nothing, EndedTime(1, 2)).output == "(no output)"


@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_error_names_what_happened(nothing):
    assert (
        ToolError({}, nothing, EndedTime(1, 2), "timeout").error == "the call ended as timeout; nothing else is known"
    )


def test_a_running_call_past_its_limit_becomes_an_error_with_reason_timeout():
    assert RUNNING.expired(500, at=1_500) is RUNNING
    late = RUNNING.expired(500, at=1_501)
    assert isinstance(late, ToolError)
    assert (late.reason, late.error) == ("timeout", "timed out after 0.5 s")


def test_a_call_that_never_ran_may_end_in_error():
    denied = PENDING.fail("not allowed", 9, reason="denied")
    assert ToolPart("c", "t", PENDING).with_state(denied).state is denied
    assert denied.input == PENDING.input


def test_input_title_and_metadata_are_carried_to_the_end():
    running = RUNNING.progress(title="reading", metadata={"bytes": 3})
    done = running.complete("x", 2_000, metadata={"lines": 1})
    assert (done.input, done.title, done.metadata) == ({"path": "a"}, "reading", {"bytes": 3, "lines": 1})


def test_compacting_an_output_preserves_it_and_is_done_once():
    compacted = COMPLETED.compact(9_000)
    assert (compacted.output, compacted.time.compacted) == ("text", 9_000)
    assert compacted.compact(9_999) is compacted


@for_each(
    ("state", "word"),
    [
        (ToolPending(), "generating"),
        (PENDING, "generated"),
        (PENDING.await_approval(), "generated"),
        (RUNNING, "calling"),
        (COMPLETED, "done"),
        (RUNNING.fail("x", 2_000, reason="canceled"), "canceled"),
        (PENDING.fail("x", 2_000, reason="rejected"), "canceled"),
        (PENDING.fail("x", 2_000, reason="denied"), "canceled"),
        (ERROR, "errored"),
        (RUNNING.fail("x", 2_000, reason="timeout"), "errored"),
        (RUNNING.fail("x", 2_000, reason="interrupted"), "errored"),
        (PENDING.fail("x", 2_000, reason="invalid_input"), "errored"),
    ],
)
def test_six_states_are_shown(state, word):
    assert ToolPart("c", "t", state).display_status == word


def test_moves_from_several_threads_never_lose_an_update():
    message = Message("assistant", [ToolPart("c", "t", RUNNING)])
    part_id = message.parts[0].id

    def count() -> None:
        for _ in range(300):
            message.update_part(
                part_id,
                lambda part: part.update_state(
                    part.state.progress(metadata={"count": part.state.metadata.get("count", 0) + 1})
                ),
            )

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert message.parts[0].state.metadata["count"] == 8 * 300


def test_of_two_ends_that_race_exactly_one_wins():
    for _ in range(50):
        message = Message("assistant", [ToolPart("c", "t", RUNNING)])
        part_id = message.parts[0].id
        lost: list[Exception] = []

        def end(state, message=message, part_id=part_id, lost=lost) -> None:
            try:
                message.update_part(part_id, lambda part: part.with_state(state))
            except InvalidStateTransition as error:
                lost.append(error)

        threads = [threading.Thread(target=end, args=(state,)) for state in (COMPLETED, ERROR)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert message.parts[0].ended
        assert len(lost) == 1


@given(strategies.tool_states)
def test_every_state_survives_json_exactly(state):
    union = TOOL_STATES[0] | TOOL_STATES[1] | TOOL_STATES[2] | TOOL_STATES[3]
    assert msgspec.json.decode(msgspec.json.encode(state), type=union) == state


def test_a_time_may_be_given_as_a_plain_dict():
    assert ToolRunning(input={}, time={"start": 1}).time == RunningTime(1)  # pyright: ignore[reportArgumentType]
    done = ToolCompleted(input={}, output="x", time={"start": 1, "end": 2})  # pyright: ignore[reportArgumentType]
    assert done.time == EndedTime(1, 2)
    with pytest.raises(PartValidationError) as caught:
        ToolError(input={}, error="x", time={"start": 1})  # pyright: ignore[reportArgumentType]
    assert caught.value.details["field"] == "end"
