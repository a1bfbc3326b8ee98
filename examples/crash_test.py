"""Kills an agent at every point around the calls of its tool, and shows that no order is placed twice.

A model that reads that a call was interrupted looks up the order before it places it again."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from outrider import Agent, Engine, Tool
from outrider.stores import SqliteStore
from outrider.testing import call, crash, scripted_model

ORDERS = Path("orders.txt")


@Tool
def place_order(item: str) -> str:
    """Place an order."""
    with ORDERS.open("a") as file:
        file.write(f"{item}\n")
    return f"ordered {item}"


@Tool(read_only=True)
def list_orders() -> str:
    """List the orders."""
    return ORDERS.read_text() if ORDERS.exists() else "no orders"


def answer(request: Any) -> Any:
    """A model that works like a careful person: it looks before it repeats an interrupted call."""
    results = [part.content for message in request.prompt for part in message.content if part.type == "tool_result"]
    if not results:
        return call("place_order", item="tea")
    if "ordered tea" in results[-1] or "tea" in results[-1].split():
        return "The tea is ordered."
    return call("place_order", item="tea") if "no orders" in results[-1] else call("list_orders")


async def main() -> None:
    agent = Agent("buyer", "You order what is needed.", "demo", "demo")
    async with (
        SqliteStore("agent.db") as store,
        Engine([agent], [scripted_model(answer)], [place_order, list_orders], store=store) as engine,
    ):
        stored = (await store.list()).sessions
        session = stored[0].id if stored else await engine.create()
        began = bool((await store.load(session)).messages or await store.inbox(session))
        end = await (engine.resume(session) if began else engine.prompt(session, "Order tea."))
        if end.error is not None:
            raise end.error
        print(end.output)


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        asyncio.run(main())
    else:
        program = [sys.executable, __file__, "agent"]
        report = crash(program, lambda folder: (folder / ORDERS).read_text().split(), visits=1)
        print(report.text())
        report.check()
