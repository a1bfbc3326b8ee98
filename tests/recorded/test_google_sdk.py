"""Compares with Google's SDK: its types validate our requests, and its parser must read the same from responses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ProviderError
from outrider.providers.client import WireClient
from outrider.providers.google.client import FAMILY, GoogleWire
from outrider.providers.provider import AnswerAssembler
from outrider.types.agents import Provider
from outrider.types.parts import TextPart
from outrider.types.request import Answer, ModelMessage, Prompt, Request, RetryPolicy
from tests.recorded.exchanges import Exchange, calls_of, corpus, exchanges, load, reasoning_of, text_of
from tests.recorded.google_requests import atoms, camel, messages_of, request_of, settings_meaning
from tests.recorded.test_google import WIRE, first_difference, model_of, problems


@pytest.fixture(scope="module")
def server(shared_dir: Path) -> Any:
    with load(shared_dir, "replay_server").ReplayServer(corpus(shared_dir)).thread() as running:
        yield running


@pytest.fixture(scope="module")
def sdk() -> Any:
    pytest.importorskip("google.genai")
    from google import genai

    return genai


def written(shared: Path) -> Iterator[tuple[Exchange, dict[str, Any], dict[str, Any]]]:
    """Every request that was accepted, as it was and as we write it."""
    for exchange in exchanges(shared, "gemini"):
        if exchange["response"]["status"] == 200 and exchange["request"]["body"]:
            body = camel(exchange["request"]["body"])
            messages = messages_of(body["contents"], FAMILY)
            request = request_of(body, model_of(exchange), messages, stream=exchange["streaming"])
            yield exchange, body, json.loads(WIRE.build_request(request).body)


def test_every_accepted_request_is_written_with_the_same_meaning(shared_dir: Path):
    wrong: dict[str, str] = {}
    count = 0
    for exchange, body, ours in written(shared_dir):
        found, wanted = atoms(ours["contents"]), atoms(body["contents"])
        if found != wanted:
            wrong[exchange["id"]] = first_difference(found, wanted)
        elif settings_meaning(ours) != settings_meaning(body):
            wrong[exchange["id"]] = f"{settings_meaning(ours)} is not {settings_meaning(body)}"
        count += 1
    assert count > 800
    assert not wrong


def test_requests_are_valid_by_the_vendors_own_types(shared_dir: Path, sdk: Any):
    known = {
        "contents",
        "systemInstruction",
        "tools",
        "toolConfig",
        "generationConfig",
        "safetySettings",
        "cachedContent",
    }
    count = 0
    for exchange, _, ours in written(shared_dir):
        validate(ours, sdk.types)
        assert ours.keys() <= known | {"model"}, exchange["id"]
        count += 1
    assert count > 800


def validate(body: dict[str, Any], types: Any) -> None:
    for content in body["contents"]:
        types.Content.model_validate(content)
    for tool in body.get("tools", []):
        types.Tool.model_validate(tool)
    types.Content.model_validate(body.get("systemInstruction", {}))
    types.ToolConfig.model_validate(body.get("toolConfig", {}))
    config = {name: value for name, value in body.get("generationConfig", {}).items() if name != "imageConfig"}
    types.GenerationConfig.model_validate(config)  # which lacks the one field that is left out here


def test_the_judge_of_types_finds_a_wrong_field(sdk: Any):
    with pytest.raises(ValueError, match="txt"):
        validate({"contents": [{"role": "user", "parts": [{"txt": "a"}]}]}, sdk.types)


async def ask(exchange: Exchange, url: str) -> Answer | ProviderError:
    assembler = AnswerAssembler(FAMILY)
    try:
        await follow(exchange, url, assembler)
    except ProviderError as error:
        return error
    return assembler.build_answer()


async def follow(exchange: Exchange, url: str, assembler: AnswerAssembler) -> None:
    provider = Provider("r", "google", api_key="k", base_url=url)
    client = WireClient("replayed", GoogleWire(provider), retry=RetryPolicy(attempts=1))
    prompt = Prompt([ModelMessage("user", (TextPart("hi"),))])
    try:
        async for delta in client.stream(Request("m", prompt, stream="stream" in exchange["request"]["path"])):
            assembler.add(delta)
    finally:
        await client.aclose()


async def test_answers_come_through_a_real_connection_unchanged(shared_dir: Path, server: Any):
    wrong: dict[str, list[str]] = {}
    for number, exchange in enumerate(exchanges(shared_dir, "gemini")):
        url = server.url(exchange["id"], mode="x", session=f"w{number}", chunk=f"random:{number}:2000")
        if found := problems(exchange, await ask(exchange, url)):
            wrong[exchange["id"]] = found
    assert not wrong


async def test_an_answer_that_was_cut_is_never_reported_as_complete_and_has_what_arrived(shared_dir: Path, server: Any):
    streamed = [exchange for exchange in exchanges(shared_dir, "gemini", streaming=True) if exchange["streaming"]]
    for number, exchange in enumerate(streamed[::4]):
        assembler = AnswerAssembler(FAMILY)
        with pytest.raises(ProviderError) as failure:
            await follow(exchange, server.url(exchange["id"], mode="x", session=f"cut{number}", end="60%"), assembler)
        assert failure.value.retryable or exchange["expected"]["error"], exchange["id"]
        assert exchange["expected"]["text"].startswith(text_of(assembler.build_answer(), FAMILY)), exchange["id"]


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")  # the client's own affair
async def test_what_we_read_is_what_the_vendors_own_client_reads(shared_dir: Path, server: Any, sdk: Any):
    compared = 0
    client = sdk.Client(api_key="k")
    for exchange in list(exchanges(shared_dir, "gemini"))[::8]:
        if not exchange["expected_checked_by_sdk"] or exchange["expected"]["error"]:
            continue
        url = server.url(exchange["id"], mode="x", session="sdk")
        ours = await ask(exchange, url)
        options = sdk.types.GenerateContentConfig(http_options=sdk.types.HttpOptions(base_url=f"{url}/"))
        theirs = await read_by_sdk(client, options, streaming=exchange["streaming"])
        assert isinstance(ours, Answer), exchange["id"]
        assert summary(ours) == summary_of_sdk(theirs), exchange["id"]
        compared += 1
    await client.aio.aclose()
    client.close()
    assert compared > 100


async def read_by_sdk(client: Any, options: Any, *, streaming: bool) -> list[Any]:
    asked = {"model": "m", "contents": "hi", "config": options}
    if not streaming:
        return [await client.aio.models.generate_content(**asked)]
    return [chunk async for chunk in await client.aio.models.generate_content_stream(**asked)]


def summary(answer: Answer) -> dict[str, Any]:
    return {
        "text": text_of(answer, FAMILY),
        "thoughts": reasoning_of(answer, ""),
        "calls": [(call.tool, call.state.input) for call in calls_of(answer)],
        "output": [answer.tokens.output, answer.tokens.reasoning, answer.tokens.cache.read],
        "total": answer.tokens.total,
        "finish": answer.finish_raw,
    }


def summary_of_sdk(chunks: list[Any]) -> dict[str, Any]:
    candidates = [chunk.candidates[0] for chunk in chunks if chunk.candidates]
    parts = [part for found in candidates if found.content for part in found.content.parts or []]
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata][-1]
    counts = [usage.candidates_token_count, usage.thoughts_token_count, usage.cached_content_token_count]
    return {
        "text": "".join(part.text for part in parts if part.text and not part.thought),
        "thoughts": "".join(part.text for part in parts if part.text and part.thought),
        "calls": [(part.function_call.name, part.function_call.args or {}) for part in parts if part.function_call],
        "output": [count or 0 for count in counts],
        "total": usage.total_token_count,
        "finish": [found.finish_reason for found in candidates if found.finish_reason][-1].value,
    }
