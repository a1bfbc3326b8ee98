"""Whether a turn is over after an answer, and how it ended."""

from outrider.agents.crew import Seat
from outrider.agents.endings.repetition import Repetition
from outrider.agents.ends import TurnEnd, is_paused
from outrider.types.messages import Message
from outrider.types.parts import ToolPart


class Stopping:
    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._repetition = Repetition()

    def after(self, answer: Message) -> TurnEnd | None:
        """The end that this answer, with its calls ended, is; None as long as the model has to be asked again."""
        calls = answer.get_parts_by_type(ToolPart)
        return self._after_calls(calls) if calls else self._without_calls(answer)

    def _after_calls(self, calls: list[ToolPart]) -> TurnEnd | None:
        if self._seat.finished is not None:
            return TurnEnd("completed", self._seat.finished)
        if self._repetition.same_calls(calls):
            return TurnEnd("repetition", f"The same call of {calls[0].tool} was made again and again.")
        return None

    def _without_calls(self, answer: Message) -> TurnEnd | None:
        text = answer.get_text_content()
        if is_paused(answer):
            return None
        if answer.finish == "refusal" or answer.finish == "length":
            return TurnEnd(answer.finish, text)
        if text.strip():
            return TurnEnd("completed", text)
        return TurnEnd("empty_answers") if self._repetition.empty_answers(empty=True) else None
