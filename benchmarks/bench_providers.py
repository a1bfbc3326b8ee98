"""CPU time of a model request, compared with the vendors' SDKs and a bare HTTP client on the same mock server."""

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai

from benchmarks.figure import Figure
from benchmarks.mock_server import PEERBENCH, mock_server
from outrider.models.clients import model_client
from outrider.models.complete import async_complete
from outrider.providers.provider import AnswerAssembler, ModelClient
from outrider.types.agents import Provider, ProviderKind
from outrider.types.parts import TextPart
from outrider.types.request import ModelMessage, Prompt, Request, TextDelta

ROUNDS, TURNS, CHUNKS, ANSWERS = 5, 60, 20_000, 1_000
KEY = "sk-bench"
QUESTION = "What is the sum of all of these?"
TEXT = "some words of a conversation that goes on " * 12

Job = Callable[[], Awaitable[int]]
"""Runs the job once; returns the number of units: turns or deltas."""


def bench() -> list[Figure]:
    if not PEERBENCH.is_dir():
        print(f"providers: needs the mock server of {PEERBENCH.name}, which is absent", file=sys.stderr)
        return []
    with mock_server() as address:
        return asyncio.run(measure(address))


async def measure(address: str) -> list[Figure]:
    return [
        *await turn_figures(address),
        *await stream_figures(address),
        await history_figure(address),
        await memory_figure(address),
    ]


async def turn_figures(address: str) -> list[Figure]:
    base = f"{address}/default"
    async with aiohttp.ClientSession() as session, openai_sdk(base) as sdk:
        provider = Provider("bench", "openai", KEY, f"{base}/v1")
        client = model_client(provider)
        costs = await cpu_of(
            ours=lambda: turns(lambda: our_answer(client, request(stream=False))),
            complete=lambda: turns(lambda: async_complete(provider, "mock", QUESTION, stream=False)),
            bare=lambda: turns(lambda: bare_turn(session, f"{base}/v1/chat/completions")),
            sdk=lambda: turns(lambda: sdk_turn(sdk)),
        )
        await client.aclose()
    return [
        against("one turn, beside bare aiohttp", costs["ours"] * 1e3, "ms", costs["bare"] * 1e3, 2),
        against("one async_complete, beside bare aiohttp", costs["complete"] * 1e3, "ms", costs["bare"] * 1e3, 2),
        against("one turn, beside the openai SDK", costs["ours"] * 1e3, "ms", costs["sdk"] * 1e3),
    ]


async def stream_figures(address: str) -> list[Figure]:
    base = f"{address}/tokens={CHUNKS},chunk=4"
    async with aiohttp.ClientSession() as session, openai_sdk(base) as chat_sdk, anthropic_sdk(base) as messages_sdk:
        chat, messages = ours("openai", f"{base}/v1"), ours("anthropic", base)
        costs = await cpu_of(
            chat=lambda: our_stream(chat),
            messages=lambda: our_stream(messages),
            bare=lambda: bare_stream(session, f"{base}/v1/chat/completions"),
            openai=lambda: openai_stream(chat_sdk),
            anthropic=lambda: anthropic_stream(messages_sdk),
        )
        await chat.aclose()
        await messages.aclose()
    micro = {name: cost * 1e6 for name, cost in costs.items()}
    return [
        against("a streamed chunk, beside the anthropic SDK", micro["messages"], "µs", micro["anthropic"], 1 / 5),
        against("a streamed chunk, beside the openai SDK", micro["chat"], "µs", micro["openai"], 1 / 12),
        against("a streamed chunk, beside bare aiohttp", micro["chat"], "µs", micro["bare"]),
    ]


async def history_figure(address: str) -> Figure:
    """A conversation grows by two messages per turn; the new content of a turn is the same at every length."""
    client = ours("openai", f"{address}/default/v1")
    short = [await start_conversation(client, 20) for _ in range(ROUNDS + 1)]
    long = [await start_conversation(client, 400) for _ in range(ROUNDS + 1)]
    costs = await cpu_of(
        short=lambda: continue_conversation(client, short.pop()),
        long=lambda: continue_conversation(client, long.pop()),
    )
    await client.aclose()
    return against("a turn after 400 messages, beside 20", costs["long"] * 1e3, "ms", costs["short"] * 1e3, 3)


async def memory_figure(address: str) -> Figure:
    client = ours("openai", f"{address}/tokens=50,chunk=4/v1")
    for _ in range(ANSWERS // 5):
        await our_answer(client, request())
    gc.collect()
    before = resident_megabytes()
    for _ in range(ANSWERS):
        await our_answer(client, request())
    gc.collect()
    grown = resident_megabytes() - before
    await client.aclose()
    return Figure(f"memory grown over {ANSWERS:,} streamed answers", grown, "MB", target="<= 1 MB", ok=grown <= 1)


def against(name: str, value: float, unit: str, peer: float, limit: float | None = None) -> Figure:
    target = "" if limit is None else f"<= {limit:.3g}x"
    return Figure(name, value, unit, value / peer, target, None if limit is None else value / peer <= limit)


async def cpu_of(**jobs: Job) -> dict[str, float]:
    """CPU seconds per unit of each job, with alternating jobs; the median of the rounds."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for attempt in range(ROUNDS + 1):
        for name, job in jobs.items():
            gc.collect()
            start = time.process_time()
            count = await job()
            if attempt:  # the first round warms up
                found[name].append((time.process_time() - start) / count)
    return {name: statistics.median(values) for name, values in found.items()}


async def turns(turn: Callable[[], Awaitable[Any]], count: int = TURNS) -> int:
    for _ in range(count):
        await turn()
    return count


def ours(kind: ProviderKind, base_url: str) -> ModelClient:
    return model_client(Provider("bench", kind, KEY, base_url))


def request(*, stream: bool = True) -> Request:
    return Request("mock", Prompt([text_message("user", QUESTION)]), system="Be brief.", stream=stream)


def text_message(role: Any, text: str) -> ModelMessage:
    return ModelMessage(role, (TextPart(text),))


async def start_conversation(client: ModelClient, length: int) -> Prompt:
    """A conversation of this length, whose last turn has been sent."""
    prompt = Prompt(text_message("assistant" if place % 2 else "user", TEXT) for place in range(length))
    await our_answer(client, Request("mock", prompt, stream=False))
    return prompt


async def continue_conversation(client: ModelClient, prompt: Prompt) -> int:
    async def turn() -> None:
        prompt.append(text_message("user", TEXT))
        prompt.append(text_message("assistant", TEXT))
        await our_answer(client, Request("mock", prompt, stream=False))

    return await turns(turn, TURNS // 3)


async def our_answer(client: ModelClient, ask: Request) -> str:
    assembler = AnswerAssembler(client.model_family(ask.model))
    async for delta in client.stream(ask):
        assembler.add(delta)
    return assembler.build_answer().message.get_text_content()


async def our_stream(client: ModelClient) -> int:
    assembler = AnswerAssembler(client.model_family("mock"))
    count = 0
    async for delta in client.stream(request()):
        assembler.add(delta)
        count += type(delta) is TextDelta
    assert count >= CHUNKS
    return count


def body(*, stream: bool) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    return {"model": "mock", "messages": messages, "stream": stream}


async def bare_turn(session: aiohttp.ClientSession, url: str) -> str:
    headers = {"authorization": f"Bearer {KEY}"}
    async with session.post(url, json=body(stream=False), headers=headers) as response:
        return json.loads(await response.read())["choices"][0]["message"]["content"]


async def bare_stream(session: aiohttp.ClientSession, url: str) -> int:
    text: list[str] = []
    async with session.post(url, json=body(stream=True)) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                text += [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]
    return len(text)


def openai_sdk(base: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=KEY, base_url=f"{base}/v1")


def anthropic_sdk(base: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=KEY, base_url=base)


async def sdk_turn(sdk: openai.AsyncOpenAI) -> str | None:
    answer = await sdk.chat.completions.create(**body(stream=False))
    return answer.choices[0].message.content


async def openai_stream(sdk: openai.AsyncOpenAI) -> int:
    text = [
        choice.delta.content
        async for chunk in await sdk.chat.completions.create(**body(stream=True))
        for choice in chunk.choices
        if choice.delta.content
    ]
    return len(text)


async def anthropic_stream(sdk: anthropic.AsyncAnthropic) -> int:
    text: list[str] = []
    stream = await sdk.messages.create(
        model="mock", max_tokens=1000, stream=True, messages=[{"role": "user", "content": QUESTION}]
    )
    async for event in stream:
        if event.type == "content_block_delta":
            text.append(event.delta.text)
    return len(text)


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
