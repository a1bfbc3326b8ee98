"""Texts while they are written: pieces as they come, kept values as they are, and no letter missing or doubled."""

from outrider.types.events import Event, PartDeltaEvent
from outrider.types.parts import ReasoningPart, TextPart


class Texts:
    """A text that was under way when somebody joined grows by what is kept of it, a few times a second: whether a piece
    that comes is part of that already, nobody could say. Who has heard an answer begin misses nothing of it."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._shown: dict[str, str] = {}
        self._by_kept: set[str] = set()
        self._from_the_beginning = False

    def answer_begins(self) -> None:
        self._from_the_beginning = True

    def join_again(self) -> None:
        """There was a break: pieces may have been missed."""
        self._by_kept |= self._shown.keys()
        self._from_the_beginning = False

    def joined_within(self, part: TextPart | ReasoningPart) -> None:
        """It was shown as far as it was kept."""
        self._shown[part.id] = part.text
        self._by_kept.add(part.id)

    def piece(self, event: PartDeltaEvent) -> list[Event]:
        if event.part_id not in self._shown and not self._from_the_beginning:
            self._shown[event.part_id] = ""
            self._by_kept.add(event.part_id)
        if event.part_id in self._by_kept:
            return []
        self._shown[event.part_id] = self._shown.get(event.part_id, "") + event.delta
        return [event]

    def draft(self, part: TextPart | ReasoningPart) -> list[Event] | None:
        """What it adds to what is shown; None if that was otherwise, and the value has to take its place."""
        shown = self._shown.get(part.id, "")
        if shown.startswith(part.text):
            return []
        self.joined_within(part)
        return self._growth(part, shown)

    def whole(self, part: TextPart | ReasoningPart) -> list[Event]:
        """The end of it. One that was never shown in pieces is told as a whole."""
        shown = self._shown.pop(part.id, None)
        self._by_kept.discard(part.id)
        return [] if shown is None else self._growth(part, shown) or []

    def _growth(self, part: TextPart | ReasoningPart, shown: str) -> list[Event] | None:
        if not part.text.startswith(shown):
            return None
        if part.text == shown:
            return []
        field = "reasoning" if isinstance(part, ReasoningPart) else "text"
        return [
            PartDeltaEvent(
                session_id=self._session_id,
                message_id=part.message_id,
                part_id=part.id,
                delta=part.text[len(shown) :],
                field=field,
            )
        ]
