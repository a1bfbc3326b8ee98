"""Preparing turn n: the time for lowering and encoding must not grow with the history, except for copying bytes."""

import time

from benchmarks.figure import Figure
from outrider import Message, ModelSettings, Provider, Request, TextPart, ToolPart, ToolPending, ToolSpec
from outrider.context.lower import PromptProjection
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.provider import WireFormat

TURNS = 1_000
WINDOW = 10
KILOBYTE = "lorem ipsum dolor sit amet, " * 36
TOOLS = (ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)


def bench() -> list[Figure]:
    bytes(8_000_000)  # after the allocator has freed a large block once, it reuses such blocks
    figures: list[Figure] = []
    for name, wire in wires().items():
        early, late, copy = prepare(wire)
        ratio = (late - copy) / early
        figures += [
            Figure(f"prepare turn 10, {name}", early * 1e6, "µs"),
            Figure(f"copy the bytes of turn 1,000, {name}", copy * 1e6, "µs"),
            Figure(f"prepare turn 1,000 less the copy / turn 10, {name}", late * 1e6, "µs", ratio, "<= 3x", ratio <= 3),
        ]
    return figures


def wires() -> dict[str, WireFormat]:
    return {
        "anthropic": AnthropicWire(Provider("a", "anthropic", api_key="none")),
        "openai chat": ChatWire(Provider("o", "openai", api_key="none")),
    }


def prepare(wire: WireFormat) -> tuple[float, float, float]:
    """Seconds for a turn around turn 10 and around turn 1,000, and for copying the latter's bytes."""
    family = wire.model_family("claude-sonnet-4-5")
    projection = PromptProjection(family)
    history = [Message("user", [TextPart(KILOBYTE)])]
    times: list[float] = []
    body = b""
    for turn in range(TURNS + WINDOW):
        start = time.perf_counter()
        prompt = projection.prompt(history)
        body = wire.build_request(
            Request("claude-sonnet-4-5", prompt, "Be brief.", TOOLS, ModelSettings(max_output_tokens=1000))
        ).body
        times.append(time.perf_counter() - start)
        history.append(step(turn))
    return min(times[10 : 10 + WINDOW]), min(times[TURNS : TURNS + WINDOW]), min(copied(body) for _ in range(WINDOW))


def copied(body: bytes) -> float:
    start = time.perf_counter()
    b"".join((b"{", body, b"}"))
    return time.perf_counter() - start


def step(turn: int) -> Message:
    running = ToolPending({"path": f"file{turn}"}, phase="ready").start(1)
    return Message("assistant", [TextPart(KILOBYTE), ToolPart(f"call_{turn}", "read", running.complete(KILOBYTE, 2))])
