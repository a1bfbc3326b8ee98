"""Text, reasoning and files of an answer as parts: one is open at a time, and a change of kind ends it."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from outrider.providers.openai.chat.details import merged_details
from outrider.types.stream import Delta, PartEnd, PartStart, ReasoningDelta, TextDelta

Kind = Literal["text", "refusal", "reasoning"]


class Parts:
    """The parts that are not calls. `numbers` gives the indexes of parts that begin."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._kind: Kind | None = None
        self._index = 0
        self._field = ""
        self._details: list[Any] = []
        self._late_details: list[Any] = []
        self._annotations: list[Any] = []
        self.said = False
        self.refused = False

    def text(self, text: str) -> list[Delta]:
        if self._kind == "text":
            return [TextDelta(self._index, text)]
        return [*self._switch("text"), TextDelta(self._index, text)]

    def refusal(self, text: str) -> list[Delta]:
        self.refused = True
        return [*self._switch("refusal"), TextDelta(self._index, text)]

    def reasoning(self, text: str, field: str) -> list[Delta]:
        """`field` is where the server put it, and where it wants to see it again."""
        begun = self._switch("reasoning")
        self._field = field
        return [*begun, ReasoningDelta(self._index, text)]

    def details(self, details: Iterable[Any]) -> list[Delta]:
        """Structured reasoning, kept word for word. What comes after the reasoning has ended gets a part at the end."""
        late = self._kind != "reasoning" and self.said
        begun = [] if late else self._switch("reasoning")
        (self._late_details if late else self._details).extend(details)
        return begun

    def annotations(self, annotations: Iterable[Any]) -> None:
        self._annotations.extend(annotations)

    def file(self, mime: str, url: str, state: dict[str, Any]) -> list[Delta]:
        ended = self.close()
        index = next(self._numbers)
        return [*ended, PartStart(index, "file"), PartEnd(index, state, mime, url)]

    def close(self) -> list[Delta]:
        """The end of the part that is open, since something else begins."""
        if self._kind is None:
            return []
        ended = PartEnd(self._index, self._state())
        self._kind, self._field, self._details = None, "", []
        return [ended]

    def end(self, citations: dict[str, Any]) -> list[Delta]:
        """The ends of all parts; what the answer cites stands with its last text."""
        if self._annotations:
            citations = citations | {"annotations": self._annotations}
        if citations and self._kind == "text":
            deltas: list[Delta] = [PartEnd(self._index, citations)]
            self._kind = None
        else:
            deltas = self.close()
            if citations:
                deltas += self._bare("text", citations)
        if self._late_details:
            deltas += self._bare("reasoning", {"details": merged_details(self._late_details)})
        return deltas

    def _switch(self, kind: Kind) -> list[Delta]:
        if self._kind == kind:
            return []
        ended = self.close()
        self._kind, self._index, self.said = kind, next(self._numbers), True
        return [*ended, PartStart(self._index, "reasoning" if kind == "reasoning" else "text")]

    def _state(self) -> dict[str, Any]:
        match self._kind:
            case "refusal":
                return {"refusal": True}
            case "reasoning":
                field = {"field": self._field} if self._field else {}
                return field | ({"details": merged_details(self._details)} if self._details else {})
            case "text" | None:
                return {}

    def _bare(self, kind: Literal["text", "reasoning"], state: dict[str, Any]) -> list[Delta]:
        """A part that holds nothing but state."""
        index = next(self._numbers)
        return [PartStart(index, kind), PartEnd(index, state)]
