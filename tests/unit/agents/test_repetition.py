"""Repeated equal calls with equal results are detected; calls with new results are not."""

from outrider.agents.stop_policy import RepetitionDetector
from outrider.types.parts import ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError


def done(output: str, tool: str = "roll", **given: object) -> ToolPart:
    return ToolPart("c", tool, ToolCompleted(dict(given), output, EndedTime(0, 1)))


def failed(error: str) -> ToolPart:
    return ToolPart("c", "roll", ToolError({}, error, EndedTime(0, 1)))


def times(answers: list[list[ToolPart]]) -> list[int]:
    repetition = RepetitionDetector()
    return [repetition.count_repetitions(calls) for calls in answers]


def test_the_same_call_with_the_same_result_is_counted():
    assert times([[done("6")], [done("6")], [done("6")]]) == [1, 2, 3]
    assert times([[failed("no")], [failed("no")], [failed("no")]]) == [1, 2, 3]


def test_a_call_that_gives_something_new_each_time_is_not_a_circle():
    assert times([[done("6")], [done("1")], [done("3")], [done("3")]]) == [1, 1, 1, 2]


def test_the_order_of_calls_in_an_answer_does_not_hide_a_circle_and_another_call_breaks_it():
    both = [done("1", a=1), done("2", a=2)]
    assert times([both, both[::-1], both]) == [1, 2, 3]
    assert times([both, both, [done("1", a=1)], both]) == [1, 2, 1, 1]
