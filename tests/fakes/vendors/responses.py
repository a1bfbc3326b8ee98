"""OpenAI's Responses: its rules for a conversation, its events, its refusals."""

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import Any

from outrider.types.parts import ToolUsePart
from tests.fakes.vendors.vendor import Body, Frame, Piece, Refusal, Stop, Thought, events, halves, json_text

USAGE = {
    "input_tokens": 20,
    "output_tokens": 10,
    "total_tokens": 30,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


class ResponsesApi:
    kind = "openai-responses"
    model = "gpt-5-mini"
    path = "/v1/responses"
    base = "/v1"
    overloaded = Refusal(503, "Our servers are currently overloaded. Please try again later.", "server_error")
    overflow = Refusal(
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "context_length_exceeded",
    )

    def problem(self, body: Body) -> str | None:
        items = _items(body)
        if not items:
            return "Missing required parameter: 'input'."
        return next(chain(_pairs(items), _reasoning(items)), None)

    def refusal(self, refusal: Refusal) -> Body:
        code = refusal.type if refusal.type == "context_length_exceeded" else None
        kind = "invalid_request_error" if refusal.status == 400 else refusal.type
        return {"error": {"message": refusal.message, "type": kind, "param": "input", "code": code}}

    def streams(self, target: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def whole(self, pieces: list[Piece]) -> Body:
        return _response(pieces, [_item(piece, at) for at, piece in enumerate(_said(pieces))])

    def stream(self, pieces: list[Piece]) -> Iterator[Frame]:
        return events(_numbered(_events(pieces)))

    def results(self, body: Body) -> list[str]:
        return [_text(item["output"]) for item in _items(body) if item.get("type") == "function_call_output"]

    def texts(self, body: Body) -> list[str]:
        return [_text(item["content"]) for item in _items(body) if item.get("role") == "user"]

    def seals(self, body: Body) -> list[str]:
        return [item["encrypted_content"] for item in _items(body) if item.get("type") == "reasoning"]

    def schema(self, body: Body) -> Body | None:
        return body.get("text", {}).get("format", {}).get("schema")

    def system(self, body: Body) -> str:
        return body.get("instructions") or ""


def _said(pieces: list[Piece]) -> list[Any]:
    return [piece for piece in pieces if isinstance(piece, str | Thought | ToolUsePart)]


def _events(pieces: list[Piece]) -> Iterator[tuple[str, Body] | asyncio.Event]:
    yield _event("response.created", response=_response([], [], "in_progress"))
    items: list[Body] = []
    for piece in pieces:
        if isinstance(piece, asyncio.Event):
            yield piece
        elif not isinstance(piece, Stop):
            items.append(_item(piece, len(items)))
            yield from _item_events(items[-1], len(items) - 1)
    done = "response.incomplete" if any(isinstance(piece, Stop) for piece in pieces) else "response.completed"
    yield _event(done, response=_response(pieces, items))


def _item_events(item: Body, at: int) -> Iterator[tuple[str, Body]]:
    place = {"output_index": at, "item_id": item["id"]}
    match item:
        case {"type": "message", "content": [{"text": text}]}:
            part = {"type": "output_text", "text": "", "annotations": []}
            yield _event("response.output_item.added", output_index=at, item=item | {"content": []})
            yield _event("response.content_part.added", **place, content_index=0, part=part)
            for half in halves(text):
                yield _event("response.output_text.delta", **place, content_index=0, delta=half)
            yield _event("response.output_text.done", **place, content_index=0, text=text)
            yield _event("response.content_part.done", **place, content_index=0, part=part | {"text": text})
        case {"type": "function_call", "arguments": arguments}:
            yield _event("response.output_item.added", output_index=at, item=item | {"arguments": ""})
            for half in halves(arguments):
                yield _event("response.function_call_arguments.delta", **place, delta=half)
            yield _event("response.function_call_arguments.done", **place, arguments=arguments)
        case _:
            yield _event("response.output_item.added", output_index=at, item=item | {"summary": []})
            text = item["summary"][0]["text"]
            part = {"type": "summary_text", "text": ""}
            yield _event("response.reasoning_summary_part.added", **place, summary_index=0, part=part)
            for half in halves(text):
                yield _event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=half)
            yield _event("response.reasoning_summary_text.done", **place, summary_index=0, text=text)
            yield _event("response.reasoning_summary_part.done", **place, summary_index=0, part=part | {"text": text})
    yield _event("response.output_item.done", output_index=at, item=item)


def _event(kind: str, **fields: Any) -> tuple[str, Body]:
    return kind, {"type": kind, **fields}


def _numbered(payloads: Iterator[tuple[str, Body] | asyncio.Event]) -> Iterator[tuple[str, Body] | asyncio.Event]:
    for number, payload in enumerate(payloads):
        yield payload if isinstance(payload, asyncio.Event) else (payload[0], payload[1] | {"sequence_number": number})


def _response(pieces: list[Piece], output: list[Body], status: str = "completed") -> Body:
    cut = any(isinstance(piece, Stop) for piece in pieces)
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5-mini",
        "status": "incomplete" if cut else status,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "usage": USAGE,
    }


def _item(piece: Any, at: int) -> Body:
    match piece:
        case str():
            content = [{"type": "output_text", "text": piece, "annotations": []}]
            return {
                "type": "message",
                "id": f"msg_{at}",
                "status": "completed",
                "role": "assistant",
                "content": content,
            }
        case Thought(text, seal):
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "id": f"rs_{at}", "summary": summary, "encrypted_content": seal}
        case ToolUsePart():
            named = {"call_id": piece.tool_id, "name": piece.tool_name, "arguments": json_text(piece.tool_input)}
            return {"type": "function_call", "id": f"fc_{at}", "status": "completed", **named}
        case _:
            raise AssertionError(piece)


def _items(body: Body) -> list[Body]:
    given = body.get("input") or []
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _pairs(items: list[Body]) -> Iterator[str]:
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    for call in calls:
        if call not in outputs:
            yield f"No tool output found for function call {call}."
    for output in outputs:
        if output not in calls:
            yield f"No tool call found for function call output with call_id {output}."
    if len(set(calls)) < len(calls) or len(set(outputs)) < len(outputs):
        yield "Duplicate item found with call_id. Remove duplicate items from your input and try again."


def _reasoning(items: list[Body]) -> Iterator[str]:
    for at, item in enumerate(items):
        following = items[at + 1] if at + 1 < len(items) else {}
        by_model = following.get("role") == "assistant" or following.get("type") in ("function_call", "reasoning")
        if item.get("type") == "reasoning" and not by_model:
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(piece.get("text", "") for piece in content)
