"""Compares with OpenAI's SDK: its types validate our requests, and its parser must read the same from responses."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ProviderError
from outrider.providers.client import WireClient
from outrider.providers.openai.responses_client import FAMILY, ResponsesWire
from outrider.providers.provider import AnswerAssembler
from outrider.types.agents import Provider
from outrider.types.parts import TextPart
from outrider.types.request import Answer, ModelMessage, Prompt, Request, RetryPolicy
from tests.recorded.exchanges import Exchange, calls_of, corpus, load, refusal_of, text_of
from tests.recorded.responses_requests import (
    CALLS,
    Fields,
    atoms,
    is_function,
    items_of,
    messages_of,
    request_of,
    settings_meaning,
)
from tests.recorded.test_openai_responses import WIRE, first_difference, problems, recorded


@pytest.fixture(scope="module")
def server(shared_dir: Path) -> Any:
    with load(shared_dir, "replay_server").ReplayServer(corpus(shared_dir)).thread() as running:
        yield running


@pytest.fixture(scope="module")
def request_type() -> Any:
    """Unknown fields are refused, as the API refuses them."""
    pydantic = pytest.importorskip("pydantic")
    pytest.importorskip("openai")
    from openai.types.responses.response_create_params import ResponseCreateParams

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the SDK's types allows what it does not name
        return pydantic.TypeAdapter(ResponseCreateParams, config=pydantic.ConfigDict(extra="forbid"))


def exhausted(value: Any) -> Any:
    """The SDK's types have iterables, which are validated only while they are read."""
    if isinstance(value, dict):
        return {name: exhausted(item) for name, item in value.items()}
    if isinstance(value, list) or hasattr(value, "__next__"):
        return [exhausted(item) for item in value]
    return value


def accepted(shared: Path) -> Iterator[Exchange]:
    for exchange in recorded(shared):
        body = exchange["request"]["body"]
        if exchange["response"]["status"] == 200 and body is not None and "input" in body:
            yield exchange


def test_every_accepted_request_is_written_with_the_same_meaning(shared_dir: Path):
    wrong: dict[str, str] = {}
    written = 0
    for exchange in accepted(shared_dir):
        body = exchange["request"]["body"]
        ours = json.loads(WIRE.build_request(request_of(body, messages_of(items_of(body), FAMILY))).body)
        found, wanted = atoms(ours["input"]), atoms(items_of(body))
        if found != wanted:
            wrong[exchange["id"]] = first_difference(found, wanted)
        elif settings_meaning(ours) != settings_meaning(body):
            wrong[exchange["id"]] = f"{settings_meaning(ours)} is not {settings_meaning(body)}"
        written += 1
    assert written > 1000
    assert not wrong


def test_requests_are_valid_by_the_vendors_own_types(shared_dir: Path, request_type: Any):
    checked = 0
    for exchange in accepted(shared_dir):
        if exchange["api"] != "openai-responses":
            continue
        body = exchange["request"]["body"]
        ours = json.loads(WIRE.build_request(request_of(body, messages_of(items_of(body), FAMILY))).body)
        exhausted(request_type.validate_python(written_by_us(ours)))
        checked += 1
    assert checked > 800


def written_by_us(body: Fields) -> Fields:
    """Without tools and items of the provider's own, which went through us as the recorded client wrote them."""
    items = [item for item in body["input"] if "role" in item or item["type"] in (*CALLS, *CALLS.values())]
    tools = [tool for tool in body.get("tools", []) if is_function(tool)]
    return body | {"input": [item for item in items if item.get("type") != "additional_tools"], "tools": tools}


def test_the_judge_of_types_finds_a_wrong_field(request_type: Any):
    wrong = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "txt": "a"}]}]}
    with pytest.raises(ValueError, match="txt"):
        exhausted(request_type.validate_python(wrong))


async def ask(exchange: Exchange, url: str) -> Answer | ProviderError:
    assembler = AnswerAssembler(FAMILY)
    try:
        await follow(exchange, url, assembler)
    except ProviderError as error:
        return error
    return assembler.build_answer()


async def follow(exchange: Exchange, url: str, assembler: AnswerAssembler) -> None:
    provider = Provider("r", "openai-responses", api_key="k", base_url=f"{url}/v1")
    client = WireClient("replayed", ResponsesWire(provider), retry=RetryPolicy(attempts=1))
    prompt = Prompt([ModelMessage("user", (TextPart("hi"),))])
    try:
        async for delta in client.stream(Request("m", prompt, stream=exchange["streaming"])):
            assembler.add(delta)
    finally:
        await client.aclose()


async def test_answers_come_through_a_real_connection_unchanged(shared_dir: Path, server: Any):
    wrong: dict[str, list[str]] = {}
    for number, exchange in enumerate(recorded(shared_dir)):
        url = server.url(exchange["id"], mode="x", session=f"w{number}", chunk=f"random:{number}:2000")
        if found := problems(exchange, await ask(exchange, url)):
            wrong[exchange["id"]] = found
    assert not wrong


async def test_an_answer_that_was_cut_is_never_reported_as_complete_and_has_what_arrived(shared_dir: Path, server: Any):
    streamed = [exchange for exchange in recorded(shared_dir) if exchange["streaming"]]
    for number, exchange in enumerate(streamed[::4]):
        assembler = AnswerAssembler(FAMILY)
        with pytest.raises(ProviderError) as failure:
            await follow(exchange, server.url(exchange["id"], mode="x", session=f"cut{number}", end="60%"), assembler)
        assert failure.value.retryable or exchange["expected"]["error"], exchange["id"]
        assert exchange["expected"]["text"].startswith(text_of(assembler.build_answer(), FAMILY)), exchange["id"]


async def test_what_we_read_is_what_the_vendors_own_client_reads(shared_dir: Path, server: Any):
    sdk = pytest.importorskip("openai")
    compared = 0
    async with sdk.AsyncOpenAI(api_key="k", max_retries=0) as client:
        for exchange in recorded(shared_dir)[::8]:
            if not exchange["expected_checked_by_sdk"] or exchange["expected"]["error"]:
                continue
            url = server.url(exchange["id"], mode="x", session="sdk")
            ours = await ask(exchange, url)
            theirs = await read_by_sdk(client.with_options(base_url=f"{url}/v1"), streaming=exchange["streaming"])
            assert isinstance(ours, Answer), exchange["id"]
            assert summary(ours) == summary_of_sdk(theirs), exchange["id"]
            compared += 1
    assert compared > 100


async def read_by_sdk(client: Any, *, streaming: bool) -> Any:
    if not streaming:
        return await client.responses.create(model="m", input="hi")
    ends = ("response.completed", "response.incomplete")
    events = [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
    return next(event.response for event in events if event.type in ends)


def summary(answer: Answer) -> dict[str, Any]:
    tokens = answer.tokens
    return {
        "text": text_of(answer, FAMILY),
        "refusal": refusal_of(answer, FAMILY) or "",
        "calls": [
            (call.call_id, call.tool, call.state.raw)
            for call in calls_of(answer)
            if "custom" not in call.metadata.get(FAMILY, {})
        ],
        "usage": [tokens.prompt, tokens.output + tokens.reasoning, tokens.reasoning, tokens.cache.read],
        "status": answer.finish_raw.partition(":")[0],
        "response_id": answer.message.metadata["response_id"],
    }


def summary_of_sdk(response: Any) -> dict[str, Any]:
    pieces = [piece for item in response.output if item.type == "message" for piece in item.content]
    usage = response.usage
    sent, given = (usage.input_tokens_details, usage.output_tokens_details) if usage else (None, None)
    counts = [usage.input_tokens, usage.output_tokens] if usage else [0, 0]
    return {
        "text": "".join(piece.text for piece in pieces if piece.type == "output_text"),
        "refusal": "".join(piece.refusal for piece in pieces if piece.type == "refusal"),
        "calls": [
            (item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"
        ],
        "usage": [*counts, given.reasoning_tokens if given else 0, sent.cached_tokens if sent else 0],
        "status": response.status,
        "response_id": response.id,
    }
