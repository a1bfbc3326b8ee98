"""MCP servers over every transport: one written with the SDK, and addresses that do their worst."""

import asyncio
import gzip
import json
import logging
import os
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from outrider import Agent, ConfigurationError, OutriderError, Provider, async_run
from outrider.mcp import McpToolset
from outrider.testing import call
from outrider.tools.mcp.config import HttpServer, ServerLimits, StdioServer
from outrider.tools.mcp.connection import ElicitationReply, McpHost
from outrider.tools.mcp.toolset import McpServers
from outrider.types.tool_state import Attachment, ToolCompleted, ToolError
from tests.e2e.mcp_servers.tool_calls import output_of, run, server_of, until

FRIENDLY = str(Path(__file__).with_name("mcp_servers") / "sdk_server.py")
LIMITS = ServerLimits(startup=60, call=60, shutdown=1, first_delay=0.05)
KEY = "very-secret-key"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_friendly(transport, port):
    process = subprocess.Popen([sys.executable, FRIENDLY, transport, str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the server did not start")


def stop(process):
    process.kill()
    process.wait()


@asynccontextmanager
async def friendly(transport, folder, **more):
    """The same server over each transport."""
    host = McpHost(folder, dict(os.environ), LIMITS, more.pop("ask", None))
    if transport == "stdio":
        config = StdioServer(name="friend", command=sys.executable, args=(FRIENDLY, "stdio"))
        async with McpServers([config], host, **more) as servers:
            yield servers
        return
    port = free_port()
    process = await asyncio.to_thread(start_friendly, transport, port)
    kind = "sse" if transport == "sse" else "http"
    config = HttpServer(
        name="friend", url=f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}", transport=kind
    )
    try:
        async with McpServers([config], host, **more) as servers:
            yield servers
    finally:
        stop(process)


@pytest.mark.parametrize("transport", ["stdio", "streamable-http", "sse"])
async def test_all_that_a_server_offers_can_be_used(tmp_path, transport):
    asked, news, received = [], [], []

    async def ask(question):
        asked.append(question)
        return ElicitationReply("accept", {"colour": "green"})

    async with friendly(transport, tmp_path, ask=ask, notify=news.append) as servers:
        server = server_of(servers)
        assert server.status.state == "ready", server.status
        assert server.instructions == "Be friendly."
        tools = {tool.name: tool for tool in servers.tools()}
        assert tools["mcp__friend__add"].definition.hints == {"read_only_hint": True}
        assert not tools["mcp__friend__add"].read_only, "a server's word is no permission"
        assert tools["mcp__friend__add"].policy_for({}) == "ask"

        added = await run(servers, "add", a=1, b=2)
        assert isinstance(added, ToolCompleted)
        assert added.metadata["structured"] == {"total": 3}
        failed = await run(servers, "fail", why="the moon is full")
        assert isinstance(failed, ToolError)
        assert "the moon is full" in failed.error
        picture = await run(servers, "picture")
        assert isinstance(picture, ToolCompleted)
        assert [one.mime_type for one in picture.attachments] == ["image/png"]
        assert "notes://today" in await output_of(servers, "mixed")

        assert await output_of(servers, "work", steps=3, report=received.append) == "worked"
        await until(lambda: "step 3" in "".join(one.output for one in received))
        assert received[-1].metadata.get("progress", {}).get("total") in (3, None)

        assert await output_of(servers, "paint") == "painted green"
        assert (asked[0].server, asked[0].message) == ("friend", "Which colour?")
        assert "colour" in asked[0].schema["properties"]

        assert await output_of(servers, "where") == tmp_path.as_uri()
        thought = await run(servers, "think")
        assert isinstance(thought, ToolError)
        assert "ampling" in thought.error

        await output_of(servers, "grow")
        await until(lambda: "grown" in server.definitions)
        assert await output_of(servers, "grown") == "grown"

        listing, reading = servers.resource_tools()
        assert "friend: notes://today (today)" in str(await listing.execute())
        assert (await reading.execute(server="friend", uri="notes://today")).content == "buy milk"
        (prompt,) = await server.list_prompts()
        assert (prompt.name, prompt.arguments[0].name, prompt.arguments[0].required) == ("greet", "name", True)
        (message,) = await server.get_prompt("greet", {"name": "Ada"})
        assert (message.role, message.content.content) == ("user", "Say hello to Ada.")
    assert [one.status.state for one in news if one.what == "state"] == ["ready", "closed"]


async def test_a_question_is_refused_in_unattended_mode(tmp_path):
    async with friendly("stdio", tmp_path) as servers:
        ended = await run(servers, "paint")
        assert isinstance(ended, ToolError)
        assert "licit" in ended.error


async def test_a_server_that_was_started_anew_is_connected_again(tmp_path):
    port = free_port()
    process = await asyncio.to_thread(start_friendly, "streamable-http", port)
    config = HttpServer(name="friend", url=f"http://127.0.0.1:{port}/mcp")
    try:
        async with McpServers([config], McpHost(tmp_path, {}, LIMITS)) as servers:
            assert await output_of(servers, "work", steps=0) == "worked"
            stop(process)
            lost = await run(servers, "work", steps=0)
            assert isinstance(lost, ToolError)
            assert "whose effect is not known" in lost.error
            process = await asyncio.to_thread(start_friendly, "streamable-http", port)
            server_of(servers).reconnect()
            assert await output_of(servers, "work", steps=0) == "worked"
    finally:
        stop(process)


class Address:
    """A server without the SDK: `answer(request, message)` returns the response; None sends no response."""

    def __init__(self, answer):
        self._answer = answer
        self.headers = []
        self.messages = []
        self._closing = asyncio.Event()

    async def _receive(self, request):
        self.headers.append(request.headers)
        message = json.loads(await request.text() or "{}") if request.method == "POST" else {}
        self.messages.append(message.get("method"))
        response = await self._answer(request, message) if self._answer else None
        if response is None:
            await self._closing.wait()
        return response or web.Response()

    @asynccontextmanager
    async def serving(self, folder, limits=LIMITS, **fields):
        app = web.Application(client_max_size=1 << 20)
        app.router.add_route("*", "/mcp", self._receive)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        config = HttpServer(
            name="hand",
            url=f"http://127.0.0.1:{port}/mcp?key={KEY}",
            headers={"Authorization": f"Bearer {KEY}"},
            **fields,
        )
        try:
            async with McpServers([config], McpHost(folder, {}, limits)) as servers:
                yield servers
        finally:
            self._closing.set()
            await runner.cleanup()


def result(message, value, **more):
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": value}, **more)


async def polite(request, message):
    """The older protocol with one tool, up to the call."""
    match message.get("method"):
        case "initialize":
            capabilities = {"tools": {}}
            info = {"name": "hand", "version": "1"}
            version = message["params"]["protocolVersion"]
            value = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
            return result(message, value, headers={"mcp-session-id": "one"})
        case "tools/list":
            return result(message, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        case "server/discover":
            return web.Response(status=404)
        case _:
            return web.Response(status=202 if request.method == "POST" else 405)


def on_call(answer):
    async def chosen(request, message):
        return await (answer if message.get("method") == "tools/call" else polite)(request, message)

    return Address(chosen)


async def test_headers_are_sent_and_stay_out_of_errors_and_logs(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)

    async def refuse(request, message):
        return web.Response(status=401, text=f"bad key {KEY}")

    address = Address(refuse)
    async with address.serving(tmp_path) as servers:
        status = server_of(servers).status
        assert (status.state, status.error) == ("failed", "it answered 401 Unauthorized")
        assert KEY not in repr(server_of(servers).config)
    assert address.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in caplog.text


async def test_an_error_that_repeats_a_key_is_shown_without_it(tmp_path):
    async def blab(request, message):
        error = {"code": -32000, "message": f"the key {KEY} has no rights"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async with on_call(blab).serving(tmp_path) as servers:
        ended = await run(servers, "t")
        assert isinstance(ended, ToolError)
        assert ended.error == "the key [hidden] has no rights"


async def test_a_call_is_made_again_when_the_server_forgot_the_session(tmp_path):
    calls = []

    async def forget(request, message):
        calls.append(message)
        if len(calls) == 1:
            return web.Response(status=404)
        return result(message, {"content": [{"type": "text", "text": "second"}]})

    address = on_call(forget)
    async with address.serving(tmp_path) as servers:
        assert await output_of(servers, "t") == "second"
    assert address.messages.count("initialize") == 2


async def endless(request, message):
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    with pytest.raises(ConnectionError):
        while True:
            await response.write(b"[" * 65536)
    return response


async def endless_event(request, message):
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    with pytest.raises(ConnectionError):
        await response.write(b"data: ")
        while True:
            await response.write(b"x" * 65536)
    return response


async def bomb(request, message):
    body = gzip.compress(b"x" * 100_000_000)
    return web.Response(body=body, headers={"content-type": "application/json", "content-encoding": "gzip"})


async def html(request, message):
    return web.Response(text="<h1>Hello</h1>", content_type="text/html")


async def broken(request, message):
    return web.Response(text='{"jsonrpc": ', content_type="application/json")


async def nothing(request, message):
    return web.Response(status=202)


async def redirect(request, message):
    raise web.HTTPTemporaryRedirect("http://169.254.169.254/latest/meta-data")


@pytest.mark.parametrize("worst", [endless, endless_event, bomb, html, broken, nothing, redirect])
async def test_an_answer_that_is_none_is_an_error_and_the_server_serves_on(tmp_path, worst):
    async def once(request, message):
        calls.append(message)
        if len(calls) == 1:
            return await worst(request, message)
        return result(message, {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/x"}]})

    calls = []
    limits = ServerLimits(startup=60, call=60, shutdown=0.5, first_delay=0.05, message=1 << 20)
    async with on_call(once).serving(tmp_path, limits) as servers:
        ended = await run(servers, "t")
        assert isinstance(ended, ToolError), ended
        assert ended.reason == "failed"
        good = await run(servers, "t")
        assert isinstance(good, ToolCompleted), good
        assert good.attachments == (Attachment("image/x", data="AAAA"),)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_an_address_that_never_answers_fails_at_the_limit_and_closes_quickly(tmp_path, transport):
    async with (
        asyncio.timeout(30),
        Address(None).serving(tmp_path, ServerLimits(startup=0.5, shutdown=0.5), transport=transport) as servers,
    ):
        assert server_of(servers).status.error == "it did not answer within 0.5 s"


async def test_an_address_without_a_server_is_reported(tmp_path):
    config = HttpServer(name="nobody", url=f"http://127.0.0.1:{free_port()}/mcp")
    async with McpServers([config], McpHost(tmp_path, {}, LIMITS)) as servers:
        status = server_of(servers).status
        assert status.state == "failed"
        assert "Connect" in status.error


async def test_a_call_that_is_stopped_is_free_at_once_though_the_address_hangs(tmp_path):
    async def unless_it_matters(request, message):
        hangs = message.get("method") in ("tools/call", "notifications/cancelled")
        return None if hangs else await polite(request, message)

    async with Address(unless_it_matters).serving(tmp_path, ServerLimits(startup=60, shutdown=0.5)) as servers:
        for _ in range(3):
            ended = await asyncio.wait_for(run(servers, "t", timeout=0.1), 30)
            assert isinstance(ended, ToolError)


async def test_a_toolset_filters_prefixes_and_asks(tmp_path):
    server = StdioServer(name="friend", command=sys.executable, args=(FRIENDLY, "stdio"))
    asked = []

    def approve(request):
        asked.append(request.tool)
        return "not today"

    with pytest.raises(ConfigurationError, match="not open"):
        _ = McpToolset(server).tools
    with pytest.raises(ConfigurationError, match="list of names"):
        McpToolset(server, include="add")
    toolset = McpToolset(
        server, include=["add", "fa*", "picture"], exclude=lambda name: name == "picture", prefix="my_",
        approval=["fa*"], workspace=tmp_path,
    )  # fmt: skip
    async with toolset:
        assert [tool.name for tool in toolset.tools] == ["my_add", "my_fail"]
        assert [tool.policy_for({}) for tool in toolset.tools] == ["allow", "ask"]
        assert toolset.status.state == "ready"
        script = [[call("my_add", a=1, b=2), call("my_fail", why="x")], "Three."]
        model = Provider("demo", kind="scripted", options={"script": script})
        agent = Agent("helper", "You add.", model="demo", provider="demo")
        result = await async_run(agent, "1 + 2?", tools=toolset.tools, providers=[model], approve=approve)
    add, fail = result.session.messages[1].get_calls()
    assert "3" in add.state.output
    assert fail.state.reason == "rejected"
    assert asked == ["my_fail"]
    missing = StdioServer(name="gone", command=str(tmp_path / "gone"))
    with pytest.raises(OutriderError, match="'gone' cannot be used"):
        async with McpToolset(missing, workspace=tmp_path):
            pass


async def test_a_toolset_refuses_names_and_functions_that_would_select_the_wrong_tools(tmp_path: Path):
    script = Path(__file__).with_name("mcp_servers") / "raw_server.py"  # starts in a twentieth of the time of FRIENDLY
    server = StdioServer(name="friendly", command=sys.executable, args=(str(script), "normal"))

    async def selects(name: str) -> bool:
        return name == "echo"

    def fails(name: str) -> bool:
        raise OSError(name)

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"include": ["ech"]}, r"McpToolset\(include=…\): the server 'friendly' has no tool 'ech'; it has .*echo"),
        ({"exclude": ["ech"]}, r"McpToolset\(exclude=…\).*no tool 'ech'"),
        ({"approval": ["ech"]}, r"McpToolset\(approval=…\).*no tool 'ech'"),
        ({"include": ["ech?"], "exclude": ["*"]}, "selects no tool of the server 'friendly'; it has .*echo"),
        ({"include": selects}, "the function include of McpToolset is async"),
        ({"include": fails}, "the function include of McpToolset failed for .* [(]OSError"),
        ({"approvals": True}, "has no argument 'approvals'; did you mean 'approval'"),
        ({"prefix": 3}, "write a string, such as prefix='files_'"),
        ({"include": [3]}, "write a list of names, or a function of one"),
    ]
    for options, problem in wrong:
        with pytest.raises(OutriderError, match=problem):
            async with McpToolset(server, workspace=tmp_path, **options):
                pass
    async with McpToolset(server, include=[], approval=["delete_*"], workspace=tmp_path) as toolset:
        assert toolset.tools == []
