"""Anthropic's Messages API: its rules for a conversation, its events, its refusals."""

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import Any

from outrider.types.parts import ToolUsePart
from tests.fakes.vendors.vendor import Body, Frame, Piece, Refusal, Searched, Stop, Thought, events, halves, json_text

USAGE = {"input_tokens": 20, "output_tokens": 10}


class AnthropicApi:
    kind = "anthropic"
    model = "claude-sonnet-4-5"
    path = "/v1/messages"
    base = ""
    overloaded = Refusal(529, "Overloaded", "overloaded_error")
    overflow = Refusal(400, "prompt is too long: 214112 tokens > 200000 maximum", "invalid_request_error")

    def problem(self, body: Body) -> str | None:
        if "max_tokens" not in body:
            return "max_tokens: Field required"
        messages = body.get("messages") or []
        if not messages:
            return "messages: at least one message is required"
        if messages[0]["role"] != "user":
            return 'messages: first message must use the "user" role'
        return next(chain(_contents(messages), _pairs(_merged(messages))), None)

    def refusal(self, refusal: Refusal) -> Body:
        kind = refusal.type or "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": refusal.message}, "request_id": "req_1"}

    def streams(self, target: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def whole(self, pieces: list[Piece]) -> Body:
        blocks = [_block(piece) for piece in pieces if isinstance(piece, str | Thought | ToolUsePart | Searched)]
        return _message() | {"content": blocks, "stop_reason": _stop(pieces), "usage": USAGE}

    def stream(self, pieces: list[Piece]) -> Iterator[Frame]:
        return events(_events(pieces))

    def results(self, body: Body) -> list[str]:
        return [_text(block.get("content", "")) for block in _blocks(body) if block["type"] == "tool_result"]

    def texts(self, body: Body) -> list[str]:
        return [block["text"] for block in _blocks(body, "user") if block["type"] == "text"]

    def seals(self, body: Body) -> list[str]:
        return [block["signature"] for block in _blocks(body) if block["type"] == "thinking"]

    def schema(self, body: Body) -> Body | None:
        return body.get("output_config", {}).get("format", {}).get("schema")

    def system(self, body: Body) -> str:
        return _text(body.get("system", ""))


def _events(pieces: list[Piece]) -> Iterator[tuple[str, Body] | asyncio.Event]:
    yield "message_start", {"type": "message_start", "message": _message() | {"content": [], "usage": USAGE}}
    yield "ping", {"type": "ping"}
    index = -1
    for piece in pieces:
        if isinstance(piece, asyncio.Event):
            yield piece
        if isinstance(piece, asyncio.Event | Stop):
            continue
        index += 1
        block = _block(piece)
        empty: Body = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        start = block | empty.get(block["type"], {"input": {}})
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": start}
        for delta in _deltas(block):
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": _stop(pieces), "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 10}}
    yield "message_stop", {"type": "message_stop"}


def _deltas(block: Body) -> Iterator[Body]:
    match block:
        case {"type": "text", "text": text}:
            yield from ({"type": "text_delta", "text": half} for half in halves(text))
        case {"type": "thinking", "thinking": text, "signature": seal}:
            yield from ({"type": "thinking_delta", "thinking": half} for half in halves(text))
            yield {"type": "signature_delta", "signature": seal}
        case {"input": given}:
            yield from ({"type": "input_json_delta", "partial_json": half} for half in halves(json_text(given)))


def _block(piece: Any) -> Body:
    match piece:
        case str():
            return {"type": "text", "text": piece}
        case Thought(text, seal):
            return {"type": "thinking", "thinking": text, "signature": seal}
        case ToolUsePart():
            return {"type": "tool_use", "id": piece.tool_id, "name": piece.tool_name, "input": piece.tool_input}
        case Searched(query):
            return {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": query}}
        case _:
            raise AssertionError(piece)


def _message() -> Body:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_sequence": None}


def _stop(pieces: list[Piece]) -> str:
    if any(isinstance(piece, Stop) for piece in pieces):
        return "max_tokens"
    if any(isinstance(piece, Searched) for piece in pieces):
        return "pause_turn"
    return "tool_use" if any(isinstance(piece, ToolUsePart) for piece in pieces) else "end_turn"


def _contents(messages: list[Body]) -> Iterator[str]:
    for at, message in enumerate(messages):
        if not message["content"]:
            yield f"messages.{at}: all messages must have non-empty content except for the optional final assistant one"
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "text" and not block["text"].strip():
                yield "messages: text content blocks must contain non-whitespace text"
            if block.get("is_error") and not isinstance(block["content"], str):
                yield f"messages.{at}: all content must be type `text` if `is_error` is true"


def _merged(messages: list[Body]) -> list[tuple[str, list[Body]]]:
    """The API takes neighbours of one role for one message."""
    merged: list[tuple[str, list[Body]]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], list(blocks)))
    return merged


def _pairs(messages: list[tuple[str, list[Body]]]) -> Iterator[str]:
    asked: list[str] = []
    seen: set[str] = set()
    for at, (_, blocks) in enumerate([*messages, ("user", [])]):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        for missing in (use for use in asked if use not in results):
            yield (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{missing}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )
        for orphan in (result for result in results if result not in asked):
            yield (
                f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {orphan}. Each"
                " `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if len(set(results)) < len(results):
            yield f"messages.{at}: each tool_use must have a single result"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(asked)) < len(asked) or seen & set(asked):
            yield f"messages.{at}.content: `tool_use` ids must be unique"
        seen |= set(asked)


def _blocks(body: Body, *roles: str) -> Iterator[Body]:
    for role, blocks in _merged(body["messages"]):
        if not roles or role in roles:
            yield from blocks


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
