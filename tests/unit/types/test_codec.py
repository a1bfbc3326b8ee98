"""JSON of parts and messages: exact, tolerant of what is newer, clear about what is wrong."""

import gc
import json
from dataclasses import dataclass
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import (
    Attachment,
    EndedTime,
    Message,
    PartBase,
    PartValidationError,
    PatchPart,
    Session,
    TextPart,
    Tokens,
    ToolCompleted,
    ToolPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    decode_part,
    decode_parts,
    encode_part,
    encode_parts,
    new_id,
    part_from_dict,
    part_types,
    register_part_type,
    validate_part,
)
from outrider import types as outrider_types
from outrider.types.parts import CacheTokens, SentRequestRecord, StepFinishPart, StepStartPart
from tests.fixtures import strategies
from tests.fixtures.cases import for_each

SAMPLE = {"type": "holo", "id": new_id(), "session_id": new_id(), "message_id": new_id(), "angle": [1, {"x": None}]}


@given(strategies.parts)
def test_every_part_survives_json_exactly(part):
    assert decode_part(encode_part(part)) == part
    assert part_from_dict(part.to_dict()) == part
    assert type(part).from_dict(json.loads(json.dumps(part.to_dict()))) == part


@given(st.lists(strategies.parts, max_size=8))
def test_a_list_of_parts_survives_json_exactly(parts):
    assert decode_parts(encode_parts(parts)) == parts


@given(strategies.messages())
def test_every_message_survives_json_exactly(message):
    assert Message.from_dict(json.loads(json.dumps(message.to_dict()))) == message


def test_an_unknown_kind_is_preserved_exactly_and_its_neighbours_are_read():
    known = TextPart("hello")
    stored = encode_parts([known, UnknownPart(SAMPLE), known])
    loaded = decode_parts(stored)
    assert loaded == [known, UnknownPart(SAMPLE), known]
    assert json.loads(encode_parts(loaded))[1] == SAMPLE
    assert encode_parts(loaded) == stored


def test_an_unknown_kind_survives_inside_a_message():
    message = Message("assistant", [TextPart("a")]).to_dict()
    message["parts"].append(SAMPLE | {"message_id": message["id"], "session_id": ""})
    again = Message.from_dict(message)
    assert isinstance(again.parts[1], UnknownPart)
    assert again.to_dict() == message
    assert again.to_api_format() == {"role": "assistant", "content": [{"type": "text", "text": "a"}]}


def test_fields_that_a_newer_version_added_to_a_known_kind_survive():
    newer = TextPart("hello").to_dict() | {"mood": {"value": "calm"}, "weight": 3}
    part = decode_part(json.dumps(newer))
    assert isinstance(part, TextPart)
    assert part.text == "hello"
    assert json.loads(encode_part(part)) == newer
    assert part.to_dict() == newer


def test_an_unknown_type_is_a_value_error_for_a_manually_built_part():
    with pytest.raises(ValueError, match="unknown part type 'holo'"):
        part_from_dict(SAMPLE)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"type": "text"}, "text"),
        ({"type": "text", "text": 3}, "text"),
        ({"text": "no type"}, "type"),
        ({"type": "tool", "call_id": "c"}, "tool"),
        ({"type": "tool", "call_id": "c", "tool": "t", "state": {"status": "running", "input": {}}}, "state.time"),
        (
            {"type": "tool", "call_id": "c", "tool": "t", "state": {"status": "running", "input": {}, "time": {}}},
            "state.time.start",
        ),
        (
            {
                "type": "tool",
                "call_id": "c",
                "tool": "t",
                "state": {"status": "completed", "input": {}, "output": "x", "time": {"start": 1}},
            },
            "state.time.end",
        ),
        ({"type": "retry", "attempt": 1, "error": "x"}, "time"),
    ],
)
def test_a_missing_required_field_is_reported_by_name(value, field):
    with pytest.raises(PartValidationError) as caught:
        part_from_dict(value)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("damaged", [b"", b"{", b"nonsense", b"[1", b"\xff\xfe", b"3", b"null", b'{"type": 7}'])
def test_damaged_json_is_a_clear_error(damaged):
    with pytest.raises((PartValidationError, ValueError)):
        decode_part(damaged)


def test_a_kind_of_the_users_own_is_stored_like_any_other():
    class RatingPart(PartBase, frozen=True, tag_field="type", tag="rating"):
        type = "rating"
        stars: int

    register_part_type("rating", RatingPart)
    register_part_type("rating", RatingPart)
    part = RatingPart(stars=4)
    assert decode_part(encode_part(part)) == part
    assert decode_parts(encode_parts([part, TextPart("x", id="i")])) == [part, TextPart("x", id="i")]
    assert part.part_type == "rating"
    assert part_types()["rating"] is RatingPart
    message = Message("assistant", [part])
    assert Message.from_dict(message.to_dict()) == message


def test_a_plain_class_can_be_a_part_kind_too():
    class Pin:
        type = part_type = "pin"

        def __init__(self, place: str, id: str = "", message_id: str = "", session_id: str = "") -> None:
            self.place, self.id, self.message_id, self.session_id = place, id or new_id(), message_id, session_id

        def adopt(self, message_id: str, session_id: str) -> None:
            self.message_id, self.session_id = message_id, session_id

        def to_dict(self):
            return {"type": "pin", "place": self.place, "id": self.id}

        @classmethod
        def from_dict(cls, value):
            return cls(value["place"], value["id"])

    register_part_type("pin", Pin)
    Message("user", [Pin("here")])
    assert decode_part(encode_part(Pin("here"))).place == "here"  # pyright: ignore[reportArgumentType]


def test_a_class_that_knows_nothing_of_owners_gets_them_when_it_is_added():
    @dataclass(frozen=True)
    class Mark:
        word: str

        def to_dict(self):
            return {"type": "mark", "word": self.word}

        @classmethod
        def from_dict(cls, value):
            return cls(value["word"])

    register_part_type("mark", Mark)
    session = Session()
    session.add_user_message([Mark("x"), TextPart("y")])  # pyright: ignore[reportArgumentType]
    mark = session.messages[0].parts[0]
    validate_part(mark)
    assert (mark.type, mark.session_id) == ("mark", session.id)
    assert Session.from_dict(session.to_dict()).messages[0].parts[0] == mark


def test_a_kind_needs_its_name_only_once():
    class VotePart(PartBase, frozen=True, tag_field="type", tag="vote"):
        up: bool

    register_part_type("vote", VotePart)
    part = VotePart(up=True)
    assert (part.part_type, part_from_dict(part.to_dict())) == ("vote", part)


@pytest.mark.parametrize(
    "part",
    [
        PatchPart(hash="h", files=["a.py"]),  # pyright: ignore[reportArgumentType]
        ToolResultPart(tool_use_id="c", attachments=[Attachment("image/png", "QUJD")]),  # pyright: ignore[reportArgumentType]
        ToolPart(call_id="c", tool="t", state=ToolCompleted({}, "x", EndedTime(1, 2), attachments=[])),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_list_in_place_of_a_tuple_makes_no_difference(part):
    plain = part.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert part_from_dict(plain) == part


@pytest.mark.parametrize("thing", [None, {"type": "text", "text": "x"}, "text"])
def test_what_is_no_part_is_not_valid(thing):
    with pytest.raises(PartValidationError):
        validate_part(thing)


@pytest.mark.parametrize(
    ("name", "cls", "error"),
    [
        ("text", ToolPart, "already TextPart"),
        ("mine", TextPart, "tag='mine'"),
        ("mine", object, "from_dict and to_dict"),
        ("mine", Tokens, "a PartBase"),
    ],
)
def test_a_kind_that_cannot_work_is_refused_at_once(name, cls, error):
    with pytest.raises((ValueError, TypeError), match=error):
        register_part_type(name, cls)


def owned(part):
    part.adopt(new_id(), new_id())
    return part


@for_each("field", ["id", "session_id", "message_id"])
@for_each("value", ["", "not-a-uuid", 7, None])
def test_each_stored_part_has_id_session_id_and_message_id_which_are_uuids(field, value):
    part = owned(TextPart("x"))
    validate_part(part)
    with pytest.raises(PartValidationError) as caught:
        validate_part(msgspec.structs.replace(part, **{field: value}))
    assert caught.value.details["field"] == field


def test_a_part_with_a_value_of_the_wrong_type_is_not_stored():
    with pytest.raises(PartValidationError) as caught:
        validate_part(owned(TextPart(text=7)))  # pyright: ignore[reportArgumentType]
    assert caught.value.details["field"] == "text"


def test_what_exists_only_for_a_model_is_not_stored():
    with pytest.raises(PartValidationError, match="store a ToolPart"):
        validate_part(owned(ToolUsePart(tool_id="a", tool_name="b")))


def test_the_garbage_collector_does_not_visit_the_parts_of_steps():
    finish = StepFinishPart("stop", None, Decimal("0.1"), Tokens(1, 2, 3, CacheTokens(4, 5)))
    start = StepStartPart(None, SentRequestRecord(5, "digest", form=("openai", "chat")))
    assert not any(map(gc.is_tracked, (finish, finish.tokens, start, start.request)))


def test_type_is_a_literal_of_its_kind():
    for name, cls in part_types().items():
        assert cls.type == name
        assert cls.__struct_config__.tag == name if issubclass(cls, PartBase) else True


@given(strategies.parts)
def test_the_guards_distinguish_the_kinds(part):
    guards = [name for name in vars(outrider_types.codec) if name.startswith("is_") and name.endswith("_part")]
    true = [name for name in guards if getattr(outrider_types.codec, name)(part)]
    assert true == [f"is_{part.type.replace('-', '_')}_part"]
