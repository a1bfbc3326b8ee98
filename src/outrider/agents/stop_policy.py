"""Decides after each model answer whether the turn ends: completed, refused, truncated, empty or repeating itself."""

from typing import Any

import msgspec

from outrider.agents.run_context import AgentContext
from outrider.agents.turn_state import TurnEnd, is_paused
from outrider.types.messages import Message
from outrider.types.parts import ToolPart, tool_result

SAME_RESULT_LIMIT = 3
# Higher than SAME_RESULT_LIMIT: polling a job repeats the call on purpose, and changing results show progress.
SAME_CALL_LIMIT = 8
EMPTY_ANSWER_LIMIT = 2


class StopPolicy:
    """Applies the stop rules of one turn. It detects repetitions across the answers of that turn."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._repetition = RepetitionDetector()

    def end_after(self, answer: Message) -> TurnEnd | None:
        """Return how the turn ends with this answer, or None if the model must be requested again.

        All calls of the answer must have ended."""
        calls = answer.get_calls()
        return self._end_after_calls(calls) if calls else self._end_without_calls(answer)

    def _end_after_calls(self, calls: list[ToolPart]) -> TurnEnd | None:
        if self._context.finish_output is not None:
            return TurnEnd("completed", self._context.finish_output)
        if self._repetition.is_repeating(calls):
            return TurnEnd("repetition", f"The same call of {calls[0].tool} was made again and again.")
        return None

    def _end_without_calls(self, answer: Message) -> TurnEnd | None:
        text = answer.get_text_content()
        if is_paused(answer):
            return None
        if answer.finish == "refusal" or answer.finish == "length":
            return TurnEnd(answer.finish, text)
        if text.strip():
            return TurnEnd("completed", text)
        return TurnEnd("empty_answers") if self._repetition.is_empty_again() else None


class RepetitionDetector:
    """Counts consecutive answers with the same tool calls.

    The limit is `SAME_RESULT_LIMIT` if the results are equal too, and `SAME_CALL_LIMIT` if they differ."""

    def __init__(self) -> None:
        self._calls = _RepeatCounter()
        self._results = _RepeatCounter()
        self._empty_answers = 0

    def is_repeating(self, calls: list[ToolPart]) -> bool:
        """Add the ended calls of one answer; return whether a limit is reached."""
        if not calls:
            return False
        call_keys = [_call_key(call) for call in calls]
        result_keys = [key + _result_key(call) for key, call in zip(call_keys, calls, strict=True)]
        same_calls, same_results = self._calls.add(sorted(call_keys)), self._results.add(sorted(result_keys))
        return same_results >= SAME_RESULT_LIMIT or same_calls >= SAME_CALL_LIMIT

    def is_empty_again(self) -> bool:
        """Count one more answer without text and calls; return whether the limit is reached."""
        self._empty_answers += 1
        return self._empty_answers >= EMPTY_ANSWER_LIMIT


class _RepeatCounter:
    def __init__(self) -> None:
        self._last: Any = None
        self._times = 0

    def add(self, value: Any) -> int:
        self._times = self._times + 1 if value == self._last else 1
        self._last = value
        return self._times


def _call_key(call: ToolPart) -> bytes:
    return msgspec.json.encode((call.tool, call.state.input), order="sorted")


def _result_key(call: ToolPart) -> bytes:
    result = tool_result(call)
    return result.content.encode("utf-8", "surrogatepass") if result else b""
