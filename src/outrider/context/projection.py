"""A prompt that grows with its transcript: turn n+1 costs what turn n+1 added, and its bytes begin with turn n's."""

from collections.abc import Sequence

from outrider.context.current import current, holds_compaction
from outrider.context.lower import CallIds, alternate, lowered_messages
from outrider.context.results import GivenResults, results_in
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.request import ModelMessage, Prompt


class Projection:
    """Equal to `lower(history)` at every moment. It appends where it can and starts a new prefix where it must:
    after a compaction, or when the history is not a continuation of the one it has seen."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._prompt = Prompt()
        self._call_ids = CallIds()
        self._seen = 0
        self._last: tuple[str, int] = ("", 0)

    def prompt(self, history: Sequence[Message]) -> Prompt:
        """The prompt for the history so far; the same object grows from turn to turn."""
        added = self._added(history) if self._continues(history) else None
        if added is None:
            seen = current(history)
            self._call_ids = CallIds(GivenResults(seen))
            messages = lowered_messages(seen, self._family, self._call_ids)
            self._prompt = Prompt(alternate(messages))
        else:
            for message in added:
                self._prompt.append(message)
        self._remember(history)
        return self._prompt

    def _added(self, history: Sequence[Message]) -> list[ModelMessage] | None:
        """What the new messages append; None when appending is not enough."""
        new = history[self._seen :]
        if any(map(holds_compaction, new)) or any(map(results_in, new)):
            return None
        added = list(alternate(lowered_messages(new, self._family, self._call_ids), opening=not self._prompt))
        merges = added and self._prompt and added[0].role == self._prompt[-1].role
        return None if merges else added

    def _continues(self, history: Sequence[Message]) -> bool:
        return 0 < self._seen <= len(history) and _mark(history[self._seen - 1]) == self._last

    def _remember(self, history: Sequence[Message]) -> None:
        """A message with an open call is not settled: it is lowered again next time."""
        settled = bool(history) and all([part.ended for part in history[-1].parts if isinstance(part, ToolPart)])
        self._seen = len(history) if settled else 0
        self._last = _mark(history[-1]) if settled else ("", 0)


def _mark(message: Message) -> tuple[str, int]:
    return message.id, len(message.parts)
