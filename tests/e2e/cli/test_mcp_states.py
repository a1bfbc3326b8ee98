"""MCP servers that cannot be used are reported by `run`, its stream, the doctor, the API and `/mcp`; work continues."""

import asyncio
import json
import sys
from pathlib import Path

from outrider.cli.commands.run_stream import StreamEventEncoder
from outrider.types.events import SessionUpdatedEvent
from tests.e2e.cli.program import SECONDS, Program, answering, ended
from tests.e2e.cli.test_stream import OUTPUT, of_type

SCRIPTS = Path(__file__).parents[1] / "mcp_servers"


def configure(program: Program, **servers: list[str]) -> None:
    entries = {name: {"command": command, "args": args} for name, (command, *args) in servers.items()}
    folder = program.home / "outrider"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))


def plain(*mode: str) -> list[str]:
    return [sys.executable, "-S", str(SCRIPTS / "raw_server.py"), *mode]


async def test_run_names_servers_that_cannot_be_used_and_answers(program: Program):
    unset = ["serve", "${NOT_SET}"]
    configure(program, absent=["/no/such/program"], works=plain(), floods=plain("garbage"), unset=unset)
    async with answering(program, ["hello", "hello"]):
        done = await program.run("run", "hi")
        assert (done.code, done.out.strip()) == (0, "hello")
        assert "absent is not available (failed): its program cannot be started" in done.err
        assert "mcp.json: mcp.unset.args[0]: the variable NOT_SET is not set" in done.err
        assert "floods is not available" in done.err
        assert "works is" not in done.err
        assert "absent" not in (await program.run("run", "--quiet", "hi")).err


async def test_the_stream_has_states_and_errors(program: Program):
    configure(program, absent=["/no/such/program"], works=plain())
    async with answering(program, ["hello"]):
        lines = (await program.run("run", "-o", "stream-json", "hi")).lines
    for line in lines:
        OUTPUT.validate(line)
    states = {server["name"]: server for server in of_type(lines, "start")[0]["servers"]}
    assert (states["works"]["status"], states["absent"]["status"]) == ("ready", "failed")
    assert "cannot be started" in states["absent"]["error"]
    assert of_type(lines, "mcp_servers")[0]["servers"] == list(states.values())


async def test_the_doctor_connects_to_the_servers(program: Program):
    configure(program, absent=["/no/such/program"], dies=plain("once", str(program.home)), works=plain())
    done = await program.run("doctor", "--json")
    found = {line["name"]: line for line in done.lines}
    assert found["MCP server works"]["says"] == "ready, 13 tools"
    assert found["MCP server absent"]["status"] == "problem"
    assert "only once" in found["MCP server dies"]["says"]
    assert done.code == 1


async def test_run_names_the_servers_that_it_waits_for(program: Program):
    gate = program.home / "gate"
    late = [sys.executable, "-S", str(SCRIPTS / "large_catalog.py"), "late", "3", str(gate)]
    configure(program, late=late)
    async with answering(program, ["hello"] * 3):
        text, stream, quiet = [
            await program.start("run", *options, "hi") for options in ((), ("-o", "stream-json"), ("--quiet",))
        ]
        for waiting in (text, stream):
            assert waiting.stderr is not None
            line = (await asyncio.wait_for(waiting.stderr.readline(), SECONDS)).decode()
            assert line == "outrider: MCP: waiting at most 28s more for late, still connecting\n"
        gate.touch()
        shown, streamed, hidden = [await ended(one) for one in (text, stream, quiet)]
    assert (shown.out, shown.err.splitlines()[0]) == ("hello\n", "outrider: all MCP servers are ready")
    start = streamed.lines[0]
    OUTPUT.validate(start)
    assert (start["type"], [one["status"] for one in start["servers"]]) == ("start", ["ready"])
    assert (hidden.out, hidden.err) == ("hello\n", "")


def test_the_stream_of_an_attached_run_has_the_wait():
    servers = [{"name": "late", "state": "connecting", "error": ""}]
    event = SessionUpdatedEvent(session_id="ses_1", changes={"mcp_servers": servers, "wait_seconds": 3.0})
    (line,) = StreamEventEncoder().encode_event(event)
    assert (line["type"], line["wait_seconds"]) == ("mcp_servers", 3.0)
    OUTPUT.validate(line)
