"""Planted mistakes in programs as product teams write them: each line with `# mistake` must be reported, and no other."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

from outrider import (
    Agent,
    ApprovalRequest,
    Background,
    Engine,
    EventBus,
    HookedCall,
    HookedRequest,
    Hooks,
    Limits,
    Message,
    Provider,
    Rules,
    RunResult,
    RunStream,
    Session,
    SessionContext,
    SessionFilter,
    StreamEvent,
    TextPart,
    Tool,
    ToolCompleted,
    ToolContext,
    ToolFailure,
    ToolPart,
    ToolResult,
    async_run,
    async_run_stream,
    complete,
    replay,
    run,
    run_stream,
    what_if,
)
from outrider.events import LoopCompletedEvent, ToolExecutionCompletedEvent
from outrider.mcp import McpToolset, StdioServer
from outrider.permissions import decide
from outrider.providers import Delta, Finish, ModelDescription, PartStart, Request, RetryPolicy, TextDelta
from outrider.stores import MemoryStore
from outrider.testing import Chaos, Simulator, check_provider, check_store, crash, scripted_model
from outrider.workspace import Workspace

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]


@dataclass
class Order:
    amount: int
    note: str = ""


@dataclass
class Refused:
    why: str


agent = Agent("clerk", "You help.", model="demo", provider="demo")
model = scripted_model("Hello.")

# generic models and generic functions
run(agent, "x", output_type=Page[Order]).output.items[0].amuont  # mistake
page: Page[str] = run(agent, "x", output_type=Page[int]).output  # mistake


def ask(question: str, kind: type[T]) -> T:
    return run(agent, question, output_type=kind).output


def ask_wrongly(question: str, kind: type[T]) -> T:
    return run(agent, question).output  # mistake


ask("x", Order).note.real  # mistake
number: str = ask("x", int)  # mistake


async def many() -> list[Order]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(async_run(agent, "x", output_type=Refused)) for _ in range(3)]
    return [task.result().output for task in tasks]  # mistake


async def forgot() -> str:
    return async_run(agent, "x").output  # mistake


# matches over a union
def handle(result: RunResult[Order | Refused]) -> str:
    match result.output:
        case Order(amount=amount):
            return amount  # mistake
        case Refused():
            return result.output.why


# streams
async def tokens() -> AsyncGenerator[str]:
    stream: RunStream[Order] = async_run_stream(agent, "x", output_type=Refused)  # mistake
    async for event in stream:
        if event.type == "tokn":  # mistake
            yield ""
        yield event  # mistake


def sync_tokens() -> Iterator[StreamEvent]:
    with run_stream(agent, "x", output_type=Order) as events:
        yield from events
    print(events.partial.amount)  # mistake
    print(events.result.output.why)  # mistake


# dependencies
@dataclass
class Database:
    name: str


@Tool
async def query(context: ToolContext[Database], sql: str) -> str:
    context.deps.nam  # mistake
    context.report("working")  # mistake
    return context.owner + sql + context.metadata  # mistake


@contextmanager
def open_database(context: SessionContext[None]) -> Generator[Database]:
    yield Database(context.sesion_id)  # mistake


def open_without_context() -> Database:
    return Database("x")


Engine([agent], [model], deps=open_database)
Engine([agent], [model], deps=open_without_context)  # mistake
Engine([agent], [model], approve=open_without_context)  # mistake
Engine([agent], [model], rules={"allow": ["x"]})  # mistake
Engine([agent], [model], hooks=[])  # mistake
Rules(allow="shell")  # mistake


# tools
@Tool(policy="always")  # mistake
def first() -> str:
    return ""


@Tool(evaluate_policy=lambda base, arguments: "maybe")  # mistake
def second() -> str:
    return ""


class Desk:
    @Tool
    async def close(self, ticket: int) -> bool:
        return bool(ticket)


async def use_desk() -> None:
    if await Desk().close("3"):  # mistake
        pass
    (await Desk().close(3)).upper()  # mistake
    ToolResult("x", attachments=["a.png"])  # mistake
    raise ToolFailure("x", reason="broken")  # mistake


# callbacks
def approve_late(request: ApprovalRequest, more: int) -> bool:
    return bool(request and more)


async def approve_list(request: ApprovalRequest) -> list[str]:
    return [request.tool]


def before(request: HookedRequest) -> str:
    return request.system or ""


def after(call: HookedCall) -> bool:
    return call.outputs is None  # mistake


run(agent, "x", approve=approve_late)  # mistake
run(agent, "x", approve=approve_list)  # mistake
Hooks(before_request=before)  # mistake


# providers
class Short:
    name = "short"

    async def stream(self, request: Request) -> AsyncGenerator[Delta]:
        yield PartStart(0, "txt")  # mistake
        yield TextDelta("a")  # mistake
        yield Finish("stopped")  # mistake

    def describe_model(self, model: str) -> ModelDescription:
        return ModelDescription(contxt=3)  # mistake


class Numbered:
    name = 3

    async def stream(self, request: Request) -> AsyncGenerator[Delta]:
        yield TextDelta(0, request.model)


run(agent, "x", providers=[Numbered()])  # mistake
Provider("a", "openai", api_key=lambda: 3)  # mistake
RetryPolicy(attempts="3")  # mistake


# values
def read(part: ToolPart, message: Message) -> str:
    part.state.output  # mistake
    if isinstance(part.state, ToolCompleted):
        return part.state.error  # mistake
    for text in message.get_parts_by_type(TextPart):
        text.txt  # mistake
    return message.get_text_content  # mistake


async def manage(engine: Engine, background: Background) -> None:
    (await engine.list())[0].titel  # mistake
    await engine.list(filter="ada")  # mistake
    SessionFilter(owner=3)  # mistake
    await engine.answer("id", allow="yes")  # mistake
    await engine.answer("id", allow=True, scope="forever")  # mistake
    for _ in engine.events("id"):  # mistake
        pass
    (await replay(engine, "id")).chek()  # mistake
    await what_if(engine, "id", at_step="1")  # mistake
    await engine.prompt("id", [3])  # mistake
    await engine.prompt("id", "x", delivery="now")  # mistake
    await engine.submit("x", limits=3)  # mistake
    (await background.submit("x", output_type=Order)).output().amount  # mistake
    await engine.create(metadata="x")  # mistake
    engine.create().upper()  # mistake
    async with MemoryStore() as store:
        await store.load(3)  # mistake


def listen(event: LoopCompletedEvent) -> None:
    event.turns  # mistake


bus = EventBus()
bus.subscribe(ToolExecutionCompletedEvent, listen)  # mistake
decide("shell", {"command": "ls"}, mode="agnt", workspace=".")  # mistake
if decide("shell", {}, mode="agent", workspace=".").effect == "allowed":  # mistake
    pass
complete(model, "m", "x").message.text  # mistake
Session(titel="x")  # mistake
Session(messages=["x"])  # mistake
Session().get_messages("opnai")  # mistake
Limits(turns="3")  # mistake
Chaos(cutt=0.3)  # mistake
Simulator(["a"], contxt=3)  # mistake
crash("python agent.py", 3)  # mistake
McpToolset([StdioServer(name="a", command="b")])  # mistake
mode: Literal["agent", "pln"] = "pln"
run(agent, "x", mode=mode)  # mistake


async def checks() -> None:
    await check_store(MemoryStore())  # mistake
    await check_provider("demo", "m")  # mistake
    async with Workspace("x", agent, [model], approval="none") as workspace:  # mistake
        await workspace.undo(3)  # mistake
