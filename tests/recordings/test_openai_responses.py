"""Real exchanges with the Responses API and the servers compatible with it: what they say is what we read."""

import random
from pathlib import Path
from typing import Any

from outrider.errors import ProviderError
from outrider.providers.openai.responses.wire import FAMILY, ResponsesWire
from outrider.types.agents import Provider
from outrider.types.stream import Answer
from tests.recordings.exchanges import (
    Exchange,
    calls_of,
    differences,
    exchanges,
    files_of,
    read,
    reasoning_of,
    refusal_of,
    text_of,
)

APIS = ("openai-responses", "openai-responses-compatible")
WIRE = ResponsesWire(Provider("openai", "openai-responses", api_key="k"))
FINISHES = {
    "completed": ("stop", "tool_use", "refusal"),
    "incomplete:max_output_tokens": ("length",),
    "queued": ("other",),
}


def recorded(shared: Path) -> list[Exchange]:
    return [exchange for api in APIS for exchange in exchanges(shared, api)]


def problems(exchange: Exchange, size: int | random.Random = 65536) -> list[str]:
    found, expected = read(WIRE, exchange, size), exchange["expected"]
    if expected["error"]:
        return error_problems(found, expected["error"])
    if isinstance(found, ProviderError):
        return [f"raised {found!r}"]
    told = {
        "text": text_of(found, FAMILY),
        "refusal": refusal_of(found, FAMILY),
        "reasoning_text": reasoning_of(found, "\n\n"),
        "tool_calls": [call_of(call) for call in calls_of(found)],
        "finish_reason": found.finish_raw,
        "usage": usage_of(found, expected["usage"]),
        "images_out": len(files_of(found)),
    }
    wanted = {"refusal": None, "images_out": 0} | expected
    wanted["tool_calls"] = [expected_call(call) for call in expected["tool_calls"]]
    return differences(told, wanted) + finish_problems(found, wanted)


def error_problems(found: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(found, ProviderError):
        return ["no error"]
    told = {"message": found.message, "type": found.type if expected["type"] else None}
    if not expected.get("midstream"):
        told["status"] = found.status
    return differences(told, expected)


def finish_problems(found: Answer, expected: dict[str, Any]) -> list[str]:
    if expected["tool_calls"] and found.finish_raw == "completed":
        allowed: tuple[str, ...] = ("tool_use",)
    elif expected["refusal"]:
        allowed = ("refusal",)
    else:
        allowed = {"completed": ("stop",)}.get(found.finish_raw) or FINISHES[found.finish_raw]
    return [] if found.finish in allowed else [f"finish: {found.finish} is not {allowed}"]


def call_of(call: Any) -> dict[str, Any]:
    own = call.metadata.get(FAMILY, {})
    if own.get("custom"):
        return {"id": call.call_id, "name": call.tool, "input": call.state.input["input"], "type": "custom"}
    return {
        "id": call.call_id,
        "name": call.tool,
        "input": None if "input_error" in call.metadata else call.state.input,
        "raw": call.state.raw,
        "item_id": own.get("id"),
    }


def expected_call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type") == "custom":
        return {"id": call["id"], "name": call["name"], "input": call["arguments_raw"], "type": "custom"}
    named = {"id": call["id"], "name": call["name"], "item_id": call["item_id"]}
    return named | {"input": call["arguments"], "raw": call["arguments_raw"]}


def usage_of(answer: Answer, expected: dict[str, Any] | None) -> dict[str, Any] | None:
    """Our counts in this API's way of counting; what it did not tell is None there and nothing here."""
    tokens = answer.tokens
    if not expected:
        return None if tokens.total == 0 else {"total": tokens.total}
    told = {
        "input": tokens.prompt,
        "output": tokens.output + tokens.reasoning,
        "reasoning": tokens.reasoning,
        "cache_read": tokens.cache.read,
        "cache_write": tokens.cache.write,
    }
    return {name: None if expected[name] is None and not told[name] else told[name] for name in expected}


def failures(found: list[Exchange], size: Any) -> dict[str, list[str]]:
    return {exchange["id"]: wrong for exchange in found if (wrong := problems(exchange, size))}


def test_every_exchange_says_what_is_expected_at_random_chunking(shared_dir: Path):
    found = recorded(shared_dir)
    assert len(found) > 1000
    assert not failures(found, random.Random(7))


def test_an_exchange_says_the_same_one_byte_at_a_time(shared_dir: Path):
    streamed = [exchange for exchange in recorded(shared_dir) if exchange["streaming"]]
    sample = random.Random(11).sample(streamed, 40)
    assert not failures(sample, 1)
