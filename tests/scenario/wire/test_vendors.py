"""The fake vendors are strict where the real ones are, and the vendors' own clients understand them."""

import asyncio
import copy
from typing import Any

import pytest

from outrider import Tool
from outrider.providers.scripted import call
from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS
from tests.scenario.wire.wire_runs import wire_harness

ASKS = ["Let me see.", call("add", "c1", a=1, b=2), call("add", "c2", a=3, b=4)]
each = pytest.mark.parametrize("kind", list(SIMULATED_APIS))


async def good_request(kind: str) -> Any:
    async with wire_harness(kind, [ASKS, "done"]) as harness:
        await harness.run_turn(tools=[Tool(lambda a, b: str(a + b), name="add")])
        return harness.server.requests[1].body


def conversation(body: Any) -> list[Any]:
    return body.get("messages") or body.get("input") or body.get("contents")


def without_last_result(kind: str, body: Any) -> None:
    holder = conversation(body)
    if kind in ("anthropic", "google"):
        holder = holder[-1]["content" if kind == "anthropic" else "parts"]
    holder.pop()


def without_calls(kind: str, body: Any) -> None:
    """The results stay, the answer that asked for them goes."""
    holder = conversation(body)
    holder[:] = [one for one in holder if not is_answer(one)]


def is_answer(one: Any) -> bool:
    return one.get("role") in ("assistant", "model") or one.get("type") == "function_call"


@each
@pytest.mark.parametrize("damage", [without_last_result, without_calls])
async def test_a_request_whose_calls_and_results_do_not_match_is_refused(kind, damage):
    body = await good_request(kind)
    assert SIMULATED_APIS[kind].problem(body) is None
    broken = copy.deepcopy(body)
    damage(kind, broken)
    assert SIMULATED_APIS[kind].problem(broken)


@each
async def test_a_request_without_a_message_is_refused(kind):
    body = await good_request(kind)
    conversation(body).clear()
    assert SIMULATED_APIS[kind].problem(body)


def ask_anthropic(server: Simulator, stream: bool) -> tuple[str, list[Any]]:
    import anthropic

    client = anthropic.Anthropic(api_key="k", base_url=server.url("anthropic"), max_retries=0)
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with client:
        if stream:
            with client.messages.stream(**asked) as answer:
                message = answer.get_final_message()
        else:
            message = client.messages.create(**asked)
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, [block.input for block in message.content if block.type == "tool_use"]


def ask_chat(server: Simulator, stream: bool) -> tuple[str, list[Any]]:
    import json

    import openai

    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with openai.OpenAI(api_key="k", base_url=server.url("openai"), max_retries=0) as client:
        if stream:
            with client.chat.completions.stream(**asked) as answer:
                message = answer.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
    calls: Any = message.tool_calls or []
    return message.content or "", [json.loads(one.function.arguments) for one in calls]


def ask_responses(server: Simulator, stream: bool) -> tuple[str, list[Any]]:
    import json

    import openai

    with openai.OpenAI(api_key="k", base_url=server.url("openai-responses"), max_retries=0) as client:
        if stream:
            with client.responses.stream(model="m", input="x") as answer:
                response: Any = answer.get_final_response()
        else:
            response = client.responses.create(model="m", input="x")
    calls = [item for item in response.output if item.type == "function_call"]
    return response.output_text, [json.loads(item.arguments) for item in calls]


def ask_google(server: Simulator, stream: bool) -> tuple[str, list[Any]]:
    from google import genai

    client = genai.Client(api_key="k", http_options={"base_url": server.url("google")})
    asked: Any = {"model": "gemini-2.5-flash", "contents": "x"}
    chunks = client.models.generate_content_stream(**asked) if stream else [client.models.generate_content(**asked)]
    parts = [part for chunk in chunks for part in (chunk.candidates or [])[0].content.parts or ()]  # pyright: ignore
    client.close()
    return "".join(part.text or "" for part in parts), [p.function_call.args for p in parts if p.function_call]


CLIENTS = {
    "anthropic": ask_anthropic,
    "openai": ask_chat,
    "openai-responses": ask_responses,
    "google": ask_google,
}


@pytest.mark.slow
@each
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stream", [True, False])
async def test_the_vendors_own_client_reads_what_the_simulator_sends(kind, stream):
    async with Simulator([ASKS], any_model=True) as server:
        text, inputs = await asyncio.to_thread(CLIENTS[kind], server, stream)
        assert text == "Let me see."
        assert inputs == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
