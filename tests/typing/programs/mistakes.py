"""Planted mistakes: each line with `# mistake` must be reported, and no other."""

from dataclasses import dataclass

from outrider import (
    Agent,
    Background,
    Engine,
    Limits,
    Provider,
    RunResult,
    SessionContext,
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


@dataclass
class Refusal:
    reason: str


@Tool
def add(a: int, b: int) -> int:
    return a + b


@Tool(timeout=3)
def subtract(a: int, b: int) -> int:
    return a - b


@Tool
def count(context: ToolContext[City], more: int) -> int:
    return context.deps.peple + more  # mistake


def instruct(context: SessionContext[City]) -> str:
    return context.deps.nme  # mistake


def instruct_wrongly(context: SessionContext[City]) -> int:
    return context.deps.people


model = Provider("demo", kind="scripted")
agent = Agent("helper", "You help.", model="demo", provider="demo")
Agent("helper", instruct_wrongly, model="demo", provider="demo")  # mistake
Agent("helper", 3, model="demo", provider="demo")  # mistake
Limits(turn=3)  # mistake
Limits(cost="1")  # mistake

run(agent, "x", output_type=City).output.nmae  # mistake
number: int = run(agent, "x").output  # mistake
other: int = run(agent, "x", output_type=str).output  # mistake
run(agent, "x", output_type=list[City]).output.name  # mistake
run(agent, "x", output_type=list[City]).output[0].people.upper()  # mistake
run(agent, "x", output_type=City | Refusal).output.reason  # mistake
run(agent, "x", output_type=City | None).output.name  # mistake
run(agent, "x", outptu_type=City)  # mistake
run(agent, "x", mode="plna")  # mistake
run(agent, 3)  # mistake
run(agent, "x", limits=3)  # mistake
add(1, "2")  # mistake
subtract(1, "2")  # mistake
subtract(1).bit_length()  # mistake
add(1, 2).upper()  # mistake
Tool(instruct, timeot=3)  # mistake
Tool(instruct, policy="sometimes")  # mistake
Engine([agent], [model], attendd=True)  # mistake
Engine([agent], [model], limits="none")  # mistake


@Tool(timeot=3)  # mistake
def multiply(a: int) -> int:
    return a


def takes(result: RunResult[City]) -> None:
    print(result.txet)  # mistake


takes(run(agent, "x", output_type=Refusal))  # mistake


async def main(engine: Engine) -> None:
    (await async_run(agent, "x", output_type=City)).output.nmae  # mistake
    stream = async_run_stream(agent, "x", output_type=City)
    stream.result.output.nmae  # mistake
    stream.partial.name  # mistake
    run_stream(agent, "x").result.output.name  # mistake
    (await engine.prompt("id", "x", output_type=City)).output.nmae  # mistake
    (await engine.prompt("id", "x")).output.people  # mistake
    await engine.prompt("id", "x", sendr="me")  # mistake
    await engine.create(ownr="ada")  # mistake


class Shop:
    @Tool
    def price(self, item: str) -> int:
        return len(item)


Shop().price(3)  # mistake


async def queue(background: Background) -> None:
    (await (await background.submit("x", output_type=City)).output()).nmae  # mistake
    await background.submit("x", worksapce="/w")  # mistake


def serve_agents(engine: Engine) -> None:
    serve(engine, prot=80)  # mistake
    server_app(engine, url=3)  # mistake
