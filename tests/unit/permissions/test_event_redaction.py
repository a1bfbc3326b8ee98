"""Secrets are redacted in events, also if they arrive in chunks of any size."""

import random
import threading
from collections.abc import Iterable

import pytest

from outrider.event_bus import EventBus
from outrider.permissions.redaction.redactor import FILTERED_EVENTS, HIDDEN_SECRET, RedactingEventFilter, Redactor
from outrider.types.events import (
    ErrorEvent,
    Event,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ToolExecutionCompletedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.parts import TextPart
from tests.fixtures.cases import for_each
from tests.security.canaries import canaries

KNOWN = "correct horse battery"
CONTEXTS = [
    "{}",
    "the key is {}, use it",
    "KEY={}\nnext",
    '{{"a": "{}"}}',
    "https://x.example/?q={}&b=1",
    "x\\n{}\\nrest",
    "Error: 401 for {}.",
    "`{}`",
    "<b>{}</b>",
    "/tmp/{}.txt",
]


def pieces(text: str, dice: random.Random) -> Iterable[str]:
    at, longest = 0, dice.choice([1, 2, 3, 5, 13, 40])
    while at < len(text):
        size = dice.randint(1, longest)
        yield text[at : at + size]
        at += size


def delta(text: str, part: str = "p") -> PartDeltaEvent:
    return PartDeltaEvent(message_id="m", part_id=part, delta=text, session_id="s")


def published_by(event_filter: RedactingEventFilter, events: Iterable[Event]) -> list[Event]:
    return [received for event in events for received in event_filter(event)]


def put_together(events: Iterable[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, PartDeltaEvent))


def ended(part_id: str = "p") -> PartUpdatedEvent:
    part = TextPart("x", id=part_id)
    return PartUpdatedEvent(part=part, session_id="s")


@for_each("secret", [*canaries(40, seed=5), KNOWN])
def test_a_secret_in_pieces_is_hidden_and_everything_else_is_reported(secret: str):
    dice = random.Random(secret)
    for context in CONTEXTS:
        text = "some words before it " + context.format(secret) + " and more words after it."
        event_filter = RedactingEventFilter(Redactor([KNOWN]))
        received = put_together(published_by(event_filter, [*map(delta, pieces(text, dice)), ended()]))
        private = secret.rpartition(":")[2]
        assert not any(private[at : at + 12] in received for at in range(len(private) - 11)), (context, received)
        assert HIDDEN_SECRET in received
        assert received.startswith("some words before it ")
        assert received.endswith(" and more words after it.")


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox, who has a token of trust, jumps.\n",
        "see https://example.org/a/very/long/path/without/an/end?and=a&query=too for more",
        "x = sk - y; key: value; password?",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "averyveryveryverylongwordwithoutanyblanksinit " * 3,
        "Bearer of bad news: Basic training",
    ],
)
def test_text_without_a_secret_is_reported_as_it_is_however_it_is_cut(text: str):
    dice = random.Random(text)
    for _ in range(10):
        event_filter = RedactingEventFilter(Redactor([KNOWN]))
        assert put_together(published_by(event_filter, [*map(delta, pieces(text, dice)), ended()])) == text


def test_a_long_word_in_pieces_is_searched_a_few_times_only():
    class CountingRedactor(Redactor):
        searches = 0

        def find_unfinished_secret(self, text: str) -> int:
            self.searches += 1
            return super().find_unfinished_secret(text)

    redactor, secret = CountingRedactor([KNOWN]), next(iter(canaries(1, seed=9)))
    word = "".join(random.Random(3).choices("abcdefghijklmnopqrstuvwxyz/+", k=30_000))
    text = f"{word} {secret} {word}"
    pieces_of_text = [text[at : at + 4] for at in range(0, len(text), 4)]
    received = put_together(published_by(RedactingEventFilter(redactor), [*map(delta, pieces_of_text), ended()]))
    assert received == f"{word} {HIDDEN_SECRET} {word}"
    assert redactor.searches < 60


def test_plain_pieces_are_not_held_back():
    event_filter = RedactingEventFilter(Redactor([KNOWN]))
    for word in ("Plain", " words", " leave", " at", " once."):
        assert [event.delta for event in event_filter(delta(word)) if isinstance(event, PartDeltaEvent)] == [word]


def test_each_stream_has_a_separate_text():
    event_filter = RedactingEventFilter(Redactor())
    events = [delta("ghp_abcdef", "one"), delta("ghp_ghijkl", "two"), delta(" x", "one"), delta(" y", "two")]
    received = [
        (event.part_id, event.delta)
        for event in published_by(event_filter, events)
        if isinstance(event, PartDeltaEvent)
    ]
    assert received == [("one", "ghp_abcdef x"), ("two", "ghp_ghijkl y")]


@pytest.mark.parametrize(
    ("piece", "end"),
    [
        (
            lambda text: ToolInputDeltaEvent(message_id="m", part_id="p", delta=text, session_id="s"),
            ended(),
        ),
        (
            lambda text: ToolOutputEvent(tool_name="t", output=text, call_id="c", session_id="s"),
            ToolExecutionCompletedEvent(tool_name="t", call_id="c", session_id="s"),
        ),
        (
            lambda text: ToolOutputEvent(tool_name="t", output=text, call_id="c", session_id="s", stream="stderr"),
            ToolExecutionCompletedEvent(tool_name="t", call_id="c", session_id="s"),
        ),
        (
            lambda text: ProcessOutputEvent(process_id="c", output=text, session_id="s"),
            ProcessExitedEvent(process_id="c", session_id="s"),
        ),
        (
            lambda text: ProcessOutputEvent(process_id="c", output=text, session_id="s", stream="stderr"),
            ProcessExitedEvent(process_id="c", session_id="s"),
        ),
    ],
)
def test_what_was_held_back_follows_before_the_end(piece, end: Event):
    event_filter = RedactingEventFilter(Redactor())
    assert published_by(event_filter, [piece("a ghp_")]) != []
    *rest, last = published_by(event_filter, [piece("short"), end])
    assert last == end
    assert [getattr(event, "delta", "") or getattr(event, "output", "") for event in rest] == ["ghp_short"]
    assert published_by(event_filter, [end]) == [end]


def test_a_stream_that_never_ends_is_not_held_for_ever():
    event_filter = RedactingEventFilter(Redactor())
    received = put_together(published_by(event_filter, [delta("ab" * 100) for _ in range(200)]))
    assert len(received) > 20_000


def test_the_streams_that_are_remembered_are_bounded():
    event_filter, parts = RedactingEventFilter(Redactor()), [f"part {number}" for number in range(5_000)]
    assert published_by(event_filter, [delta("ghp_", part) for part in parts]) == []
    ends = [PartUpdatedEvent(part=TextPart("ghp_", id=part), session_id="s") for part in parts]
    remembered = [len(published_by(event_filter, [end])) == 2 for end in ends]
    assert 0 < sum(remembered) <= 4_096
    assert remembered[-1]


def test_whole_values_are_redacted():
    event_filter = RedactingEventFilter(Redactor([KNOWN]))
    (event,) = event_filter(ErrorEvent(error_type="E", message=f"no: {KNOWN}", session_id="s"))
    assert event == ErrorEvent(
        error_type="E", message=f"no: {HIDDEN_SECRET}", session_id="s", timestamp=event.timestamp
    )
    same = ErrorEvent(error_type="E", message="nothing", session_id="s")
    assert next(iter(event_filter(same))) is same


def test_a_bus_states_through_it_until_that_is_ended():
    bus, received = EventBus(), list[Event]()
    bus.subscribe_all(received.append)
    end = bus.add_transform(RedactingEventFilter(Redactor([KNOWN])))
    bus.publish(ErrorEvent(error_type="E", message=KNOWN))
    end()
    bus.publish(ErrorEvent(error_type="E", message=KNOWN))
    assert [event.message for event in received if isinstance(event, ErrorEvent)] == [HIDDEN_SECRET, KNOWN]


def test_what_is_held_back_is_published_at_the_end_even_without_listeners_of_ends():
    bus, received = EventBus(), list[ToolOutputEvent]()
    bus.subscribe(ToolOutputEvent, received.append)
    bus.add_transform(RedactingEventFilter(Redactor([KNOWN])), FILTERED_EVENTS)
    bus.publish(ToolOutputEvent(tool_name="t", call_id="c", output="say correct ho", session_id="s"))
    bus.publish(ToolExecutionCompletedEvent(tool_name="t", call_id="c", session_id="s"))
    assert [event.output for event in received] == ["say ", "correct ho"]


def test_a_listener_that_starts_in_the_middle_of_a_secret_does_not_receive_the_rest():
    bus, received = EventBus(), list[PartDeltaEvent]()
    bus.subscribe(ErrorEvent, lambda _: None)
    bus.add_transform(RedactingEventFilter(Redactor([KNOWN])), FILTERED_EVENTS)
    bus.publish(delta("say correct ho", "p"))
    bus.subscribe(PartDeltaEvent, received.append)
    bus.publish(delta("rse battery, and more", "p"))
    assert [event.delta for event in received] == [f"{HIDDEN_SECRET}, and more"]


def test_an_event_that_cannot_be_made_safe_is_not_published_and_affects_no_other_event(
    caplog: pytest.LogCaptureFixture,
):
    bus, received = EventBus(), list[Event]()
    bus.subscribe_all(received.append)

    def broken(_: Event) -> list[Event]:
        raise ValueError("broken")

    bus.add_transform(broken)
    bus.publish(ErrorEvent(error_type="E", message=KNOWN))
    assert received == []
    assert "was dropped" in caplog.text


def test_many_threads_may_publish_at_once():
    event_filter = RedactingEventFilter(Redactor([KNOWN]))
    received: dict[int, str] = {}

    def publish_one(number: int) -> None:
        text = f"thread {number} says {KNOWN} and that is all" * 20
        events = [delta(char, f"p{number}") for char in text]
        received[number] = put_together(published_by(event_filter, [*events, ended(f"p{number}")]))

    threads = [threading.Thread(target=publish_one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in received.items():
        original = f"thread {number} says {HIDDEN_SECRET} and that is all" * 20
        assert (
            text.replace(f"corr{HIDDEN_SECRET}", HIDDEN_SECRET).replace(f"cor{HIDDEN_SECRET}", HIDDEN_SECRET)
            == original
        )
