"""Servers on this machine are found by asking the usual ports."""

import asyncio
import json

import pytest

from outrider.config.providers import NO_PROVIDER_MESSAGE
from outrider.models.local_models import default_servers, find_servers, missing_model_message
from outrider.types.agents import Provider
from tests.fixtures.http_server import Reply, serving, unused_port

JSON = {"content-type": "application/json"}
TWO = json.dumps({"object": "list", "data": [{"id": "llama3.2:3b"}, {"id": "qwen2.5-coder:7b", "owned_by": "me"}]})


async def found(*ports: int, seconds: float = 0.5):
    servers = [
        Provider(f"server-{number}", "openai", "", f"http://127.0.0.1:{port}/v1") for number, port in enumerate(ports)
    ]
    return await asyncio.to_thread(find_servers, servers, seconds=seconds)


def test_the_usual_ports_of_this_machine_are_asked_without_a_key():
    ports = {server.name: server.base_url for server in default_servers()}
    assert ports["ollama"] == "http://127.0.0.1:11434/v1"
    assert set(ports) == {"ollama", "llama.cpp", "lm-studio", "vllm"}
    assert {server.api_key for server in default_servers()} == {""}


async def test_a_server_is_offered_with_its_models():
    async with serving(Reply([TWO.encode()], headers=JSON)) as server:
        (one,) = await found(server.port, unused_port())
    assert one.models == ("llama3.2:3b", "qwen2.5-coder:7b")
    assert (one.provider.kind, one.provider.base_url) == ("openai", f"{server.url}/v1")
    assert server.requests[0].target == "/v1/models"


async def test_no_key_goes_to_a_server_that_was_found():
    async with serving(Reply([TWO.encode()], headers=JSON)) as server:
        (one,) = await found(server.port)
    assert one.provider.api_key == ""
    assert "authorization" not in server.requests[0].headers


async def test_what_is_not_a_model_server_is_passed_over():
    replies = [
        Reply([b"<html>hello</html>"], headers={"content-type": "text/html"}),
        Reply([b'{"data": "none"}'], headers=JSON),
        Reply([b'{"data": []}'], headers=JSON),
        Reply([TWO.encode()], status=401, headers=JSON),
        Reply([], status=302, headers={"location": "http://127.0.0.1:9/v1/models"}),
        Reply(raw=b"SSH-2.0-server\r\n"),
    ]
    for reply in replies:
        async with serving(reply) as server:
            assert await found(server.port) == []


@pytest.mark.slow
async def test_a_port_that_is_silent_costs_no_more_than_the_time_limit():
    async with (
        serving(Reply(status=0, after="stall")) as silent,
        serving(Reply([TWO.encode()], headers=JSON)) as server,
    ):
        (one,) = await asyncio.wait_for(found(silent.port, server.port, seconds=2), 30)
    assert one.provider.name == "server-1"


async def test_who_has_no_model_is_offered_what_is_served_here():
    async with serving(Reply([TWO.encode()], headers=JSON)) as server:
        here = [Provider("ollama", "openai", "", f"http://127.0.0.1:{server.port}/v1")]
        message = await asyncio.to_thread(missing_model_message, NO_PROVIDER_MESSAGE, here)
    assert message.startswith(NO_PROVIDER_MESSAGE)
    assert message.endswith("--model ollama/llama3.2:3b (or ollama/qwen2.5-coder:7b)")


def test_without_a_server_and_with_another_problem_nothing_is_added():
    here = [Provider("ollama", "openai", "", f"http://127.0.0.1:{unused_port()}/v1")]
    assert missing_model_message(NO_PROVIDER_MESSAGE, here) == NO_PROVIDER_MESSAGE
    assert missing_model_message("the provider 'openai' has no key", here) == "the provider 'openai' has no key"
