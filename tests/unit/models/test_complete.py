"""`complete()`: one answer without the loop, in asynchronous and synchronous code."""

import asyncio
import socket
import threading
from decimal import Decimal
from typing import Any

import pytest

from outrider.context.lower import lower
from outrider.errors import AuthenticationError, ConfigurationError, InvalidRequestError, NetworkError, NotFoundError
from outrider.models.clients import MAX_SHARED_CLIENTS, model_client
from outrider.models.complete import answer_cost, async_complete, complete
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.catalog import ModelCatalog
from outrider.providers.provider import AnswerAssembler
from outrider.types.agents import Provider
from outrider.types.messages import Message, text_message
from outrider.types.parts import TextPart, Tokens, ToolPart
from outrider.types.request import ModelSettings, Request, ToolSpec, UsageReport
from tests.fixtures.http_server import Reply, serving

SCRIPTED = Provider("s", "scripted", options={"script": ["Hello"]})
JSON = {"content-type": "application/json"}
ANSWER = (
    b'{"id":"c","model":"gpt-4o-mini","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":7}}'
)
SEARCH = ToolSpec("search", "Search.", {"type": "object", "properties": {"query": {"type": "string"}}})


async def test_a_text_is_answered():
    answer = await async_complete(SCRIPTED, "m", "Hello?")
    assert answer.message.role == "assistant"
    assert answer.message.get_text_content() == "Hello"
    assert answer.finish == "stop"


def test_plain_code_gets_the_same():
    assert complete(SCRIPTED, "m", "Hello?").message.get_text_content() == "Hello"


async def test_plain_code_works_inside_a_running_loop():
    assert complete(SCRIPTED, "m", "Hello?").message.get_text_content() == "Hello"


async def test_messages_tools_and_settings_reach_the_provider():
    class Tool:
        def to_schema(self) -> dict[str, Any]:
            return {"name": "read", "description": "Read.", "input_schema": {"type": "object", "properties": {}}}

    async with serving(Reply([ANSWER], headers=JSON)) as server:
        answer = await async_complete(
            Provider("o", "openai", "sk-key", f"{server.url}/v1"),
            "gpt-4o-mini",
            [text_message("user", "a"), Message("assistant", [TextPart("b")]), text_message("user", "c")],
            system="Be brief.",
            tools=[SEARCH, Tool()],
            stream=False,
            settings={"temperature": 0.5},
        )
        sent = server.requests[0].body
    assert answer.message.get_text_content() == "Hi"
    assert answer.tokens.output == 7
    assert answer.cost == Decimal("0.00000495")  # the vendor's model, if by way of another address
    for piece in (b"Be brief.", b'"search"', b'"read"', b'"temperature":0.5'):
        assert piece in sent


def test_an_answer_of_a_known_model_has_a_price_and_one_without_usage_has_none():
    assembler = AnswerAssembler("openai")
    provider = Provider("o", "openai", "k")
    assert answer_cost(provider, "gpt-4o-mini", assembler) is None
    assembler.add(UsageReport(Tokens(input=1_000_000)))
    assert answer_cost(provider, "gpt-4o-mini", assembler) == Decimal("0.15")


async def test_a_call_is_a_pending_part_of_the_message():
    stream = (
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","function":'
        b'{"name":"search","arguments":"{\\"query\\": \\"x\\"}"}}]}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    )
    async with serving(Reply([stream])) as server:
        answer = await async_complete(Provider("o", "openai", "k", server.url), "m", "?", tools=[SEARCH])
    assert answer.finish == "tool_use"
    call = answer.message.parts[0]
    assert isinstance(call, ToolPart)
    assert (call.tool, call.state.input, call.state.status) == ("search", {"query": "x"}, "pending")


async def test_calls_in_one_loop_share_their_connection():
    async with serving(Reply([ANSWER], headers=JSON)) as server:
        provider = Provider("o", "openai", "k", server.url)
        for _ in range(3):
            await async_complete(provider, "m", "?", stream=False)
        await async_complete(Provider("o", "openai", "other", server.url), "m", "?", stream=False)
        assert [seen.connection for seen in server.requests] == [1, 1, 1, 2]


def test_a_connection_closes_with_its_loop():
    after_answer = list[bytes]()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            connection.recv(65_536)
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n"
            connection.sendall(head.encode() + ANSWER)
            after_answer.append(connection.recv(1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        provider = Provider("o", "openai", "k", f"http://127.0.0.1:{listener.getsockname()[1]}")

        async def ask() -> None:
            await async_complete(provider, "m", "?", stream=False)
            assert after_answer == [], "the connection stays open for the next call"

        asyncio.run(ask())
        server.join()
    assert after_answer == [b""]


async def test_more_providers_than_are_preserved_are_asked_all_the_same():
    async with serving(Reply([ANSWER], headers=JSON)) as server:
        for number in range(MAX_SHARED_CLIENTS + 2):
            provider = Provider(f"p{number}", "openai", "k", server.url)
            assert (await async_complete(provider, "m", "?", stream=False)).finish == "stop"


async def test_a_refusal_is_raised_with_the_provider_s_message():
    refused = Reply([b'{"error":{"type":"authentication_error","message":"invalid x-api-key"}}'], 401, JSON)
    async with serving(refused) as server:
        with pytest.raises(AuthenticationError) as raised:
            await async_complete(Provider("a", "anthropic", "k", server.url), "m", "?")
    error = raised.value
    assert (error.status, error.type, error.message) == (401, "authentication_error", "invalid x-api-key")


async def test_what_arrived_before_a_failure_comes_with_it():
    broken = Reply([b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'], after="drop")
    async with serving(broken) as server:
        with pytest.raises(NetworkError) as raised:
            await async_complete(Provider("o", "openai", "k", server.url, options={"retry": {"attempts": 1}}), "m", "?")
    assert raised.value.details["answer"].message.get_text_content() == "Hel"


async def test_settings_that_do_not_exist_are_refused():
    with pytest.raises(ConfigurationError, match="warmth"):
        await async_complete(SCRIPTED, "m", "?", settings={"warmth": 1})
    assert (await async_complete(SCRIPTED, "m", "?", settings=ModelSettings())).finish == "stop"


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(ConfigurationError, match="patience"):
        model_client(Provider("o", "openai", "k", options={"timeouts": {"patience": 1}}))


@pytest.mark.parametrize("messages", [None, [{"role": "user", "content": "?"}], 3])
def test_messages_that_are_none_are_refused(messages):
    with pytest.raises(ConfigurationError, match="list of Message"):
        complete(SCRIPTED, "m", messages)


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match=r"has the unknown kind 'banana'.*anthropic"):
        model_client(Provider("b", "banana"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("address", ["example", "ftp://example/v1"])
def test_an_address_that_cannot_be_called_is_refused_at_once(address):
    with pytest.raises(ConfigurationError, match="URL"):
        complete(Provider("o", "openai", "k", address), "m", "?")


def test_a_maximum_that_was_asked_for_once_is_remembered():
    """`complete` opens a loop and a client each time; what was learnt of the model stays."""
    provider = Provider("a", "anthropic", "k", "http://unheard-of.test")
    catalog = ModelCatalog()
    first, second = (AnthropicWire(provider, shared_traits=catalog.learned_facts("anthropic")) for _ in range(2))
    request = Request("claude-new", lower([text_message("user", "?")], family="anthropic"))
    assert first.adapt_to_error(request, InvalidRequestError("max_tokens: 10000000 > 4096, which is the maximum"))
    assert b'"max_tokens":4096' in second.build_request(request).body


async def test_a_local_model_without_weights_explains_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    with pytest.raises(NotFoundError, match=r"outrider models pull 0\.5b"):
        await async_complete(Provider("l", "local"), "0.5b", "Hello.")


def test_a_local_model_takes_only_options_that_it_has():
    with pytest.raises(ConfigurationError, match="context"):
        model_client(Provider("l", "local", options={"context": "large"}))
