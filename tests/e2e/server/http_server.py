"""Starts a real server on a free port, over an engine with a scripted model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from outrider import Agent, Engine, Provider, Tool
from outrider.config.settings import CommandFlags, Settings, read_settings
from outrider.engine.approval_gate import Rules
from outrider.engine.session_tools import ToolEnvironment
from outrider.server.app import create_app
from outrider.server.auth import ListenAddress
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.mcp import mcp_routes
from outrider.server.oidc import OidcSettings
from outrider.server.server import OutriderServer, bind_socket
from outrider.server.state import BackgroundJobs, ServerState
from outrider.server.users import AuditLog, UserDirectory
from outrider.server.webhooks import TurnWebhooks
from outrider.sessions.sqlite.store import SqliteStore

TOKEN = "a-token-that-is-long-enough-for-a-server"


class Client:
    """Speaks to the server as a program would."""

    def __init__(self, http: aiohttp.ClientSession, address: ListenAddress, engine: Engine) -> None:
        self.http = http
        self.address = address
        self.engine = engine

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        token = options.pop("token", TOKEN)
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        sent = {} if body is None else {"data": msgspec.json.encode(body)}
        if sent:
            headers.setdefault("Content-Type", "application/json")
        async with self.http.request(method, self.address.url + path, headers=headers, **sent, **options) as answer:
            raw = await answer.read()
            return answer.status, msgspec.json.decode(raw) if "json" in answer.content_type and raw else raw

    async def create(self, **fields: Any) -> str:
        status, session = await self.ask("POST", "/api/sessions", fields)
        assert status == 201, session
        return session["id"]

    @asynccontextmanager
    async def follow(self, session_id: str, after: int | None = None) -> AsyncIterator["Events"]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        url = f"{self.address.url}/api/sessions/{session_id}/events"
        async with self.http.get(url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            yield Events(answer)


class Events:
    """Server-sent events, one by one."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._lines = answer.content
        self.seen: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = {}
        async with asyncio.timeout(30):
            while True:
                line = (await self._lines.readline()).decode().rstrip("\n")
                if not line and event:
                    self.seen.append(event)
                    return event
                name, _, value = line.partition(": ")
                if name in ("id", "event"):
                    event[name] = value
                elif name == "data":
                    event["data"] = msgspec.json.decode(value)

    async def until(self, wanted: Any) -> dict[str, Any]:
        while True:
            event = await self.next()
            if wanted(event):
                return event


def server_settings(folder: Path) -> Settings:
    environ = {"HOME": str(folder), "OUTRIDER_HOME": str(folder / "home")}
    return read_settings(cwd=folder, environ=environ, flags=CommandFlags())


@asynccontextmanager
async def served(
    tmp_path: Path,
    script: Any,
    tools: list[Tool] | None = None,
    *,
    mcp: bool = False,
    background: Callable[[Engine], BackgroundJobs] | None = None,
    listen: ListenAddress | None = None,
    users: UserDirectory | None = None,
    audit: AuditLog | None = None,
    cassettes: Path | None = None,
    oidc: OidcSettings | None = None,
    surroundings: ToolEnvironment | None = None,
    rules: Rules | None = None,
    webhook_config: str | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    provider = Provider("scripted", "scripted", options={"script": script, "rules": "anthropic", **options})
    agent = Agent("writer", "You write.", "model-1", "scripted")
    store = SqliteStore(tmp_path / "sessions.db")
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(store)
        engine = await opened.enter_async_context(
            Engine(
                [agent],
                [provider],
                tools or [],
                store=store,
                cassettes=cassettes,
                surroundings=surroundings,
                rules=rules or Rules(),
            )
        )
        routes = await opened.enter_async_context(mcp_routes(engine, server_settings(tmp_path), "0")) if mcp else ()
        has_users, webhooks = users is not None, None
        users = users or UserDirectory()
        if webhook_config is not None:
            (tmp_path / "home").mkdir(exist_ok=True)
            (tmp_path / "home" / "config.toml").write_text(webhook_config)
            webhooks = TurnWebhooks(engine, users, tmp_path / "home" / "server", server_settings(tmp_path))
            await opened.enter_async_context(webhooks)
        listening, address = bind_socket(listen or ListenAddress())
        feeds = SessionFeedRegistry(engine)
        runs = await opened.enter_async_context(aclosing(background(engine))) if background else None
        settings = server_settings(tmp_path) if has_users else None
        extras = ServerState(
            background=runs, routes=routes, users=users, settings=settings, oidc=oidc, webhooks=webhooks
        )
        app = create_app(engine, feeds, address=address, token=TOKEN, version="0", state=extras, audit=audit)
        server = OutriderServer(app, address, feeds)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            async with aiohttp.ClientSession() as http:
                yield Client(http, address, engine)
        finally:
            server.should_exit = True
            await serving
