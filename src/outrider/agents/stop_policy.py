"""Decides after each model answer whether the turn ends: completed, refused, truncated, empty or repeating itself."""

import msgspec

from outrider.agents.run_context import AgentContext
from outrider.agents.turn_state import NOTE, TurnEnd, is_paused
from outrider.errors import OutputMismatch
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError

FIRST_WARNING = 3  # equal calls with equal results in a row; further warnings follow at twice the number each
EMPTY_ANSWER_LIMIT = 2
_WARNING = (
    "You have made the same call of {tool} {times} times in a row, with the same result. If you wait for something, "
    "wait longer between calls or do something else first. Otherwise try another way, or answer with what you know."
)


_QUESTION = "The model has made the same call of {tool} {times} times in a row, with the same result. May it continue?"


class StopPolicy:
    """Applies the stop rules of one turn. It detects repetitions across the answers of that turn."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._repetition = RepetitionDetector()

    async def end_after(self, answer: Message, calls: list[ToolPart]) -> TurnEnd | None:
        """Returns how the turn ends with this answer, or None if the model must be requested again.

        `calls` are those of the answer; all of them have ended."""
        return await self._end_after_calls(calls) if calls else self._end_without_calls(answer)

    async def requests_repair(self, end: TurnEnd) -> bool:
        """Parses the answer as the requested output type, and passes it to the validators. If it does not match, asks
        the model for another answer and returns True. Raises OutputMismatch after the last attempt."""
        context, output = self._context, self._context.output
        if output is None:
            return False
        try:
            value = output.parse_answer(end.output)
            context.output_value = await output.validate(
                value, context.run.program.callbacks, context.session_context()
            )
        except OutputMismatch as problem:
            if context.repairs + 1 >= output.attempts:
                raise output.final_error(context.agent.name, problem) from problem
            context.repairs += 1
            context.finish_output = None
            repair = TextPart(output.repair_prompt(problem), synthetic=True)
            await context.journal.add_message(Message("user", [repair]))
            return True
        return False

    async def _end_after_calls(self, calls: list[ToolPart]) -> TurnEnd | None:
        if self._context.finish_output is not None:
            return TurnEnd("completed", self._context.finish_output)
        times, limit = self._repetition.count_repetitions(calls), self._repetition_limit(calls)
        if limit is not None and times >= limit:
            question = _QUESTION.format(tool=calls[0].tool, times=times)
            if await self._context.run.gate.confirm(calls[0], self._context, question):
                self._repetition.start_again()
                return None
            return TurnEnd("repetition", f"The same call of {calls[0].tool} was made {times} times in a row.")
        if limit is not None and times >= FIRST_WARNING and _is_doubled(times):
            warning = TextPart(_WARNING.format(tool=calls[0].tool, times=times), synthetic=True)
            await self._context.journal.add_message(Message("user", [warning], metadata={NOTE: True}))
        return None

    def _repetition_limit(self, calls: list[ToolPart]) -> int | None:
        """Returns the highest limit of the called tools; None if one of them may repeat without limit."""
        highest = 0
        for call in calls:
            tool = self._context.tools.get(call.tool)
            limit = tool.options.repeats if tool else msgspec.UNSET
            if limit is msgspec.UNSET:
                limit = self._context.run.budget.limits.repeats
            if limit is None:
                return None
            highest = max(highest, limit)
        return highest

    def _end_without_calls(self, answer: Message) -> TurnEnd | None:
        text = answer.join_text()
        if is_paused(answer):
            return None
        if answer.finish == "refusal" or answer.finish == "length":
            return TurnEnd(answer.finish, text)
        if text and not text.isspace():
            return TurnEnd("completed", text)
        return TurnEnd("empty_answers") if self._repetition.is_empty_again() else None


def _is_doubled(times: int) -> bool:
    """Returns whether the number is FIRST_WARNING times a power of two."""
    factor, remainder = divmod(times, FIRST_WARNING)
    return remainder == 0 and factor & (factor - 1) == 0


class RepetitionDetector:
    """Counts consecutive answers with the same tool calls and the same results. Other results show progress."""

    def __init__(self) -> None:
        self._last: list[bytes] = []
        self._times = 0
        self._empty_answers = 0

    def count_repetitions(self, calls: list[ToolPart]) -> int:
        """Adds the ended calls of one answer and returns how often they were made in a row."""
        keys = sorted(_call_key(call) + _result_key(call) for call in calls)
        self._times = self._times + 1 if keys == self._last else 1
        self._last = keys
        return self._times

    def start_again(self) -> None:
        """Forgets the repetitions so far, because a person allowed them."""
        self._times = 0

    def is_empty_again(self) -> bool:
        """Counts an answer without text and calls, and returns whether the limit is reached."""
        self._empty_answers += 1
        return self._empty_answers >= EMPTY_ANSWER_LIMIT


def _call_key(call: ToolPart) -> bytes:
    return msgspec.json.encode((call.tool, call.state.input), order="sorted")


def _result_key(call: ToolPart) -> bytes:
    return (
        call.state.text.encode("utf-8", "surrogatepass") if isinstance(call.state, ToolCompleted | ToolError) else b""
    )
