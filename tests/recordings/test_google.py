"""Real exchanges with Gemini, on the developer API and on Vertex: what they say is what we read."""

import random
from pathlib import Path
from typing import Any

from outrider.errors import ProviderError
from outrider.providers.google.parts import MADE_UP
from outrider.providers.google.wire import FAMILY, GoogleWire
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
    text_of,
)

WIRE = GoogleWire(Provider("google", "google", api_key="k"))
FINISHES = {"STOP": "stop", "1": "stop", "MAX_TOKENS": "length", "2": "length", "SAFETY": "refusal"}


def problems(exchange: Exchange, size: int | random.Random = 65536) -> list[str]:
    found, expected = read(WIRE, exchange, size), exchange["expected"]
    if expected["error"]:
        return error_problems(found, expected["error"])
    if isinstance(found, ProviderError):
        return [f"raised {found!r}"]
    told = {
        "text": text_of(found, FAMILY),
        "reasoning_text": reasoning_of(found, ""),
        "tool_calls": [
            {
                "id": None if call.call_id.startswith(MADE_UP) else call.call_id,
                "name": call.tool,
                "arguments": call.state.input,
            }
            for call in calls_of(found)
        ],
        "finish_reason": found.finish_raw,
        "finish": found.finish,
        "usage": usage_of(found, expected["usage"]),
        "images_out": len(files_of(found)),
        "signatures": signatures_of(found),
    }
    wanted = {"images_out": 0, "signatures": 0} | expected
    wanted["finish_reason"] = str(expected["finish_reason"])
    wanted["finish"] = "tool_use" if expected["tool_calls"] else FINISHES[wanted["finish_reason"]]
    return differences(told, wanted)


def error_problems(found: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(found, ProviderError):
        return ["no error"]
    return differences({"message": found.message, "type": found.type, "status": found.status}, expected)


def usage_of(answer: Answer, expected: dict[str, Any]) -> dict[str, Any]:
    """Our counts in Gemini's way of counting, where the prompt includes what a cache gave but not what Google's own
    tools read; what it did not tell is None there and nothing here."""
    tokens = answer.tokens
    told = {
        "input": tokens.prompt - (expected.get("tool_use_prompt") or 0),
        "output": tokens.output,
        "reasoning": tokens.reasoning,
        "cache_read": tokens.cache.read,
        "cache_write": tokens.cache.write,
        "tool_use_prompt": expected.get("tool_use_prompt"),
    }
    return {name: None if expected[name] is None and not told[name] else told[name] for name in expected}


def signatures_of(answer: Answer) -> int:
    count = 0
    for part in answer.message.parts:
        state = getattr(part, "provider_state", None) or part.metadata.get(FAMILY, {})
        count += "thought_signature" in state or "thoughtSignature" in state.get("part", {})
    return count


def failures(found: list[Exchange], size: Any) -> dict[str, list[str]]:
    return {exchange["id"]: wrong for exchange in found if (wrong := problems(exchange, size))}


def test_every_exchange_says_what_is_expected_at_random_chunking(shared_dir: Path):
    found = list(exchanges(shared_dir, "gemini"))
    assert len(found) > 900
    assert not failures(found, random.Random(7))


def test_an_exchange_says_the_same_one_byte_at_a_time(shared_dir: Path):
    streamed = list(exchanges(shared_dir, "gemini", streaming=True))
    assert not failures(random.Random(11).sample(streamed, 40), 1)
