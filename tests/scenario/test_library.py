"""The library as a program uses it: typed results, streams, leases, dependencies, instructions, context variables."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider import (
    Agent,
    CallbackError,
    ConfigurationError,
    Engine,
    Event,
    EventBus,
    Hooks,
    Limits,
    OutputUnavailableError,
    Provider,
    ProviderError,
    Session,
    SessionContext,
    SessionInUseError,
    Tool,
    ToolContext,
    async_run,
    async_run_stream,
    run_stream,
)
from outrider.events import LoopStartedEvent, SessionUpdatedEvent
from outrider.providers import ModelCatalog
from outrider.stores import MemoryStore, SqliteStore
from tests.scenario.scripted_runs import call


@dataclass
class City:
    name: str
    people: int


ULM = '{"name": "Ulm", "people": 126000}'


def helper(instructions: Any = "You help.") -> Agent:
    return Agent("helper", instructions, model="demo", provider="demo")


def scripted(*answers: Any, **options: Any) -> list[Provider]:
    return [Provider("demo", kind="scripted", options={"script": list(answers), **options})]


async def test_a_run_without_the_requested_value_reports_why_and_never_returns_a_text():
    result = await async_run(
        helper(), "x", tools=[Tool(lambda: "", name="look")], providers=scripted([call("look")]), output_type=City,
        limits=Limits(turns=1),
    )  # fmt: skip
    assert (result.termination_reason, result.limit, result.text) == ("limit", "turns", "")
    with pytest.raises(OutputUnavailableError) as caught:
        _ = result.output
    assert (caught.value.reason, caught.value.result) == ("limit", result)
    assert "limit" in repr(result)
    plain = await async_run(
        helper(), "x", tools=[Tool(lambda: "", name="look")], providers=scripted([call("look")]), limits=Limits(turns=1)
    )
    assert plain.output == ""


async def test_a_result_can_be_pickled_with_its_value_and_trace():
    result = await async_run(helper(), "x", providers=scripted(ULM), output_type=City)
    again = pickle.loads(pickle.dumps(result))
    assert (again.output, again.text, again.reason) == (City("Ulm", 126000), ULM, "completed")
    assert len(again.session.messages) == 2
    assert again.format_trace() == result.format_trace()


async def test_a_typed_stream_ends_once_with_the_value_and_has_partial_values():
    answers = ["not JSON", '[{"name": "Ulm", "people": 1}, {"name": "Bonn", "people": 2}]']
    stream = async_run_stream(helper(), "x", providers=scripted(*answers, chunk=6), output_type=list[City])
    events = [event async for event in stream]
    ends = [event.type for event in events if event.type in ("finish", "error")]
    assert (ends, events[-1].type) == (["finish"], "finish")
    assert events[-1].data["value"] == [City("Ulm", 1), City("Bonn", 2)] == stream.result.output
    partial = [event.data["value"] for event in events if event.type == "partial"]
    assert [City("Ulm", 1)] in partial
    assert stream.partial == stream.result.output


async def test_the_partial_value_of_a_stream_is_that_of_the_current_answer_and_at_the_end_the_output():
    answers = ['{"name": "Ulm", "people": 1}', [call("look")], '{"a": 1, "b": 2, "c": 3}']
    options: dict[str, Any] = {"tools": [look], "output_type": dict[str, int], "output_attempts": 2}
    stream = async_run_stream(helper(), "x", providers=scripted(*answers, chunk=4), **options)
    partials = [stream.partial async for event in stream if event.type == "tool_call"]
    assert partials == [None]  # the first answer was rejected
    assert stream.partial == {"a": 1, "b": 2, "c": 3}
    failed = async_run_stream(helper(), "x", providers=scripted("{}", "no"), **options, output_validators=reject)
    assert [event.type async for event in failed][-1] == "error"
    assert failed.partial is None


def reject(value: object) -> None:
    raise ValueError("no")


async def test_a_stream_reports_limits_and_errors_as_its_last_event():
    tools = [Tool(lambda: "", name="look")]
    stream = async_run_stream(
        helper(), "x", tools=tools, providers=scripted([call("look")]), limits=Limits(turns=1), output_type=City
    )
    events = [event async for event in stream]
    assert events[-1].data == {"output": "", "reason": "limit", "limit": "turns"}
    stream = async_run_stream(helper(), "x", providers=scripted("no", "no", "no"), output_type=City)
    events = [event async for event in stream]
    assert (events[-1].type, events[-1].data["type"]) == ("error", "OutputMismatch")
    assert stream.result.reason == "error"
    with pytest.raises(ConfigurationError):
        _ = [event async for event in async_run_stream(helper(), "x")]


def test_a_synchronous_stream_has_events_and_a_result_and_can_be_left():
    stream = run_stream(helper(), "x", providers=scripted(ULM), output_type=City)
    assert [event.type for event in stream][-1] == "finish"
    assert stream.result.output == City("Ulm", 126000)
    cancelled: list[bool] = []

    async def wait() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(True)
        return ""

    with run_stream(helper(), "x", tools=[wait], providers=scripted([call("wait")])) as events:
        assert next(events).type == "tool_call"
    assert cancelled == [True]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_two_runs_on_one_session_do_not_share_it(kind: str, tmp_path: Path):
    started = asyncio.Event()

    async def book() -> str:
        started.set()
        await asyncio.sleep(0.3)
        return "booked"

    async with MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db") as store:
        first = await async_run(helper(), "hello", providers=scripted("hi"), store=store)
        running = asyncio.create_task(
            async_run(
                helper(), "book", tools=[book], providers=scripted([call("book")], "done"), store=store,
                session=first.session.id,
            )
        )  # fmt: skip
        await started.wait()
        with pytest.raises(SessionInUseError):
            await async_run(helper(), "me too", providers=scripted("no"), store=store, session=first.session.id)
        assert (await running).output == "done"
        later = await async_run(helper(), "again", providers=scripted("yes"), store=store, session=first.session.id)
        (state,) = [p.state for m in later.session.messages for p in m.get_calls()]
        assert state.text == "booked"


async def test_an_engine_prompt_returns_the_same_typed_result():
    @Tool
    def look_up(item: str) -> str:
        """Look it up."""
        return "4"

    agents = [helper(), Agent("clerk", "You know.", model="demo", provider="clerk")]
    providers = [
        *scripted([call("look_up", item="tea")], ULM, [call("call_agent", agent_name="clerk", message="?")], "fine"),
        Provider("clerk", kind="scripted", options={"script": ["I know."]}),
    ]
    async with Engine(agents, providers, [look_up]) as engine:
        session_id = await engine.create(owner="ada", metadata={"tenant": "acme"})
        result = await engine.prompt(session_id, "x", output_type=City)
        assert (result.output, result.reason, result.error) == (City("Ulm", 126000), "completed", None)
        assert result.usage.tokens.total > 0
        assert "look_up" in result.format_trace()
        second = await engine.prompt(session_id, "y")
        assert second.output == "fine"
        assert "look_up" not in second.format_trace()
        assert "clerk" in second.format_trace()
        assert [message.receiver for message in second.messages] == ["clerk", "helper"]


class Database:
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.open = True


async def test_dependencies_reach_tools_instructions_and_called_agents():
    seen: list[Any] = []

    @Tool
    def look(context: ToolContext[Database]) -> str:
        """Look."""
        seen.append((context.deps.owner, context.owner, context.metadata, context.agent))
        return context.root_session_id

    def instruct(context: SessionContext[Database]) -> str:
        return f"You serve {context.deps.owner} as {context.agent}."

    agents = [helper(instruct), Agent("clerk", instruct, model="demo", provider="clerk")]
    requests: list[str] = []

    def clerk(request: Any) -> Any:
        requests.append(request.system)
        return [call("look")] if len(requests) == 1 else "seen"

    providers = [
        *scripted([call("call_agent", agent_name="clerk", message="?")], "done"),
        Provider("clerk", kind="scripted", options={"script": clerk}),
    ]
    result = await async_run(
        agents[0], "x", agents, [look], providers, deps=Database("ada"), owner="Ada", metadata={"tenant": "acme"}
    )
    assert seen == [("ada", "Ada", {"tenant": "acme"}, "clerk")]
    assert requests[0].startswith("You serve ada as clerk.")
    assert result.messages[-2].type == "return"
    without = await async_run(helper(), "x", tools=[Tool(deps_of)], providers=scripted([call("deps_of")], "ok"))
    assert without.session.messages[1].get_calls()[0].state.text == "null"  # pyright: ignore


def deps_of(context: ToolContext) -> Any:
    """Return the dependencies."""
    return [context.deps] if context.deps else "null"


async def test_the_dependencies_of_a_session_are_created_again_in_another_process(tmp_path: Path):
    databases: list[Database] = []

    @asynccontextmanager
    async def connect(session: SessionContext[None]) -> AsyncIterator[Database]:
        database = Database(f"{session.owner}@{session.metadata['tenant']}")
        databases.append(database)
        yield database
        database.open = False

    @Tool(policy="ask")
    def pay(context: ToolContext[Database]) -> str:
        """Pay."""
        return context.deps.owner

    async with SqliteStore(tmp_path / "s.db") as store:
        async with Engine([helper()], scripted([call("pay")]), [pay], store=store, deps=connect) as engine:
            session_id = await engine.create(owner="ada", metadata={"tenant": "acme"})
            turn = asyncio.create_task(engine.prompt(session_id, "pay"))
            while not await engine.approvals(session_id):
                await asyncio.sleep(0.01)
        assert (await turn).reason == "aborted"
        assert not databases[0].open
        async with Engine([helper()], scripted("paid"), [pay], store=store, deps=connect) as engine:
            (question,) = await engine.approvals(session_id)
            await engine.answer(question.id, allow=True)
            result = await asyncio.wait_for(engine.resume(session_id), 10)
            assert result.output == "paid"
            (paid,) = [part.state for m in (await engine.open(session_id)).messages for part in m.get_calls()]
            assert (paid.text, databases[1].open) == ("ada@acme", True)
        assert not databases[1].open


async def test_instructions_are_written_once_per_turn_stored_and_appended(tmp_path: Path):
    texts = iter(["Be brief.", "Be brief.", "Be long."])
    requests: list[Any] = []

    async def instruct(context: SessionContext[Any]) -> str:
        return next(texts)

    def answer(request: Any) -> Any:
        requests.append((request.system, [repr(message) for message in request.prompt]))
        return [call("look")] if len(requests) == 1 else "ok"

    provider = Provider("demo", kind="scripted", options={"script": answer})
    async with SqliteStore(tmp_path / "s.db") as store:
        async with Engine([helper(instruct)], [provider], [Tool(lambda: "", name="look")], store=store) as engine:
            session_id = await engine.create()
            for text in ("one", "two", "three"):
                assert (await engine.prompt(session_id, text)).output == "ok"
        systems = {system for system, _ in requests}
        assert [system.startswith("Be brief.") for system in systems] == [True]
        assert "Be long." in requests[-1][1][-1]
        assert "instructions" not in requests[2][1][-1]
        for before, after in pairwise(requests[1:]):
            assert after[1][: len(before[1])] == before[1]
        stored = [m for m in (await store.load(session_id)).messages if m.role == "user"]
        assert [m.metadata["instructions"]["helper"] for m in stored] == ["Be brief.", "Be brief.", "Be long."]
        assert [m.get_text_content() for m in stored] == ["one", "two", "three"]


async def test_extra_instructions_are_for_one_run():
    seen: list[str] = []

    def answer(request: Any) -> str:
        seen.append(repr(request.prompt[-1]))
        return "ok"

    provider = Provider("demo", kind="scripted", options={"script": answer})
    result = await async_run(helper(), "hello", providers=[provider], instructions="In French.")
    assert "In French." in seen[0]
    assert result.session.messages[0].get_text_content() == "hello"


USER: ContextVar[str] = ContextVar("USER", default="nobody")


@pytest.mark.parametrize("delivery", ["queue", "steer"])
async def test_input_runs_with_the_context_variables_of_the_task_that_added_it(delivery: Any):
    seen: list[str] = []
    running, proceed = asyncio.Event(), asyncio.Event()

    async def who() -> str:
        seen.append(USER.get())
        running.set()
        await proceed.wait()
        return str(len(seen))

    async def prompt(user: str, **options: Any) -> Any:
        USER.set(user)
        return await engine.prompt(session_id, user, **options)

    providers = scripted([call("who")], [call("who")], "done") if delivery == "steer" else scripted(
        [call("who")], "done", [call("who")], "done"
    )  # fmt: skip
    async with Engine([helper()], providers, [who]) as engine:
        session_id = await engine.create()
        ada = asyncio.create_task(prompt("ada"))
        await running.wait()
        eve = asyncio.create_task(prompt("eve", delivery=delivery))
        await asyncio.sleep(0.05)
        proceed.set()
        await asyncio.gather(ada, eve)
    assert seen == ["ada", "eve"]


async def test_the_task_that_takes_an_input_runs_its_turn_and_ends_with_it():
    """A second task for each turn costs memory, and time with many concurrent runs."""
    tasks: list[Any] = []

    async def change() -> str:
        USER.set("changed by a tool")
        return "ok"

    async with Engine([helper()], scripted([call("change")], "done", "done"), [change]) as engine:
        session_id = await engine.create()
        engine.bus.subscribe(LoopStartedEvent, lambda _: tasks.append((asyncio.current_task(), USER.get())))
        engine.bus.subscribe(
            SessionUpdatedEvent,
            lambda event: tasks.append(asyncio.current_task()) if "taken" in event.changes else None,
        )
        for _ in range(2):
            await engine.prompt(session_id, "go")
    (first, turn, second, next_turn) = tasks
    assert turn == (first, "nobody")
    assert next_turn == (second, "nobody")
    assert first is not second


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("broken")


def exit_program(*_: Any) -> Any:
    raise SystemExit(3)


def cancel(*_: Any) -> Any:
    raise asyncio.CancelledError


def hang(*_: Any) -> Any:
    import time

    time.sleep(3)


def give_nonsense(*_: Any) -> Any:
    return object()


async def fail_later(*_: Any) -> Any:
    await asyncio.sleep(0)
    raise ZeroDivisionError("broken")


async def hang_later(*_: Any) -> Any:
    await asyncio.sleep(60)


async def give_nonsense_later(*_: Any) -> Any:
    return object()


FAILURES = [fail, exit_program, cancel, hang, give_nonsense, fail_later, hang_later, give_nonsense_later]


def build_case(callback: str, function: Any) -> tuple[Agent, dict[str, Any], dict[str, Any]]:
    """Return the agent, the options of the tool and those of the run in which a callback fails."""
    match callback:
        case "evaluate_policy" | "preprocess_args":
            return helper(), {callback: function}, {}
        case "approve":
            return helper(), {"policy": "ask"}, {"approve": function}
        case "instructions":
            return helper(function), {}, {}
        case "listener":
            bus = EventBus()
            bus.subscribe_all(function)
            return helper(), {}, {"bus": bus}
        case _:
            return helper(), {}, {"hooks": Hooks(**{callback: function})}


CALLBACKS = [
    "evaluate_policy", "preprocess_args", "approve", "instructions", "listener", "before_call", "after_call",
    "on_message", "on_stop",
]  # fmt: skip


@pytest.mark.parametrize("callback", CALLBACKS)
@pytest.mark.parametrize("function", FAILURES)
async def test_every_callback_may_fail_in_every_way(callback: str, function: Any):
    if callback == "listener" and function in (hang, hang_later):
        pytest.skip("a plain listener runs in the publisher's thread; the next test has one that hangs")
    if callback == "approve" and function is hang_later:
        pytest.skip("an approve function may wait for a person; the limit of the run applies")
    agent, tool_options, options = build_case(callback, function)
    tool = Tool(lambda: "ran", name="act", **tool_options)
    store = MemoryStore()
    stream = async_run_stream(
        agent,
        "go",
        tools=[tool],
        providers=scripted([call("act")], "done"),
        store=store,
        callback_seconds=0.2,
        **options,
    )
    events = [event async for event in stream]
    ends = [event.type for event in events if event.type in ("finish", "error")]
    assert len(ends) == 1
    assert events[-1].type == ends[0]
    if callback == "instructions":
        assert events[-1].data["type"] == "CallbackError"
        assert isinstance(stream.result.error, CallbackError)
    else:
        assert (ends, stream.result.output) == (["finish"], "done")
        (ended,) = [part for m in stream.result.session.messages for part in m.get_calls()]
        refused = callback in ("evaluate_policy", "preprocess_args", "approve", "before_call")
        assert ended.state.status == ("error" if refused else "completed")
        results = [event for event in events if event.type == "tool_result"]
        assert len(results) == 1
    session_id = (await store.list()).sessions[0].id
    again = await async_run(helper(), "again", providers=scripted("usable"), store=store, session=session_id)
    assert again.output == "usable"


async def test_a_listener_that_hangs_delays_no_run():
    released = asyncio.Event()

    async def listen(event: Event) -> None:
        await released.wait()

    bus = EventBus()
    bus.subscribe_all(listen)
    result = await async_run(helper(), "go", providers=scripted("done"), bus=bus, callback_seconds=0.1)
    assert result.output == "done"
    await bus.settled(0.05)
    released.set()
    await bus.settled()


@pytest.mark.parametrize("function", [fail, hang, fail_later, hang_later, exit_program])
async def test_a_dependency_factory_may_fail_and_the_session_can_be_opened_later(function: Any):
    store = MemoryStore()
    async with Engine([helper()], scripted("ok"), store=store) as engine:
        session_id = await engine.create()
    async with Engine([helper()], scripted("ok"), store=store, deps=function, callback_seconds=0.1) as engine:
        with pytest.raises(CallbackError, match="deps factory"):
            await engine.prompt(session_id, "x")
        with pytest.raises(CallbackError, match="deps factory"):
            await engine.create()
    async with Engine([helper()], scripted("fine"), store=store, deps=lambda _: 1) as engine:
        assert (await engine.prompt(session_id, "x")).output == "fine"


async def test_an_engine_session_survives_a_policy_that_fails():
    tool = Tool(lambda: "ran", name="act", evaluate_policy=fail)
    async with Engine([helper()], scripted([call("act")], "denied", "second"), [tool]) as engine:
        session_id = await engine.create()
        assert (await engine.prompt(session_id, "one")).output == "denied"
        assert (await engine.prompt(session_id, "two")).output == "second"


@pytest.mark.parametrize(
    "wrong",
    [{"turns": -1}, {"turns": 1.5}, {"seconds": "x"}, {"cost": float("nan")}, {"depth": None}, {"repeats": 0}],
)
def test_limits_are_validated(wrong: Any):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Limits(**wrong)


def test_limits_accept_plain_numbers():
    from decimal import Decimal

    assert Limits(cost=0.1).cost == Decimal("0.1")  # pyright: ignore


class _Unusual(BaseException):
    """An exception that programs do not expect."""


@pytest.mark.parametrize("error", [_Unusual("x"), SystemExit(3), GeneratorExit(), StopIteration("x")], ids=repr)
@pytest.mark.parametrize(
    "place", ["tool", "async tool", "evaluate_policy", "preprocess_args", "before_call", "approve"]
)
async def test_unusual_exceptions_end_the_call_once_and_the_session_stays_usable(place: str, error: BaseException):
    def fail(*_: Any) -> Any:
        raise error

    def fail_at_once() -> str:
        raise error

    async def fail_later() -> str:
        raise error

    def look() -> str:
        return "seen"

    function = {"tool": fail_at_once, "async tool": fail_later}.get(place, look)
    callbacks: Any = {place: fail} if place in ("evaluate_policy", "preprocess_args") else {}
    tool = Tool(function, name="look", policy="ask" if place == "approve" else "allow", **callbacks)
    options: Any = {"before_call": {"hooks": Hooks(before_call=fail)}, "approve": {"approve": fail}}.get(place, {})
    model = Provider("demo", kind="scripted", options={"script": [{"tool": "look", "input": {}}, "one", "two"]})
    agent = Agent("helper", "You help.", model="m", provider="demo")
    async with Engine([agent], [model], [tool], **options) as engine:
        session_id = await engine.create()
        first, second = await engine.prompt(session_id, "go"), await engine.prompt(session_id, "again")
        calls = [part for message in (await engine.open(session_id)).messages for part in message.get_calls()]
    assert (first.text, second.text) == ("one", "two")
    assert [part.state.status for part in calls] == ["error"]


async def test_the_representation_of_a_result_has_its_error():
    async with Engine([helper()], scripted(ProviderError("no capacity"))) as engine:
        result = await engine.prompt(await engine.create(), "x")
    assert repr(result).endswith("termination_reason='error', error='ProviderError: no capacity')")


async def test_two_runs_cannot_use_one_session_object_at_once_and_the_first_one_is_not_disturbed():
    started, answered = asyncio.Event(), asyncio.Event()

    @Tool
    async def look() -> str:
        started.set()
        await answered.wait()
        return "rain"

    session = Session()
    first = asyncio.create_task(
        async_run(helper(), "one", tools=[look], providers=scripted([call("look")], "It rains."), session=session)
    )
    await started.wait()
    with pytest.raises(SessionInUseError, match="used by another run of this program; wait for its end"):
        await async_run(helper(), "two", providers=scripted("Two."), session=session)
    copy = pickle.loads(pickle.dumps(session))  # another object with the same messages
    assert (await async_run(helper(), "two", providers=scripted("Two."), session=copy)).output == "Two."
    answered.set()
    assert (await first).output == "It rains."
    assert [message.get_text_content() for message in session.messages] == ["one", "", "It rains."]
    assert (await async_run(helper(), "two", providers=scripted("Two."), session=session)).output == "Two."


def look() -> str:
    """Look."""
    return "nothing"


async def test_a_typed_prompt_that_is_aborted_has_usage_and_text_and_no_text_in_place_of_a_value():
    reached = asyncio.Event()

    def wait(_: Any) -> list[Any]:
        reached.set()
        return ["so far ", asyncio.Event()]

    async with Engine([helper()], scripted(call("look"), wait), [look]) as engine:
        session = await engine.create()
        turn = await engine.enqueue(session, "x", output_type=City)
        waiting = await engine.enqueue(session, "y", output_type=City, input_id="second")
        await reached.wait()
        await asyncio.sleep(0.05)
        assert await engine.withdraw(session, "second")
        await engine.abort(session)
        aborted, withdrawn = await turn, await waiting
    assert (aborted.reason, aborted.text) == ("aborted", "so far ")
    assert aborted.usage.tokens.output > 0  # of the first step
    assert "look" in aborted.format_trace()
    for result in (aborted, withdrawn):
        with pytest.raises(OutputUnavailableError) as caught:
            _ = result.output
        assert caught.value.reason == "aborted"


async def test_a_typed_prompt_of_an_engine_that_closes_returns_no_text_in_place_of_a_value():
    async with Engine([helper()], scripted([asyncio.Event()])) as engine:
        session = await engine.create()
        running = await engine.enqueue(session, "x", output_type=City)
        queued = await engine.enqueue(session, "y", output_type=int)
        await asyncio.sleep(0.05)
    for end in (running, queued):
        with pytest.raises(OutputUnavailableError):
            _ = (await end).output


async def test_each_input_of_a_turn_has_the_output_type_that_it_requested():
    started, go_on = asyncio.Event(), asyncio.Event()

    async def steered() -> str:
        """Wait for more input."""
        started.set()
        await go_on.wait()
        return "done"

    async with Engine([helper()], scripted(call("steered"), ULM), [steered]) as engine:
        session = await engine.create()
        turn = asyncio.create_task(engine.prompt(session, "x", output_type=City, input_id="first"))
        await started.wait()
        text = await engine.enqueue(session, "and", delivery="steer")
        number = await engine.enqueue(session, "and", delivery="steer", output_type=int)
        go_on.set()
        assert (await turn).output == City("Ulm", 126000)
        assert (await text).output == ULM
        with pytest.raises(OutputUnavailableError, match="a value of int"):
            _ = (await number).output
        again = await engine.prompt(session, "x", output_type=City, input_id="first")  # a request that is repeated
        assert again.output == City("Ulm", 126000)


async def test_an_engine_that_a_cancel_scope_leaves_ends_its_turns_and_releases_its_sessions():
    """A cancel scope of anyio cancels every await until it is left, those of the clean-up too."""

    class SlowStore(MemoryStore):
        async def release(self, *arguments: Any, **options: Any) -> None:
            await asyncio.sleep(0.02)
            await super().release(*arguments, **options)

    session, store = "", SlowStore()
    with anyio.move_on_after(0.3) as scope:
        async with Engine([helper()], scripted(["so far ", asyncio.Event()]), store=store) as engine:
            session = await engine.create()
            await engine.prompt(session, "x")
    assert scope.cancelled_caught
    async with Engine([helper()], scripted("ok"), store=store) as engine:
        result = await engine.prompt(session, "again")
    assert result.output == "ok"
    assert [message.get_text_content() for message in result.session.messages] == ["x", "so far ", "again", "ok"]


async def test_a_catalog_of_the_program_sets_the_price_of_scripted_answers():
    catalog = ModelCatalog.from_config({"demo": {"prices": {"input": "100", "output": "200"}}})
    models = scripted("Hello.", "Hello.")
    async with Engine([helper()], models, catalog=catalog, limits=Limits(cost=1)) as engine:
        result = await engine.prompt(await engine.create(), "x")
    assert result.output == "Hello."
    tokens = result.usage.tokens
    assert result.cost == Decimal(tokens.input * 100 + tokens.output * 200) / 1_000_000 > 0
    async with Engine([helper()], models, limits=Limits(cost=1)) as engine:
        assert isinstance((await engine.prompt(await engine.create(), "x")).error, ConfigurationError)
