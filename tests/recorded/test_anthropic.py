"""Recorded exchanges with the Messages API and compatible servers are decoded correctly."""

import random
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import AuthenticationError, ContextOverflowError, InvalidRequestError, NotFoundError, ProviderError
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.client import WireClient
from outrider.providers.provider import AnswerAssembler
from outrider.types.agents import Provider
from outrider.types.messages import Message
from outrider.types.parts import TextPart
from outrider.types.request import Answer, ModelMessage, Prompt, Request
from tests.recorded.exchanges import (
    Exchange,
    calls_of,
    corpus,
    differences,
    exchanges,
    load,
    read,
    reasoning_of,
    text_of,
)

APIS = ("anthropic-messages", "anthropic-compatible")
WIRE = AnthropicWire(Provider("anthropic", "anthropic", api_key="k"))
FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "refusal": "refusal",
    "compaction": "other",
    "pause_turn": "other",
}
ERRORS = {400: InvalidRequestError, 401: AuthenticationError, 404: NotFoundError}
MODEL = "claude-haiku-4-5"


def recorded(shared: Path, **choice: Any) -> list[Exchange]:
    return [exchange for api in APIS for exchange in exchanges(shared, api, **choice)]


def problems(exchange: Exchange, found: Answer | ProviderError) -> list[str]:
    expected = exchange["expected"]
    if expected["error"]:
        return error_problems(found, expected["error"])
    if isinstance(found, ProviderError):
        return [f"raised {found!r}"]
    result = {
        "text": text_of(found, "anthropic"),
        "reasoning_text": reasoning_of(found, ""),
        "tool_calls": [call_of(call) for call in calls_of(found)],
        "finish_reason": found.finish_raw,
        "finish": found.finish,
        "usage": usage_of(found),
        "response_id": found.message.metadata["response_id"],
    }
    finish = "tool_use" if expected["tool_calls"] and expected["finish_reason"] == "end_turn" else None
    wanted = expected | {
        "finish": finish or FINISHES[expected["finish_reason"]],
        "usage": {name: count or 0 for name, count in expected["usage"].items()},
    }
    return differences(result, wanted)


def error_problems(found: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(found, ERRORS[expected["status"]]):
        return [f"not the right error: {found!r}"]
    return differences({"status": found.status, "type": found.type, "message": found.message}, expected)


def call_of(call: Any) -> dict[str, Any]:
    if "input_error" in call.metadata:
        raw = {"arguments": None, "arguments_raw": call.state.raw, "arguments_invalid_json": True}
        return {"id": call.call_id, "name": call.tool, **raw}
    return {"id": call.call_id, "name": call.tool, "arguments": call.state.input}


def usage_of(answer: Answer) -> dict[str, int]:
    """Counted the API's way: thinking is part of the output."""
    tokens = answer.tokens
    return {
        "input": tokens.input,
        "output": tokens.output + tokens.reasoning,
        "reasoning": tokens.reasoning,
        "cache_read": tokens.cache.read,
        "cache_write": tokens.cache.write,
    }


def wrong(found: dict[str, list[str]]) -> str:
    """Every exchange that was read otherwise, with the differences."""
    return "\n".join(f"{name}: {'; '.join(problems)}" for name, problems in found.items() if problems)


def test_every_recorded_answer_decodes_to_the_expected_result_at_any_chunking(shared_dir: Path) -> None:
    dice = random.Random(7)
    found = {exchange["id"]: problems(exchange, read(WIRE, exchange, dice)) for exchange in recorded(shared_dir)}
    assert len(found) > 1000
    assert not wrong(found)


def test_a_stream_decodes_to_the_same_one_byte_at_a_time(shared_dir: Path) -> None:
    streams = recorded(shared_dir, streaming=True)
    found = {exchange["id"]: problems(exchange, read(WIRE, exchange, 1)) for exchange in streams}
    assert len(found) > 300
    assert not wrong(found)


def test_a_prompt_that_is_too_long_is_reported_from_other_invalid_requests(shared_dir: Path) -> None:
    refused = [x for x in recorded(shared_dir) if "too long" in str(x["expected"]["error"])]
    assert refused
    assert all(isinstance(read(WIRE, exchange), ContextOverflowError) for exchange in refused)


def test_signatures_citations_and_blocks_of_the_provider_are_all_preserved(shared_dir: Path) -> None:
    signed = cited = 0
    for exchange in recorded(shared_dir):
        expected, found = exchange["expected"], read(WIRE, exchange)
        if isinstance(found, Answer):
            stored = stored_fields(found.message)
            signed, cited = signed + bool(stored["signatures"]), cited + bool(stored["citations"])
            assert stored["signatures"] == expected.get("signatures", 0), exchange["id"]
            assert bool(stored["citations"]) == bool(expected.get("citations")), exchange["id"]
            assert stored["server_tools"] == expected.get("server_tools", []), exchange["id"]
    assert signed > 80
    assert cited > 25


def stored_fields(message: Message) -> dict[str, Any]:
    states = [part.provider_state for part in message.parts if part.type == "reasoning"]
    blocks = [state["block"] for state in states if "block" in state]
    texts = [part for part in message.parts if isinstance(part, TextPart)]
    return {
        "signatures": sum("signature" in state for state in states),
        "citations": [part for part in texts if any("citations" in fields for fields in part.metadata.values())],
        "server_tools": [block["type"] for block in blocks if block["type"] != "redacted_thinking"],
    }


@pytest.fixture(scope="module")
def server(shared_dir: Path) -> Any:
    with load(shared_dir, "replay_server").ReplayServer(corpus(shared_dir)).thread() as running:
        yield running


def provider_for(url: str, exchange: Exchange) -> Provider:
    if "vertex" not in exchange["api"]:
        return Provider("replayed", "anthropic", api_key="k", base_url=url)
    options = {"project": "PROJECT", "region": "us-east5"}
    return Provider("replayed", "anthropic", api_key="k", base_url=f"{url}/v1", options=options)


async def ask(exchange: Exchange, url: str) -> Answer | ProviderError:
    client = WireClient("replayed", AnthropicWire(provider_for(url, exchange)))
    prompt = Prompt([ModelMessage("user", (TextPart("hi"),))])
    assembler = AnswerAssembler(client.model_family(MODEL))
    try:
        async for delta in client.stream(Request(MODEL, prompt, stream=exchange["streaming"])):
            assembler.add(delta)
    except ProviderError as error:
        return error
    finally:
        await client.aclose()
    return assembler.build_answer()


async def test_answers_come_through_a_real_connection_unchanged(shared_dir: Path, server: Any) -> None:
    found: dict[str, list[str]] = {}
    for number, exchange in enumerate(recorded(shared_dir)):
        url = server.url(exchange["id"], mode="x", session=f"w{number}", chunk=f"random:{number}:400")
        found[exchange["id"]] = problems(exchange, await ask(exchange, url))
    assert len(found) > 1000
    assert not wrong(found)


async def test_what_we_read_is_what_the_vendors_own_client_reads(shared_dir: Path, server: Any) -> None:
    sdk = pytest.importorskip("anthropic")
    compared = 0
    for exchange in recorded(shared_dir, streaming=True)[::6]:
        if (
            exchange["api"] != "anthropic-messages"
            or not exchange["expected_checked_by_sdk"]
            or exchange["expected"]["error"]
        ):
            continue
        url = server.url(exchange["id"], mode="x", session="sdk")
        ours = await ask(exchange, url)
        async with sdk.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            async with client.beta.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
                theirs = await stream.get_final_message()
        assert isinstance(ours, Answer), exchange["id"]
        assert sent_blocks(ours.message) == [plain(block) for block in theirs.content], exchange["id"]
        assert ours.finish_raw == theirs.stop_reason
        compared += 1
    assert compared > 50


def sent_blocks(message: Message) -> list[dict[str, Any]]:
    return [plain(part.to_api_format()) for part in message.parts]


def plain(block: Any) -> dict[str, Any]:
    """Returns a block as a dict without empty fields. The SDK parses blocks of the provider into separate types, so
    only kind and id of these are compared."""
    fields = block if isinstance(block, dict) else block.model_dump(mode="json", exclude_unset=True)
    if fields["type"] in ("text", "thinking", "tool_use"):
        return {name: value for name, value in fields.items() if value is not None and name != "caller"}
    return {name: fields[name] for name in ("type", "id", "tool_use_id", "data") if name in fields}
