"""A call that a person must allow. The question is stored: it can be answered by another process, tomorrow."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider import Agent, Engine, Policy, Provider, Tool
from outrider.events import ToolApprovalRequestedEvent
from outrider.stores import SqliteStore
from outrider.testing import call, scripted_model


def ask_for_oakland(base: Policy, arguments: dict[str, Any]) -> Policy:
    return "ask" if "Oakland" in arguments["city"] else base


@Tool(read_only=True)
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"The weather in {city} is sunny"


@Tool(evaluate_policy=ask_for_oakland)
def temperature(city: str) -> str:
    """Return the temperature of a city."""
    return f"The temperature in {city} is 20 °C"


agent = Agent("assistant", "You answer questions about weather and temperature.", model="demo", provider="demo")
tools = [weather, temperature]


async def ask(file: Path, question: str, model: Provider) -> str:
    """Run until a person is needed, then stop the program."""
    async with SqliteStore(file) as store, Engine([agent], [model], tools, store=store) as engine:
        session_id = await engine.create(owner="ada")
        events = engine.events(session_id)
        await engine.enqueue(session_id, question)
        while not isinstance(await anext(events), ToolApprovalRequestedEvent):
            pass
        return session_id


async def decide(file: Path, session_id: str, model: Provider, confirm: Callable[[str], bool]) -> str:
    """Answer the open questions in another process, and continue."""
    async with SqliteStore(file) as store, Engine([agent], [model], tools, store=store) as engine:
        for question in await engine.approvals(session_id):
            allow = confirm(f"{question.tool} {question.input}")
            await engine.answer(question.id, allow=allow)
        return (await engine.resume(session_id)).output


if __name__ == "__main__":
    file = Path(tempfile.mkdtemp()) / "sessions.db"
    first = scripted_model([call("weather", city="Oakland"), call("temperature", city="Oakland")])
    session = asyncio.run(ask(file, "What is the weather and temperature in Oakland?", first))
    print(asyncio.run(decide(file, session, scripted_model("Sunny, 20 °C."), lambda question: print(question) is None)))
