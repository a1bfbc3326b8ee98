"""Messages are encoded as items of the Responses API, and items of earlier responses are sent back unchanged."""

import json
from typing import Any

import pytest

from outrider.providers.openai.responses_client import FAMILY, ResponsesWire
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolPart, ToolResultPart, ToolUsePart
from outrider.types.request import Answer, ModelMessage, ModelSettings, Prompt, Request
from outrider.types.tool_state import Attachment
from tests.unit.providers.openai.responses_answers import function_call, message, whole

WIRE = ResponsesWire(Provider("openai", "openai-responses"))
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"}


def items(*messages: ModelMessage, store: bool = False) -> list[dict[str, Any]]:
    settings = ModelSettings(extra={"store": True} if store else {})
    return json.loads(WIRE.build_request(Request("m", Prompt(messages), settings=settings)).body)["input"]


def user(*parts: ModelPart) -> ModelMessage:
    return ModelMessage("user", parts)


def assistant(*parts: ModelPart) -> ModelMessage:
    return ModelMessage("assistant", parts)


def message_of(answer: Answer) -> ModelMessage:
    return assistant(*(part.use() if isinstance(part, ToolPart) else part for part in answer.message.parts))


def asked(*output: dict[str, Any]) -> ModelMessage:
    return message_of(whole({"status": "completed", "output": list(output)}))


def result(**fields: Any) -> ToolResultPart:
    return ToolResultPart(**{"tool_use_id": "call_1", "content": "text"} | fields)


def test_a_question_is_text():
    assert items(user(TextPart("Hi"))) == [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]


def test_results_come_before_the_user_input():
    found = items(user(result(), TextPart("go on")))
    assert found[0] == {"type": "function_call_output", "call_id": "call_1", "output": "text"}
    assert found[1]["content"][0]["text"] == "go on"


def test_a_failed_call_is_marked_in_its_text():
    assert items(user(result(content="no such file", is_error=True)))[0]["output"] == "Error: no such file"
    assert items(user(result(content="Error: no", is_error=True)))[0]["output"] == "Error: no"


def test_an_id_of_another_server_that_is_too_long_gets_a_shorter_name():
    long = "x" * 65
    call, answer = items(assistant(ToolUsePart(tool_id=long, tool_name="read")), user(result(tool_use_id=long)))
    assert call["call_id"] == answer["call_id"]
    assert len(call["call_id"]) < 64


def test_a_result_with_files_is_a_list():
    files = (Attachment("image/png", data="QUJD"), Attachment("application/pdf", url="https://a.example/b.pdf"))
    assert items(user(result(attachments=files)))[0]["output"] == [
        {"type": "input_text", "text": "text"},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,QUJD"},
        {"type": "input_file", "file_url": "https://a.example/b.pdf"},
    ]


@pytest.mark.parametrize(
    ("mime", "url", "written"),
    [
        ("image/png", "https://a.example/b.png", {"type": "input_image", "detail": "auto", "image_url": "https://a.example/b.png"}),
        ("image/png", "file-id:file-1", {"type": "input_image", "detail": "auto", "file_id": "file-1"}),
        ("application/pdf", "file-id:file-1", {"type": "input_file", "file_id": "file-1"}),
        (
            "application/pdf",
            "data:application/pdf;base64,QUJD",
            {"type": "input_file", "filename": "file.pdf", "file_data": "data:application/pdf;base64,QUJD"},
        ),
        ("text/plain", "data:text/plain,a%20b", {"type": "input_text", "text": "a b"}),
        ("text/csv", "data:text/csv;base64,YSxi", {"type": "input_text", "text": "a,b"}),
    ],
)  # fmt: skip
def test_a_file_is_sent_in_the_way_it_is_given(mime: str, url: str, written: dict[str, Any]):
    assert items(user(FilePart(mime=mime, url=url)))[0]["content"] == [written]


def test_an_answer_goes_back_as_it_came():
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "a"},
    }
    text = message("Look.", phase="commentary")
    call = function_call('{"a": 1}', namespace="files")
    found = items(asked(REASONING, search, text, call))
    assert found[:3] == [REASONING, search, text]
    assert {**found[3], "arguments": json.loads(found[3]["arguments"])} == call | {"arguments": {"a": 1}}


def test_pieces_of_one_message_stay_one_message():
    refusal = {"type": "refusal", "refusal": "No."}
    text = message("Hm.")
    text["content"].append(refusal)
    assert items(asked(text)) == [text]


def test_two_messages_stay_two():
    assert items(asked(message("a"), message("b", id="msg_2"))) == [message("a"), message("b", id="msg_2")]


def test_an_image_goes_back_with_its_content():
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD"}
    assert items(asked(image)) == [image]


def test_a_custom_call_and_its_result_are_custom():
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": "print(1)"}
    found = items(asked(call), user(result(content="1")))
    assert found == [call, {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"}]


def test_fields_that_the_provider_left_empty_are_not_sent():
    assert items(asked(REASONING | {"status": None, "content": None})) == [REASONING]


def test_reasoning_without_content_goes_back_only_to_a_server_that_stored_it():
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer = asked(bare, message("Hi"))
    assert items(answer) == [message("Hi")]
    assert items(answer, store=True) == [bare, message("Hi")]


def test_text_and_calls_of_other_families_have_no_ids():
    other = {"anthropic": {"id": "x"}}
    found = items(
        assistant(TextPart("Hi", metadata=other), ToolUsePart(tool_id="toolu_1", tool_name="read", metadata=other))
    )
    assert found == [
        {"role": "assistant", "content": "Hi"},
        {"type": "function_call", "call_id": "toolu_1", "name": "read", "arguments": "{}"},
    ]


def test_reasoning_of_other_families_stays_at_home():
    assert items(assistant(ReasoningPart("Hm", provider_state={"family": "anthropic", "signature": "s"}))) == []


def test_an_item_that_only_this_api_knows_can_be_sent_in_its_place():
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    part = ReasoningPart("", provider_state={"family": FAMILY, "item": approval})
    found = items(user(TextPart("yes"), part, TextPart("go")))
    assert [item.get("type", item.get("role")) for item in found] == ["user", "mcp_approval_response", "user"]
