"""Streams of the Messages API, written manually."""

import json
from collections.abc import Iterable
from typing import Any

from outrider.providers.anthropic.decode import AnthropicDecoder
from outrider.providers.provider import AnswerAssembler
from outrider.types.request import Answer, Delta

Event = dict[str, Any]


def message_start(**usage: Any) -> Event:
    return {"type": "message_start", "message": {"id": "msg_1", "model": "claude-x", "content": [], "usage": usage}}


def start(index: int, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def piece(index: int, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def end(reason: str | None = "end_turn", **usage: Any) -> list[Event]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]


def text(index: int, *pieces: str) -> list[Event]:
    deltas = [piece(index, "text_delta", text=one) for one in pieces]
    return [start(index, "text", text=""), *deltas, stop(index)]


def call(index: int, *pieces: str, id: str = "toolu_1", name: str = "read", **fields: Any) -> list[Event]:
    deltas = [piece(index, "input_json_delta", partial_json=one) for one in pieces]
    return [start(index, "tool_use", id=id, name=name, input={}, **fields), *deltas, stop(index)]


def read(events: Iterable[Event | bytes], *, close: bool = True) -> list[Delta]:
    decoder = AnthropicDecoder()
    found: list[Delta] = []
    for event in events:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        found += decoder.feed("", data)
    return [*found, *decoder.close()] if close else found


def folded(deltas: Iterable[Delta]) -> Answer:
    assembler = AnswerAssembler("anthropic")
    for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()


def answered(*events: Event | bytes | list[Event]) -> Answer:
    flat = [one for event in events for one in (event if isinstance(event, list) else [event])]
    return folded(read(flat))
