"""Builds chat responses and decodes them."""

import json
from typing import Any

from outrider.errors import ProviderError
from outrider.providers.openai.chat_decode import ChatDecoder
from outrider.providers.provider import AnswerAssembler
from outrider.types.parts import ReasoningPart, TextPart, ToolPart
from outrider.types.request import Answer, Delta

FAMILY = "openai-chat/test"
DONE = "[DONE]"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **rest: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **rest}


def call(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    """A chunk with a piece of a call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {key: value for key, value in (("index", index), ("id", id), ("function", function)) if value is not None}
    return chunk({"tool_calls": [piece]})


def stream(*events: Any) -> list[Delta]:
    """The deltas of a stream that ends with its connection."""
    decoder = ChatDecoder()
    found: list[Delta] = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        found += decoder.feed("", data.encode())
    return [*found, *decoder.close()]


def answer(deltas: list[Delta]) -> Answer:
    assembler = AnswerAssembler(FAMILY)
    for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()


def streamed(*events: Any) -> Answer:
    return answer(stream(*events))


def whole(message: dict[str, Any], finish: str | None = "stop", **rest: Any) -> Answer:
    body = {"id": "c1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **rest}
    return answer(list(ChatDecoder().decode_body(json.dumps(body).encode())))


def partial_answer(*events: Any) -> tuple[Answer, ProviderError | None]:
    """What arrived before the stream broke, and how it broke."""
    decoder, assembler = ChatDecoder(), AnswerAssembler(FAMILY)
    try:
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            for delta in decoder.feed("", data.encode()):
                assembler.add(delta)
        for delta in decoder.close():
            assembler.add(delta)
    except ProviderError as error:
        return assembler.build_answer(), error
    return assembler.build_answer(), None


def text(found: Answer) -> str:
    return "".join(part.text for part in found.message.get_parts_by_type(TextPart))


def reasoning(found: Answer) -> str:
    return "".join(part.text for part in found.message.get_parts_by_type(ReasoningPart))


def calls(found: Answer) -> list[tuple[str, str, dict[str, Any]]]:
    return [(part.call_id, part.tool, part.state.input) for part in found.message.get_parts_by_type(ToolPart)]
