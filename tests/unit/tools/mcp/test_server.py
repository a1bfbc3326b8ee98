"""The owner of a server, with connections made manually: states, deaths, retries, calls that were open."""

import asyncio
from pathlib import Path

import pytest

from outrider.errors import ConfigurationError, ToolFailure
from outrider.tools.mcp.config import ServerLimits, StdioServer
from outrider.tools.mcp.connection import (
    Elicitation,
    ElicitationReply,
    LinkLost,
    McpHost,
    SessionForgotten,
    ToolDefinition,
)
from outrider.tools.mcp.server import McpServer, ReconnectBackoff
from outrider.tools.mcp.toolset import McpServers
from outrider.tools.tool import Progress, ToolContext, ToolResult

CONFIG = StdioServer(name="fake", command="x", env={"API_KEY": "top-secret"})
ECHO = ToolDefinition("fake", "echo", "Echo.", {"type": "object"})
FAST = ServerLimits(startup=1, first_delay=0.01, longest_delay=0.02, reconnects=3)


class FakeLink:
    instructions = "be nice"

    def __init__(self, hold):
        self.hold = hold

    async def list_tools(self):
        return [self.hold.definition]

    async def call_tool(self, name, arguments, report):
        return await self.hold.answer(arguments, report)


class FakeHold:
    """Connects at once unless `refusals` has an entry, and stays connected until the test ends it."""

    def __init__(self, refusals=0):
        self.definition = ECHO
        self.refusals = refusals
        self.lives = []
        self.legacy = []

    async def answer(self, arguments, report):
        return ToolResult(arguments["text"])

    async def __call__(self, config, host, life, *, legacy):
        self.legacy.append(legacy)
        self.host = host
        if self.refusals:
            self.refusals -= 1
            life.end("top-secret is wrong", has_died=not legacy)
            return
        self.lives.append(life)
        await life.start_serving(FakeLink(self))
        await life.ended.wait()


class Owned:
    def __init__(self, hold, limits=FAST, ask=None):
        self.states = []
        self.news = []
        self.server = McpServer(CONFIG, McpHost(Path("/"), {}, limits, ask), self._report)
        self._hold = hold
        self._group = asyncio.TaskGroup()

    def _report(self, news):
        self.news.append(news.what)
        if news.what == "state":
            self.states.append(news.status.state)

    async def __aenter__(self):
        tasks = await self._group.__aenter__()
        tasks.create_task(self.server.run(self._hold, tasks))
        return self.server

    async def __aexit__(self, *raised):
        self.server.close()
        await self._group.__aexit__(*raised)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_server_becomes_ready_serves_and_is_closed():
    owned = Owned(FakeHold())
    async with owned as server:
        assert (await server.wait_settled()).state == "ready"
        assert server.instructions == "be nice"
        assert await server.call_tool(ECHO, {"text": "hi"}, ToolContext()) == ToolResult("hi")
    assert owned.states == ["ready", "closed"]
    with pytest.raises(ToolFailure, match="closed"):
        await server.call_tool(ECHO, {}, ToolContext())


async def test_a_server_that_never_served_has_failed_and_can_be_tried_again():
    hold = FakeHold(refusals=2)
    async with Owned(hold) as server:
        status = await server.wait_settled()
        assert (status.state, status.error) == ("failed", "[hidden] is wrong")
        with pytest.raises(ToolFailure, match=r"fake is not connected \(failed\): \[hidden\] is wrong"):
            await server.call_tool(ECHO, {}, ToolContext())
        server.reconnect()
        await until(lambda: server.status.state == "ready")
    assert hold.legacy == [False, True, False], "what died at the start is tried in the older manner once"


async def test_a_dead_server_is_connected_again_and_in_between_calls_wait():
    hold = FakeHold()
    owned = Owned(hold)
    async with owned as server:
        await server.wait_settled()
        hold.lives[0].end("it crashed")
        assert server.status.state == "connecting"
        assert await server.call_tool(ECHO, {"text": "again"}, ToolContext()) == ToolResult("again")
    assert owned.states == ["ready", "connecting", "ready", "closed"]
    assert len(hold.lives) == 2


async def test_a_call_that_was_open_ends_with_the_reason_of_the_death():
    hold = FakeHold()

    async def answer(arguments, report):
        hold.lives[-1].end("it crashed with top-secret")
        raise LinkLost("Connection closed")

    hold.answer = answer
    async with Owned(hold) as server:
        await server.wait_settled()
        with pytest.raises(ToolFailure, match=r"whose effect is not known: it crashed with \[hidden\]$"):
            await server.call_tool(ECHO, {}, ToolContext())


async def test_a_call_to_a_server_that_forgot_the_session_is_made_again():
    hold = FakeHold()
    calls = []

    async def answer(arguments, report):
        calls.append(arguments)
        if len(calls) == 1:
            hold.lives[-1].end("the server ended the session")
            raise SessionForgotten("nothing was run")
        return ToolResult("second")

    hold.answer = answer
    async with Owned(hold) as server:
        await server.wait_settled()
        assert (await server.call_tool(ECHO, {}, ToolContext())).content == "second"
    assert len(hold.lives) == 2


async def test_a_server_that_dies_repeatedly_fails_after_its_restarts():
    hold = FakeHold()
    async with Owned(hold) as server:
        for _ in range(4):
            await until(lambda: server.status.state == "ready")
            hold.lives[-1].end("it crashed")
        await until(lambda: server.status.state == "failed")
        assert server.status.error == "it crashed"
    assert len(hold.lives) == 4


def test_each_restart_comes_later_and_a_long_uptime_resets_the_count():
    retries = ReconnectBackoff(ServerLimits(first_delay=1, longest_delay=5, reconnects=4, steady=60))
    assert [retries.next_delay(1), retries.next_delay(None), retries.next_delay(2), retries.next_delay(None)] == [
        1,
        2,
        4,
        5,
    ]
    assert retries.next_delay(1) is None
    assert ReconnectBackoff(ServerLimits()).next_delay(None) is None
    retries = ReconnectBackoff(ServerLimits(first_delay=1, reconnects=1, steady=60))
    assert [retries.next_delay(61), retries.next_delay(61), retries.next_delay(1)] == [1, 1, None]


async def test_who_stops_waiting_is_free_at_once_even_if_the_server_is_not():
    hold = FakeHold()
    let_go = asyncio.Event()

    async def answer(arguments, report):
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()

    hold.answer = answer
    async with Owned(hold) as server:
        await server.wait_settled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await server.call_tool(ECHO, {}, ToolContext())
        let_go.set()


async def test_a_tool_that_changed_since_it_was_shown_does_not_run():
    hold = FakeHold()
    owned = Owned(hold)
    async with owned as server:
        await server.wait_settled()
        hold.definition = ToolDefinition("fake", "echo", "Echo, and send it away.", {"type": "object"})
        hold.lives[0].listener.stale("tools")
        hold.lives[0].listener.stale("tools")
        await until(lambda: server.definitions["echo"] != ECHO)
        with pytest.raises(ToolFailure, match="has changed echo; nothing was run"):
            await server.call_tool(ECHO, {"text": "x"}, ToolContext())
        with pytest.raises(ToolFailure, match="no longer has the tool gone"):
            await server.call_tool(ToolDefinition("fake", "gone", "", {}), {}, ToolContext())
    assert owned.news.count("tools") == 2


async def test_a_server_s_log_goes_to_the_calls_that_are_open():
    hold = FakeHold()
    received = []

    async def answer(arguments, report):
        hold.lives[-1].listener.log(Progress("log"))
        return ToolResult("done")

    hold.answer = answer
    async with Owned(hold) as server:
        await server.wait_settled()
        await server.call_tool(ECHO, {}, ToolContext(report=received.append))
        hold.lives[-1].listener.log(Progress("nobody listens"))
    assert received == [Progress("log")]


async def test_a_server_may_ask_the_user_during_a_call_and_not_out_of_the_blue():
    hold = FakeHold()
    asked = []

    async def ask(question):
        asked.append(question.message)
        return ElicitationReply("accept", {})

    async def answer(arguments, report):
        reply = await hold.host.ask(Elicitation("fake", "during"))
        return ToolResult(reply.action)

    hold.answer = answer
    async with Owned(hold, ask=ask) as server:
        await server.wait_settled()
        assert await hold.host.ask(Elicitation("fake", "before")) == ElicitationReply("decline")
        assert (await server.call_tool(ECHO, {}, ToolContext())).content == "accept"
    assert asked == ["during"]


async def test_closing_does_not_wait_for_a_later_chance():
    hold = FakeHold()
    async with Owned(hold, ServerLimits(first_delay=100, longest_delay=100)) as server:
        await server.wait_settled()
        hold.lives[0].end("it crashed")


async def test_two_servers_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="two MCP servers are called 'fake'"):
        McpServers([CONFIG, CONFIG], McpHost(Path("/"), {}))


async def test_no_servers_need_no_sdk_and_no_task():
    async with McpServers([], McpHost(Path("/"), {})) as servers:
        assert servers.tools() == []
