"""An engine with a script, and a tool that keeps its turn running."""

import asyncio
from typing import Any

from outrider import Agent, Engine, Provider, Tool
from outrider.sessions.store import Store


def engine_on(store: Store, script: list[Any], *tools: Tool) -> Engine:
    provider = Provider("scripted", "scripted", options={"script": script})
    return Engine([Agent("writer", "You write.", "model-1", "scripted")], [provider], tools, store=store)


class Endless:
    """A tool that runs until it is ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    def tool(self) -> Tool:
        async def work() -> str:
            """Work."""
            self.began.set()
            await asyncio.Event().wait()
            return "never"

        return Tool(work)
