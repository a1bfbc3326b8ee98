"""Faults, scripts, times and the log of the simulator."""

import asyncio
import json
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from outrider import Agent, ToolError, ToolPart, async_complete, async_run
from outrider.errors import ConfigurationError, OutriderError
from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory
from outrider.testing import Chaos, MalformedCall, SimulatedRequest, Simulator, call
from outrider.testing.model_rules import model_exists
from outrider.testing.simulator import FAULTS, echo_answer
from outrider.testing.simulator_answers import SIMULATED_APIS, ApiKind, sample_arguments
from tests.unit.testing.test_simulator import KINDS, add, each

RETRIES = {"attempts": 4, "first_window": 0.01}


def adding(request: SimulatedRequest) -> Any:
    return "3" if request.results else ["I add.", call("add", a=1, b=2)]


async def run_agent(simulator: Simulator, kind: ApiKind, **options: Any) -> Any:
    agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator")
    provider = simulator.provider(kind, retry=RETRIES, **options)
    return await async_run(agent, "add", [agent], [add], [provider])


@each
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "stall"])
async def test_an_agent_gets_an_end_under_every_fault(kind, fault):
    # Half of the requests have the fault, so a repeated request has a chance.
    chaos = Chaos(**{fault: 0.5}, seed=3, retry_after=0.01, calls=20)
    async with Simulator(adding, chaos=chaos) as simulator:
        for _ in range(4):
            try:
                result = await asyncio.wait_for(run_agent(simulator, kind), 30)
            except OutriderError as error:
                assert fault in ("rate_limit", "overloaded", "server_error", "cut"), error
            else:
                calls = [part for message in result.session.messages for part in message.get_parts_by_type(ToolPart)]
                assert all(part.ended for part in calls)
        assert fault in simulator.faults.values()
        assert simulator.rejected == []  # what follows a fault is still a valid request


async def test_the_same_seed_gives_the_same_faults_and_another_seed_others():
    async def faults(seed: int) -> dict[int, str]:
        chaos = Chaos.of_every_kind(0.5, seed=seed, retry_after=0.01, stall_seconds=0.01, calls=3)
        async with Simulator(lambda _: "hi", chaos=chaos) as simulator:
            for _ in range(20):
                await asyncio.to_thread(post, simulator, "openai", {"messages": [{"role": "user", "content": "x"}]})
        return simulator.faults

    first, again, other = await faults(1), await faults(1), await faults(2)
    assert first == again != other
    assert len(first) >= 4


def post(simulator: Simulator, kind: ApiKind, body: dict[str, Any]) -> tuple[int, bytes]:
    headers = {"content-type": "application/json", "authorization": "Bearer key"}
    url = simulator.url(kind) + SIMULATED_APIS[kind].path.removeprefix(SIMULATED_APIS[kind].base)
    data = json.dumps({"model": SIMULATED_APIS[kind].model} | body).encode()
    try:
        with urlopen(Request(url, data, headers)) as response:
            return response.status, response.read()
    except HTTPError as error:
        with error:
            return error.code, b"" if error.fp is None else error.read()
    except OSError:
        return 0, b""
    except Exception as error:
        return 0, str(error).encode()


def test_a_rate_limit_names_when_to_try_again_and_a_stall_and_a_trickle_take_their_time():
    body = {"messages": [{"role": "user", "content": "x"}]}
    with Simulator(lambda _: "hello there", chaos=Chaos(stall=1, stall_seconds=0.3)) as simulator:
        began = time.monotonic()
        assert post(simulator, "openai", body)[0] == 200
        assert time.monotonic() - began >= 0.3
    with Simulator(lambda _: "hello there", chaos=Chaos(trickle=1)) as simulator:
        status, content = post(simulator, "openai", body)
        assert (status, json.loads(content)["choices"][0]["message"]["content"]) == (200, "hello there")
    with Simulator(lambda _: "never", chaos=Chaos(rate_limit=1, retry_after=7)) as simulator:
        request = Request(simulator.url("openai") + "/chat/completions", json.dumps(
            {"model": "gpt-4.1", **body}).encode(), {"authorization": "x"})  # fmt: skip
        with pytest.raises(HTTPError) as error, urlopen(request):
            pass
        assert (error.value.code, error.value.headers["retry-after"]) == (429, "7")
        error.value.close()


@each
async def test_malformed_arguments_reach_the_agent_as_an_invalid_call(kind):
    script = [MalformedCall("add", '{"a": 1, "b":', "c1"), "3"]
    async with Simulator(script) as simulator:
        result = await run_agent(simulator, kind)
        simulator.check()
    calls = [part for message in result.session.messages for part in message.get_parts_by_type(ToolPart)]
    if kind == "google":  # Gemini reports a malformed call and sends no call
        assert calls == []
    else:
        assert [type(part.state) for part in calls] == [ToolError]


async def test_a_script_file_gives_its_answers_in_order_and_by_word(tmp_path: Path):
    path = tmp_path / "script.toml"
    path.write_text(
        'repeat = true\n[[answers]]\nwhen = "weather"\ntext = "It rains."\n'
        '[[answers]]\ntext = "I add."\ncalls = [{tool = "add", arguments = {a = 1, b = 2}}]\n'
        '[[answers]]\nerror = {status = 529, message = "Overloaded", type = "overloaded_error"}\n'
        '[[answers]]\nreasoning = "hm"\ntext = "3"\n'
    )
    async with Simulator(path) as simulator:
        assert (await run_agent(simulator, "anthropic")).output == "3"
        assert len(simulator.requests) == 3
        reply = await async_complete(simulator.provider(), "claude-sonnet-4-5", "What is the weather?")
        assert reply.message.get_text_content() == "It rains."
    path.write_text('[[answers]]\ntxet = "a"\n')
    with pytest.raises(ConfigurationError, match="txet"):
        Simulator(path)


async def test_a_cassette_is_a_script(tmp_path: Path):
    tape = tmp_path / "tape.jsonl"
    async with Simulator(["Hello.", "Bye."]) as simulator:
        deck = CassetteTransportFactory(CassetteOptions(path=str(tape), mode="record"))
        provider = simulator.provider("openai-responses", cassette=deck)
        for _ in range(2):
            await async_complete(provider, "gpt-5-mini", "hi")
    async with Simulator(tape) as simulator:
        provider = simulator.provider("openai-responses")
        replies = [await async_complete(provider, "gpt-5-mini", "hi") for _ in range(2)]
        assert [reply.message.get_text_content() for reply in replies] == ["Hello.", "Bye."]


@each
async def test_latency_and_token_rate_slow_an_answer_down(kind):
    text = "word " * 40
    async with Simulator([text], latency=0.05, tokens_per_second=500) as simulator:
        began = time.monotonic()
        reply = await async_complete(simulator.provider(kind), SIMULATED_APIS[kind].model, "hi")
        assert reply.message.get_text_content() == text
        assert time.monotonic() - began >= len(text) / 4 / 500


def test_every_request_is_logged_with_its_fault(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    body = {"messages": [{"role": "user", "content": "x"}]}
    with Simulator(lambda _: "hi", chaos=Chaos(overloaded=1), log=log) as simulator:
        post(simulator, "openai", body)
        post(simulator, "openai", {"messages": []})
    first, second = [json.loads(line) for line in log.read_text().splitlines()]
    assert (first["api"], first["status"], first["fault"], first["request"]["messages"]) == (
        "openai", 503, "overloaded", body["messages"],
    )  # fmt: skip
    assert (second["status"], second["fault"]) == (400, None)
    assert "empty array" in second["error"]


def test_tls_handshakes_can_be_slow(tmp_path: Path):
    pem = tmp_path / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out",
         tmp_path / "cert.pem", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    with Simulator(lambda _: "hi", tls=context, tls_delay=0.3) as simulator:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        began = time.monotonic()
        with urlopen(simulator.url("openai") + "/models", context=trusting) as response:
            assert json.load(response)["data"][1]["id"] == "gpt-4.1"
        assert time.monotonic() - began >= 0.3


@each
async def test_without_a_script_an_offered_tool_is_called_with_arguments_of_its_schema(kind):
    async with Simulator(echo_answer("any")) as simulator:
        result = await run_agent(simulator, kind)
        assert result.output == "The tool returned: 2"
        simulator.check()


def test_sample_arguments_are_the_smallest_that_a_schema_accepts():
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": ["integer", "null"]}, "c": {"type": "string"}},
        "required": ["a", "b"],
    }
    assert sample_arguments(schema) == {"a": "x", "b": 1}


@pytest.mark.parametrize(
    ("kind", "known", "unknown"),
    [
        ("anthropic", "claude-haiku-4-5-20251001 claude-3-opus-latest claude-sonnet-5", "claude-sonet-4-5 gpt-5"),
        ("openai", "gpt-4o-2024-08-06 o4-mini gpt-5.6-luna ft:gpt-4o:me", "gpt-5.2-proo gpt-3.5-turbo-instruct mock"),
        ("google", "gemini-2.5-pro gemini-flash-latest gemma-3-27b-it models/gemini-2.0-flash", "gemini-proo gemini"),
    ],
)
def test_names_of_models_are_recognized_by_how_the_vendors_build_them(kind: str, known: str, unknown: str):
    assert [name for name in known.split() if not model_exists(kind, name)] == []
    assert [name for name in unknown.split() if model_exists(kind, name)] == []


def test_a_model_that_the_vendor_does_not_have_is_rejected_unless_any_is_accepted():
    body = {"model": "my-model", "messages": [{"role": "user", "content": "x"}]}
    with Simulator(lambda _: "hi") as strict, Simulator(lambda _: "hi", any_model=True) as lenient:
        assert post(strict, "openai", body)[0] == 404
        assert post(lenient, "openai", body)[0] == 200


def test_a_request_without_the_shape_of_its_api_gets_an_error_and_not_a_closed_connection():
    for kind in KINDS[:3]:
        with Simulator(lambda _: "hi") as simulator:
            status, content = post(simulator, kind, {"messages": ["x"], "input": [3], "max_tokens": "many"})
            assert status == 400, content
