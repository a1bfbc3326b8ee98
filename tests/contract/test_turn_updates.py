"""Every front end that follows a turn reports a call's start and result, each once, and has the whole of a text of
which the bus dropped deltas."""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider.agents.turn_state import TurnEnd
from outrider.cli.commands.jobs_follow import JobTextPrinter
from outrider.cli.commands.run_claude import ClaudeStreamPrinter
from outrider.cli.commands.run_output import RunInfo, StdoutPipe
from outrider.cli.commands.run_progress import ProgressPrinter
from outrider.cli.commands.run_stream import StreamEventEncoder
from outrider.cli.output import Console
from outrider.engine.results import StreamTranslator
from outrider.presentation.turn_updates import CallEnded, CallStarted
from outrider.remote.agent_server import AnswerDeltaBuilder
from outrider.remote.mirror import SessionMirror, StoredChange, TransientEvents
from outrider.server.turn_stream import TextChunk, TurnFollower
from outrider.sessions.records import PartChange, SessionTranscript, StoredSession
from outrider.types.events import (
    EVENT_TYPES,
    DeltasDroppedEvent,
    Event,
    LLMRequestEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    is_standard_event,
)
from outrider.types.messages import Message
from outrider.types.parts import WITHDRAWN, FilePart, TextPart, ToolPart
from outrider.types.request import PartEnd, PartStart, TextDelta
from outrider.types.tool_state import ToolPending, ToolState
from tests.fixtures.cases import for_each


class DeployedEvent(Event, frozen=True):
    """An event class of a program."""


SESSION, ANSWER = "s", "018f6f2f-0000-7000-8000-000000000001"
Report = tuple[str, str]  # "start" or "end" (or "failed"), and the id of the call


def call(state: ToolState, *, withdrawn: bool = False, id: str = "part", call_id: str = "c1") -> ToolPart:
    metadata = {WITHDRAWN: True} if withdrawn else {}
    return ToolPart(call_id, "shell", state, id=id, session_id=SESSION, message_id=ANSWER, metadata=metadata)


STREAMING = ToolPending({}, raw='{"comm')
READY = ToolPending({"command": "make"}, phase="ready")
RUNNING = READY.start(1)
DONE = RUNNING.complete("built", 2)
FAILED = RUNNING.fail("no rule", 2)
DENIED = READY.fail("a rule forbids it", 2, reason="denied")
CANCELED = READY.fail("the answer is withdrawn", 2, reason="canceled")


def updates(parts: Iterable[ToolPart]) -> list[Event]:
    return [PartUpdatedEvent(session_id=SESSION, part=part) for part in parts]


def stream_events(events: Sequence[Event]) -> list[Report]:
    translator = StreamTranslator()
    sent = [one for event in events for one in translator.translate_event(event)]
    kinds = {"tool_call": "start", "tool_result": "end"}
    return [(kinds[one.type], one.data["call_id"]) for one in sent if one.type in kinds]


def stream_json(events: Sequence[Event]) -> list[Report]:
    encoder = StreamEventEncoder()
    lines = [line for event in events for line in encoder.encode_event(event)]
    kinds = {"tool_call": "start", "tool_result": "end"}
    return [(kinds[line["type"]], line["call_id"]) for line in lines if line["type"] in kinds]


def claude_lines(events: Sequence[Event]) -> list[Report]:
    out = io.StringIO()
    printer = ClaudeStreamPrinter(StdoutPipe(Console(out, io.StringIO(), {})), deltas=False)
    printer.start(RunInfo(SESSION, "agent", "p/m", "agent", "/"))
    for event in events:
        printer.on_event(event)
    users = [line["message"] for line in map(json.loads, out.getvalue().splitlines()) if line["type"] == "user"]
    return [("end", block["tool_use_id"]) for message in users for block in message["content"]]


def protocol_items(events: Sequence[Event]) -> list[Report]:
    follower = TurnFollower(SESSION)
    items = [item for event in events for item in follower.event_items(event)]
    starts: dict[type, str] = {CallStarted: "start", CallEnded: "end"}
    return [(starts[type(one)], one.part.call_id) for one in items if isinstance(one, CallStarted | CallEnded)]


def progress_lines(events: Sequence[Event]) -> list[Report]:
    printer = ProgressPrinter(Console(io.StringIO(), err := io.StringIO(), {}), verbose=True)
    for event in events:
        printer.on_event(event)
    kinds = {"▸": "start", "✗": "failed", "⊘": "failed"}
    return [(kinds[line[0]], "c1") for line in err.getvalue().splitlines() if line[0] in kinds]


# What each reader reports. `outrider run` reports failures only as the end of a call, and a call that never ran only
# with its failure. Claude Code has the start of a call in the message of the answer.
CASES: list[tuple[str, list[ToolPart], dict[Any, str]]] = [
    (
        "a call",
        [call(one) for one in (STREAMING, READY, RUNNING, RUNNING, DONE)],
        {progress_lines: "start"},
    ),
    (
        "one that fails",
        [call(one) for one in (READY, RUNNING, FAILED)],
        {progress_lines: "start failed"},
    ),
    ("one that never ran", [call(READY), call(DENIED)], {progress_lines: "failed"}),
    (
        "a result that is compacted later",
        [call(RUNNING), call(DONE), call(DONE.compact(3))],
        {progress_lines: "start"},
    ),
    (
        "the same id in the answer after a withdrawn one",
        [call(CANCELED, withdrawn=True, id="before"), call(READY), call(RUNNING), call(DONE)],
        {progress_lines: "start"},
    ),
]
READERS = [stream_events, stream_json, claude_lines, protocol_items, progress_lines]


@pytest.mark.parametrize("read", READERS)
def test_start_and_result_of_a_call_are_reported_once(read: Callable[[Sequence[Event]], list[Report]]):
    default = "end" if read is claude_lines else "start end"
    for name, parts, expected in CASES:
        reported = [kind for kind, _ in read(updates(parts))]
        assert reported == expected.get(read, default).split(), name


@pytest.mark.parametrize("read", READERS)
def test_a_call_of_a_withdrawn_answer_is_not_reported(read: Callable[[Sequence[Event]], list[Report]]):
    assert read(updates([call(STREAMING), call(CANCELED, withdrawn=True)])) == []


@pytest.mark.parametrize("read", READERS)
def test_a_call_that_was_reported_when_its_answer_was_withdrawn_ends(
    read: Callable[[Sequence[Event]], list[Report]],
):
    reported = [kind for kind, _ in read(updates([call(READY), call(CANCELED, withdrawn=True)]))]
    assert reported == (["start", "end"] if read in (stream_events, stream_json) else [])


# The text in each front end after one delta was lost and the text was completed.
TEXT = TextPart("one two three", id="t", session_id=SESSION, message_id=ANSWER)


def lost_delta() -> list[Event]:
    first, _, last = (
        PartDeltaEvent(session_id=SESSION, message_id=ANSWER, part_id="t", delta=delta)
        for delta in ("one ", "two ", "three")
    )
    return [LLMRequestEvent(session_id=SESSION, message_count=1), first, last]


def cut_off() -> list[Event]:
    return lost_delta()[:2]


async def protocol_text(events: Sequence[Event]) -> str:
    follower = TurnFollower(SESSION)
    items = [item for event in events for item in follower.event_items(event)]
    return "".join(item.text for item in items if isinstance(item, TextChunk))


async def peer_text(events: Sequence[Event]) -> str:
    builder = AnswerDeltaBuilder(SESSION, "agent")
    deltas = [delta for event in events for delta in builder.event_deltas(event)]
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


async def mirrored_text(events: Sequence[Event]) -> str:
    async def no_messages() -> list[Message]:
        return []

    stored = StoredSession(id=SESSION, workspace_directory="/")
    mirror = SessionMirror(SessionTranscript(stored, []), no_messages)
    seen: list[Event] = []
    for event in events:
        if isinstance(event, PartUpdatedEvent):
            seen += await mirror.apply_change(StoredChange(1, PartChange(1, event.part)))
        else:
            seen += await mirror.apply_events(TransientEvents([event.to_dict()]))
    return "".join(event.delta for event in seen if isinstance(event, PartDeltaEvent))


async def editor_text(events: Sequence[Event]) -> str:
    updates = pytest.importorskip("outrider.acp.updates", reason="the extra `acp` is not installed")
    builder = updates.UpdateBuilder(SESSION, Path("/place"))
    sent = [update for event in events for update in builder.event_updates(event)]
    return "".join(update.content.text for update in sent)


async def job_text(events: Sequence[Event]) -> str:
    text, out = "", io.StringIO()
    with redirect_stdout(out):
        printer = JobTextPrinter()
        for event in events:
            if isinstance(event, PartDeltaEvent):
                text += event.delta
            part = event.part if isinstance(event, PartUpdatedEvent) else TextPart(text, id="t")
            printer.print_change(PartChange(1, part, draft=not isinstance(event, PartUpdatedEvent)))
    return out.getvalue()


@pytest.mark.parametrize("read", [protocol_text, peer_text, mirrored_text, editor_text, job_text])
async def test_what_is_missing_of_a_text_is_sent_at_its_end(read: Callable[..., Any]):
    complete = PartUpdatedEvent(session_id=SESSION, part=TEXT)
    assert await read([*cut_off(), complete]) == TEXT.text
    if read is editor_text:
        assert await read([*cut_off(), DeltasDroppedEvent(count=1), lost_delta()[2], complete]) == TEXT.text


def test_an_agent_of_another_server_sends_the_files_of_its_model_except_withdrawn_ones():
    def file(name: str) -> Event:
        part = FilePart("image/png", f"https://files.example/{name}", session_id=SESSION, message_id=ANSWER)
        return PartUpdatedEvent(session_id=SESSION, part=part)

    builder = AnswerDeltaBuilder(SESSION, "agent")
    retry = RetryScheduledEvent(session_id=SESSION, attempt=1, delay_ms=0, error="reset")
    next_step = LLMRequestEvent(session_id=SESSION, message_count=1)
    events = [file("a"), retry, file("b"), next_step, file("c")]
    deltas = [delta for event in events for delta in builder.event_deltas(event)]
    deltas += builder.finish_answer(TurnEnd("completed", ""))
    assert [delta.url.rpartition("/")[2] for delta in deltas if isinstance(delta, PartEnd)] == ["b", "c"]
    starts = [delta for delta in deltas if isinstance(delta, PartStart)]
    assert [(start.index, start.kind) for start in starts] == [(0, "file"), (1, "file")]


class ShownDelta(PartDeltaEvent, frozen=True, tag="ShownDelta"):
    """A program's subclass of an event of ours."""


def test_a_subclass_of_an_event_is_read_like_its_base():
    shown = ShownDelta(session_id=SESSION, message_id=ANSWER, part_id="p", delta="hi")
    assert is_standard_event(shown)
    assert [*StreamTranslator().translate_event(shown)]
    assert not is_standard_event(DeployedEvent())


@for_each("cls", [*EVENT_TYPES.values(), DeployedEvent])
def test_every_event_class_is_accepted_by_every_reader(cls: type[Event]):
    required = {
        field.name: {int: 1, bool: True, Any: TEXT}.get(field.type, "x")  # type: ignore[call-overload]
        for field in msgspec.structs.fields(cls)
        if field.required
    }
    event = cls(session_id=SESSION, **required)
    for read in READERS:
        assert read([event]) in ([], [("start", "c1")])
    assert len([*AnswerDeltaBuilder(SESSION, "agent").event_deltas(event)]) <= 2
