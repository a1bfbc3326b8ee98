"""After a crash only repeatable calls are queued again, only in a turn that continues, and not without a limit."""

from typing import Any

import pytest

from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.sessions.recovery import MAX_REPEATS, repair_transcript
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ASKS, REPEATABLE, RunningTime, ToolError, ToolPending, ToolRunning


def cut_off(*, repeatable: bool) -> ToolPart:
    state = ToolRunning(input={"path": "a.txt"}, time=RunningTime(5))
    return ToolPart(call_id="one", tool="read", state=state, metadata={REPEATABLE: True} if repeatable else {})


def found(*parts: ToolPart) -> SessionTranscript:
    message = Message("assistant", list(parts), finish="tool_use")
    message.join("session")
    return SessionTranscript(StoredSession(id="session"), [message])


def calls(transcript: SessionTranscript) -> list[Any]:
    return [call.state for call in transcript.messages[-1].get_parts_by_type(ToolPart)]


def test_a_call_that_is_safe_to_repeat_is_put_back_before_its_start_and_the_other_is_interrupted():
    transcript = found(cut_off(repeatable=True), cut_off(repeatable=False))
    assert len(repair_transcript(transcript, 9, repeat_calls=True)) == 2
    again, ended = calls(transcript)
    assert again == ToolPending(input={"path": "a.txt"}, phase="ready")
    assert ended.reason == "interrupted"


def test_a_second_crash_before_it_was_run_again_changes_nothing():
    transcript = found(cut_off(repeatable=True))
    repair_transcript(transcript, 9, repeat_calls=True)
    assert repair_transcript(transcript, 10, repeat_calls=True) == []


@pytest.mark.parametrize("put_back_before", [False, True])
def test_where_the_turn_does_not_continue_it_is_interrupted_like_any_other(put_back_before: bool):
    transcript = found(cut_off(repeatable=True))
    if put_back_before:
        repair_transcript(transcript, 8, repeat_calls=True)
    repair_transcript(transcript, 9)
    (ended,) = calls(transcript)
    assert isinstance(ended, ToolError)
    assert ended.reason == "interrupted"
    assert "may have had" in ended.error


def test_a_call_that_takes_the_program_with_it_each_time_is_ended():
    transcript = found(cut_off(repeatable=True))
    message = transcript.messages[-1]
    for _ in range(MAX_REPEATS):
        repair_transcript(transcript, 9, repeat_calls=True)
        (call,) = message.get_parts_by_type(ToolPart)
        assert isinstance(call.state, ToolPending)
        message.parts[0] = call.with_state(call.state.start(10))
    repair_transcript(transcript, 11, repeat_calls=True)
    assert calls(transcript)[0].reason == "interrupted"


def test_a_call_of_an_earlier_answer_is_never_run_again():
    transcript = found(cut_off(repeatable=True))
    transcript.messages.append(Message("user", []))
    repair_transcript(transcript, 9, repeat_calls=True)
    (ended,) = transcript.messages[0].get_parts_by_type(ToolPart)
    assert isinstance(ended.state, ToolError)


def test_a_call_that_only_asks_a_person_is_queued_again_in_attended_mode():
    asking = ToolPart(
        call_id="one",
        tool="question",
        state=ToolRunning(input={"question": "Which?"}, time=RunningTime(5)),
        metadata={REPEATABLE: True, ASKS: True},
    )
    transcript = found(asking)
    for _ in range(MAX_REPEATS + 1):
        repair_transcript(transcript, 9)
        (state,) = calls(transcript)
        assert state == ToolPending(input={"question": "Which?"}, phase="ready")
        assert repair_transcript(transcript, 9) == []
        (call,) = transcript.messages[-1].get_parts_by_type(ToolPart)
        transcript.messages[-1].put_part(call.with_state(state.start(10)))
    repair_transcript(transcript, 11, keep_waiting=False)
    (ended,) = calls(transcript)
    assert ended.reason == "interrupted"
