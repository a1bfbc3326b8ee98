"""The contract of every model client, for each provider."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outrider.errors import AuthenticationError, ProviderError
from outrider.models.clients import model_client
from outrider.providers.local.client import LocalClient
from outrider.providers.local.model_pool import LoadedModel
from outrider.providers.local.prompt import CompactToolPrompt
from outrider.providers.provider import AnswerAssembler, ModelClient
from outrider.providers.scripted import call
from outrider.types.agents import Provider
from outrider.types.parts import TextPart, Tokens, ToolPart
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    ModelMessage,
    PartEnd,
    PartStart,
    Prompt,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolSpec,
    UsageReport,
)
from tests.fixtures.http_server import Reply, serving
from tests.fixtures.local_runtime import FakeRuntime

READ = ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
REQUEST = Request("m", Prompt([ModelMessage("user", (TextPart("What is in a.txt?"),))]), tools=(READ,))
JSON = {"content-type": "application/json"}


def events(*values: dict[str, Any], named: bool = False) -> list[bytes]:
    """One chunk for each event; Anthropic's and Responses' events also carry their type as a name."""
    heads = (f"event: {value['type']}\n".encode() if named else b"" for value in values)
    return [head + b"data: " + msgspec.json.encode(value) + b"\n\n" for head, value in zip(heads, values, strict=True)]


ANTHROPIC = events(
    {"type": "message_start", "message": {"id": "1", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I will "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "look."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1,
     "content_block": {"type": "tool_use", "id": "call_1", "name": "read", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"path":'}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ' "a.txt"}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
    named=True,
)  # fmt: skip


def chat_delta(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat_call(**function: str) -> list[dict[str, Any]]:
    return [{"index": 0, "id": "call_1", "type": "function", "function": function}]


CHAT = [
    *events(
        chat_delta(content="I will "),
        chat_delta(content="look."),
        chat_delta(tool_calls=chat_call(name="read", arguments='{"path":')),
        chat_delta(tool_calls=chat_call(arguments=' "a.txt"}')),
        chat_delta("tool_calls"),
        {"id": "1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
    ),
    b"data: [DONE]\n\n",
]
RESPONSES_MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                     "content": [{"type": "output_text", "text": "I will look.", "annotations": []}]}  # fmt: skip
RESPONSES_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read", "status": "completed",
                  "arguments": '{"path": "a.txt"}'}  # fmt: skip
RESPONSES = events(
    {"type": "response.created", "response": {"id": "1", "model": "m", "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": RESPONSES_MESSAGE | {"content": []}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "m", "delta": "I will "},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "m", "delta": "look."},
    {"type": "response.output_item.done", "output_index": 0, "item": RESPONSES_MESSAGE},
    {"type": "response.output_item.added", "output_index": 1, "item": RESPONSES_CALL | {"arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "fc_1", "delta": '{"path":'},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "fc_1", "delta": ' "a.txt"}'},
    {"type": "response.output_item.done", "output_index": 1, "item": RESPONSES_CALL},
    {"type": "response.completed",
     "response": {"id": "1", "model": "m", "status": "completed", "output": [RESPONSES_MESSAGE, RESPONSES_CALL],
                  "usage": {"input_tokens": 5, "output_tokens": 7}}},
    named=True,
)  # fmt: skip


def candidate(finish: str | None = None, *parts: dict[str, Any]) -> dict[str, Any]:
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 7}
    found: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [found | ({"finishReason": finish} if finish else {})], "usageMetadata": usage}


GOOGLE = events(
    candidate(None, {"text": "I will "}),
    candidate(None, {"text": "look."}),
    candidate("STOP", {"functionCall": {"name": "read", "args": {"path": "a.txt"}}}),
)


@dataclass
class Subject:
    """A client, and how to make its provider answer, refuse or fall silent."""

    provider: Provider
    answer: list[bytes]
    wrap: Callable[[Provider], ModelClient] = model_client


class EmbeddedModels:
    """One loaded model that gives the same answer to all requests."""

    def acquire(self, name: str) -> LoadedModel:
        runtime = FakeRuntime(lambda _: '{"say": "I will look.", "tool": "read", "path": "a.txt"}')
        self._model = LoadedModel(runtime, None)
        return self._model

    def release(self, name: str) -> None:
        self._model.close()


def embedded(provider: Provider) -> ModelClient:
    return LocalClient(provider.name, EmbeddedModels(), CompactToolPrompt(allows_text=True))


PEER = [
    b"event: " + type(delta).__name__.encode() + b"\ndata: " + msgspec.json.encode(delta) + b"\n\n"
    for delta in (
        AnswerStart("a-session", "m"),
        PartStart(0, "text"),
        TextDelta(0, "I will "),
        TextDelta(0, "look."),
        PartEnd(0),
        PartStart(1, "tool", "call_1", "read"),
        InputDelta(1, '{"path": "a.txt"}'),
        PartEnd(1),
        UsageReport(Tokens(5, 7)),
        Finish("tool_use", "completed"),
    )
]
SCRIPTED = ["I will look.", call("read", path="a.txt")]
SUBJECTS = {
    "anthropic": Subject(Provider("p", "anthropic", "k"), ANTHROPIC),
    "openai": Subject(Provider("p", "openai", "k"), CHAT),
    "openai-responses": Subject(Provider("p", "openai-responses", "k"), RESPONSES),
    "google": Subject(Provider("p", "google", "k"), GOOGLE),
    "outrider": Subject(Provider("p", "outrider", "k"), PEER),
    "scripted": Subject(Provider("p", "scripted", options={"script": [SCRIPTED] * 8}), []),
    "local": Subject(Provider("p", "local"), [], embedded),
}
OVER_THE_WIRE = [name for name in SUBJECTS if SUBJECTS[name].answer]


@asynccontextmanager
async def client_of(name: str, reply: Reply | None = None) -> AsyncIterator[tuple[ModelClient, Any]]:
    subject = SUBJECTS[name]
    async with serving(reply or Reply(subject.answer)) as server:
        provider = subject.provider
        if subject.answer:
            options = {"retry": {"first_window": 0.01, "largest_window": 0.02}}
            provider = msgspec.structs.replace(provider, base_url=server.url, options=options)
        client = subject.wrap(provider)
        try:
            yield client, server
        finally:
            await client.aclose()


@pytest.mark.parametrize("name", SUBJECTS)
async def test_an_answer_adds_up_to_text_and_call(name: str):
    async with client_of(name) as (client, _):
        assembler = AnswerAssembler(client.model_family("m"))
        async for delta in client.stream(REQUEST):
            assembler.add(delta)
    text, called = assembler.list_parts()
    assert isinstance(text, TextPart)
    assert text.text == "I will look."
    assert isinstance(called, ToolPart)
    assert called.call_id
    assert (called.tool, called.state.input) == ("read", {"path": "a.txt"})
    assert assembler.finish == "tool_use"
    assert assembler.tokens.output > 0


@pytest.mark.parametrize("name", SUBJECTS)
async def test_deltas_come_in_the_order_that_is_promised(name: str):
    async with client_of(name) as (client, _):
        deltas = [delta async for delta in client.stream(REQUEST)]
    assert isinstance(deltas[-1], Finish)
    assert [type(delta) for delta in deltas].count(Finish) == 1
    assert [delta for delta in deltas if isinstance(delta, UsageReport)]
    starts = [delta.index for delta in deltas if isinstance(delta, PartStart)]
    assert starts == sorted(set(starts))
    assert opened_and_ended(deltas) == set(starts)


def opened_and_ended(deltas: list[Delta]) -> set[int]:
    """The parts that ended; fails for a piece of a part that is not open."""
    opened: set[int] = set()
    ended: set[int] = set()
    for delta in deltas:
        match delta:
            case PartStart(index):
                opened.add(index)
            case TextDelta(index) | ReasoningDelta(index) | InputDelta(index):
                assert index in opened - ended
            case PartEnd(index):
                assert index in opened - ended
                ended.add(index)
            case AnswerStart() | UsageReport() | Finish():
                pass
    return ended


async def first_deltas(stream: Any, count: int) -> list[Delta]:
    """That many deltas, if there are so many; then the stream is closed."""
    async with aclosing(stream):
        return [await anext(stream, Finish("other")) for _ in range(count)]


@pytest.mark.parametrize("name", SUBJECTS)
async def test_an_answer_can_be_given_up_at_any_delta(name: str):
    async with client_of(name) as (client, _):
        for count in range(1, 9):
            assert len(await first_deltas(client.stream(REQUEST), count)) == count


@pytest.mark.parametrize("name", OVER_THE_WIRE)
async def test_text_is_given_out_before_the_answer_ends(name: str):
    answer = SUBJECTS[name].answer
    async with client_of(name, Reply(answer[: len(answer) // 2], after="stall")) as (client, server):
        stream: Any = client.stream(REQUEST)
        async with asyncio.timeout(30), aclosing(stream):
            while not isinstance(await anext(stream), TextDelta):
                pass
        async with asyncio.timeout(30):
            await server.requests[0].closed.wait()


@pytest.mark.parametrize("name", OVER_THE_WIRE)
async def test_a_refusal_is_typed_and_names_the_provider(name: str):
    refused = Reply([b'{"error": {"message": "who are you?"}}'], 401, JSON)
    async with client_of(name, refused) as (client, server):
        with pytest.raises(AuthenticationError, match="who are you") as raised:
            _ = [delta async for delta in client.stream(REQUEST)]
        assert (raised.value.provider, raised.value.status) == ("p", 401)
        assert len(server.requests) == 1


async def outcome(client: ModelClient) -> tuple[AnswerAssembler, ProviderError | None]:
    assembler = AnswerAssembler("")
    try:
        async for delta in client.stream(REQUEST):
            assembler.add(delta)
    except ProviderError as error:
        return assembler, error
    return assembler, None


@pytest.mark.parametrize("name", OVER_THE_WIRE)
async def test_an_answer_cut_anywhere_ends_in_a_typed_error_or_whole(name: str):
    answer = SUBJECTS[name].answer
    for place in range(1, len(answer)):
        async with client_of(name, Reply(answer[:place], after="drop")) as (client, _):
            assembler, error = await outcome(client)
        assert (error is None) == (assembler.finish is not None)
        assert error is None or error.retryable


@pytest.mark.parametrize("name", SUBJECTS)
async def test_closing_twice_is_closing_once(name: str):
    async with client_of(name) as (client, _):
        await client.aclose()
