"""Notices an agent that goes round in circles: the same call again and again, or answers that say nothing."""

from typing import Any

import msgspec

from outrider.types.parts import ToolPart, tool_result

SAME_CALL = 3
CHANGING_CALL = 8  # a die is rolled again, a job is asked about again: the results say that something moves
EMPTY_ANSWERS = 2


class Repetition:
    """Fed with each answer's calls, ended; says when the same calls came too often in a row: `SAME_CALL` times with
    the same results, `CHANGING_CALL` times with any."""

    def __init__(self) -> None:
        self._calls = _Streak()
        self._results = _Streak()
        self._empty = 0

    def same_calls(self, calls: list[ToolPart]) -> bool:
        if not calls:
            return False
        asked = [_asked(call) for call in calls]
        given = [words + _given(call) for words, call in zip(asked, calls, strict=True)]
        times_asked, times_given = self._calls.add(sorted(asked)), self._results.add(sorted(given))
        return times_given >= SAME_CALL or times_asked >= CHANGING_CALL

    def empty_answers(self, *, empty: bool) -> bool:
        self._empty = self._empty + 1 if empty else 0
        return self._empty >= EMPTY_ANSWERS


class _Streak:
    def __init__(self) -> None:
        self._last: Any = None
        self._times = 0

    def add(self, value: Any) -> int:
        self._times = self._times + 1 if value == self._last else 1
        self._last = value
        return self._times


def _asked(call: ToolPart) -> bytes:
    return msgspec.json.encode((call.tool, call.state.input), order="sorted")


def _given(call: ToolPart) -> bytes:
    result = tool_result(call)
    return result.content.encode("utf-8", "surrogatepass") if result else b""
