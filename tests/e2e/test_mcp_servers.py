"""MCP servers as real processes, on standard streams: well-behaved ones, and ones that do their worst."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider.errors import ToolFailure
from outrider.tools.mcp.config import ServerLimits, StdioServer
from outrider.tools.mcp.connection import McpHost
from outrider.tools.mcp.toolset import McpServers
from outrider.types.tool_state import ToolCompleted, ToolError
from tests.e2e.mcp_servers.tool_calls import output_of, run, run_one, server_of, until
from tests.fixtures.process_checks import is_alive, wait_until_dead

SCRIPTS = Path(__file__).with_name("mcp_servers")
FAST = ServerLimits(startup=60, call=60, shutdown=0.5, first_delay=0.05)
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


def plain(mode="normal", *more, **fields):
    script = str(SCRIPTS / "raw_server.py")
    return StdioServer(name="plain", command=sys.executable, args=("-S", script, mode, *map(str, more)), **fields)


@asynccontextmanager
async def opened(config, folder, limits=FAST, **more):
    async with McpServers([config], McpHost(folder, ENVIRONMENT, limits, more.pop("ask", None)), **more) as servers:
        yield servers


async def test_sf_079_a_server_that_dies_in_a_call_ends_it_with_its_last_output_and_is_restarted(tmp_path):
    async with opened(plain(), tmp_path) as servers:
        first = await output_of(servers, "pid")
        died = await run(servers, "die")
        assert isinstance(died, ToolError)
        assert (
            "whose effect is not known: its process ended (exit code 3); its last error output: I am dying"
            in died.error
        )
        assert await output_of(servers, "pid") != first


async def test_calls_side_by_side_all_end_when_the_server_dies(tmp_path):
    async with opened(plain(), tmp_path) as servers:
        async with asyncio.TaskGroup() as tasks:
            hanging = [tasks.create_task(run(servers, "hang")) for _ in range(5)]
            await asyncio.sleep(0.1)
            tasks.create_task(run(servers, "die"))
        assert all(isinstance(call.result(), ToolError) for call in hanging)
        assert await output_of(servers, "echo", text="back") == "back"


async def test_a_call_that_hangs_meets_its_time_limit_and_the_server_serves_on(tmp_path):
    async with opened(plain(), tmp_path) as servers:
        pid = await output_of(servers, "pid")
        ended = await run(servers, "hang", timeout=0.2)
        assert isinstance(ended, ToolError)
        assert ended.reason == "timeout"
        assert await output_of(servers, "pid") == pid


@pytest.mark.parametrize("tool", ["wrong_id", "garble"])
async def test_malformed_answers_affect_no_other_server(tmp_path, tool):
    async with opened(plain(), tmp_path) as servers:
        ended = await run(servers, tool, timeout=0.3 if tool == "wrong_id" else None)
        assert isinstance(ended, ToolError) == (tool == "wrong_id")
        assert await output_of(servers, "echo", text="fine") == "fine"


async def test_a_message_that_is_too_large_costs_the_connection_only(tmp_path):
    async with opened(plain(), tmp_path, ServerLimits(message=1 << 20, shutdown=0.5, first_delay=0.05)) as servers:
        assert len(await output_of(servers, "huge", text="900000")) > 25_000
        ended = await run(servers, "huge", text="2000000")
        assert isinstance(ended, ToolError)
        assert "a message of more than 1,048,576 bytes" in ended.error
        assert await output_of(servers, "echo", text="fine") == "fine"


async def test_sf_078_a_server_that_never_answers_has_failed_after_the_start_up_limit(tmp_path):
    async with (
        asyncio.timeout(30),
        opened(plain("silent"), tmp_path, ServerLimits(startup=0.5, shutdown=0.5)) as servers,
    ):
        status = server_of(servers).status
        assert (status.state, status.error) == ("failed", "it did not answer within 0.5 s")


@pytest.mark.parametrize(("mode", "message"), [("garbage", "what is not MCP"), ("endless_line", "more than 8,388,608")])
async def test_sf_078_a_flood_of_garbage_is_bounded_and_the_server_marked_failed(tmp_path, mode, message):
    async with opened(plain(), tmp_path):  # the SDK is loaded, so that only the flood is measured
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with opened(plain(mode), tmp_path) as servers:
        status = server_of(servers).status
        assert status.state == "failed"
        assert message in status.error
        assert servers.tools() == []
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"{grown} KiB"


async def test_a_banner_and_a_flood_of_errors_are_borne(tmp_path):
    for mode in ("banner", "stderr"):
        async with opened(plain(mode), tmp_path) as servers:
            assert await output_of(servers, "echo", text="fine") == "fine"


async def test_a_flood_of_messages_does_not_take_the_event_loop(tmp_path):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    received, started = [], time.monotonic()
    async with opened(plain(), tmp_path) as servers, asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(tick())
        ended = await run(servers, "log_flood", report=received.append, text="100000", timeout=2.0)
        ticking.cancel()
    assert isinstance(ended, ToolError), "it is far from done after two seconds"
    assert len(received) < 2_250 * (time.monotonic() - started), "they come no faster than they may"
    assert ticks > 20


async def test_nothing_is_left_of_a_server_that_ignores_every_request_to_end(tmp_path):
    async with opened(plain("stubborn"), tmp_path) as servers:
        pids = [int(await output_of(servers, "pid")), int(await output_of(servers, "breed"))]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))


async def test_processes_of_a_dead_server_are_killed_before_it_is_restarted(tmp_path):
    async with opened(plain(), tmp_path) as servers:
        child = int(await output_of(servers, "breed"))
        await run(servers, "die")
        await output_of(servers, "pid")
        assert not is_alive(child)


def test_nothing_is_left_when_the_engine_is_killed(tmp_path):
    program = textwrap.dedent("""
        import asyncio, os, sys
        from pathlib import Path
        from outrider.tools.mcp.config import StdioServer
        from outrider.tools.mcp.connection import McpHost
        from outrider.tools.mcp.toolset import McpServers

        async def main():
            config = StdioServer(name="plain", command=sys.executable, args=("-S", sys.argv[1], "stubborn"))
            servers = McpServers([config], McpHost(Path.cwd(), dict(os.environ)))
            await servers.open()
            await servers.wait_settled()
            tools = {tool.definition.name: tool for tool in servers.tools()}
            print((await tools["pid"].execute()).content, (await tools["breed"].execute()).content, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """)
    argv = [sys.executable, "-c", program, str(SCRIPTS / "raw_server.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as engine:
        assert engine.stdout is not None
        pids = [int(pid) for pid in engine.stdout.readline().split()]
        assert len(pids) == 2
        engine.send_signal(signal.SIGKILL)
    wait_until_dead(*pids)


async def test_a_server_gets_what_programs_need_and_its_own_variables_but_no_keys(tmp_path):
    outer = ENVIRONMENT | {"ANTHROPIC_API_KEY": "sk-1", "MY_TOKEN": "t", "LANG": "C.UTF-8"}
    config = plain(env={"GIVEN": "yes"}, cwd="sub")
    (tmp_path / "sub").mkdir()
    async with McpServers([config], McpHost(tmp_path, outer, FAST)) as servers:
        seen = json.loads(await output_of(servers, "environment"))
    assert (seen["GIVEN"], seen["PATH"], seen["LANG"]) == ("yes", ENVIRONMENT["PATH"], "C.UTF-8")
    assert not {"ANTHROPIC_API_KEY", "MY_TOKEN"} & seen.keys()


async def test_a_server_that_dies_of_what_is_new_is_asked_in_the_older_manner(tmp_path):
    async with opened(plain("brittle"), tmp_path) as servers:
        assert await output_of(servers, "echo", text="old") == "old"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            StdioServer(name="s", command="no-such-program"),
            "started: no-such-program: No such file or directory",
        ),
        (
            StdioServer(name="s", command="true", cwd="nowhere"),
            "started: the folder nowhere: No such file or directory",
        ),
        (StdioServer(name="s", command="true"), "its process ended (exit code 0)"),
    ],
)
async def test_a_server_that_cannot_start_has_failed_with_a_reason(tmp_path, config, message):
    async with opened(config, tmp_path) as servers:
        assert server_of(servers).status.state == "failed"
        assert message in server_of(servers).status.error


async def test_a_server_that_cannot_be_started_again_fails_after_its_chances(tmp_path):
    limits = ServerLimits(startup=60, shutdown=0.5, reconnects=2, first_delay=0.02)
    async with opened(plain("once", tmp_path / "mark"), tmp_path, limits) as servers:
        await run(servers, "die")
        await until(lambda: server_of(servers).status.state == "failed")
        assert "only once" in server_of(servers).status.error
        (tmp_path / "mark").unlink()
        server_of(servers).reconnect()
        await until(lambda: server_of(servers).status.state == "ready")


async def test_closing_in_the_middle_of_a_start_is_quick(tmp_path):
    servers = McpServers([plain("silent")], McpHost(tmp_path, ENVIRONMENT, ServerLimits(startup=60, shutdown=0.3)))
    await servers.open()
    await asyncio.sleep(0.2)
    await asyncio.wait_for(servers.close(), 30)
    assert server_of(servers).status.state == "closed"


async def test_a_changed_tool_asks_again_until_the_user_has_reviewed_it(tmp_path):
    ledger: dict[str, str] = {}
    changes = []
    async with opened(plain(), tmp_path, ledger=ledger, policy="allow", notify=changes.append) as servers:
        (before,) = [tool for tool in servers.tools() if tool.definition.name == "echo"]
        assert before.policy_for({}) == "allow"
        changes.clear()
        await output_of(servers, "change")
        await until(lambda: any(news.what == "tools" for news in changes))
        (after,) = [tool for tool in servers.tools() if tool.definition.name == "echo"]
        assert (after.has_changed, after.policy_for({})) == (True, "ask")
        assert after.fingerprint != before.fingerprint
        servers.accept(after)
        (accepted,) = [tool for tool in servers.tools() if tool.definition.name == "echo"]
        assert (accepted.has_changed, accepted.policy_for({})) == (False, "allow")
    async with opened(plain(), tmp_path, ledger=ledger) as servers:  # the next session, with the first definition
        assert all(tool.has_changed for tool in servers.tools() if tool.definition.name == "echo")


async def test_one_bad_server_does_not_hurt_the_others(tmp_path):
    good = StdioServer(name="good", command=sys.executable, args=("-S", str(SCRIPTS / "raw_server.py")))
    limits = ServerLimits(startup=60, shutdown=0.5)
    async with McpServers([plain("garbage"), good], McpHost(tmp_path, ENVIRONMENT, limits)) as servers:
        assert [servers.servers[name].status.state for name in ("plain", "good")] == ["failed", "ready"]
        assert await output_of(servers, "echo", text="fine") == "fine"


async def test_servers_whose_answers_are_damaged_at_random_affect_no_other_server(tmp_path):
    script = str(SCRIPTS / "random_answers.py")
    configs = [
        StdioServer(name=f"random{seed}", command=sys.executable, args=("-S", script, str(seed))) for seed in range(12)
    ]
    limits = ServerLimits(startup=10, listing=0.5, call=0.5, shutdown=0.3, first_delay=0.01)
    ended = []
    async with (
        McpServers(configs, McpHost(tmp_path, ENVIRONMENT, limits)) as servers,
        opened(plain(), tmp_path) as others,
    ):
        states = {server.status.state for server in servers.servers.values()}
        assert states <= {"ready", "failed"}

        async def use(server):
            mine = {tool.definition.name: tool for tool in servers.tools() if tool.definition.server == server.name}
            for name in [*mine] * 5:
                ended.append(await run_one(mine, name))
            for listing in (server.list_resources, server.list_prompts):
                with contextlib.suppress(ToolFailure):
                    await listing()

        async with asyncio.TaskGroup() as tasks:
            for config in configs:
                tasks.create_task(use(servers.servers[config.name]))
        assert await output_of(others, "echo", text="fine") == "fine"
    assert any(isinstance(state, ToolCompleted) for state in ended)
    assert all(isinstance(state, ToolCompleted | ToolError) for state in ended)
    assert not [state.error for state in ended if isinstance(state, ToolError) and "Error:" in state.error]


def test_the_sdk_is_loaded_when_a_server_is_connected_and_its_absence_is_reported():
    program = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from outrider.errors import ConfigurationError
        from outrider.tools.mcp.config import StdioServer
        from outrider.tools.mcp.connection import McpHost
        from outrider.tools.mcp.toolset import McpServers

        async def main():
            servers = McpServers([StdioServer(name="s", command="true")], McpHost(Path.cwd(), {}))
            assert not {"mcp", "mcp_types", "anyio", "pydantic"} & sys.modules.keys()
            sys.modules["mcp"] = None
            try:
                await servers.open()
            except ConfigurationError as error:
                print(error)
            await servers.close()

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "need the extra `mcp`" in done.stdout, done.stderr
    assert "pip install 'outrider[mcp]'" in done.stdout
