"""Stored rows contain every field of a value and decode to the same value."""

import msgspec
import pytest

from outrider.errors import PartValidationError
from outrider.sessions.rows.codec import PartRow, extract_blobs, insert_blobs, part_row, read_part
from outrider.types.ids import new_id
from outrider.types.parts import (
    BodyEdit,
    FilePart,
    FileSource,
    PartTime,
    SentRequestRecord,
    StepFinishPart,
    StepStartPart,
    TextPart,
    TextRange,
    Tokens,
    ToolPart,
)
from outrider.types.tool_state import Attachment, EndedTime, RunningTime, ToolCompleted, ToolRunning

OWNERS = {"session_id": new_id(), "message_id": new_id()}


@pytest.mark.parametrize(
    "part",
    [
        TextPart(7, **OWNERS),
        TextPart("a", time=PartTime("now"), **OWNERS),
        TextPart("a", metadata={1: "one"}, **OWNERS),
        FilePart("text/plain", "data:,a", source=FileSource(5), **OWNERS),
        StepFinishPart("stop", tokens=Tokens("many"), **OWNERS),
        ToolPart("c", "add", ToolCompleted({}, "3", EndedTime("a", "b")), **OWNERS),
        ToolPart("c", "add", ToolCompleted({}, "3", EndedTime(1, 2), title=3), **OWNERS),
        ToolPart(
            "c", "add", ToolCompleted({}, "3", EndedTime(1, 2), attachments=(Attachment("a/b", "c", name=5),)), **OWNERS
        ),
    ],
)
def test_a_wrong_type_anywhere_in_a_part_is_refused(part):
    with pytest.raises(PartValidationError):
        part_row(part)


@pytest.mark.parametrize(
    "part",
    [
        TextPart("a", synthetic=True, time=PartTime(1, 2), metadata={"x": [1, {"y": None}]}, **OWNERS),
        FilePart("text/plain", "data:,a", source=FileSource("a.py", TextRange("a", 0, 1)), **OWNERS),
        StepFinishPart("stop", tokens=Tokens(1, 2), **OWNERS),
        ToolPart("c", "add", ToolRunning({"a": 1}, RunningTime(1)), **OWNERS),
        ToolPart(
            "c", "add", ToolCompleted({"a": 1}, "3", EndedTime(1, 2), attachments=(Attachment("a/b", "c"),)), **OWNERS
        ),
    ],
)
def test_what_was_stored_is_read_as_it_was(part):
    row = part_row(part)
    read, damaged = read_part(part.session_id, PartRow(row.id, row.message_id, row.body))
    assert damaged is None
    assert msgspec.to_builtins(read) == msgspec.to_builtins(part)


@pytest.mark.parametrize("patch", ["", "p" * 1_000])
def test_the_head_of_a_request_becomes_the_same_blob_with_and_without_a_split(patch):
    record = SentRequestRecord(9, "digest", 'head "é" ' * 300, ("openai",), patch=BodyEdit(0, patch))
    part = StepStartPart(request=record, **OWNERS)
    split, whole = part_row(part, split=True), part_row(part)
    body, blobs = (split.body, split.texts) if split.texts else extract_blobs(split.body)
    assert (body, dict(blobs)) == extract_blobs(whole.body)
    assert bool(split.texts) is not bool(patch)
    assert insert_blobs(body, lambda name: blobs[name]) == whole.body
