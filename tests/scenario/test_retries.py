"""A request that fails is sent again until it succeeds; what was shown of it is withdrawn, and nothing runs twice."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

from outrider import Agent, Engine, EventBus, Limits, Provider, Tool, async_run_stream
from outrider.agents.turn_state import SilenceTimer, TurnEnd
from outrider.errors import NetworkError
from outrider.events import ModelSilentEvent, PartDeltaEvent, PartUpdatedEvent, RetryScheduledEvent
from outrider.http.transport import HttpRequest
from outrider.providers import ModelCatalog
from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory
from outrider.providers.provider import assemble_answer
from outrider.remote.agent_server import AnswerDeltaBuilder
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter
from outrider.testing.simulator_answers import SIMULATED_APIS, SimulatedApi, SimulatedReasoning
from outrider.types.messages import Message
from outrider.types.parts import ReasoningPart, RetryPart, StepStartPart, TextPart, ToolPart, is_withdrawn
from outrider.types.request import RetryPolicy
from tests.fixtures.http_server import Reply, serving
from tests.fixtures.memory_transport import Played
from tests.recorded.exchanges import corpus
from tests.scenario.scripted_runs import agent, call, scripted

QUICK = RetryPolicy(first_window=0.0)
KINDS = sorted(SIMULATED_APIS)


class Broken(Played):
    """An answer whose connection breaks after its chunks."""

    def __init__(self, chunks: Iterable[bytes], error: NetworkError | None) -> None:
        super().__init__(chunks, 200, {})
        self._error = error

    async def read(self) -> bytes:
        chunk = await super().read()
        if not chunk and self._error is not None:
            raise self._error
        return chunk


class Answers(CassetteTransportFactory):
    """Plays answers in order instead of a network, then those that `later` returns for a request."""

    def __init__(self, answers: Iterable[Played], later: Callable[[Any], Played] | None = None) -> None:
        super().__init__(CassetteOptions(path="none"))
        self.answers = list(answers)
        self.later = later
        self.requests: list[Any] = []

    def wrap_transport(self, network: Any) -> Any:
        return self

    async def send(self, request: HttpRequest) -> Played:
        self.requests.append(json.loads(request.body))
        if self.later is not None and not self.answers:
            return self.later(self.requests[-1])
        return self.answers.pop(0)

    async def aclose(self) -> None:
        pass


def whole(frames: Iterable[Any]) -> Played:
    return Played(frames, 200, {})


def reset(frames: Sequence[Any]) -> Played:
    return Broken(frames, NetworkError("the connection was reset", type="disconnected"))


def truncated(frames: Sequence[Any]) -> Played:
    return Broken(frames, None)


class RetriedRun:
    """One run of an agent: its messages, how often its tool ran, and what was published."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.ran: list[str] = []
        self.events: list[Any] = []
        self.tokens = 0
        self.reason = ""

    def look(self, path: str = "") -> str:
        self.ran.append(path)
        return f"saw {path}"

    @property
    def retries(self) -> list[RetryScheduledEvent]:
        return [event for event in self.events if isinstance(event, RetryScheduledEvent)]


async def run_with_retries(vendor: SimulatedApi, answers: Answers, tool: str = "look") -> RetriedRun:
    run, bus = RetriedRun(), EventBus()
    bus.subscribe_all(run.events.append)
    provider = Provider("p", vendor.kind, "k", "http://vendor", options={"cassette": answers})  # type: ignore[arg-type]
    answering = Agent("writer", "You write.", vendor.model, "p", reasoning=True, retry=QUICK)
    async with Engine([answering], [provider], [Tool(run.look, name=tool)], bus=bus) as engine:
        session_id = await engine.create()
        run.reason = (await engine.prompt(session_id, "go")).reason
        session = engine.live[session_id].session
        run.messages, run.tokens = session.messages, session.usage.tokens.total
    return run


def summary(messages: list[Message]) -> list[Any]:
    """A transcript without what is new in every run, and without withdrawn and retry parts."""
    return [
        (message.role, message.finish, message.error, [content_of(part) for part in message.parts if is_visible(part)])
        for message in messages
    ]


def is_visible(part: Any) -> bool:
    return not is_withdrawn(part) and not isinstance(part, RetryPart)


def content_of(part: Any) -> Any:
    match part:
        case TextPart() | ReasoningPart():
            return part.type, part.text, part.metadata, getattr(part, "provider_state", None)
        case ToolPart():
            return part.tool, part.state.status, part.state.input, getattr(part.state, "output", None)
        case _:
            return part.type


PIECES = [SimulatedReasoning("I should look."), "I will look at it.", call("look", "c1", path="a.txt")]


@pytest.mark.parametrize("broken", [reset, truncated])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_break_at_any_event_gives_the_same_transcript(kind: str, broken: Callable[[Sequence[Any]], Played]):
    vendor = SIMULATED_APIS[kind]
    frames, ending = list(vendor.stream(PIECES)), list(vendor.stream(["done"]))

    def later(request: Any) -> Played:
        return whole(ending if vendor.rules.results(request) else frames)

    expected = await run_with_retries(vendor, Answers([], later))
    assert (expected.reason, expected.ran) == ("completed", ["a.txt"])
    for position in range(len(frames)):
        answers = Answers([broken(frames[:position])], later)
        run = await run_with_retries(vendor, answers)
        assert run.retries or position >= len(frames) - 3  # only the usage and the end mark were missing
        assert summary(run.messages) == summary(expected.messages), position
        assert run.ran == ["a.txt"]
        check_withdrawn(run)
        if run.retries:
            assert answers.requests[1] == answers.requests[0]


def check_withdrawn(run: RetriedRun) -> None:
    """Shown parts of a failed attempt are stored, marked, ended and counted."""
    shown = {part_id for event in run.retries for part_id in event.withdrawn}
    parts = {part.id: part for message in run.messages for part in message.parts if is_withdrawn(part)}
    assert set(parts) == shown
    for part in parts.values():
        assert not isinstance(part, TextPart) or part.ignored
        assert not isinstance(part, ToolPart) or part.ended
    retries = [part for message in run.messages for part in message.get_parts_by_type(RetryPart)]
    assert len(retries) == len(run.retries)
    assert all(retry.tokens for retry in retries if parts)


RECORDED = {
    "anthropic": "anthropic-messages",
    "openai": "openai-chat",
    "openai-responses": "openai-responses",
    "google": "gemini",
}
MAX_EVENTS = 40


def recorded_streams(shared_dir: Any, kind: str) -> list[tuple[str, list[bytes]]]:
    """Recorded answers of an API, split into events: one with text, one with reasoning, one with calls, if there is."""
    found = corpus(shared_dir)
    chosen: dict[str, list[bytes]] = {}
    for wanted in ("text", "reasoning", "tool_calls"):
        for meta in found.select(api=RECORDED[kind], streaming=True):
            exchange = found.get(meta["id"])
            expected = exchange["expected"]
            body = exchange["response"]["body"].replace("\r\n", "\n")
            frames = [f"{event}\n\n".encode() for event in body.split("\n\n") if event.strip()]
            has = expected.get("reasoning_text" if wanted == "reasoning" else wanted)
            plain = exchange["response"].get("status", 200) == 200 and not expected.get("error")
            if has and plain and len(frames) <= MAX_EVENTS and meta["id"] not in chosen and b"data:" in frames[0]:
                chosen[meta["id"]] = frames
                break
    return list(chosen.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_break_at_any_event_of_a_recorded_answer_gives_the_same_transcript(kind: str, shared_dir: Any):
    vendor = SIMULATED_APIS[kind]
    if not (shared_dir / "recordings").is_dir():
        pytest.skip(f"{shared_dir / 'recordings'} is absent")
    ending = list(vendor.stream(["done"]))
    streams = recorded_streams(shared_dir, kind)
    assert len(streams) >= 2
    for name, frames in streams:

        def later(request: Any, frames: list[bytes] = frames) -> Played:
            return whole(ending if vendor.rules.results(request) else frames)

        expected = await run_with_retries(vendor, Answers([], later))
        for position in range(len(frames)):
            run = await run_with_retries(vendor, Answers([reset(frames[:position])], later))
            assert summary(run.messages) == summary(expected.messages), (name, position)
            check_withdrawn(run)


@pytest.mark.parametrize("kind", KINDS)
async def test_two_hundred_steps_against_a_server_that_breaks_and_is_overloaded(kind: str):
    vendor, replies, ran = SIMULATED_APIS[kind], list[Reply](), list[int]()
    for step, request in zip(range(200), count(), strict=False):
        frames = list(vendor.stream([f"Step {step}.", call("work", f"c{step}", number=step)]))
        if request % 20 == 7:
            refusal = json.dumps(vendor.error_body(vendor.overloaded)).encode()
            replies.append(Reply([refusal], vendor.overloaded.status, {"content-type": "application/json"}))
        if request % 20 == 13:
            replies.append(Reply(frames[: 2 + step % (len(frames) - 6)], after="drop"))
        replies.append(Reply(frames))
    replies.append(Reply(list(vendor.stream(["done"]))))

    def work(number: int) -> str:
        ran.append(number)
        return f"worked on {number}"

    async with serving(*replies) as server, asyncio.timeout(120):
        retry = {"first_window": 0.0}
        provider = Provider("p", kind, "k", f"{server.url}{vendor.base}", options={"retry": retry})  # type: ignore[arg-type]
        writer = Agent("writer", "You write.", vendor.model, "p")
        async with Engine([writer], [provider], [Tool(work)], limits=None) as engine:
            session_id = await engine.create()
            reasons = [(await engine.prompt(session_id, "go")).reason]
            while reasons[-1] == "limit":  # the default limit of turns
                reasons.append((await engine.resume(session_id)).reason)
        assert reasons[-1] == "completed"
        assert len(server.requests) == len(replies)
    assert ran == list(range(200))


async def test_a_retry_during_the_wait_ends_at_once_when_the_user_gives_up():
    vendor = SIMULATED_APIS["anthropic"]
    refusal = Reply([json.dumps(vendor.error_body(vendor.overloaded)).encode()], 529, {"retry-after": "60"})
    waiting = asyncio.Event()
    async with serving(refusal) as server, asyncio.timeout(20):
        provider = Provider("p", "anthropic", "k", server.url)
        async with Engine([Agent("a", "", vendor.model, "p")], [provider]) as engine:
            engine.bus.subscribe(RetryScheduledEvent, lambda event: waiting.set())
            session_id = await engine.create()
            turn = asyncio.ensure_future(engine.prompt(session_id, "go"))
            await waiting.wait()
            await engine.abort(session_id)
            assert (await turn).reason == "aborted"
            error = engine.live[session_id].session.messages[1].error
            assert error is not None
            assert "Overloaded" in error.message


async def test_what_was_withdrawn_is_paid_for_if_no_answer_follows():
    vendor = SIMULATED_APIS["anthropic"]
    frames = list(vendor.stream(["Hello there."]))
    answers = Answers([reset(frames[:5]), reset([])])
    provider = Provider("p", "anthropic", "k", "http://vendor", options={"cassette": answers})
    twice = Agent("writer", "You write.", "claude-sonnet-4-5", "p", retry=RetryPolicy(attempts=2, first_window=0.0))
    async with Engine([twice], [provider]) as engine:
        session_id = await engine.create()
        assert (await engine.prompt(session_id, "go")).reason == "error"
        [failed] = [message for message in engine.live[session_id].session.messages if message.role == "assistant"]
    assert failed.tokens.total > 0
    assert failed.cost is not None
    assert failed.cost > 0


async def test_a_model_that_is_silent_is_reported():
    hold = asyncio.Event()
    events: list[Any] = []
    async with Engine([agent()], [scripted([["Well", hold, " done"]])]) as engine:
        engine.bus.subscribe(ModelSilentEvent, lambda event: (events.append(event), hold.set()))
        engine.runtime.silence_seconds = 0.3
        session_id = await engine.create()
        assert (await engine.prompt(session_id, "go")).output == "Well done"
    assert events[0].silent_ms >= 80  # a third of the limit: the answer had started


async def test_silence_is_reported_early_by_what_the_model_normally_takes():
    """Before the first delta, the limit follows from earlier answers; afterwards, from the pauses in this answer."""
    hold, reported = asyncio.Event(), list[float]()
    timer = SilenceTimer()
    timer.start(1.2, "m", lambda _: None)
    assert timer.limit == 1.2
    await asyncio.sleep(0.02)
    timer.restart()
    timer.stop()
    assert 0.01 < timer.paces["m"] < 0.5

    timer.start(1.2, "m", lambda seconds: (reported.append(seconds), hold.set()))
    assert timer.limit == pytest.approx(max(timer.paces["m"] * 4, 0.2))
    async with asyncio.timeout(20):
        await hold.wait()
    assert reported[0] < 1.1
    timer.restart()
    assert timer.limit == pytest.approx(0.4)
    await asyncio.sleep(0.2)
    timer.restart()
    assert timer.limit >= 0.8 - 0.01  # a slow stream is not reported for its usual gaps
    timer.wait_for_retry(5.0)
    assert timer.limit == pytest.approx(min(max(timer.paces["m"] * 4, 0.2), 1.2))
    timer.stop()


async def test_the_steps_of_an_agent_share_a_timer_that_ends_between_them():
    """With a thousand concurrent runs, a timer per step is a sixth of what the event loop sorts."""
    reported, hold = list[float](), asyncio.Event()
    timer = SilenceTimer()
    handles = set[int]()
    loop = asyncio.get_running_loop()
    for _ in range(3):
        timer.start(0.12, "m", lambda _: reported.append(-1.0))
        handles |= {id(handle) for handle in loop._scheduled if not handle.cancelled()}  # type: ignore[attr-defined]
        timer.stop()
    assert len(handles) == 1
    while any(not handle.cancelled() for handle in loop._scheduled if id(handle) in handles):  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
    assert reported == []

    timer.start(0.12, "m", lambda seconds: (reported.append(seconds), hold.set()))
    async with asyncio.timeout(20):
        await hold.wait()
    timer.stop()
    assert reported[0] >= 0.1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_breaks_off_for_good_is_continued_with_a_user_message(kind: str):
    vendor = SIMULATED_APIS[kind]
    frames = list(vendor.stream(["The answer is long and"]))
    position = next(at for at, frame in enumerate(frames) if b"The answer" in frame)
    answers = Answers(
        [reset(frames[: position + 1]), whole(vendor.stream(["it ends."])), whole(vendor.stream(["More."]))]
    )
    provider = Provider("p", kind, "k", "http://vendor", options={"cassette": answers})  # type: ignore[arg-type]
    once = Agent("writer", "You write.", vendor.model, "p", retry=RetryPolicy(attempts=1))
    async with Engine([once], [provider]) as engine:
        session_id = await engine.create()
        assert (await engine.prompt(session_id, "go")).reason == "error"
        assert (await engine.resume(session_id)).output == "it ends."
        assert (await engine.prompt(session_id, "continue")).output == "More."
    assert [vendor.problem(request) for request in answers.requests] == [None, None, None]
    first, second = (json.dumps(request) for request in answers.requests[1:])
    assert "cut off" in first
    assert "cut off" in second  # the note is part of the transcript, so later prompts have the same prefix


async def test_a_fallback_continues_the_step_and_is_recorded():
    first, second = SIMULATED_APIS["anthropic"], SIMULATED_APIS["openai"]
    overloaded = json.dumps(first.error_body(first.overloaded)).encode()
    busy = [Reply([overloaded], 529, {"content-type": "application/json"})]
    good = [Reply(list(second.stream(["I will look.", call("look", "c1")]))), Reply(list(second.stream(["done"])))]
    ran: list[int] = []
    async with serving(*busy) as one, serving(*good) as other:
        retry = {"first_window": 0.0}
        providers = [
            Provider("a", "anthropic", "k", one.url, options={"retry": retry}),
            Provider("b", "openai", "k", f"{other.url}{second.base}", options={"retry": retry}),
        ]
        writer = Agent("writer", "You write.", [first.model, f"b/{second.model}"], "a")
        async with Engine([writer], providers, [Tool(lambda: ran.append(1) or "seen", name="look")]) as engine:
            events: list[Any] = []
            engine.bus.subscribe(RetryScheduledEvent, events.append)
            session_id = await engine.create()
            end = await engine.prompt(session_id, "go")
            messages = engine.live[session_id].session.messages
    assert (end.reason, end.output, ran) == ("completed", "done", [1])
    assert len(one.requests) == 3  # RetryPolicy.attempts_before_fallback
    assert events[-1].model == f"b/{second.model}"
    answer = messages[1]
    assert str(answer.model) == f"b/{second.model}"
    assert str(answer.get_parts_by_type(RetryPart)[-1].model) == f"b/{second.model}"
    assert isinstance(answer.parts[0], StepStartPart)


async def test_a_summary_request_that_is_answered_with_a_call_does_not_block_the_session():
    def answer(request: Any) -> Any:
        asks = any("summar" in part.text.lower() for part in request.prompt[-1].content if isinstance(part, TextPart))
        return [call("look")] if asks else "fine"

    async with Engine([agent()], [scripted(answer)], [Tool(lambda: "seen", name="look")]) as engine:
        session_id = await engine.create()
        for _ in range(3):
            await engine.prompt(session_id, "tell me something " * 40)
        await engine.compact(session_id)
        assert (await engine.prompt(session_id, "and now?")).output == "fine"


async def test_a_stream_of_a_run_reports_what_is_withdrawn():
    vendor = SIMULATED_APIS["anthropic"]
    frames = list(vendor.stream(["Hello there."]))
    answers = Answers([reset(frames[:5]), whole(frames)])
    provider = Provider("p", "anthropic", "k", "http://vendor", options={"cassette": answers})
    writer = Agent("writer", "", vendor.model, "p", retry=QUICK)
    text = ""
    async for event in async_run_stream(writer, "go", providers=[provider]):
        if event.type == "token":
            text += event.data["text"]
        elif event.type == "retry" and event.data["withdrawn"]:
            assert text
            text = ""
    assert text == "Hello there."


async def test_an_agent_of_another_server_shows_a_withdrawn_text_as_reasoning():
    builder = AnswerDeltaBuilder("s", "clerk")
    half = PartDeltaEvent(session_id="s", message_id="m", part_id="p1", delta="half")
    gone = TextPart("half", ignored=True, metadata={"withdrawn": True}, id="p1")
    retry = RetryScheduledEvent(session_id="s", attempt=1, delay_ms=0, error="reset", withdrawn=("p1",))
    full = PartDeltaEvent(session_id="s", message_id="m", part_id="p2", delta="whole")
    events = [half, PartUpdatedEvent(session_id="s", part=gone), retry, full]
    deltas = [*builder.start_answer(), *(delta for event in events for delta in builder.event_deltas(event))]
    answer = assemble_answer([*deltas, *builder.finish_answer(TurnEnd("completed", "whole"))], "f")
    assert answer.message.get_text_content() == "whole"
    assert [part.text for part in answer.message.get_parts_by_type(ReasoningPart) if part.text] == ["half"]


@pytest.mark.parametrize("price", [{}, {"prices": {"input": "1", "output": "90000"}}], ids=["unknown", "too high"])
async def test_a_fallback_that_the_cost_limit_does_not_allow_ends_the_step_and_frees_its_reservation_once(price: Any):
    requests: list[Any] = []

    def answer(request: Any) -> Any:
        if (request.system or "").startswith("You are the clerk."):
            return ["half ", NetworkError("reset")]
        requests.append(request)
        return [call("call_agent", "c1", agent_name="clerk", message="x")] if len(requests) == 1 else "done"

    clerk = agent("clerk", "You are the clerk.").replace(fallback_models=("model-2",))
    catalog = ModelCatalog.from_config({"model-1": {"prices": {"input": "1", "output": "1"}}, "model-2": price})
    store, limits = MemoryStore(), Limits(cost=Decimal("0.01"))
    async with Engine([agent(), clerk], [scripted(answer)], catalog=catalog, limits=limits, store=store) as engine:
        result = await engine.prompt(await engine.create(), "go")
    [child] = [one for one in (await store.list(SessionFilter())).sessions if one.parent_id]
    failed = (await store.load(child.id)).messages[-1]
    assert result.output == "done"
    assert failed.error is not None
    assert failed.error.type == ("LimitReachedError" if price else "ConfigurationError")
    assert failed.tokens.total > 0
    first, last = (request.settings.max_output_tokens for request in requests)
    assert last < first
