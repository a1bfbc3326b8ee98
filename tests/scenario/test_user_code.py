"""User code that raises, returns or calls anything cannot break the engine: every call ends once."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider import (
    Agent,
    CallbackError,
    Engine,
    EventBus,
    Hooks,
    OutriderError,
    PartBase,
    Progress,
    Provider,
    ProviderError,
    SessionInUseError,
    StoreError,
    TextPart,
    Tool,
    ToolContext,
    ToolResult,
    async_run,
    register_part_type,
)
from outrider.events import LoopStartedEvent
from outrider.providers import Delta, Finish, ModelDescription, PartEnd, PartStart, TextDelta, UsageReport
from outrider.stores import MemoryStore
from tests.scenario.scripted_runs import call


class Unusual(BaseException):
    """An exception that programs do not expect."""


ERRORS = [
    ZeroDivisionError("x"), Unusual("x"), SystemExit(3), GeneratorExit(), StopIteration("x"), StopAsyncIteration(),
    asyncio.CancelledError(), TimeoutError("x"), BaseExceptionGroup("x", [Unusual()]),
]  # fmt: skip


def helper(instructions: Any = "You help.") -> Agent:
    return Agent("helper", instructions, model="m", provider="demo")


def scripted(*answers: Any) -> Provider:
    return Provider("demo", kind="scripted", options={"script": list(answers)})


def raising(error: BaseException, *, is_async: bool) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    async def fail_later(*_: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    return fail_later if is_async else fail


async def converse(engine: Engine, *inputs: Any) -> tuple[list[Any], list[str]]:
    """Return the ends of the turns, and how each call ended."""
    async with asyncio.timeout(20), engine:
        session_id = await engine.create()
        ends = [await engine.prompt(session_id, text) for text in inputs or ("go", "again")]
        messages = (await engine.open(session_id)).messages
        return ends, [part.state.status for message in messages for part in message.get_calls()]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [*ERRORS, KeyboardInterrupt()], ids=repr)
async def test_any_exception_that_a_tool_raises_is_a_failed_call(error: BaseException, is_async: bool):
    if is_async and isinstance(error, KeyboardInterrupt):
        pytest.skip("in the event loop it is Ctrl-C")
    fail = raising(error, is_async=is_async)

    def act() -> str:
        return fail()

    async def act_later() -> str:
        return await fail()

    tool = Tool(act_later if is_async else act, name="act")
    ends, calls = await converse(Engine([helper()], [scripted([call("act")], "one", "two")], [tool]))
    assert [end.text for end in ends] == ["one", "two"]
    assert calls == ["error"]


class Hostile(Exception):
    """A value, or an exception, that cannot be shown or compared."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def nest(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


WRONG_VALUES = {"hostile": Hostile(), "deep": nest(400), "deeper": nest(3000), "no JSON": {"at": object()}, "type": int}


@pytest.mark.parametrize("way", ["raised", *WRONG_VALUES])
@pytest.mark.parametrize("callback", ["evaluate_policy", "preprocess_args", "approve", "before_call", "after_call"])
async def test_a_value_that_cannot_be_shown_or_stored_ends_the_call_and_not_the_session(callback: str, way: str):
    def misbehave(*_: Any) -> Any:
        if way == "raised":
            raise Hostile
        return WRONG_VALUES[way]

    options = {callback: misbehave} if callback in ("evaluate_policy", "preprocess_args") else {}
    tool = Tool(lambda at: "ran", name="act", policy="ask" if callback == "approve" else "allow", **options)  # type: ignore[arg-type]
    hooks = Hooks(**{callback: misbehave}) if callback.endswith("_call") else Hooks()
    model = scripted([call("act", at={})], "one", "two")
    engine = Engine([helper()], [model], [tool], hooks=hooks, approve=misbehave if callback == "approve" else None)
    ends, calls = await converse(engine)
    assert [end.text for end in ends] == ["one", "two"]
    assert calls == ["completed" if callback == "after_call" else "error"]


RESULTS: dict[str, Any] = {
    "content": lambda _: ToolResult(5),  # type: ignore[arg-type]
    "metadata": lambda _: ToolResult("x", metadata={"at": object()}),
    "deep metadata": lambda _: ToolResult("x", metadata=nest(400)),
    "names": lambda _: ToolResult("x", metadata={1: 2}),  # type: ignore[dict-item]
    "attachment": lambda _: ToolResult("x", attachments=("a.png",)),  # type: ignore[arg-type]
    "title": lambda _: ToolResult("x", title=5),  # type: ignore[arg-type]
    "origins": lambda _: ToolResult("x", origins=5),  # type: ignore[arg-type]
    "text as progress": lambda context: context.report("x"),
    "number as progress": lambda context: context.report(Progress(5)),  # type: ignore[arg-type]
    "title of progress": lambda context: context.report(Progress("x", title=Hostile())),  # type: ignore[arg-type]
    "metadata of progress": lambda context: context.report(Progress("x", metadata=nest(400))),
}


@pytest.mark.parametrize("what", RESULTS)
async def test_a_wrong_result_of_a_tool_is_a_failed_call(what: str):
    def act(context: ToolContext) -> Any:
        return RESULTS[what](context)

    ends, calls = await converse(Engine([helper()], [scripted([call("act")], "one", "two")], [Tool(act)]))
    assert [end.text for end in ends] == ["one", "two"]
    assert calls == ["error"]


class UncheckableTool(Tool):
    def check_arguments(self, arguments: dict[str, Any]) -> None:
        raise ZeroDivisionError


async def test_an_unexpected_error_of_the_engine_ends_the_call_and_not_the_session():
    tool = UncheckableTool(lambda: "ran", name="act")
    ends, calls = await converse(Engine([helper()], [scripted([call("act")], "one", "two")], [tool]))
    assert [end.text for end in ends] == ["one", "two"]
    assert calls == ["error"]


async def test_the_representation_of_a_result_never_raises():
    result = await async_run(helper(), "go", providers=[scripted("x")], output_validators=lambda _: Hostile())
    assert repr(result) == "RunResult(output=a Hostile, termination_reason='completed')"


async def test_a_listener_that_hangs_does_not_keep_an_engine_open():
    bus, released = EventBus(), asyncio.Event()

    async def hang(_: Any) -> None:
        await released.wait()

    bus.subscribe_all(hang)
    ends, _ = await converse(Engine([helper()], [scripted("one", "two")], bus=bus, callback_seconds=0.1))
    assert [end.text for end in ends] == ["one", "two"]
    released.set()
    await bus.settled()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_any_exception_that_a_listener_raises_does_not_reach_the_turn(error: BaseException, is_async: bool):
    bus, seen = EventBus(), list[Any]()
    bus.subscribe_all(raising(error, is_async=is_async))
    bus.subscribe(LoopStartedEvent, seen.append)
    tool = Tool(lambda: "ran", name="act")
    ends, calls = await converse(Engine([helper()], [scripted([call("act")], "one", "two")], [tool], bus=bus))
    assert [end.text for end in ends] == ["one", "two"]
    assert calls == ["completed"]
    assert len(seen) == 2


def answer(text: str) -> list[Delta]:
    return [PartStart(0, "text"), TextDelta(0, text), PartEnd(0), Finish("stop")]


class Custom:
    """A provider of a program. Its first request does what `first` does; the others are answered."""

    name = "demo"
    idle_seconds = 0.3

    def __init__(self, first: Any) -> None:
        self._first = first
        self.requests = 0

    async def stream(self, request: Any) -> AsyncIterator[Delta]:
        self.requests += 1
        deltas = self._first() if self.requests == 1 else answer("fine")
        for delta in deltas:
            if isinstance(delta, BaseException):
                raise delta
            if delta == "hang":
                await asyncio.sleep(60)
            yield delta


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("position", [0, 2])
async def test_any_exception_that_a_provider_raises_is_a_provider_error(error: BaseException, position: int):
    deltas = [*answer("half")[:position], error]
    ends, _ = await converse(Engine([helper()], [Custom(lambda: deltas)]))
    assert (ends[0].reason, type(ends[0].error), ends[0].text) == ("error", ProviderError, "half" if position else "")
    assert type(error).__name__ in ends[0].error.message or "RuntimeError" in ends[0].error.message
    assert ends[1].text == "fine"


NONSENSE: dict[str, list[Any]] = {
    "yielded int": [1],
    "yielded NoneType": [None],
    "without Finish": answer("half")[:-1],
    "which has no PartStart": [TextDelta(5, "x"), Finish("stop")],
    "invalid TextDelta": [PartStart(0, "text"), TextDelta(0, 5), Finish("stop")],  # type: ignore[arg-type]
    "invalid PartStart": [PartStart(0, "song"), Finish("stop")],  # type: ignore[arg-type]
    "invalid UsageReport": [UsageReport("many"), Finish("stop")],  # type: ignore[arg-type]
    "invalid Finish": [Finish(5)],  # type: ignore[arg-type]
    "it is an async generator": [],
}


@pytest.mark.parametrize("problem", NONSENSE)
async def test_any_value_that_a_provider_yields_is_an_answer_or_names_the_mistake(problem: str):
    provider = Custom(lambda: NONSENSE[problem])
    if problem == "it is an async generator":
        good, provider.stream = provider.stream, lambda _: setattr(provider, "stream", good)  # type: ignore[method-assign]
        provider.requests = 1
    ends, _ = await converse(Engine([helper()], [provider]))
    assert problem in ends[0].error.message
    assert ends[1].text == "fine"


async def test_a_provider_that_sends_nothing_is_a_network_error_and_is_requested_again():
    provider = Custom(lambda: [PartStart(0, "text"), "hang"])
    started = time.monotonic()
    ends, _ = await converse(Engine([helper()], [provider]), "go")
    assert (ends[0].text, time.monotonic() - started < 15) == ("fine", True)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("method", ["model_family", "describe_model"])
async def test_methods_of_a_provider_that_raise_are_named(method: str, error: BaseException):
    provider = Custom(lambda: answer("fine"))
    setattr(provider, method, raising(error, is_async=False))
    ends, _ = await converse(Engine([helper()], [provider]), "go")
    assert isinstance(ends[0].error, CallbackError)
    assert f"{method} of the provider 'demo' failed" in ends[0].error.message


@pytest.mark.parametrize("wrong", [5, "x", {"context": 5}, ModelDescription(context="much")])  # type: ignore[arg-type]
async def test_a_wrong_description_of_a_model_is_named_before_the_request(wrong: Any):
    provider = Custom(lambda: answer("fine"))
    provider.describe_model = lambda _: wrong  # type: ignore[attr-defined]
    ends, _ = await converse(Engine([helper()], [provider]), "go")
    assert "describe_model of the provider 'demo' returned" in ends[0].error.message
    assert provider.requests == 0


def failing_store(method: str, fault: Any, at: int) -> MemoryStore:
    """Return a store whose method fails, or returns None, once."""
    number, original = 0, getattr(MemoryStore, method)

    async def fail_once(self: MemoryStore, *arguments: Any, **more: Any) -> Any:
        nonlocal number
        number += 1
        if number == at and isinstance(fault, BaseException):
            raise fault
        return None if number == at else await original(self, *arguments, **more)

    return type("CustomStore", (MemoryStore,), {method: fail_once})()


@pytest.mark.parametrize("fault", [*ERRORS, "nothing"], ids=repr)
@pytest.mark.parametrize(
    ("method", "at"), [("append", 1), ("append", 2), ("inbox", 1), ("put_inbox", 1), ("update", 1)]
)
async def test_a_store_that_fails_once_is_a_store_error_and_loses_nothing(method: str, at: int, fault: Any):
    tool = Tool(lambda: "ran", name="act", policy="ask")
    store = failing_store(method, fault, at)
    model = scripted([call("act")], "one", "two", "three")
    async with asyncio.timeout(20), Engine([helper()], [model], [tool], store=store, approve=lambda *_: True) as engine:
        session_id = await engine.create()
        texts, problems = list[str](), list[OutriderError]()
        for text in ("first", "second", "third"):
            try:
                end = await engine.prompt(session_id, text)
            except StoreError as error:
                problems.append(error)
                continue
            texts.append(end.text)
            problems += [end.error] if end.error else []
        messages = (await engine.open(session_id)).messages
    assert all(
        isinstance(error, StoreError) and f"{method}() of the store CustomStore" in error.message for error in problems
    )
    assert texts[-1] in ("two", "three")
    stored = [message.get_text_content() for message in messages if message.role == "user"]
    assert [text for text in ("first", "second", "third") if text in stored][-2:] == ["second", "third"]
    assert all(part.ended for message in messages for part in message.get_calls())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_a_store_that_cannot_create_sessions_is_a_store_error(error: BaseException):
    async with Engine([helper()], [scripted("one")], store=failing_store("create", error, 1)) as engine:
        with pytest.raises(StoreError, match="create"):
            await engine.create()
        assert (await engine.prompt(await engine.create(), "go")).text == "one"


class FaultyPart(PartBase, frozen=True, kw_only=True, tag="faulty", tag_field="type"):
    """A part whose form for models is the value or exception of `FAULTS` with its number."""

    number: int

    def to_api_format(self) -> Any:
        if isinstance(fault := FAULTS[self.number], BaseException):
            raise fault
        return fault


FAULTS = [*ERRORS, None, 5, "x", {"type": "song"}, object(), {"type": "text", "text": object()}]
register_part_type("faulty", FaultyPart)


@pytest.mark.parametrize(
    "number", range(len(FAULTS)), ids=[f"{number} {type(fault).__name__}" for number, fault in enumerate(FAULTS)]
)
async def test_a_part_without_a_form_for_models_does_not_end_the_turn(number: int):
    ends, _ = await converse(
        Engine([helper()], [scripted("one", "two")]), [TextPart("hi"), FaultyPart(number=number)], "more"
    )
    assert [end.text for end in ends] == ["one", "two"]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_dependencies_that_cannot_be_closed_do_not_prevent_the_close(error: BaseException):
    @asynccontextmanager
    async def connect(_: Any) -> AsyncIterator[int]:
        yield 1
        raise error

    ends, _ = await converse(Engine([helper()], [scripted("one")], deps=connect), "go")
    assert ends[0].text == "one"


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_before_compactions_may_raise_anything(error: BaseException, is_async: bool):
    hooks = Hooks(on_compaction=raising(error, is_async=is_async))
    async with Engine(
        [helper()], [scripted("long " * 2000, "two " * 2000, "three", "short", "five")], hooks=hooks
    ) as engine:
        session_id = await engine.create()
        for text in ("one", "two", "three"):
            await engine.prompt(session_id, text * 500)
        assert await engine.compact(session_id) is not None
        assert (await engine.prompt(session_id, "and now")).text == "five"


@pytest.mark.parametrize("what", ["prompt", "steer", "compact", "go_on"])
@pytest.mark.parametrize("where", ["tool", "two tools", "before_call", "approve", "provider"])
async def test_a_turn_that_waits_for_its_own_session_is_refused_at_once(where: str, what: str):
    asked = list[str]()

    async def reenter(*_: Any) -> Any:
        session_id = next(iter(engine.live))
        match what:
            case "prompt" | "steer":
                await engine.prompt(session_id, "inner", delivery="steer" if what == "steer" else "queue")
            case "compact":
                await engine.compact(session_id)
            case _:
                await engine.resume(session_id)

    async def act() -> str:
        asked.append("act")
        if "tool" in where:
            await reenter()
        return "ran"

    class Reentrant(Custom):
        async def stream(self, request: Any) -> AsyncIterator[Delta]:
            if not asked:
                asked.append("model")
                await reenter()
            for delta in answer("two"):
                yield delta

    model: Any = (
        Reentrant(None) if where == "provider" else scripted([call("act")] * (1 + (where == "two tools")), "one", "two")
    )
    tool = Tool(act, name="act", policy="ask" if where == "approve" else "allow", parallel=True)
    options: Any = {"approve": {"approve": reenter}, "before_call": {"hooks": Hooks(before_call=reenter)}}.get(
        where, {}
    )
    engine = Engine([helper()], [model], [tool], **options)
    ends, calls = await converse(engine)
    assert ends[1].text == "two"
    if where == "provider":
        assert "of the same session" in ends[0].error.message
    else:
        assert (ends[0].text, set(calls)) == ("one", {"error"})


async def test_a_tool_may_queue_input_for_its_own_session():
    async def act() -> str:
        await engine.enqueue(next(iter(engine.live)), "inner")
        return "ran"

    engine = Engine([helper()], [scripted([call("act")], "one", "two", "three")], [Tool(act, name="act")])
    ends, calls = await converse(engine)
    assert ([end.text for end in ends], calls) == (["one", "three"], ["completed"])


@pytest.mark.parametrize("where", ["on_prompt", "tool"])
async def test_input_for_a_session_that_is_being_closed_never_waits(where: str):
    closed = list[int]()

    async def close(*_: Any) -> None:
        if not closed:
            closed.append(1)
            await engine.__aexit__()

    async def act() -> str:
        await close()
        return "ran"

    hooks = Hooks(on_prompt=close) if where == "on_prompt" else Hooks()
    engine = Engine([helper()], [scripted([call("act")], "one", "two")], [Tool(act, name="act")], hooks=hooks)
    async with asyncio.timeout(10), engine:
        session_id = await engine.create()
        if where == "tool":
            assert (await engine.prompt(session_id, "go")).reason == "aborted"
        with pytest.raises(OutriderError, match=r"closed|not open"):
            await engine.prompt(session_id, "again")


async def test_a_tool_that_ignores_its_cancellation_does_not_block_an_abort():
    running, ends = asyncio.Event(), asyncio.Event()

    async def act() -> str:
        running.set()
        while not ends.is_set():
            try:
                await asyncio.wait_for(ends.wait(), 5)
            except asyncio.CancelledError:
                continue
        return "ran"

    engine = Engine([helper()], [scripted([call("act")], "one")], [Tool(act, name="act")], callback_seconds=0.2)
    async with asyncio.timeout(10), engine:
        session_id = await engine.create()
        turn = asyncio.create_task(engine.prompt(session_id, "go"))
        await running.wait()
        with pytest.raises(OutriderError, match="ignores the cancellation"):
            await engine.abort(session_id)
        ends.set()
        await turn


async def test_a_session_cannot_be_deleted_by_its_own_tool():
    async def act() -> str:
        await engine.delete(next(iter(engine.live)))
        return "ran"

    engine = Engine([helper()], [scripted([call("act")], "one", "two")], [Tool(act, name="act")])
    ends, calls = await converse(engine)
    assert ([end.text for end in ends], calls) == (["one", "two"], ["error"])
    assert SessionInUseError.__name__ in str([part.state for part in ends[0].session.messages[1].get_calls()])
