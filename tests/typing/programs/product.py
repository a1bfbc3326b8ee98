"""Correct programs, as product teams write them: generic and recursive types, dependencies, stores, tests."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar, assert_never, assert_type

import msgspec
from pydantic import BaseModel, Field

from outrider import (
    Agent,
    ApprovalRequest,
    Attachment,
    Background,
    Comparison,
    Decision,
    Engine,
    EventBus,
    HookDecision,
    HookedCall,
    HookedRequest,
    Hooks,
    Limits,
    Message,
    OutputMismatch,
    Progress,
    Provider,
    Replay,
    RunResult,
    RunStream,
    Session,
    SessionContext,
    SessionFilter,
    Store,
    StreamEvent,
    SyncRunStream,
    TextPart,
    Tool,
    ToolCompleted,
    ToolContext,
    ToolError,
    ToolFailure,
    ToolPart,
    ToolPending,
    ToolResult,
    ToolRunning,
    async_run,
    async_run_stream,
    complete,
    replay,
    run,
    run_stream,
    what_if,
)
from outrider.events import Event, LoopCompletedEvent
from outrider.mcp import McpToolset, StdioServer
from outrider.permissions import contain, decide
from outrider.providers import (
    CustomProvider,
    Delta,
    Finish,
    ModelDescription,
    PartEnd,
    PartStart,
    Request,
    TextDelta,
    Tokens,
    UsageReport,
)
from outrider.stores import MemoryStore, SqliteStore
from outrider.testing import Simulator, SimulatedRequest, call, check_provider, check_store, crash, scripted_model
from outrider.workspace import Workspace

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    cursor: str | None = None


@dataclass
class Node:
    value: int
    children: list["Node"] = field(default_factory=list["Node"])


class Tree(msgspec.Struct):
    name: str
    left: "Tree | None" = None


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int = 0


UserId = NewType("UserId", int)


class Order(BaseModel):
    amount: Annotated[int, Field(ge=1, description="how many")]
    note: str = ""


agent = Agent("clerk", "You help.", model="demo", provider="demo")
model = scripted_model("Hello.")

assert_type(run(agent, "x", output_type=Page[int]).output, Page[int])
assert_type(run(agent, "x", output_type=Page[Order]).output.items, list[Order])
assert_type(run(agent, "x", output_type=Node).output.children, list[Node])
assert_type(run(agent, "x", output_type=Tree).output.left, Tree | None)
assert_type(run(agent, "x", output_type=Color).output, Color)
assert_type(run(agent, "x", output_type=Point).output.y, int)
assert_type(run(agent, "x", output_type=list[Order | Node]).output, list[Order | Node])
assert_type(run(agent, "x", output_type=bool).output, bool)
assert_type(run(agent, "x", output_type=Decimal).output, Decimal)
assert_type(run(agent, "x", output_type=tuple[int, ...]).output, tuple[int, ...])
assert_type(run(agent, "x", output_type=Literal["yes", "no"]).output, Literal["yes", "no"])


def ask(question: str, kind: type[T]) -> T:
    return run(agent, question, providers=[model], output_type=kind).output


async def ask_many(questions: Sequence[str], kind: type[T]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(async_run(agent, one, providers=[model], output_type=kind)) for one in questions]
    return [task.result().output for task in tasks]


assert_type(ask("x", Order), Order)
assert_type(asyncio.run(ask_many(["x"], Node)), list[Node])


def stream_order() -> Iterator[Order | None]:
    with run_stream(agent, "x", output_type=Order) as events:
        assert_type(events, SyncRunStream[Order])
        for _ in events:
            yield events.partial
    assert_type(events.result, RunResult[Order])


async def stream_tokens() -> AsyncIterator[str]:
    stream = async_run_stream(agent, "x")
    assert_type(stream, RunStream[str])
    async with stream as events:
        async for event in events:
            assert_type(event, StreamEvent)
            if event.type == "token":
                yield str(event.data["text"])


@dataclass
class Database:
    name: str


@asynccontextmanager
async def open_database(context: SessionContext[None]) -> AsyncGenerator[Database]:
    yield Database(context.owner)


@contextmanager
def open_plain(context: SessionContext[None]) -> Generator[Database]:
    yield Database(context.session_id)


async def open_later(context: SessionContext[None]) -> Database:
    return Database(str(context.metadata["tenant"]))


@Tool
async def query(context: ToolContext[Database], sql: str) -> ToolResult:
    context.report(Progress("working"))
    if not sql:
        raise ToolFailure("write a query")
    return ToolResult("1 row", (Attachment.from_bytes(b"x", "text/csv"),), title=context.deps.name)


@Tool(policy="ask", timeout=3.5)
def chunks(count: int) -> Generator[str]:
    yield from map(str, range(count))


class Desk:
    def __init__(self, name: str) -> None:
        self.name = name

    @Tool
    async def close(self, ticket: int, *, reason: str = "") -> bool:
        return bool(ticket and reason)

    def reopen(self, ticket: int) -> str:
        return self.name * ticket


desk = Desk("a")


def multiply(base: int, factor: int) -> int:
    return base * factor


tools: list[Tool | Callable[..., Any]] = [query, chunks, desk.close, desk.reopen, partial(multiply, factor=2)]
run(agent, "x", tools=tools, deps=Database("a"))
run(agent, "x", tools=(query, chunks))
run(agent, "x", tools=[Tool(desk.reopen, name="open"), Tool.from_schema("a", "b", {"type": "object"}, multiply)])


async def approve(request: ApprovalRequest) -> bool | Literal["once", "session", "project", "always"]:
    return "session" if request.tool == "chunks" else bool(request.input)


async def before(call_: HookedCall) -> dict[str, Any] | str | None:
    return "no" if call_.tool == "x" else None


def after(call_: HookedCall) -> None:
    print(call_.tool)


async def trim(request: HookedRequest) -> HookedRequest | None:
    return request.with_text("more") if request.session_id else None


run(agent, "x", approve=approve, hooks=Hooks(before_call=before, before_request=trim))
run(agent, "x", approve=lambda request: request.tool == "a")


async def check_order(context: SessionContext[Any], order: Order) -> Order:
    if order.amount > 3 or not context.owner:
        raise OutputMismatch("too many")
    return order


run(agent, "x", output_type=Order, output_validators=[check_order, lambda order: order])


class Echo:
    name = "echo"
    idle_seconds = 3.0

    async def stream(self, request: Request) -> AsyncGenerator[Delta]:
        yield PartStart(0, "text")
        yield TextDelta(0, request.model)
        yield PartEnd(0)
        yield UsageReport(Tokens(input=1, output=1))
        yield Finish("stop")

    def describe_model(self, model: str) -> ModelDescription:
        return ModelDescription(context=len(model), input_price=1, output_price=Decimal(2))


echo: CustomProvider = Echo()
providers: list[Provider | CustomProvider] = [model, Echo()]
run(agent, "x", providers=providers)


def state_of(part: ToolPart) -> str:
    match part.state:
        case ToolPending() | ToolRunning():
            return "open"
        case ToolCompleted(output=output):
            return output
        case ToolError() as failed:
            return failed.error + failed.reason
        case _:
            assert_never(part.state)


def texts(messages: Sequence[Message]) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    return [part.text for part in parts if isinstance(part, TextPart)]


async def manage(engine: Engine, store: Store) -> None:
    page = await engine.store.list(SessionFilter(owner="ada", metadata={"tenant": "acme"}))
    print([found.title for found in page.sessions], page.next)
    hits = await engine.search("tea")
    print([hit.session_id for hit in hits])
    copy = await engine.fork((await engine.list())[0].id)
    print(copy.upper())
    document = await engine.export(copy)
    print(await engine.import_session(document, as_copy=True), (await engine.share(copy)).upper())
    for question in await engine.approvals():
        await engine.answer(question.id, allow=question.tool == "x", words="because", scope="session")
    again = await replay(engine, copy)
    assert_type(again, Replay)
    again.check()
    other = await what_if(engine, copy, at_step=1, instructions="Be brief.")
    print(other.text())
    async for event in engine.events(copy):
        assert_type(event.event_type, str)
        if isinstance(event, LoopCompletedEvent):
            print(event.termination_reason)
    result = await (await engine.enqueue(copy, ["look", Attachment.from_path("a.png")], output_type=Page[Order]))
    assert_type(result.output.items, list[Order])
    await engine.prompt(copy, [TextPart("x")], delivery="steer")


async def background(engine: Engine) -> None:
    async with Background(engine, "sqlite:///runs.db") as runs:
        handle = await runs.submit("x", output_type=Order, limits=Limits(cost=Decimal(1)), metadata={"a": 1})
        assert_type(await handle.output(), Order)
        async for change in handle.events(called=True):
            print(change)


async def stores(path: Path) -> None:
    async with SqliteStore(path) as store, Engine([agent], providers, tools, store=store, deps=open_database) as engine:
        await manage(engine, store)
    async with Engine([agent], [Echo()], store=MemoryStore(), deps=open_plain, approve=approve):
        pass
    async with Engine((agent,), (model,), deps=open_later, limits=Limits(turns=3, seconds=0.5)):
        pass
    await check_store(MemoryStore)
    await check_store(lambda: SqliteStore(path))
    await check_provider(Echo(), "small")


async def folder() -> None:
    async with Workspace(Path("x"), [agent], [model], tools, approve=approve, approval="edits") as workspace:
        assert_type((await workspace.prompt("x", mode="plan", output_type=Order)).output, Order)
        plan = await workspace.plan()
        if plan is not None:
            print(plan.text.upper())
        print((await workspace.undo()).changed)


async def servers() -> None:
    async with McpToolset(StdioServer(name="a", command="b", args=("c",)), approval=lambda name: name == "d") as toolset:
        await async_run(agent, "x", tools=[*toolset.tools, query], providers=[model])


def judge() -> str:
    decision = decide("shell", {"command": "ls"}, mode="agent", workspace=Path("x"), allow=("shell(ls)",))
    assert_type(decision, Decision)
    return decision.reason + contain("a", root="/w", cwd="/w").kind


def answer(request: SimulatedRequest) -> Any:
    return "done" if request.results else [call("query", sql="x")]


async def listen(event: LoopCompletedEvent) -> None:
    print(event.total_turns)


bus = EventBus()
stop = bus.subscribe(LoopCompletedEvent, listen)
stop()
bus.subscribe_all(lambda event: print(event.event_type))
everything: list[Event] = []
bus.subscribe_all(everything.append)

with Simulator(answer) as simulator:
    run(agent, "x", providers=[simulator.provider("google")])
    simulator.check()

report = crash(["python", "agent.py"], lambda folder: [line for line in (folder / "log").read_text().split()])
report.check(may_lose=True)
assert_type(complete(model, "m", [Message("user", [TextPart("x")])], tools=[query]).message, Message)
handler: Callable[[ApprovalRequest], Awaitable[Any]] = approve
session = Session(messages=[Message("user", [TextPart("a")])], owner="ada", metadata={"a": [1]})
print(session.get_messages("openai"), len(session), Comparison, HookDecision)
