"""A correct program: every result has the type that was asked for."""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from outrider import (
    Agent,
    Background,
    Engine,
    Limits,
    OutputUnavailableError,
    Provider,
    RunResult,
    ServerApp,
    SessionContext,
    StreamEvent,
    Tool,
    ToolContext,
    async_run,
    async_run_stream,
    run,
    run_stream,
    serve,
    server_app,
)


@dataclass
class City:
    name: str
    people: int


class Refusal(BaseModel):
    reason: str


class Database:
    def balance(self, customer: str) -> float:
        return len(customer) * 1.5


@Tool
def add(a: int, b: int) -> int:
    return a + b


@Tool(timeout=3, read_only=True)
async def fetch(url: str) -> str:
    return url


@Tool(policy="ask", repeats=None)
def balance(context: ToolContext[Database], customer: str) -> float:
    assert_type(context.deps, Database)
    return context.deps.balance(customer)


def greet(context: SessionContext[Database]) -> str:
    assert_type(context.deps, Database)
    return f"You serve {context.owner}."


async def greet_later(context: SessionContext[Database]) -> str:
    return greet(context)


model = Provider("demo", kind="scripted", options={"script": ["hi"]})
agent = Agent("helper", greet, model="demo", provider="demo", limits=Limits(cost=0.5, seconds=3))
later = Agent("later", greet_later, model=["a", "b"], provider="demo")

assert_type(run(agent, "x").output, str)
assert_type(run(agent, "x", output_type=str), RunResult[str])
assert_type(run(agent, "x", [agent, later], [add, fetch, balance], [model], output_type=City).output, City)
assert_type(run(agent, "x", output_type=list[City]).output, list[City])
assert_type(run(agent, "x", output_type=City | Refusal).output, City | Refusal)
assert_type(run(agent, "x", output_type=City | None).output, City | None)
assert_type(run(agent, "x", output_type={"type": "object"}).output, Any)
assert_type(run(agent, "x", output_type=dict[str, int], deps=Database(), owner="ada").output, dict[str, int])
assert_type(run(agent, "x", output_type=City).text, str)
assert_type(run(agent, "x", output_type=City).limit, str | None)
assert_type(add(1, 2), int)
assert_type(Tool(greet, name="g")(SessionContext(deps=Database())), str)


def answer_of(result: RunResult[City]) -> str:
    try:
        return result.output.name
    except OutputUnavailableError as error:
        return error.reason


def open_database(session: SessionContext[None]) -> Database:
    return Database()


async def main() -> None:
    assert_type((await async_run(agent, "x", output_type=City)).output, City)
    assert_type(await fetch("u"), str)
    stream = async_run_stream(agent, "x", output_type=list[City])
    async for event in stream:
        assert_type(event, StreamEvent)
        assert_type(stream.partial, list[City] | None)
    assert_type(stream.result.output, list[City])
    with run_stream(agent, "x", output_type=City) as events:
        for event in events:
            assert_type(event.type == "finish", bool)
    assert_type(events.result.output, City)
    async with Engine([agent], [model], [add], deps=open_database, attended=False) as engine:
        session_id = await engine.create(owner="ada", metadata={"tenant": 1})
        assert_type((await engine.prompt(session_id, "x")).output, str)
        assert_type((await engine.prompt(session_id, "x", output_type=City, instructions="briefly")).output, City)
        assert_type((await engine.resume(session_id, output_type=City | Refusal)).output, City | Refusal)


async def queue(background: Background, engine: Engine) -> None:
    assert_type(await (await engine.submit("x", output_type=City)).output(), City)
    assert_type(await (await engine.submit("x", output_type=list[City])).output(), list[City])
    assert_type(await (await engine.submit("x", output_type=City | Refusal)).output(), City | Refusal)
    assert_type(await (await engine.submit("x", workspace="/w", limits=Limits(turns=3))).output(), str)
    assert_type(await (await engine.submit("x", output_type={"type": "object"})).output(), Any)
    assert_type((await (await engine.enqueue("id", "x", output_type=City | None))).output, City | None)
    assert_type((await (await engine.enqueue("id", "x"))).output, str)
    assert_type(await (await background.submit("x", output_type=City | Refusal)).output(), City | Refusal)
    assert_type(await (await background.submit("x", output_type=City)).output(), City)
    assert_type(await (await background.submit("x", workspace="/w")).output(), str)
    assert_type(await background.run("id", list[City]).output(), list[City])


class Shop:
    @Tool
    def price(self, item: str) -> int:
        return len(item)


assert_type(Shop().price("tea"), int)


def check_city(city: City) -> City:
    return city


run(agent, "x", tools=[Shop().price], output_type=City, output_validators=check_city, output_attempts=2)



def serve_agents(engine: Engine) -> None:
    app = server_app(engine, token="t", url="https://example.com/agents", folder="server")
    assert_type(app, ServerApp)
    assert_type(app.sign_in_link(), str)
    serve(engine, port=0, names=["example.com"])


mode: Literal["plan"] = "plan"
run(agent, "x", mode=mode, tools=[add, greet])
asyncio.run(main())
