"""Two servers whose agents know each other: each has a separate agent, and the other's under its name."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from outrider import Agent, Engine, Provider, Tool
from outrider.engine.questions import QuestionQueue
from outrider.providers.scripted import call
from outrider.server.app import create_app
from outrider.server.auth import ListenAddress
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.server import OutriderServer, bind_socket
from outrider.server.state import ServerState
from outrider.sessions.sqlite.store import SqliteStore
from outrider.tools.builtin.question import question_tool
from outrider.types.parts import ToolResultPart
from outrider.types.request import Request
from tests.e2e.server.http_server import TOKEN

Script = list[Any] | Callable[[Request], Any]


def peer_of(address: ListenAddress, name: str = "away") -> Provider:
    return Provider(name, "outrider", TOKEN, address.url)


def asking(agent: str, message: str = "your turn") -> Callable[[Request], Any]:
    """A model that asks an agent, and ends with the agent's answer."""

    def answer(request: Request) -> Any:
        results = [part for part in request.prompt[-1].content if isinstance(part, ToolResultPart)]
        if results:
            return f"I was told: {results[0].content}"
        return [call("call_agent", agent_name=agent, message=message)]

    return answer


@asynccontextmanager
async def peer(
    folder: Path,
    name: str,
    script: Script,
    *,
    at: Any = None,
    knows: dict[str, ListenAddress] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Engine, ListenAddress]]:
    """An engine whose own agent is called `name`, on a port; `knows` are agents of other servers, `questions` those
    that its models may ask."""
    questions: QuestionQueue | None = options.pop("questions", None)
    if questions is not None:
        options |= {"bus": questions.bus, "tools": [question_tool(questions.ask)]}
    listening, address = at or bind_socket(ListenAddress())
    tools: list[Tool] = options.pop("tools", [])
    delay = options.pop("delay", 0.0)
    providers = [Provider("scripted", "scripted", options={"script": script, "delay": delay})]
    agents = [Agent(name, f"You are {name}.", "model-1", "scripted", role=f"the agent {name}")]
    for other, place in (knows or {}).items():
        providers.append(peer_of(place, other))
        agents.append(Agent(other, "", "", other, role=f"{other}, who lives elsewhere"))
    store = SqliteStore(folder / f"{name}.db")
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(store)
        engine = await opened.enter_async_context(Engine(agents, providers, tools, store=store, **options))
        feeds = SessionFeedRegistry(engine)
        extras = ServerState(questions=questions)
        app = create_app(engine, feeds, address=address, token=TOKEN, version="0", state=extras)
        server = OutriderServer(app, address, feeds)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield engine, address
        finally:
            server.should_exit = True
            await serving
