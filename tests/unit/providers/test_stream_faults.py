"""Damaged and unusual streams, replayed byte for byte against the real clients: each ends as it should."""

import asyncio
import base64
import gzip
import json
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from outrider import async_run
from outrider.errors import (
    ContextOverflowError,
    InvalidRequestError,
    MalformedAnswerError,
    NetworkError,
    OutriderError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StalledStreamError,
)
from outrider.http.transport import HttpTimeouts
from outrider.models.clients import model_client
from outrider.providers.provider import AnswerAssembler, ModelClient
from outrider.types.agents import Agent, Provider, ProviderKind
from outrider.types.parts import ReasoningPart, TextPart, ToolPart
from outrider.types.request import ModelMessage, Prompt, Request, Retry
from outrider.types.tool_state import ToolPending
from tests.conftest import ROOT
from tests.fixtures.http_server import Reply, Server, serving, unused_port

CORPUS = Path(os.environ.get("OUTRIDER_SHARED") or ROOT.parent / "shared") / "corpora" / "stream_faults.jsonl"
KEY = "sk-test-SECRET1234567890"
KINDS: dict[str, ProviderKind] = {
    "anthropic": "anthropic",
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
}
# Where a provider falls silent time runs faster, for its pauses and for our limits alike.
FASTER = 1000
LIMITS = HttpTimeouts()
TIMEOUTS = {name: getattr(LIMITS, name) / FASTER for name in ("idle", "quiet", "total")}
OPTIONS: dict[str, Any] = {"retry": {"attempts": 4, "first_window": 0.02, "largest_window": 0.05}}
ERRORS: dict[str, type[OutriderError]] = {
    "empty_response": NetworkError,
    "unexpected_content_type": MalformedAnswerError,
    "connection_reset": NetworkError,
    "idle_timeout": StalledStreamError,
    "event_idle_timeout": StalledStreamError,
    "total_deadline": StalledStreamError,
    "stale_connection": NetworkError,
    "connect_error": NetworkError,
    "overloaded": OverloadedError,
    "invalid_request": InvalidRequestError,
    "server_error": ProviderError,
    "rate_limit": RateLimitError,
    "quota": QuotaExceededError,
    "timeout": NetworkError,
    "stream_line_too_long": MalformedAnswerError,
    "provider_error": ServerError,
}
LASTING = ("st-076", "st-077")  # they end with the limit of a whole answer, which each attempt waits for
REQUEST = Request("m", Prompt([ModelMessage("user", (TextPart("Hello?"),))]))


@cache
def cases() -> dict[str, dict[str, Any]]:
    if not CORPUS.exists():
        return {}
    lines = CORPUS.read_text(encoding="utf-8").split("\n")
    return {case["id"]: case for case in map(json.loads, filter(None, lines))}


def named(*ids: str) -> list[Any]:
    return [
        pytest.param(name, id=f"{name} {cases()[name]['title']}", marks=[pytest.mark.slow] if name in LASTING else [])
        for name in ids
        if name in cases()
    ]


def outcomes(*wanted: str, also: Iterable[str] = ()) -> list[Any]:
    chosen = [name for name, case in cases().items() if case["expected"]["outcome"] in wanted]
    return named(*(name for name in chosen if name not in also)) or [pytest.param("", id="corpus absent")]


@pytest.fixture(autouse=True)
def _needs_the_corpus(shared_dir: Path) -> None:
    if not cases():
        pytest.skip(f"{CORPUS} is absent")


def pieces(chunks: list[dict[str, Any]]) -> Iterator[bytes | float]:
    for chunk in chunks:
        if "delay_ms" in chunk:
            yield chunk["delay_ms"] / 1000 / FASTER
        if "repeat" in chunk:
            yield chunk.get("prefix", "").encode()
            yield from many(chunk["repeat"].encode(), chunk["count"])
            yield chunk.get("suffix", "").encode()
        else:
            for _ in range(chunk.get("count", 1)):
                yield from split(raw_bytes(chunk), chunk)


def split(raw: bytes, chunk: dict[str, Any]) -> Iterator[bytes | float]:
    size = chunk.get("split_every") or max(len(raw), 1)
    for start in range(0, len(raw), size):
        yield raw[start : start + size]
        if "every_ms" in chunk:
            yield chunk["every_ms"] / 1000 / FASTER


def many(piece: bytes, count: int) -> Iterator[bytes]:
    each = max(1, 16384 // len(piece))
    for start in range(0, count, each):
        yield piece * min(each, count - start)


def raw_bytes(chunk: dict[str, Any]) -> bytes:
    if "b64" in chunk:
        return base64.b64decode(chunk["b64"])
    if "gzip_of" in chunk:
        return gzip.compress(chunk["gzip_of"].encode())[: chunk.get("keep_bytes")]
    text = chunk.get("text", "").replace("<4MiB>", "x" * (4 << 20))
    return b"\xe9\xff" if text.startswith("<latin1 bytes") else text.encode()


def reply(response: dict[str, Any], baseline: str) -> Reply:
    if response.get("body") == "baseline":
        response = cases()[baseline]["response"]
    chunks = [chunk for chunk in response["chunks"] if "user_cancel" not in chunk]
    after = response["after"].replace("reset_on_pooled_connection", "reset")
    return Reply(
        lambda: (piece for piece in pieces(chunks) if piece != b""), response["status"], response["headers"], after
    )


def falls_silent(response: dict[str, Any]) -> bool:
    return response["after"] == "stall" or any({"delay_ms", "every_ms"} & chunk.keys() for chunk in response["chunks"])


class Trial:
    """One case, tried: what was assembled, what was raised, how often was asked."""

    def __init__(self, case: dict[str, Any], server: Server, client: ModelClient) -> None:
        self.expected: dict[str, Any] = case["expected"]
        self.server = server
        self.client = client
        self.assembler = AnswerAssembler(client.model_family(REQUEST.model))
        self.error: OutriderError | None = None
        self.retries: list[str] = []
        self.pace = 0.0

    async def ask(self) -> None:
        count = 0
        try:
            async for delta in self.client.stream(REQUEST):
                self.assembler.add(delta)
                if isinstance(delta, Retry):
                    self.retries.append(str(delta))
                count += 1
                if self.pace and count % 20 == 0:
                    await asyncio.sleep(self.pace)
        except OutriderError as error:
            self.error = error

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.assembler.list_parts() if isinstance(part, TextPart))

    @property
    def calls(self) -> list[ToolPart]:
        return [part for part in self.assembler.list_parts() if isinstance(part, ToolPart)]

    @property
    def runnable(self) -> list[dict[str, Any]]:
        """Calls that are whole and whose input could be read, in an answer that is whole."""
        whole = self.error is None and self.assembler.finish in ("tool_use", "stop")
        return [
            {"name": call.tool, "input": call.state.input}
            for call in self.calls
            if whole and _ready(call) and "input_error" not in call.metadata
        ]

    def holds(self) -> None:
        """Checks what must be true after every case."""
        assert len({call.call_id for call in self.calls}) == len(self.calls), "results could not be paired"
        assert len(self.server.requests) <= self.expected.get("attempts_max", 5)
        if "text" in self.expected:
            assert self.text == spelt_out(self.expected["text"])
        assert self.text.startswith(self.expected.get("text_prefix", ""))
        if "tool_calls" in self.expected:
            assert self.runnable == self.expected["tool_calls"]
        if (kind := self.expected.get("error_kind")) and self.error is not None:
            assert isinstance(self.error, ERRORS[kind])
        if "usage" in self.expected:
            tokens = self.assembler.tokens
            assert {"input": tokens.input, "output": tokens.output}.items() >= self.expected["usage"].items()
        shown = [str(self.error), repr(self.error), *self.retries]
        assert not [text for text in shown if KEY in text]


def _ready(call: ToolPart) -> bool:
    return isinstance(call.state, ToolPending) and call.state.phase == "ready"


def spelt_out(text: str) -> str:
    """`<8388608 x>` represents that many x."""
    found = re.fullmatch(r"<(\d+) (.)>", text)
    return found[2] * int(found[1]) if found else text


@asynccontextmanager
async def trial(name: str, *, stays: bool = False, **options: Any) -> AsyncIterator[Trial]:
    """With `stays`, the server answers every request in the same way."""
    case = cases()[name]
    baseline = "st-001" if case["format"] == "anthropic" else "st-002"
    later = [] if stays else case.get("later_responses", [])
    if case["format"] == "openai_responses":
        later, rest = [], [Reply([RESPONSES_BASELINE])] if later else []
    else:
        rest = [reply(response, baseline) for response in later]
    first = [reply(cases()[baseline]["response"], baseline)] if "pooled" in case["response"]["after"] else []
    for good in first:
        good.after = "keep"
    refused = case["response"]["after"] == "refused"
    broken = Reply(after="drop") if refused else reply(case["response"], baseline)
    async with serving(*first, broken, *rest) as server, asyncio.timeout(60):
        address = f"http://127.0.0.1:{unused_port()}" if refused else server.url
        limits = {"timeouts": TIMEOUTS} if falls_silent(case["response"]) else {}
        provider = Provider("p", KINDS[case["format"]], KEY, address, options=OPTIONS | limits | options)
        client = model_client(provider)
        tried = Trial(case, server, client)
        try:
            if first:
                await tried.ask()
                tried.assembler = AnswerAssembler("")
                server.requests.clear()
            yield tried
        finally:
            await client.aclose()


RESPONSES_BASELINE = (
    b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"item_id":"i","delta":"Hi"}\n\n'
    b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}\n\n'
)


LARGE = ("st-045", "st-046", "st-086", "st-140")


@pytest.mark.parametrize("name", outcomes("complete", also=LARGE))
async def test_an_unusual_stream_is_whole(name: str):
    async with trial(name) as tried:
        await tried.ask()
        assert tried.error is None
        assert tried.assembler.finish is not None
        assert len(tried.server.requests) == 1
        tried.holds()
        if "stop" in tried.expected:
            assert tried.assembler.finish == tried.expected["stop"]


@pytest.mark.parametrize("name", outcomes("complete_after_retry", also=["st-198"]))
async def test_a_failure_before_anything_was_shown_is_made_good_by_asking_again(name: str):
    started = asyncio.get_running_loop().time()
    async with trial(name) as tried:
        await tried.ask()
        assert tried.error is None
        assert tried.text in ("Hello wörld 👋", "Hi")
        assert len(tried.server.requests) == 2
        assert len(tried.retries) == 1
        tried.holds()
    low, _ = tried.expected.get("wait_s", (0, 60))
    assert asyncio.get_running_loop().time() - started >= low


@pytest.mark.parametrize("name", outcomes("incomplete_kept", "incomplete_kept_or_retry", "incomplete_kept_or_complete"))
async def test_an_answer_that_broke_off_is_preserved_as_far_as_it_came(name: str):
    async with trial(name) as tried:
        await tried.ask()
        marked_as_cut = tried.assembler.finish in ("length", "other")
        assert marked_as_cut or tried.error is not None
        tried.holds()
        assert tried.runnable == []


@pytest.mark.parametrize("name", outcomes("fatal_clean", also=LARGE))
async def test_a_failure_that_cannot_be_repaired_ends_cleanly(name: str):
    async with trial(name) as tried:
        await tried.ask()
        assert isinstance(tried.error, ProviderError)
        assert tried.assembler.list_parts() == []
        tried.holds()


@pytest.mark.parametrize("name", outcomes("compaction_then_retry", "compaction_then_retry_or_fatal"))
async def test_a_prompt_that_is_too_long_is_not_sent_again_as_it_is(name: str):
    async with trial(name) as tried:
        await tried.ask()
        assert isinstance(tried.error, ContextOverflowError)
        assert len(tried.server.requests) == 1


@pytest.mark.parametrize("name", outcomes("tool_error_result", "complete_or_tool_error"))
async def test_a_damaged_call_does_not_kill_the_answer(name: str):
    async with trial(name) as tried:
        await tried.ask()
        assert tried.error is None
        assert len(tried.calls) == 1
        tried.holds()
        if tried.expected.get("reason") in ("invalid_json", "not_an_object"):
            assert "Nothing was run" in tried.calls[0].metadata["input_error"]
            assert tried.runnable == []


@pytest.mark.parametrize("name", outcomes("cancelled_kept"))
async def test_cancelling_preserves_what_arrived(name: str):
    async with trial(name, timeouts={}) as tried:
        task = asyncio.create_task(tried.ask())
        while not tried.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        async with asyncio.timeout(30):
            await asyncio.gather(task, return_exceptions=True)
            await tried.server.requests[0].closed.wait()
        assert not _ready(tried.calls[0])
        assert tried.assembler.tokens.input == 5
        tried.holds()


@pytest.mark.parametrize("name", named("st-045", "st-046", "st-086", "st-140"))
async def test_a_huge_stream_needs_bounded_memory(name: str):
    async with trial(name, timeouts={}) as tried:
        tried.pace = 0.001 if name == "st-086" else 0.0
        before = resident_mib()
        highest = before
        task = asyncio.create_task(tried.ask())
        while not task.done():
            await asyncio.sleep(0.005)
            highest = max(highest, resident_mib())
        await task
        tried.holds()
        assert (tried.error is None) == (tried.expected["outcome"] == "complete")
    assert highest - before <= tried.expected.get("bounds", {"extra_rss_mib": 96})["extra_rss_mib"]


@pytest.mark.parametrize("name", named("st-079"))
async def test_a_server_that_does_not_hang_up_is_not_waited_for(name: str):
    async with trial(name) as tried, asyncio.timeout(30):  # the limit for silence is ten times that
        await tried.ask()
        tried.holds()


@pytest.mark.parametrize("name", named("st-198"))
async def test_fifty_sessions_that_were_refused_together_come_back_apart(name: str):
    window = 0.5
    refusal = reply(cases()[name]["response"], "st-001")
    async with serving(*[refusal] * 50, reply({"body": "baseline"}, "st-001")) as server:
        provider = Provider("p", "anthropic", KEY, server.url, options={"retry": {"first_window": window}})
        client = model_client(provider)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(answered(client)) for _ in range(50)]
        await client.aclose()
    assert len(server.requests) == 100
    waits = [one.result()[0] for one in asked if one.result()]
    assert len(waits) > 40  # who was late may have met those who came back early
    for first in waits:
        assert sum(first <= wait < first + window * 100 for wait in waits) <= 10


async def answered(client: ModelClient) -> list[int]:
    """Milliseconds that were waited before each further attempt."""
    assembler, waits = AnswerAssembler(""), list[int]()
    async for delta in client.stream(REQUEST):
        assembler.add(delta)
        if isinstance(delta, Retry):
            waits.append(delta.delay_ms)
    assert assembler.finish == "stop"
    return waits


@pytest.mark.parametrize("name", named("st-199"))
async def test_a_provider_without_capacity_is_followed_by_the_fallback(name: str):
    async with trial(name, stays=True) as tried, serving(reply({"body": "baseline"}, "st-002")) as other:
        first = Provider("a", "anthropic", KEY, tried.server.url, options=OPTIONS)
        second = Provider("b", "openai", KEY, other.url, options=OPTIONS)
        agent = Agent("a", "", ["first", "b/other"], "a")
        result = await async_run(agent, "go", [agent], [], [first, second])
        assert result.output == "Hello wörld 👋"
        assert len(other.requests) == 1
        assert len(tried.server.requests) <= tried.expected["attempts_max"]


@pytest.mark.parametrize("name", named("st-117"))
async def test_thinking_without_a_signature_is_marked_as_such(name: str):
    async with trial(name) as tried:
        await tried.ask()
        thoughts = [part for part in tried.assembler.list_parts() if isinstance(part, ReasoningPart)]
        assert len(thoughts) == 1
        assert "signature" not in thoughts[0].provider_state


def test_every_case_is_tried():
    handled = {
        "complete", "complete_after_retry", "incomplete_kept", "incomplete_kept_or_retry",
        "incomplete_kept_or_complete", "fatal_clean", "compaction_then_retry", "compaction_then_retry_or_fatal",
        "tool_error_result",
        "complete_or_tool_error", "cancelled_kept", "fallback_model",
    }  # fmt: skip
    assert {case["expected"]["outcome"] for case in cases().values()} <= handled


def resident_mib() -> float:
    """Returns the memory of this process, 0 if the system does not report it."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if statm.exists() else 0.0
