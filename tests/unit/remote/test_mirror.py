"""Texts that are followed from any position are complete, whatever is stored or missed meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.remote.mirror import TextDeltaTracker
from outrider.types.events import Event, PartDeltaEvent, PartUpdatedEvent
from outrider.types.parts import TextPart


def piece(text: str) -> PartDeltaEvent:
    return PartDeltaEvent(message_id="m", part_id="p", delta=text)


def part(text: str) -> TextPart:
    return TextPart(text, id="p")


class Reader:
    """Shows what it is told, as a screen or a pipe would."""

    def __init__(self, texts: TextDeltaTracker) -> None:
        self._texts = texts
        self.shown = ""
        self.replaced = False

    def hear(self, told: list[Event] | None, value: str) -> None:
        if told is None:
            self.shown, self.replaced = value, True
            return
        for event in told:
            assert isinstance(event, PartDeltaEvent | PartUpdatedEvent)
            self.shown += event.delta if isinstance(event, PartDeltaEvent) else ""


# A text in pieces, and after each of them: nothing, a draft that lags by some pieces, or a break of the connection.
steps = st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.sampled_from(["", "draft", "lagging", "break"])))


@given(steps, st.booleans())
def test_no_letter_is_missing_or_doubled(steps: list[tuple[str, str]], begun: bool):
    texts = TextDeltaTracker("s")
    reader = Reader(texts)
    if begun:
        texts.start_answer()
    whole = last = ""
    heard = True
    for text, then in steps:
        whole += text
        if heard:
            reader.hear(texts.accept_delta(piece(text)), whole)
        match then:
            case "draft" | "lagging":
                kept = whole if then == "draft" else last
                reader.hear(texts.accept_draft(part(kept)), kept)
                heard = True
            case "break":
                texts.mark_reconnected()
                heard = False  # what comes during a break is not received
            case _:
                last = whole
    reader.hear(texts.finish_text(part(whole)), whole)
    assert reader.shown == whole
    assert not reader.replaced


def test_a_text_that_was_never_shown_is_reported_by_its_value():
    assert TextDeltaTracker("s").finish_text(part("all at once")) == []
