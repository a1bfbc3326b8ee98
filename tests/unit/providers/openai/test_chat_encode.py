"""Messages of a prompt, as Chat Completions servers want them."""

import json
from typing import Any

import pytest

from outrider.providers.openai.chat_encode import DIALECTS, ChatDialect, MessageWriter, dialect_for_model
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage
from outrider.types.tool_state import Attachment

FAMILY = "openai-chat/test"
ROWS = {row.name: row for row in DIALECTS}
PDF = "data:application/pdf;base64,JVBERg=="


def written(message: ModelMessage, dialect: str = "compatible") -> list[dict[str, Any]]:
    return json.loads(b"[%b]" % MessageWriter(ROWS[dialect], FAMILY).write(message))


def asked(*parts: ModelPart, dialect: str = "compatible") -> list[dict[str, Any]]:
    return written(ModelMessage("user", parts), dialect)


def answered(*parts: ModelPart, dialect: str = "compatible") -> list[dict[str, Any]]:
    return written(ModelMessage("assistant", parts), dialect)


def sent(part: FilePart, dialect: str = "compatible") -> dict[str, Any]:
    [message] = asked(part, TextPart("Look"), dialect=dialect)
    return message["content"][0]


def thought(text: str, **state: Any) -> ReasoningPart:
    return ReasoningPart(text, provider_state={"family": FAMILY, **state})


def test_one_text_is_a_string():
    assert asked(TextPart("Hi")) == [{"role": "user", "content": "Hi"}]


def test_a_picture_is_at_its_position():
    [message] = asked(
        TextPart("This:"), FilePart(mime="image/png", url="https://a.example/x.png"), TextPart("is what?")
    )
    assert message["content"] == [
        {"type": "text", "text": "This:"},
        {"type": "image_url", "image_url": {"url": "https://a.example/x.png"}},
        {"type": "text", "text": "is what?"},
    ]


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("openai", {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}),
        ("mistral", {"type": "document_url", "document_url": PDF, "document_name": "a.pdf"}),
        ("perplexity", {"type": "file_url", "file_url": {"url": "JVBERg=="}, "file_name": "a.pdf"}),
    ],
)
def test_a_document_goes_as_the_server_wants_it(dialect: str, expected: dict[str, Any]):
    assert sent(FilePart(mime="application/pdf", url=PDF, filename="a.pdf"), dialect) == expected


def test_an_uploaded_file_goes_by_its_id():
    assert sent(FilePart(mime="application/pdf", url="file-id:f1"), "openai") == {
        "type": "file",
        "file": {"file_id": "f1"},
    }


def test_a_document_that_openai_would_have_to_fetch_is_named():
    block = sent(FilePart(mime="application/pdf", url="https://a.example/x.pdf"), "openai")
    assert block == {"type": "text", "text": "(application/pdf file: https://a.example/x.pdf)"}


def test_a_text_file_is_text():
    block = sent(FilePart(mime="text/csv", url="data:text/csv;base64,YSxi", filename="t.csv"))
    assert block == {"type": "text", "text": '<file name="t.csv">\na,b\n</file>'}


def test_sound_goes_with_the_name_of_its_format():
    part = FilePart(mime="audio/mpeg", url="data:audio/mpeg;base64,SUQz")
    assert sent(part) == {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}}
    assert sent(part, "mistral") == {"type": "input_audio", "input_audio": "SUQz"}


def test_a_film_goes_to_servers_that_take_films():
    film = FilePart(mime="video/mp4", url="https://a.example/x.mp4")
    assert sent(film)["type"] == "video_url"
    assert sent(film, "openai")["type"] == "text"


def test_calls_and_their_results():
    use = ToolUsePart(tool_id="a", tool_name="read", tool_input={"path": "ü"})
    assert answered(TextPart("Let me "), TextPart("look."), use) == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path":"ü"}'}}],
        }
    ]
    result = ToolResultPart(tool_use_id="a", content="done")
    assert asked(result, TextPart("And?")) == [
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "user", "content": "And?"},
    ]


def test_a_call_without_text_has_no_content():
    [message] = answered(ToolUsePart(tool_id="a", tool_name="read"))
    assert message["content"] is None


def test_a_failed_call_is_marked_once():
    failed = [ToolResultPart(tool_use_id="a", content=text, is_error=True) for text in ("no such file", "Error: gone")]
    assert [message["content"] for message in asked(*failed)] == ["Error: no such file", "Error: gone"]


def test_attachments_of_results_follow_all_results():
    shots = tuple(Attachment("image/png", data=data) for data in ("AAAA", "BBBB"))
    results = [
        ToolResultPart(tool_use_id="a", content="", attachments=shots[:1], tool_name="shot"),
        ToolResultPart(tool_use_id="b", content="two", attachments=shots[1:], tool_name="shot"),
    ]
    first, second, attached = asked(*results, TextPart("Well?"))
    assert (first["role"], second["role"], attached["role"]) == ("tool", "tool", "user")
    assert first["content"]
    assert [block.get("text") or block["image_url"]["url"] for block in attached["content"]] == [
        "Attached to the result of shot a:",
        "data:image/png;base64,AAAA",
        "Attached to the result of shot b:",
        "data:image/png;base64,BBBB",
        "Well?",
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_the_name_by_which_it_came(field: str):
    [message] = answered(thought("Hm. ", field=field), thought("So.", field=field), TextPart("4"))
    assert message == {"role": "assistant", "content": "4", field: "Hm. So."}


def test_reasoning_of_another_family_stays_away():
    alien = ReasoningPart("Hm.", provider_state={"family": "anthropic", "signature": "s"})
    assert answered(alien, TextPart("4")) == [{"role": "assistant", "content": "4"}]


def test_details_that_were_split_go_back_as_one_list():
    first = thought("a", field="reasoning", details=[{"type": "reasoning.text", "text": "a", "index": 0}])
    late = thought("", details=[{"type": "reasoning.text", "signature": "s", "index": 0}])
    [message] = answered(first, TextPart("4"), late)
    assert message["reasoning_details"] == [{"type": "reasoning.text", "text": "a", "signature": "s", "index": 0}]


@pytest.mark.parametrize("dialect", ["openai", "azure"])
def test_servers_that_refuse_reasoning_do_not_get_it(dialect: str):
    [message] = answered(thought("Hm.", field="reasoning", details=[{"type": "x"}]), TextPart("4"), dialect=dialect)
    assert message == {"role": "assistant", "content": "4"}


def test_mistral_gets_its_thinking_as_a_block():
    [message] = answered(thought("Hm.", field="content"), TextPart("4"), dialect="mistral")
    assert message["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "4"},
    ]


def test_deepseek_gets_reasoning_with_every_call_even_if_there_was_none():
    [message] = answered(ToolUsePart(tool_id="a", tool_name="read"), dialect="deepseek")
    assert message["reasoning_content"] == ""
    [sent] = answered(TextPart("4"), dialect="deepseek")
    assert "reasoning_content" not in sent


def test_a_refusal_goes_back_as_one_where_there_is_a_field_for_it():
    refusal = TextPart("No.", metadata={FAMILY: {"refusal": True}})
    assert answered(refusal, dialect="openai") == [{"role": "assistant", "content": None, "refusal": "No."}]
    assert answered(refusal) == [{"role": "assistant", "content": "No."}]


def test_private_state_of_a_call_goes_back_to_its_family_only():
    state = {"extra_content": {"google": {"thought_signature": "s"}}}
    for family, expected in ((FAMILY, state), ("other", {})):
        [message] = answered(ToolUsePart(tool_id="a", tool_name="read", metadata={family: state}))
        [call] = message["tool_calls"]
        assert {name: call[name] for name in call if name == "extra_content"} == expected


def test_a_call_with_free_text_goes_back_as_one():
    use = ToolUsePart(
        tool_id="a", tool_name="sql", tool_input={"input": "select 1"}, metadata={FAMILY: {"custom": True}}
    )
    [message] = answered(use)
    assert message["tool_calls"] == [{"id": "a", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}]


def test_what_the_model_made_goes_back():
    sound = FilePart(mime="audio/wav", url="data:audio/wav;base64,UklG", metadata={FAMILY: {"audio": "audio_1"}})
    assert answered(sound, dialect="openai") == [{"role": "assistant", "content": "", "audio": {"id": "audio_1"}}]
    picture = FilePart(mime="image/png", url="data:image/png;base64,AA==", metadata={FAMILY: {"images": True}})
    [message] = answered(TextPart("Here"), picture)
    assert message["images"] == [{"type": "image_url", "image_url": {"url": picture.url}}]


def test_an_empty_answer_is_left_out():
    assert answered(ReasoningPart("Hm.", provider_state={"family": "anthropic"})) == []


def test_ids_are_as_the_server_insists_and_calls_still_find_their_results():
    use = ToolUsePart(tool_id="toolu_01abcdef", tool_name="read")
    [message] = answered(use, dialect="mistral")
    [result] = asked(ToolResultPart(tool_use_id="toolu_01abcdef", content="done"), dialect="mistral")
    call_id = message["tool_calls"][0]["id"]
    assert call_id == result["tool_call_id"]
    assert len(call_id) == 9 and call_id.isalnum()
    [sent] = answered(ToolUsePart(tool_id="EscTeQY62", tool_name="read"), dialect="mistral")
    assert sent["tool_calls"][0]["id"] == "EscTeQY62"


def test_half_a_surrogate_pair_in_a_text_is_no_reason_to_fail():
    assert asked(TextPart("a\ud83db"))[0]["content"].startswith("a")


def test_a_server_with_its_own_name_of_the_limit_uses_it_for_every_model():
    dialect = ChatDialect(name="other", limit="max_new_tokens")
    assert {dialect_for_model(dialect, model).limit for model in ("m", "gpt-5", "o3")} == {"max_new_tokens"}
