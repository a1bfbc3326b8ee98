"""Parts are encoded as content blocks that the Messages API accepts, also parts of other vendors."""

import json
from base64 import b64encode
from typing import Any

import pytest

from outrider.providers.anthropic.encode import encode_message, safe_name
from outrider.types.anthropic_blocks import part_from_anthropic
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage
from outrider.types.tool_state import Attachment
from tests.fixtures.cases import for_each

FAMILY = "anthropic"


def data_url(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{b64encode(content).decode()}"


def blocks(*parts: ModelPart, family: str = FAMILY) -> list[dict[str, Any]]:
    written = encode_message(ModelMessage("user", parts), family)
    return json.loads(written)["content"] if written else []


@for_each(
    "block",
    [
        {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Hi", "citations": [{"type": "char_location", "cited_text": "x"}]},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "t_1", "name": "read", "input": {"a": [1]}, "caller": {"type": "direct"}},
        {"type": "tool_result", "tool_use_id": "t", "content": "done"},
        {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True},
        {"type": "tool_result", "tool_use_id": "t"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
            "title": "t",
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a, b%"}},
        {"type": "document", "source": {"type": "file", "file_id": "f_1"}, "citations": {"enabled": True}},
    ],
)
def test_a_block_that_was_read_is_written_as_it_was(block: dict[str, Any]) -> None:
    assert blocks(part_from_anthropic(block)) == [block]


def test_thinking_goes_back_only_to_its_own_family_and_only_when_it_is_signed() -> None:
    signed = ReasoningPart("hm", provider_state={"family": FAMILY, "signature": "s"})
    assert blocks(signed, TextPart("x")) == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "x"},
    ]
    assert blocks(signed, family="anthropic:other") == []
    assert blocks(ReasoningPart("hm", provider_state={"family": FAMILY})) == []
    assert blocks(ReasoningPart("hm", provider_state={"family": "google", "signature": "s"})) == []


def test_private_fields_of_another_family_stay_away() -> None:
    part = TextPart("x", metadata={"google": {"thought_signature": "s"}, "openai": {"id": "i"}})
    assert blocks(part) == [{"type": "text", "text": "x"}]


def test_blank_text_is_not_sent_and_a_message_without_anything_to_say_is_none() -> None:
    assert blocks(TextPart("\n\n"), TextPart("x")) == [{"type": "text", "text": "x"}]
    assert encode_message(ModelMessage("assistant", (TextPart(" "),)), FAMILY) == b""


def test_names_and_ids_of_others_fit_the_alphabet_and_still_pair() -> None:
    use = ToolUsePart(tool_id="functions.read:0", tool_name="read\n<x>", tool_input={})
    result = ToolResultPart(tool_use_id="functions.read:0", content="ok")
    asked, answered = blocks(use, result)
    assert asked["id"] == answered["tool_use_id"]
    assert all(character.isalnum() or character in "_-" for character in asked["id"] + asked["name"])
    assert safe_name("a.b") != safe_name("a:b")
    assert safe_name("toolu_01-A") == "toolu_01-A"
    assert 0 < len(safe_name("x" * 500)) <= 128
    assert safe_name("")


def test_files_of_a_result_are_in_it() -> None:
    result = ToolResultPart(
        tool_use_id="t",
        content="seen",
        attachments=(
            Attachment("image/png", data="AAAA"),
            Attachment("text/csv", data=b64encode(b"a,b").decode(), name="t.csv"),
        ),
    )
    (block,) = blocks(result)
    assert block["content"] == [
        {"type": "text", "text": "seen"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}, "title": "t.csv"},
    ]


def test_files_of_a_failed_call_follow_after_all_results() -> None:
    failed = ToolResultPart(
        tool_use_id="a", content="no", is_error=True, attachments=(Attachment("image/png", data="AA"),)
    )
    fine = ToolResultPart(tool_use_id="b", content="yes")
    assert [block["type"] for block in blocks(failed, fine)] == ["tool_result", "tool_result", "image"]
    assert blocks(failed)[0]["content"] == "no"


def test_half_a_surrogate_pair_does_not_stop_a_request() -> None:
    assert blocks(TextPart("name \udcff.txt"))[0]["text"] == "name ?.txt"


@pytest.mark.parametrize(
    ("mime", "url", "kind", "source"),
    [
        (
            "image/jpg",
            "data:image/jpg;base64,AAAA",
            "image",
            {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"},
        ),
        ("image/png", "data:image/png,%00%01", "image", {"type": "base64", "media_type": "image/png", "data": "AAE="}),
        ("application/pdf", "https://x.test/a.pdf", "document", {"type": "url", "url": "https://x.test/a.pdf"}),
        ("image/png", "file-id:f", "image", {"type": "file", "file_id": "f"}),
        ("text/markdown", data_url("text/markdown", "# ü".encode()), "document", {"data": "# ü"}),
        ("application/json", data_url("application/json", b"{}"), "document", {"data": "{}"}),
        ("text/plain; charset=utf-8", "data:text/plain;charset=utf-8,a%20b", "document", {"data": "a b"}),
    ],
)
def test_files_take_the_form_that_the_api_knows(mime: str, url: str, kind: str, source: dict[str, Any]) -> None:
    (block,) = blocks(FilePart(mime=mime, url=url))
    assert block["type"] == kind
    if set(source) == {"data"}:
        source = {"type": "text", "media_type": "text/plain", **source}
    assert block["source"] == source


@pytest.mark.parametrize(
    ("mime", "url"),
    [
        ("application/zip", data_url("application/zip", b"PK")),
        ("image/tiff", data_url("image/tiff", b"II")),
        ("text/csv", "https://x.test/a.csv"),
        ("image/png", "file:///tmp/a.png"),
    ],
)
def test_a_file_that_no_model_there_can_read_is_named_instead_of_refused(mime: str, url: str) -> None:
    (block,) = blocks(FilePart(mime=mime, url=url, filename="thing"))
    assert block["type"] == "text"
    assert "thing" in block["text"] and mime in block["text"]
    assert "base64" not in block["text"]
