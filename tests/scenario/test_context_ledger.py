"""The context ledger: stored requests are built again byte for byte, and every byte has a source."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from outrider import Agent, Engine, EventBus, HookedRequest, Hooks, Session, Tool, async_run
from outrider.context.request_ledger import request_of
from outrider.events import CacheMissEvent
from outrider.models.context_ledger import SentRequestView, build_report, find_request, rebuild_requests
from outrider.stores import SqliteStore
from outrider.testing import SimulatedReasoning, SimulatedRequest, Simulator, call
from outrider.testing.simulator_answers import SIMULATED_APIS, ApiKind
from outrider.types.messages import Message
from outrider.types.parts import ModelRef, StepFinishPart
from tests.fixtures.soak import examples

KINDS: list[ApiKind] = ["anthropic", "openai", "openai-responses", "google"]
TEXTS = ["plain", "Grüße", "emoji 🙂", 'quoted "text"', "back\\slash", "line\nbreak", "tab\t", "\u2028", "x" * 500]


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
            pieces.append(SimulatedReasoning(self._random.choice(TEXTS)))
        pieces.append(f"I say {self._random.choice(TEXTS)}.")
        for _ in range(self._random.choice([0, 1, 1, 2, 20])):
            self._calls += 1
            if self._random.random() < 0.5:
                pieces.append(call("add", f"c{self._calls}", a=self._random.randint(0, 9), b=2))
            else:
                times = self._random.choice([1, 3, 400])
                pieces.append(call("look_up", f"c{self._calls}", name=self._random.choice(TEXTS), times=times))
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
            await engine.prompt(session, f"Question {turn}: {TEXTS[turn % len(TEXTS)]}")
    return session


async def load_requests(store: SqliteStore, session: str) -> list[SentRequestView]:
    found = list(rebuild_requests((await store.load(session)).messages))
    assert not any(isinstance(request, Message) for request in found)
    return [request for request in found if isinstance(request, SentRequestView)]


@pytest.mark.parametrize("kind", KINDS)
async def test_stored_requests_are_the_bytes_that_a_server_received(kind: ApiKind, tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(RandomAnswers(7)) as server:
        rebuilt: list[SentRequestView] = []
        while len(server.requests) < examples(60):
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fork_has_the_requests_of_its_origin_and_its_own(kind: ApiKind, tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(RandomAnswers(6)) as server:
        session = await run_session(store, server, kind, turns=2)
        agent = Agent("writer", "You write.\n\nAlways politely: Grüße!", SIMULATED_APIS[kind].model, "simulator")
        async with Engine([agent], [server.provider(kind)], [look_up, add], store=store) as engine:
            fork = await engine.fork(session)
            await engine.prompt(fork, "a question in the fork")
            await engine.prompt(fork, "another one")
        rebuilt = await load_requests(store, fork)
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]


async def test_a_session_without_records_reports_it(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(["an answer"]) as server:
        session = await run_session(store, server, "anthropic", turns=1)
        messages = (await store.load(session)).messages
    for message in messages:
        message.parts[:] = [part for part in message.parts if part.type != "step-start"]
    report = build_report(session, messages)
    assert [step.recorded for step in report.steps] == [False]
    assert report.totals == ()


Change = Callable[[Engine, str], Awaitable[object]]


async def no_change(engine: Engine, session: str) -> None:
    """Nothing happens between two turns."""


async def describe_tool(engine: Engine, session: str) -> None:
    """Another version of the program has another text for a tool."""
    add.description = "Add two numbers, exactly."


async def use_other_model(engine: Engine, session: str) -> None:
    await engine.live[session].use_model(ModelRef("simulator", "another-model"))


async def reopen(engine: Engine, session: str) -> None:
    """Forgets everything that is not stored."""
    await engine.close(session)
    await engine.open(session)


async def collect_misses(kind: ApiKind, *changes: Change, **options: Any) -> list[CacheMissEvent]:
    """Run two turns with changes between them, and return the events about the cache."""
    bus, events = EventBus(), list[CacheMissEvent]()
    bus.subscribe(CacheMissEvent, events.append)
    agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator", reasoning=False)
    async with (
        Simulator(lambda _: "an answer", any_model=True) as server,
        Engine([agent], [server.provider(kind)], [look_up, add], bus=bus, **options) as engine,
    ):
        session = await engine.create()
        await engine.prompt(session, "first")
        for change in changes:
            await change(engine, session)
        await engine.prompt(session, "second")
        messages = (await engine.store.load(session)).messages
    stored = [part.cache_miss for message in messages for part in message.get_parts_by_type(StepFinishPart)]
    found = [miss for miss in stored if miss]
    assert [miss.cause for miss in found] == [event.cause for event in events]
    assert [step.miss for step in build_report(session, messages).steps if step.miss] == found
    return events


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", [(), (reopen,)], ids=["one process", "reopened"])
async def test_an_event_names_the_hook_that_broke_the_prefix(kind: ApiKind, again: tuple[Change, ...]):
    def shorten(request: HookedRequest) -> HookedRequest | None:
        return request.replace(system="You write briefly.") if len(request.messages) > 1 else None

    assert await collect_misses(kind, *again) == []
    (event,) = await collect_misses(kind, *again, hooks=Hooks(before_request=shorten))
    assert (event.cause, event.detail) == ("hook", "before_request changed the system prompt")
    assert event.offset > 0
    assert 0 < event.achievable < 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_names_the_tool_that_changed(kind: ApiKind, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(add, "description", add.description)
    (event,) = await collect_misses(kind, describe_tool, reopen)
    assert (event.cause, event.detail) == ("tools", "changed add")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        ([look_up], [look_up, add], "added add"),
        ([look_up, add], [look_up], "removed add"),
        ([look_up, add], [add, look_up], "the order of the tools changed"),
    ],
    ids=["added", "removed", "order"],
)
async def test_only_the_tools_that_changed_are_named(
    kind: ApiKind, before: list[Any], after: list[Any], detail: str, tmp_path: Path
):
    """The mark of the cache is on the last tool of a request, and moves with it."""
    agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator", reasoning=False)
    bus, events = EventBus(), list[CacheMissEvent]()
    bus.subscribe(CacheMissEvent, events.append)
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(lambda _: "an answer") as server:
        session = ""
        for tools in (before, after):
            async with Engine([agent], [server.provider(kind)], tools, store=store, bus=bus) as engine:
                session = session or await engine.create()
                await engine.prompt(session, "a question")
    assert [(event.cause, event.detail) for event in events] == [("tools", detail)]


@pytest.mark.parametrize("kind", KINDS)
async def test_another_model_is_a_cause(kind: ApiKind):
    (event,) = await collect_misses(kind, use_other_model)
    assert event.cause == "model"
    assert event.detail.endswith("→ simulator/another-model")


async def test_a_stable_prefix_can_be_asserted(assert_stable_prefix: Callable[[Session], None]):
    agent = Agent("writer", "You write.", SIMULATED_APIS["openai"].model, "simulator")
    answers = [["I add.", call("add", "c1", a=1, b=2)], "3"]
    async with Simulator([*answers, *answers]) as server:
        result = await async_run(agent, "add", [agent], [add], [server.provider("openai")])
        assert_stable_prefix(result.session)
        hooks = Hooks(
            before_request=lambda request: request.replace(system=f"You write. It is {len(server.requests)}:00.")
        )
        async with Engine([agent], [server.provider("openai")], [add], hooks=hooks) as engine:
            session = await engine.create()
            await engine.prompt(session, "add")
            changed = engine.live[session].session
            with pytest.raises(AssertionError, match=r"step 2, byte \d+: date"):
                assert_stable_prefix(changed)


async def test_requests_with_tools_as_text_are_built_again(tmp_path: Path):
    answers = ['<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', "3"]
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(answers) as server:
        agent = Agent("writer", "You write.", SIMULATED_APIS["openai"].model, "simulator")
        provider = server.provider("openai", text_tools=True)
        async with Engine([agent], [provider], [add], store=store) as engine:
            session = await engine.create()
            await engine.prompt(session, "add")
        rebuilt = await load_requests(store, session)
        assert [request.record.rewrite for request in rebuilt] == ["text-tools"] * 2
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]


async def test_marks_of_the_client_are_part_of_the_request(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(RandomAnswers(8)) as server:
        agent = Agent("writer", "You write.", SIMULATED_APIS["anthropic"].model, "simulator")
        provider = server.provider("anthropic", caching="marks")
        async with Engine([agent], [provider], [look_up, add], store=store) as engine:
            session = await engine.create()
            await engine.prompt(session, "first")
            await engine.prompt(session, "second")
        rebuilt = await load_requests(store, session)
        report = build_report(session, (await store.load(session)).messages)
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]
    assert all(request.record.inserts for request in rebuilt)
    assert {step.miss.cause for step in report.steps if step.miss} <= {"settings"}  # marks are no difference


async def test_a_secret_is_redacted_in_a_request_that_is_built_again(tmp_path: Path):
    secret = "sk-ant-api03-" + "Zx9Kq2Lm" * 11 + "AA"
    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(["one", "two"]) as server:
        agent = Agent("writer", f"You write. The key is {secret}.", SIMULATED_APIS["openai"].model, "simulator")
        async with Engine([agent], [server.provider("openai")], [], store=store) as engine:
            session = await engine.create()
            await engine.prompt(session, "first")
            await engine.prompt(session, f"second {secret}")
        first, second = await load_requests(store, session)
        assert secret.encode() in server.requests[0].raw
    assert not first.exact
    assert not second.exact
    assert secret.encode() not in first.body + second.body
    for request in (first, second):
        assert sum(span.size for span in request.spans) == len(request.body)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_compaction_is_a_cause_and_all_requests_are_exact(kind: ApiKind, tmp_path: Path):
    def answer(request: SimulatedRequest) -> str:
        return "a summary" if "about to be shortened" in request.texts[-1] else "an answer " * 50

    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(answer) as server:
        agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator", reasoning=False)
        async with Engine([agent], [server.provider(kind)], [], store=store) as engine:
            session = await engine.create()
            for text in ("first", "second", "third"):
                await engine.prompt(session, text)
            await engine.compact(session)
            await engine.prompt(session, "fourth")
        messages = (await store.load(session)).messages
        report = build_report(session, messages)
        recorded = [step for step in report.steps if step.recorded]
        assert all(step.exact for step in recorded)
        rebuilt = await load_requests(store, session)
        assert [request.body for request in rebuilt] == [request.raw for request in server.requests]
        assert find_request(messages, 0).body == server.requests[3].raw
        assert [step.step for step in report.steps] == [1, 2, 3, 0, 4]
    assert [step.miss.cause for step in recorded if step.miss] == ["compaction"]
    assert any(share.kind == "compaction" for share in recorded[-1].sources)


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_between_a_compaction_and_its_undo_have_the_summary(kind: ApiKind, tmp_path: Path):
    def answer(request: SimulatedRequest) -> str:
        return "a summary" if "about to be shortened" in request.texts[-1] else "an answer " * 50

    async with SqliteStore(tmp_path / "sessions.db") as store, Simulator(answer) as server:
        agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator", reasoning=False)
        async with Engine([agent], [server.provider(kind)], [], store=store) as engine:
            session = await engine.create()
            for text in ("first", "second", "third"):
                await engine.prompt(session, text)
            for text in ("with a summary", "with another summary"):
                await engine.compact(session)
                await engine.prompt(session, text)
                assert await engine.undo_compaction(session)
                await engine.prompt(session, "without it")
        rebuilt = await load_requests(store, session)
    assert [request.body for request in rebuilt] == [request.raw for request in server.requests]
    assert all(request.exact for request in rebuilt)
