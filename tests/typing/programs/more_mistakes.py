"""More planted mistakes, in programs as users write them: each line with `# mistake` must be reported, and no other."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from pydantic import BaseModel

from outrider import (
    Agent,
    ApprovalRequest,
    Attachment,
    Background,
    Engine,
    EventBus,
    HookedCall,
    HookedRequest,
    Hooks,
    Limits,
    Message,
    PartBase,
    Provider,
    QueuePlacement,
    RetryPolicy,
    Session,
    SessionContext,
    TextPart,
    Tool,
    ToolContext,
    ToolPart,
    ToolResult,
    async_complete,
    async_run_stream,
    complete,
    run,
    run_stream,
    what_if,
)
from outrider.evals import AnswerCheck, CallsCheck, EvalCase, EvalOutcome, EvalSuite, FileCheck, compare_runs, run_suite
from outrider.events import Event, ToolExecutionStartedEvent
from outrider.mcp import HttpServer, McpToolset, StdioServer
from outrider.permissions import contain
from outrider.providers import Credential, Delta, Request, TextDelta
from outrider.stores import MemoryStore, SqliteStore
from outrider.testing import Simulator, call, scripted_model
from outrider.workspace import Workspace


class Block(BaseModel):
    type: Literal["text"] = "text"
    text: str


class Answer(BaseModel):
    """Has the shape of a message of Anthropic's SDK."""

    content: list[Block]


def anthropic_answer() -> Answer:
    return Answer(content=[Block(text="a")])


class Flight(BaseModel):
    number: str
    price: float


class Seat(TypedDict):
    row: int
    letter: str


@dataclass
class Failed:
    why: str


@dataclass
class Bank:
    name: str

    async def balance(self, customer: int) -> float:
        return customer * 1.5


agent = Agent("clerk", "You help.", model="demo", provider="demo")
model = scripted_model("Hello.", [call("look", at="it")], "Done.")

# 1: unions, lists, literals and TypedDicts as output
found = run(agent, "x", providers=[model], output_type=Flight | Failed).output
if isinstance(found, Flight):
    print(found.price.upper())  # mistake
else:
    print(found.number)  # mistake
run(agent, "x", output_type=Seat).output["rows"]  # mistake
flights: list[Failed] = run(agent, "x", output_type=list[Flight]).output  # mistake
choice: Literal["a", "c"] = run(agent, "x", output_type=Literal["a", "b"]).output  # mistake
prices: dict[str, str] = run(agent, "x", output_type=dict[str, float]).output  # mistake
first, second = run(agent, "x", output_type=tuple[int, str]).output
second.bit_length()  # mistake


# 2: a tool that forgets its return type, and a wrong use of its context
@Tool
async def balance(context: ToolContext[Bank], customer: int) -> float:
    amount: str = await context.deps.balance(customer)  # mistake
    context.report(3)  # mistake
    return float(len(amount))


async def use_balance(context: ToolContext[Bank]) -> None:
    (await balance(context, 3)).upper()  # mistake
    await balance(context, "three")  # mistake
    balance(context, 3) + 1  # mistake


# 3: a class with a tool method
class Shop:
    @Tool(read_only=True)
    def price(self, item: str, *, currency: Literal["EUR", "USD"] = "EUR") -> int:
        return len(item + currency)


Shop().price("tea", currency="GBP")  # mistake
Shop().price()  # mistake


# 4: wrong callbacks
def approve_number(request: ApprovalRequest) -> int:
    return len(request.tool)


def approve_nothing(request: ApprovalRequest) -> bool:
    return request.inputs is None  # mistake


run(agent, "x", approve=approve_number)  # mistake
run(agent, "x", approve="yes")  # mistake


def before(call: HookedCall) -> int:
    return len(call.tool)


def change(request: HookedRequest) -> HookedRequest:
    return request.with_txt("more")  # mistake


Hooks(before_call=before)  # mistake
Hooks(before_calls=before)  # mistake


# 5: validators of another type
def check_flight(flight: Flight) -> Flight:
    return flight


run(agent, "x", output_type=Flight, output_validators=3)  # mistake
run(agent, "x", output_type=Flight, output_validators=check_flight, output_attempts="two")  # mistake

# 6: constructors
Provider("x", "openia")  # mistake
Provider("x", kind="openai", api_keys="k")  # mistake
Provider("x", kind="openai", api_key=3)  # mistake
Agent("x", "You help.", "m")  # mistake
Agent("x", "You help.", model="m", provider="p", tools="look")  # mistake
Agent("x", "You help.", model="m", provider="p", temprature=1.0)  # mistake
Agent("x", "You help.", model="m", provider="p", reasoning_effort="extreme")  # mistake
Agent("x", "You help.", model="m", provider="p", retry=RetryPolicy(attempt=3))  # mistake
Limits(seconds="60")  # mistake
Attachment("image/png", bytes=b"")  # mistake
Attachment.from_path(3)  # mistake
ToolResult(3, attachment=[])  # mistake
Credential(3)  # mistake


# 7: sessions and messages
session = Session()
session.add_user_message(3)  # mistake
session.messages[0].role.uper()  # mistake
Message("system", [TextPart("x")])  # mistake
TextPart(text=3)  # mistake
for part in Message("user", []).get_parts_by_type(ToolPart):
    print(part.callid)  # mistake

# 8: streams
with run_stream(agent, "x", output_type=list[Flight]) as events:
    for event in events:
        print(event.kind)  # mistake
events.result.output[0].nmber  # mistake


async def stream() -> None:
    flow = async_run_stream(agent, "x", output_type=Flight)
    for _ in flow:  # mistake
        pass
    async for event in flow:
        print(event.data.text)  # mistake


# 9: one step without the loop
async def one_step(provider: Provider) -> None:
    answer = await async_complete(provider, "m", "hello")
    print(answer.mesage)  # mistake
    complete(provider, "m", "hello").tokens.input.upper()  # mistake
    await async_complete(provider, "m", 3)  # mistake
    await async_complete(provider, "m", "x", sytem="y")  # mistake


# 10: an engine
async def serve(engine: Engine, background: Background) -> None:
    result = await engine.prompt("id", "x", output_type=Flight | Failed)
    result.output.price  # mistake
    (await (await engine.enqueue("id", "x", output_type=Flight))).output.nmber  # mistake
    (await (await engine.enqueue("id", "x"))).output.price  # mistake
    await engine.set_mode("id", "planning")  # mistake
    await engine.set_approval("id", "always")  # mistake
    await engine.answer("id", "call", yes=True)  # mistake
    async for _ in engine.list():  # mistake
        pass
    handle = await engine.submit("x", output_type=list[Flight])
    (await handle.output())[0].nmber  # mistake
    await engine.submit("x", workspce="/w")  # mistake
    (await (await engine.submit("x")).output()).price  # mistake
    (await background.run("id", Flight | None).output()).price  # mistake
    (await handle.result()).sumary  # mistake
    (await handle.show()).stat  # mistake
    print((await handle.result()).summary.upper(), (await handle.show()).state.upper())
    await engine.submit("x", place="first")  # mistake
    await engine.submit("x", ownr="ada")  # mistake
    await engine.submit("x", place=QueuePlacement(user="ada"), owner="ada")
    await engine.create(ownr="ada")  # mistake
    await engine.resume("id", takeover=True)  # mistake
    await what_if(engine, "id", at_step=1, modl="x")  # mistake
    await what_if(engine, "id", at_step=1, model="x")


# The parts of a message, and copies with other values
def read(message: Message) -> None:
    message.parts[0].text  # mistake
    print([part.text.upper() for part in message.parts if isinstance(part, TextPart)])
    texts = [TextPart("a")]
    print(Message("user", texts), Message("user", ["a"]))  # mistake
    agent.replace(modle="x")  # mistake
    print(agent.replace(model=["a", "b"], temperature=0.5))


def trim(request: HookedRequest) -> HookedRequest:
    return request.replace(sytem="x")  # mistake


def check_two(flight: Flight, other: Flight, third: Flight) -> Flight:
    return flight if other.price > third.price else other


run(agent, "x", output_type=Flight, output_validators=check_two)  # mistake
run(agent, "x", output_type=Flight, output_validators=lambda flight: flight)
run(agent, "x", output_type=Flight, output_validators=[lambda context, flight: flight])


class RatingPart(PartBase, frozen=True, tag_field="type", tag="rating"):
    stars: int = 0


# 11: dependencies of another type
def open_bank(context: SessionContext[None]) -> Bank:
    return Bank(context.ownr)  # mistake


Engine([agent], [model], deps=Bank("x"))  # mistake
Engine([agent], [model], store="sessions.db")  # mistake
Engine(agent, [model])  # mistake


# 12: events
def listen(event: ToolExecutionStartedEvent) -> None:
    print(event.tool)  # mistake


def listen_wrongly(event: Event, more: int) -> None:
    print(event, more)


bus = EventBus()
bus.subscribe(ToolExecutionStartedEvent, listen)
bus.subscribe(ToolExecutionStartedEvent, listen_wrongly)  # mistake
bus.subscribe("ToolExecutionStartedEvent", listen)  # mistake


# 13: a custom provider
class Echo:
    name = "echo"

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        yield TextDelta(0, request.modle)  # mistake


class NoName:
    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        yield TextDelta(0, request.model)


class Blocking:
    name = "blocking"

    def stream(self, request: Request) -> Iterator[Delta]:
        yield TextDelta(0, request.model)


run(agent, "x", providers=[Echo()])
run(agent, "x", providers=[NoName()])  # mistake
run(agent, "x", providers=[Blocking()])  # mistake


# 14: a folder
async def work() -> None:
    async with Workspace("/w", agent, [model], aprove=None) as workspace:  # mistake
        (await workspace.prompt("x", output_type=Flight)).output.nmber  # mistake
        await workspace.prompt("x", mode="edit")  # mistake
        plan = await workspace.plan()
        plan.text  # mistake


# 15: servers of tools
StdioServer(name="files", command=["npx"])  # mistake
HttpServer(name="files", uri="https://example.org")  # mistake
McpToolset(StdioServer(name="files", command="npx"), includes=["read_*"])  # mistake

# 16: tests
with Simulator(["It is 4."]) as simulator:
    simulator.provider("anthropics")  # mistake
    simulator.requests[0].result  # mistake

# 17: stores
SqliteStore(3)  # mistake
MemoryStore().load("id").messages  # mistake

# 18: results
result = run(agent, "x", output_type=Flight)
result.usage.tokens.totl  # mistake
result.cost + 1  # mistake
result.limit.upper()  # mistake
result.termination_reason.uper()  # mistake
any_value: Any = run(agent, "x", output_type={"type": "object"}).output
print(any_value.whatever)

# 19: arguments of run
run(agent, "x", providers=model)  # mistake
run(agent, "x", tools=["look"])  # mistake
run(agent, "x", attachments=["a.png"])  # mistake
run(agent, "x", metadata="tenant")  # mistake
run([agent], "x")  # mistake
run(agent)  # mistake

# 20: calls of the tool's own options
Tool.from_schema("look", "Look.", "object", lambda **_: "")  # mistake
Tool(timeout="3")  # mistake


# 21: evaluations
def is_short(outcome: EvalOutcome) -> str | None:
    return outcome.anwser  # mistake


def is_included(outcome: str) -> bool:
    return bool(outcome)


case = EvalCase(name="a", prompt="x", checks=(AnswerCheck(contains="a"), is_short, lambda outcome: outcome.steps < 3))
EvalCase(name="a", prompt="x", checks=(is_included,))  # mistake
EvalCase(name="a", prompt="x", chekcs=())  # mistake
EvalCase(name="a", prompt="x", checks=("contains a",))  # mistake
FileCheck(path="a", contians="b")  # mistake
CallsCheck(tool="shell", at_most="3")  # mistake
suite = EvalSuite(name="s", cases=(case,))
EvalSuite(name="s", cases=case)  # mistake
evaluated = run_suite(suite, [agent], [model], repeat=3)
run_suite(suite, [agent], [model], repeats=3)  # mistake
run_suite(suite, [agent], [model], sandbox="off")  # mistake
evaluated.pass_rate().rate.upper()  # mistake
compare_runs(evaluated, suite)  # mistake
print(compare_runs(evaluated, evaluated).verdict == "regression")

# 22: operations on paths, and what answers consist of
contain("a.txt", root="/w", cwd="/w", op="rename_dest")
contain("a.txt", root="/w", cwd="/w", op="reed")  # mistake
talk = Session()
talk.add_assistant_message("a")
talk.add_assistant_message([TextPart("a"), {"type": "text", "text": "b"}])
talk.add_assistant_message(anthropic_answer())
talk.add_assistant_message(iter(anthropic_answer().content), finish="stop")
talk.add_assistant_message(3)  # mistake
talk.add_assistant_message(Message("assistant"))  # mistake
talk.add_assistant_message([1, 2])  # mistake
talk.add_assistant_message(None)  # mistake
talk.add_tool_results([{"tool_use_id": "a", "content": "b"}])
talk.add_tool_results("done")  # mistake


# 23: prompts of a workspace
def is_even(number: int) -> None:
    assert number % 2 == 0


async def use_workspace() -> None:
    async with Workspace("folder", agent, [model]) as workspace:
        answer = await workspace.prompt("x", output_type=int, output_validators=is_even, instructions="Be brief.")
        answer.output.upper()  # mistake
        await workspace.prompt("x", instructions=["Be brief."])  # mistake
        await workspace.prompt("x", output_validator=is_even)  # mistake
        await workspace.prompt("x", output_attempts="3")  # mistake
