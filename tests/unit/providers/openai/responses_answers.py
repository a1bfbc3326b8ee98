"""Answers of the Responses API, made manually, and how they are read."""

import json
from collections.abc import Iterable
from typing import Any

from outrider.providers.openai.responses_client import FAMILY
from outrider.providers.openai.responses_decode import ResponsesDecoder
from outrider.providers.provider import AnswerAssembler
from outrider.types.request import Answer, Delta

Fields = dict[str, Any]


def event(kind: str, **fields: Any) -> Fields:
    return {"type": f"response.{kind}", **fields}


def created() -> Fields:
    return event("created", response={"id": "resp_1", "model": "gpt-x", "status": "in_progress"})


def completed(*output: Fields, **fields: Any) -> Fields:
    return event("completed", response={"id": "resp_1", "status": "completed", "output": list(output), **fields})


def message(text: str, **fields: Any) -> Fields:
    piece = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [piece], **fields}


def function_call(arguments: str, **fields: Any) -> Fields:
    return {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "read",
        "arguments": arguments,
        **fields,
    }


def fed(decoder: ResponsesDecoder, events: Iterable[Fields]) -> list[Delta]:
    return [delta for value in events for delta in decoder.feed("", json.dumps(value).encode())]


def streamed(*events: Fields) -> Answer:
    decoder = ResponsesDecoder()
    deltas = [*fed(decoder, events), *decoder.close()]
    return folded(deltas)


def whole(response: Fields) -> Answer:
    return folded(ResponsesDecoder().decode_body(json.dumps(response).encode()))


def folded(deltas: Iterable[Delta]) -> Answer:
    assembler = AnswerAssembler(FAMILY)
    for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()
