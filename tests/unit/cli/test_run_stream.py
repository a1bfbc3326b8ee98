"""Each event class has its lines in the schema and in the table of docs/stream-json.md."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from outrider.cli.commands.run_stream import StreamEventEncoder
from outrider.types.codec import UnknownPart
from outrider.types.events import (
    EVENT_TYPES,
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
)
from outrider.types.ids import new_id
from outrider.types.parts import WITHDRAWN, FilePart, PartTime, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending
from tests.fixtures.cases import for_each

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA = json.loads((DOCS / "stream-json.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
COMMON = {"type", "session_id", "agent", "time", "parent_call_id"}
OF_THE_RUN = {"start", "result", "input_error"}  # lines that no event has
PLACE: dict[str, Any] = {"session_id": new_id(), "message_id": new_id()}
VENDOR_CALL = {"type": "server_tool_use", "name": "web_search", "input": {"query": "x"}}
MCP_SERVER = {"name": "db", "state": "failed", "error": "gone", "changed": ["a"], "added": ["b"], "removed": ["c"]}


class DeployedEvent(Event, frozen=True):
    where: str = "here"


def call(**end: Any) -> ToolPart:
    running = ToolPending({"path": "a"}, phase="ready").start(1)
    state = running.fail("denied", 2, reason="denied") if end.pop("failed", False) else running.complete("ok", 2, **end)
    return ToolPart("c", "edit", state, **PLACE)


SAMPLES: list[Event] = [
    PartUpdatedEvent(part=TextPart("hello", time=PartTime(1, 2), **PLACE)),
    PartUpdatedEvent(part=call(metadata={"diff": "--- a", "exit_code": 1, "child_session_id": "s2"})),
    PartUpdatedEvent(part=call(failed=True)),
    PartUpdatedEvent(part=ReasoningPart("", provider_state={"block": VENDOR_CALL}, **PLACE)),
    PartUpdatedEvent(part=FilePart("image/png", "data:image/png;base64,AAAA", "plot.png", **PLACE)),
    PartUpdatedEvent(part=UnknownPart({"type": "hologram", "id": new_id(), "depth": 3, **PLACE})),
    PartDeltaEvent(message_id="m", part_id="p", delta="hm", field="reasoning"),
    LLMResponseEvent(stop_reason="NetworkError", cost="0.5"),
    SessionUpdatedEvent(changes={"question": {"id": "q", "text": "Which?", "options": ["a"], "multiple": True}}),
    SessionUpdatedEvent(changes={"settled": "q"}),
    SessionUpdatedEvent(changes={"mcp_servers": [MCP_SERVER], "wait_seconds": 3.0}),
    SessionUpdatedEvent(changes={"title": "new"}),
    DeployedEvent(),
]


def smallest_event(cls: type[Event]) -> Event:
    part = TextPart("hello", time=PartTime(1, 2), **PLACE)
    required = {
        field.name: {int: 1, bool: True, Any: part}.get(field.type, "x")  # type: ignore[call-overload]
        for field in msgspec.structs.fields(cls)
        if field.required
    }
    return cls(session_id=PLACE["session_id"], **required)


def lines_of(event: Event) -> list[dict[str, Any]]:
    """The lines of an event, those of the message that a step ends included."""
    encoder = StreamEventEncoder()
    lines = [*encoder.encode_event(event), *encoder.encode_event(LLMResponseEvent())]
    return json.loads(json.dumps(lines))


def documented_fields() -> dict[str, set[str]]:
    """The fields of each line type in the table of the document."""
    text = (DOCS / "stream-json.md").read_text(encoding="utf-8")
    table = text.partition("## Lines")[2].partition("|---|---|---|")[2].partition("\n\nThe `parts`")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ", table, re.MULTILINE)
    # Of nested objects the fields are in brackets.
    return {kind: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", fields))) for kind, fields in rows}


def schema_lines() -> dict[str, dict[str, Any]]:
    return {line["properties"]["type"]["const"]: line for line in SCHEMA["oneOf"]}


@for_each("event", [*map(smallest_event, EVENT_TYPES.values()), *SAMPLES])
def test_the_lines_of_every_event_follow_the_schema_and_the_document(event: Event):
    fields = documented_fields()
    for line in lines_of(event):
        VALIDATOR.validate(line)
        assert line.keys() - COMMON <= fields[line["type"]], line["type"]


def test_document_schema_and_events_have_the_same_types_of_lines():
    events = [*map(smallest_event, EVENT_TYPES.values()), *SAMPLES]
    written = {line["type"] for event in events for line in lines_of(event)} | OF_THE_RUN
    assert written == documented_fields().keys() == schema_lines().keys()


@for_each("kind", sorted(schema_lines().keys() - {"result"}))  # the fields of `result` have another table
def test_document_and_schema_have_the_same_fields(kind: str):
    in_schema = schema_lines()[kind]["properties"].keys()
    assert in_schema - COMMON == documented_fields()[kind] - COMMON


def test_a_file_of_the_model_is_a_line_once_and_a_part_of_the_message():
    encoder = StreamEventEncoder()
    file = FilePart("image/png", "data:image/png;base64,AAAA", **PLACE)
    withdrawn = FilePart("image/png", "https://files.example/b.png", metadata={WITHDRAWN: True}, **PLACE)
    events = [PartUpdatedEvent(session_id=PLACE["session_id"], part=part) for part in (file, file, withdrawn)]
    end = LLMResponseEvent(session_id=PLACE["session_id"])
    sent, message, _ = [line for event in [*events, end] for line in encoder.encode_event(event)]
    described = {"name": None, "mime": "image/png", "size": 3, "url": None}
    assert described.items() <= sent.items()
    assert (sent["type"], sent["part_id"]) == ("file", file.id)
    assert message["parts"] == [{"type": "file", "part_id": file.id, **described}]


def test_a_part_of_another_kind_is_a_line_with_its_name_and_fields():
    part = UnknownPart({"type": "hologram", "id": "1", "depth": 3, **PLACE})
    (line,) = StreamEventEncoder().encode_event(PartUpdatedEvent(session_id=PLACE["session_id"], part=part))
    assert (line["type"], line["name"], line["data"]) == ("part", "hologram", {"depth": 3})
