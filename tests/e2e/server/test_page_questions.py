"""A question from before a restart of the server is asked again on the page."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from outrider import Agent, Engine, Provider
from outrider.engine.questions import QuestionQueue
from outrider.providers.scripted import call
from outrider.server.app import create_app
from outrider.server.auth import ListenAddress
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.server import OutriderServer, bind_socket
from outrider.server.state import ServerState
from outrider.sessions.sqlite.store import SqliteStore
from outrider.tools.builtin.question import question_tool
from tests.e2e.attach.socket_server import until
from tests.e2e.server.http_server import TOKEN
from tests.e2e.server.test_page import browsing, pytestmark

__all__ = ["pytestmark"]


@asynccontextmanager
async def asking(folder: Path, *script: Any) -> AsyncIterator[tuple[Engine, QuestionQueue, ListenAddress]]:
    questions = QuestionQueue()
    provider = Provider("scripted", "scripted", options={"script": list(script)})
    listening, address = bind_socket(ListenAddress())
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(SqliteStore(folder / "sessions.db"))
        agent = Agent("painter", "You paint.", "model-1", "scripted")
        tools = [question_tool(questions.ask)]
        engine = await opened.enter_async_context(Engine([agent], [provider], tools, store=store, bus=questions.bus))
        feeds = SessionFeedRegistry(engine)
        extras = ServerState(questions=questions)
        app = create_app(engine, feeds, address=address, token=TOKEN, version="0", state=extras)
        server = OutriderServer(app, address, feeds)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield engine, questions, address
        finally:
            server.should_exit = True
            await serving


async def test_a_question_comes_back_with_the_server(tmp_path: Path):
    asks = call("question", question="Which colour?", options=["red", "blue"])
    async with asking(tmp_path, asks) as (engine, questions, _):
        session_id = await engine.create()
        await engine.enqueue(session_id, "paint it")
        await until(questions.open_questions)
    async with (
        asking(tmp_path, "Painted.") as (_, _, address),
        browsing(SimpleNamespace(address=address)) as page,
    ):
        await page.goto(f"{address.url}/#/{session_id}")
        await page.locator(".question").get_by_role("button", name="blue").click()
        await page.get_by_text("Painted.").wait_for()
        await page.locator(".question").wait_for(state="detached")
