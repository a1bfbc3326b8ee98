"""A separate program that asks for an approval and waits, to be killed by a test: `waiting_engine.py STORE`."""

import asyncio
import sys

from outrider import Engine, Tool
from outrider.events import ToolApprovalRequestedEvent
from outrider.sessions.sqlite.store import SqliteStore
from tests.scenario.scripted_runs import agent, call, scripted

RISKY = Tool(lambda: "ran", name="risky", policy="ask")


async def main(path: str) -> None:
    async with (
        SqliteStore(path) as store,
        Engine([agent()], [scripted([[call("risky", "c1")]])], [RISKY], store=store) as engine,
    ):
        session = await engine.create()

        def publish(event: ToolApprovalRequestedEvent) -> None:
            sys.stdout.write(f"{session} {event.approval_id}\n")
            sys.stdout.flush()

        engine.bus.subscribe(ToolApprovalRequestedEvent, publish)
        await engine.prompt(session, "go")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
