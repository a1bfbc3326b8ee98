"""Dependencies: every session has its own user and database connection, which tools and instructions receive."""

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from outrider import Agent, Engine, Provider, SessionContext, Tool, ToolContext


@dataclass
class Account:
    user: str
    database: sqlite3.Connection


@Tool(read_only=True)
def count_orders(context: ToolContext[Account]) -> int:
    """Return how many orders the user has."""
    rows = context.deps.database.execute("select count(*) from orders where user = ?", [context.deps.user])
    return rows.fetchone()[0]


def instruct(context: SessionContext[Account]) -> str:
    return f"You help {context.deps.user} with orders."


@contextmanager
def open_account(context: SessionContext) -> Generator[Account]:
    """Called when a session is opened, in any process; the connection is closed with the session."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript("create table orders (user, item); insert into orders values ('ada', 'tea'), ('ada', 'mug')")
    try:
        yield Account(context.owner, database)
    finally:
        database.close()


async def main() -> None:
    script = [{"tool": "count_orders"}, "You have 2 orders."]
    model = Provider("demo", kind="scripted", options={"script": script})
    clerk = Agent("clerk", instruct, model="demo", provider="demo")
    async with Engine([clerk], [model], [count_orders], deps=open_account) as engine:
        session = await engine.create(owner="ada", metadata={"tenant": "acme"})
        print((await engine.prompt(session, "How many orders do I have?")).output)


if __name__ == "__main__":
    asyncio.run(main())
