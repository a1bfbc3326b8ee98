"""OpenAI's Chat Completions: its rules for a conversation, its chunks, its refusals."""

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import Any

from outrider.types.parts import ToolUsePart
from tests.fakes.vendors.vendor import Body, Frame, Piece, Refusal, Stop, events, halves, json_text

USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


class ChatApi:
    kind = "openai"
    model = "gpt-4.1"
    path = "/v1/chat/completions"
    base = "/v1"
    overloaded = Refusal(503, "The engine is currently overloaded, please try again later", "server_error")
    overflow = Refusal(
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 131415 tokens. "
        "Please reduce the length of the messages.",
        "context_length_exceeded",
    )

    def problem(self, body: Body) -> str | None:
        messages = body.get("messages") or []
        if not any(message["role"] != "system" for message in messages):
            return "[] is too short - 'messages'"
        return next(chain(_roles(messages), _pairs(messages)), None)

    def refusal(self, refusal: Refusal) -> Body:
        code = refusal.type if refusal.type == "context_length_exceeded" else None
        kind = "invalid_request_error" if refusal.status == 400 else refusal.type
        return {"error": {"message": refusal.message, "type": kind, "param": "messages", "code": code}}

    def streams(self, target: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def whole(self, pieces: list[Piece]) -> Body:
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = [_call(piece) for piece in pieces if isinstance(piece, ToolUsePart)]
        message = {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})
        choice = {"index": 0, "message": message, "finish_reason": _finish(pieces)}
        return _head("chat.completion") | {"choices": [choice], "usage": USAGE}

    def stream(self, pieces: list[Piece]) -> Iterator[Frame]:
        yield from events(_chunks(pieces))
        yield b"data: [DONE]\n\n"

    def results(self, body: Body) -> list[str]:
        return [_text(message["content"]) for message in body["messages"] if message["role"] == "tool"]

    def texts(self, body: Body) -> list[str]:
        return [_text(message["content"]) for message in body["messages"] if message["role"] == "user"]

    def seals(self, body: Body) -> list[str]:
        return []

    def schema(self, body: Body) -> Body | None:
        return body.get("response_format", {}).get("json_schema", {}).get("schema")

    def system(self, body: Body) -> str:
        return "".join(_text(m["content"]) for m in body["messages"] if m["role"] in ("system", "developer"))


def _chunks(pieces: list[Piece]) -> Iterator[tuple[str, Body] | asyncio.Event]:
    yield "", _chunk({"role": "assistant", "content": ""})
    calls = 0
    for piece in pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case str():
                yield from (("", _chunk({"content": half})) for half in halves(piece))
            case ToolUsePart():
                call = _call(piece)
                start = call | {"index": calls, "function": call["function"] | {"arguments": ""}}
                yield "", _chunk({"tool_calls": [start]})
                for half in halves(call["function"]["arguments"]):
                    yield "", _chunk({"tool_calls": [{"index": calls, "function": {"arguments": half}}]})
                calls += 1
            case _:
                pass
    yield "", _chunk({}, _finish(pieces))
    yield "", _head("chat.completion.chunk") | {"choices": [], "usage": USAGE}


def _chunk(delta: Body, finish: str | None = None) -> Body:
    return _head("chat.completion.chunk") | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _head(kind: str) -> Body:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "gpt-4.1"}


def _call(use: ToolUsePart) -> Body:
    function = {"name": use.tool_name, "arguments": json_text(use.tool_input)}
    return {"id": use.tool_id, "type": "function", "function": function}


def _finish(pieces: list[Piece]) -> str:
    if any(isinstance(piece, Stop) for piece in pieces):
        return "length"
    return "tool_calls" if any(isinstance(piece, ToolUsePart) for piece in pieces) else "stop"


def _roles(messages: list[Body]) -> Iterator[str]:
    for at, message in enumerate(messages):
        empty = message.get("content") in (None, "", []) and not message.get("tool_calls")
        if empty:
            yield f"Invalid value for 'content': expected a string, got null. messages.[{at}].content"


def _pairs(messages: list[Body]) -> Iterator[str]:
    open_calls: list[str] = []
    for at, message in enumerate([*messages, {"role": "user"}]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            else:
                open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: " + ", ".join(open_calls)
            )
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_calls)) < len(open_calls):
            yield f"Duplicate value for 'tool_call_id' in messages.[{at}]"


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content or ())
