"""Results that stand in users' messages as parts of their own, as people write conversations by hand."""

from collections.abc import Iterable, Sequence

from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolResultPart

ORPHAN = "(result of a call that is not in this conversation)\n{content}"


class GivenResults:
    """Each is given to the first open call of its id that comes before it; what no call takes is told as text."""

    def __init__(self, history: Iterable[Message] = ()) -> None:
        self._given: dict[str, list[ToolResultPart]] = {}
        for message in history:
            for part in results_in(message):
                self._given.setdefault(part.tool_use_id, []).append(part)

    def take(self, call_id: str) -> ToolResultPart | None:
        waiting = self._given.get(call_id)
        return waiting.pop(0) if waiting else None

    def left(self, part: ToolResultPart) -> TextPart | None:
        """Words for a result that no call has taken."""
        waiting = self._given.get(part.tool_use_id, ())
        if not any(other is part for other in waiting):
            return None
        return TextPart(ORPHAN.format(content=part.content), synthetic=True, id=part.id)


def results_in(message: Message) -> Sequence[ToolResultPart]:
    return [part for part in message.parts if isinstance(part, ToolResultPart)] if message.role == "user" else ()
