"""Messages: parts that belong to them, the Anthropic format, what must hold before they are stored."""

import pytest

import outrider
from outrider import (
    FilePart,
    Message,
    MessageTime,
    PartValidationError,
    ReasoningPart,
    Session,
    TextPart,
    ToolPart,
    ToolPending,
    ToolResultPart,
    ToolUsePart,
    new_id,
    part_from_anthropic,
)
from outrider import types as outrider_types
from outrider.types.origins import make_origin
from tests.fixtures.cases import for_each

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


def test_a_manually_made_part_has_an_id_at_once_and_its_owners_once_it_is_added():
    part = TextPart("hello")
    assert part.id
    assert (part.session_id, part.message_id) == ("", "")
    message = Message("user", session_id=new_id())
    message.add_part(part)
    assert (part.session_id, part.message_id) == (message.session_id, message.id)


def test_ids_are_unique_within_a_message():
    part = TextPart("a")
    message = Message("user", [part])
    with pytest.raises(PartValidationError, match="already has a part"):
        message.add_part(part)
    with pytest.raises(PartValidationError, match="same id"):
        Message("user", [TextPart("a", id=part.id), TextPart("b", id=part.id)])
    assert len(message.parts) == 1


def test_a_part_of_one_message_cannot_be_added_to_another():
    part = Message("user", [TextPart("a")]).parts[0]
    with pytest.raises(PartValidationError, match="belongs to message"):
        Message("user").add_part(part)


def test_parts_are_found_by_type_and_text_is_what_a_person_reads():
    message = Message(
        "assistant", [TextPart("a"), TextPart("hidden", ignored=True), ToolPart("c", "read"), TextPart("b")]
    )
    assert [part.text for part in message.get_parts_by_type(TextPart)] == ["a", "hidden", "b"]
    assert message.get_text_content() == "a\nb"
    assert [(use.tool_id, use.tool_name, use.tool_input) for use in message.get_tool_uses()] == [("c", "read", {})]


def test_an_answer_of_the_api_becomes_parts_with_its_calls_pending():
    message = Message.from_anthropic_response(
        "assistant",
        [
            {"type": "thinking", "thinking": "hm", "signature": "s1"},
            {"type": "text", "text": "I will look."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
        ],
    )
    reasoning, text, call = message.parts
    assert isinstance(reasoning, ReasoningPart)
    assert reasoning.provider_state == {"family": "anthropic", "signature": "s1"}
    assert text.text == "I will look."
    assert call.state == ToolPending(input={"path": "a"}, phase="ready")
    assert message.to_api_format()["content"][2] == {
        "type": "tool_use",
        "id": "t1",
        "name": "read",
        "input": {"path": "a"},
    }


@pytest.mark.slow
def test_sdk_objects_are_read_like_dicts():
    anthropic = pytest.importorskip("anthropic.types")
    blocks = [
        anthropic.ThinkingBlock(type="thinking", thinking="hm", signature="s"),
        anthropic.TextBlock(type="text", text="hi"),
        anthropic.ToolUseBlock(type="tool_use", id="t", name="read", input={"path": "a"}),
    ]
    message = Message.from_anthropic_response("assistant", blocks)
    assert message.to_api_format()["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},
    ]


@for_each(
    ("block", "cls"),
    [
        ({"type": "text", "text": "x"}, TextPart),
        ({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, TextPart),
        ({"type": "text", "text": "x", "citations": [{"type": "char_location"}]}, TextPart),
        (IMAGE, FilePart),
        ({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}, FilePart),
        ({"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}, "title": "a"}, FilePart),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a, %b\nü"}}, FilePart),
        ({"type": "document", "source": {"type": "file", "file_id": "file_1"}, "context": "c"}, FilePart),
        ({"type": "thinking", "thinking": "", "signature": "only"}, ReasoningPart),
        ({"type": "redacted_thinking", "data": "xyz"}, ReasoningPart),
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, ReasoningPart),
        ({"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, ReasoningPart),
        ({"type": "tool_use", "id": "t", "name": "n", "input": {"a": [1, None]}}, ToolUsePart),
        ({"type": "tool_use", "id": "t", "name": "n", "input": {}, "caller": {"type": "direct"}}, ToolUsePart),
        ({"type": "tool_result", "tool_use_id": "t", "content": "x"}, ToolResultPart),
        ({"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": True}, ToolResultPart),
        ({"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": False}, ToolResultPart),
        ({"type": "tool_result", "tool_use_id": "t"}, ToolResultPart),
        (
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, IMAGE]},
            ToolResultPart,
        ),
        (
            {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE, {"type": "text", "text": "x"}]},
            ToolResultPart,
        ),
        ({"type": "tool_result", "tool_use_id": "t", "content": []}, ToolResultPart),
    ],
)
def test_a_content_block_is_read_and_written_back_equal(block, cls):
    part = part_from_anthropic(block)
    assert isinstance(part, cls)
    assert part.to_api_format() == block


@pytest.mark.parametrize(
    "block",
    [
        {"type": "bogus"},
        {},
        {"type": None},
        {"type": "text"},
        {"type": "text", "text": 7},
        {"type": "image", "source": {"type": "magic"}},
        {"type": "tool_use", "id": "x"},
        7,
    ],
)
def test_a_block_that_cannot_be_read_is_a_value_error(block):
    with pytest.raises(ValueError, match="block"):
        part_from_anthropic(block)


def test_an_assistant_message_carries_cost_tokens_and_time_completed():
    message = Message("assistant", session_id=new_id(), time=MessageTime(1), finish="stop")
    assert message.tokens.total == 0
    assert message.cost is None
    with pytest.raises(PartValidationError) as caught:
        message.validate()
    assert caught.value.details["field"] == "time.completed"
    message.time = MessageTime(1, 2)
    message.validate()


@pytest.mark.parametrize("field", ["id", "session_id", "time"])
def test_a_message_without_a_required_field_is_not_stored(field):
    message = Message("user", session_id=new_id(), time=MessageTime(1))
    message.validate()
    setattr(message, field, None if field == "time" else "")
    with pytest.raises(PartValidationError) as caught:
        message.validate()
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("value", [{"parts": []}, {"role": "robot"}, {"role": "user", "parts": [{"type": "text"}]}])
def test_a_message_that_cannot_be_read_names_the_wrong_field(value):
    with pytest.raises(PartValidationError):
        Message.from_dict(value)


@pytest.mark.parametrize("parts", [["words"], [3], "words"])
def test_what_is_no_part_is_refused_with_a_message(parts):
    with pytest.raises(PartValidationError, match="is not a part"):
        Message("user", parts)


def test_a_part_can_be_added_as_plain_data():
    message = Message("user")
    message.add_part({"type": "text", "text": "x"})
    assert message.get_text_content() == "x"


def test_only_the_user_and_the_assistant_have_messages():
    with pytest.raises(PartValidationError, match="robot"):
        Message("robot")  # pyright: ignore[reportArgumentType]


def test_a_damaged_part_is_named_by_its_own_field():
    with pytest.raises(PartValidationError, match=r"^TextPart: .*`text`") as caught:
        Message.from_dict({"role": "user", "parts": [{"type": "text"}]})
    assert caught.value.details["field"] == "text"


@pytest.mark.parametrize("bad", ["", "not-a-uuid", "1234"])
def test_a_part_without_a_proper_id_cannot_join_a_session(bad):
    session = Session()
    with pytest.raises(PartValidationError, match="must be a UUID"):
        session.add_user_message([TextPart("x", id=bad)])
    assert len(session) == 0
    message = session.add_user_message("fine")
    with pytest.raises(PartValidationError, match="must be a UUID"):
        message.add_part(TextPart("x", id=bad))


def test_every_value_can_be_imported_from_the_types_package():
    for name in outrider_types.__all__:
        assert getattr(outrider_types, name) is getattr(outrider, name)


def test_the_text_of_a_message_is_without_what_the_program_added_about_the_workspace():
    state = TextPart("state", synthetic=True, origins=(make_origin("workspace", "/w"),))
    assert Message("user", [TextPart("go"), state]).get_text_content() == "go"
    assert Message("user", [TextPart("go"), TextPart(" on", synthetic=True)]).get_text_content() == "go\n on"
