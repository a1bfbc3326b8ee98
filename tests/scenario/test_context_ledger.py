"""The context ledger: stored requests are built again byte for byte, and every byte has a source."""

import random
from pathlib import Path
from typing import Annotated

import pytest

from outrider import Agent, Engine, Hooks, Tool
from outrider.context.request_ledger import request_of
from outrider.session_replay.context_report import SentRequestView, build_report, rebuild_requests
from outrider.stores import SqliteStore
from outrider.testing import SimulatedReasoning, SimulatedRequest, Simulator, call
from outrider.testing.simulator import SIMULATED_APIS, ApiKind
from outrider.types.messages import Message

KINDS: list[ApiKind] = ["anthropic", "openai", "openai-responses", "google"]
WORDS = ["plain", "Grüße", "emoji 🙂", 'quoted "text"', "back\\slash", "line\nbreak", "tab\t", "\u2028", "x" * 500]


@Tool
def look_up(name: Annotated[str, "what to look for"], times: int = 1) -> str:
    """Look something up."""
    return f"{name} " * times


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class RandomAnswers:
    """Answers with texts and calls; every turn ends after some steps."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._calls = 0

    def __call__(self, request: SimulatedRequest) -> list[object]:
        pieces: list[object] = []
        if self._random.random() < 0.3:
            pieces.append(SimulatedReasoning(self._random.choice(WORDS)))
        pieces.append(f"I say {self._random.choice(WORDS)}.")
        for _ in range(self._random.choice([0, 1, 1, 2, 20])):
            self._calls += 1
            if self._random.random() < 0.5:
                pieces.append(call("add", f"c{self._calls}", a=self._random.randint(0, 9), b=2))
            else:
                times = self._random.choice([1, 3, 400])
                pieces.append(call("look_up", f"c{self._calls}", name=self._random.choice(WORDS), times=times))
        return pieces


async def run_session(store: SqliteStore, server: Simulator, kind: ApiKind, turns: int, **options: object) -> str:
    agent = Agent(
        "writer",
        "You write.\n\nAlways politely: Grüße!",
        SIMULATED_APIS[kind].model,
        "simulator",
        reasoning=options.pop("reasoning", None),  # type: ignore[arg-type]
    )
    async with Engine([agent], [server.provider(kind)], [look_up, add], store=store, **options) as engine:  # type: ignore[arg-type]
        session = await engine.create()
        for turn in range(turns):
            await engine.prompt(session, f"Question {turn}: {WORDS[turn % len(WORDS)]}")
    return session


async def load_requests(store: SqliteStore, session: str) -> list[SentRequestView]:
    found = list(rebuild_requests((await store.load(session)).messages))
    assert not any(isinstance(request, Message) for request in found)
    return [request for request in found if isinstance(request, SentRequestView)]


@pytest.mark.parametrize("kind", KINDS)
async def test_stored_requests_are_the_bytes_that_a_server_received(kind: ApiKind, tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(RandomAnswers(7)) as server:
        rebuilt: list[SentRequestView] = []
        while len(server.requests) < 130:
            session = await run_session(store, server, kind, turns=9)
            rebuilt += await load_requests(store, session)
        server.check()
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]
        assert all(request.exact for request in rebuilt)
        for request in rebuilt:
            assert sum(span.size for span in request.spans) == len(request.body)
            position = 0
            for span in request.spans:
                assert span.start == position
                position = span.end


@pytest.mark.parametrize("kind", KINDS)
async def test_every_part_of_a_request_has_its_source(kind: ApiKind, tmp_path: Path):
    answers = [
        [SimulatedReasoning("let me think about that"), "I look.", call("look_up", "c1", name="Grüße", times=50)]
    ]
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator([*answers, "done"]) as server:
        session = await run_session(store, server, kind, turns=1)
        _, last = await load_requests(store, session)
        report = build_report(session, (await store.load(session)).messages)
    sizes = {(share.kind, share.name): share.bytes for share in report.steps[-1].sources}
    assert sizes["user message", ""] == len("Question 0: plain")
    assert sizes["instructions of the agent", ""] == len("You write.\\n\\nAlways politely: Grüße!".encode())
    assert sizes["tool output", "look_up"] == len(("Grüße " * 50).encode())
    assert sizes["answer", "writer"] == len("I look.")
    assert sizes["tool schema", "look_up"] > 100
    assert sizes["tool schema", "add"] > 100
    assert sizes["tool call", "look_up"] >= len('{"name":"Grüße","times":50}'.encode())
    assert sum(sizes.values()) == len(last.body) == report.steps[-1].bytes
    assert sum(share.tokens for share in report.steps[-1].sources) == pytest.approx(last.message.tokens.prompt, abs=8)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_head_is_stored_once_for_all_steps_and_sessions(kind: ApiKind, tmp_path: Path):
    def answer(request: SimulatedRequest) -> list[object]:
        number = len(server.requests)
        return ["I add.", call("add", f"c{number}", a=1, b=2)] if number % 3 else ["done"]

    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(answer) as server:
        sessions = [await run_session(store, server, kind, turns=3, reasoning=False) for _ in range(2)]
        records = []
        for session in sessions:
            messages = (await store.load(session)).messages
            found = [request_of(message) for message in messages if message.role == "assistant"]
            assert [bool(record and record.head) for record in found] == [True] + [False] * (len(found) - 1)
            records.append(found[0])
    assert records[0].head == records[1].head


async def test_what_a_hook_changes_is_stored_with_the_request(tmp_path: Path):
    hooks = Hooks(before_request=lambda request: request.with_text("found for you: Äpfel"))
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(RandomAnswers(5)) as server:
        session = await run_session(store, server, "anthropic", turns=3, hooks=hooks)
        rebuilt = await load_requests(store, session)
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]
    for request in rebuilt:
        assert any(span.source.kind == "hook" for span in request.spans)
        assert sum(span.size for span in request.spans) == len(request.body)


async def test_a_fork_has_the_requests_of_its_origin(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(RandomAnswers(6)) as server:
        session = await run_session(store, server, "openai", turns=2)
        fork = await store.fork(session)
        rebuilt = await load_requests(store, fork.id)
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]


async def test_a_session_without_records_says_so(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(["an answer"]) as server:
        session = await run_session(store, server, "anthropic", turns=1)
        messages = (await store.load(session)).messages
    for message in messages:
        message.parts[:] = [part for part in message.parts if part.type != "step-start"]
    report = build_report(session, messages)
    assert [step.recorded for step in report.steps] == [False]
    assert report.totals == ()
