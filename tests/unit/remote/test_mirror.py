"""A text that is followed from any position is complete, also if deltas are missing or stored drafts arrive
meanwhile; every kind of stored change is applied."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from outrider.remote.mirror import SessionMirror, StoredChange, TextDeltaTracker
from outrider.sessions.records import DamagedChange, DamagedRow, SessionTranscript, StoredSession, decode_change
from outrider.types.events import ErrorEvent, Event, PartDeltaEvent, PartUpdatedEvent
from outrider.types.messages import Message
from outrider.types.parts import TextPart


def piece(text: str) -> PartDeltaEvent:
    return PartDeltaEvent(message_id="m", part_id="p", delta=text)


def part(text: str) -> TextPart:
    return TextPart(text, id="p")


class Reader:
    """Shows the events that it receives, as a screen or a pipe does."""

    def __init__(self, texts: TextDeltaTracker) -> None:
        self._texts = texts
        self.shown = ""
        self.replaced = False

    def receive(self, events: list[Event] | None, value: str) -> None:
        if events is None:
            self.shown, self.replaced = value, True
            return
        for event in events:
            assert isinstance(event, PartDeltaEvent | PartUpdatedEvent)
            self.shown += event.delta if isinstance(event, PartDeltaEvent) else ""


# A text in pieces, and after each of them: nothing, a draft that lags by some pieces, or a break of the connection.
steps = st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.sampled_from(["", "draft", "lagging", "break"])))


@given(steps, st.booleans())
def test_no_letter_is_missing_or_doubled(steps: list[tuple[str, str]], started: bool):
    texts = TextDeltaTracker("s")
    reader = Reader(texts)
    if started:
        texts.start_answer()
    whole = last = ""
    received = True
    for text, then in steps:
        whole += text
        if received:
            reader.receive(texts.accept_delta(piece(text)), whole)
        match then:
            case "draft" | "lagging":
                stored = whole if then == "draft" else last
                reader.receive(texts.accept_draft(part(stored)), stored)
                received = True
            case "break":
                texts.mark_reconnected()
                received = False  # what comes during a break is not received
            case _:
                last = whole
    reader.receive(texts.finish_text(part(whole)), whole)
    assert reader.shown == whole
    assert not reader.replaced


def test_a_text_that_was_never_shown_is_reported_by_its_value():
    assert TextDeltaTracker("s").finish_text(part("all at once")) == []


def mirror() -> SessionMirror:
    async def no_messages() -> list[Message]:
        return []

    return SessionMirror(SessionTranscript(StoredSession(id="s"), []), no_messages)


async def test_a_damaged_row_of_the_server_is_reported_as_everywhere():
    sent = msgspec.to_builtins(DamagedChange(7, DamagedRow("part", "p", "m", "no JSON", b"{")))
    followed = mirror()
    (event,) = await followed.apply_change(StoredChange(7, decode_change(sent)))
    assert isinstance(event, ErrorEvent)
    assert (event.error_type, event.message) == ("DamagedRow", "a damaged part is skipped: no JSON")
    assert followed.seq == 7


async def test_a_damaged_row_of_a_kind_that_only_a_newer_server_knows_is_reported():
    sent = {
        "type": "damaged",
        "seq": 7,
        "row": {"kind": "todo", "id": "t", "message_id": "", "error": "bad", "raw": ""},
    }
    (event,) = await mirror().apply_change(StoredChange(7, decode_change(sent)))
    assert isinstance(event, ErrorEvent)
    assert event.message == "a damaged todo is skipped: bad"


async def test_a_change_of_a_newer_server_is_counted_and_ignored():
    followed = mirror()
    assert await followed.apply_change(StoredChange(8, decode_change({"type": "hologram", "seq": 8}))) == []
    assert followed.seq == 8
