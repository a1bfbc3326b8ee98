"""Notices an agent that goes round in circles: the same call again and again, or answers that say nothing."""

import msgspec

from outrider.types.parts import ToolPart

SAME_CALL = 3
EMPTY_ANSWERS = 2


class Repetition:
    """Fed with each answer's calls; says when the same calls came `SAME_CALL` times in a row."""

    def __init__(self) -> None:
        self._last: list[bytes] = []
        self._times = 0
        self._empty = 0

    def same_calls(self, calls: list[ToolPart]) -> bool:
        if not calls:
            return False
        shape = sorted(msgspec.json.encode((call.tool, call.state.input), order="sorted") for call in calls)
        self._times = self._times + 1 if shape == self._last else 1
        self._last = shape
        return self._times >= SAME_CALL

    def empty_answers(self, *, empty: bool) -> bool:
        self._empty = self._empty + 1 if empty else 0
        return self._empty >= EMPTY_ANSWERS
