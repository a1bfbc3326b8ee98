"""An agent that goes round in circles is noticed; one that gets something new each time is not taken for one."""

from outrider.agents.stop_policy import SAME_CALL_LIMIT, RepetitionDetector
from outrider.types.parts import ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError


def done(output: str, tool: str = "roll", **given: object) -> ToolPart:
    return ToolPart("c", tool, ToolCompleted(dict(given), output, EndedTime(0, 1)))


def failed(error: str) -> ToolPart:
    return ToolPart("c", "roll", ToolError({}, error, EndedTime(0, 1)))


def times(answers: list[list[ToolPart]]) -> list[bool]:
    repetition = RepetitionDetector()
    return [repetition.is_repeating(calls) for calls in answers]


def test_the_same_call_with_the_same_result_is_noticed_the_third_time():
    assert times([[done("6")], [done("6")], [done("6")]]) == [False, False, True]
    assert times([[failed("no")], [failed("no")], [failed("no")]]) == [False, False, True]


def test_a_call_that_gives_something_new_each_time_is_not_a_circle_at_once():
    assert times([[done("6")], [done("1")], [done("3")], [done("3")]]) == [False] * 4


def test_even_changing_results_are_a_circle_in_the_end():
    assert times([[done(str(number))] for number in range(SAME_CALL_LIMIT)]) == [False] * (SAME_CALL_LIMIT - 1) + [True]


def test_the_order_of_calls_in_an_answer_does_not_hide_a_circle_and_another_call_breaks_it():
    both = [done("1", a=1), done("2", a=2)]
    assert times([both, both[::-1], both]) == [False, False, True]
    assert times([both, both, [done("1", a=1)], both]) == [False] * 4
