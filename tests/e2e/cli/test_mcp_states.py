"""MCP servers that cannot be used are reported by `run`, its stream, the doctor, the API and `/mcp`; work continues."""

import json
import sys
from pathlib import Path

from tests.e2e.cli.program import Program, answering
from tests.e2e.cli.test_stream import OUTPUT, of_type

SCRIPTS = Path(__file__).parents[1] / "mcp_servers"


def configure(program: Program, **servers: list[str]) -> None:
    entries = {name: {"command": command, "args": args} for name, (command, *args) in servers.items()}
    folder = program.home / "outrider"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))


def plain(*mode: str) -> list[str]:
    return [sys.executable, "-S", str(SCRIPTS / "plain.py"), *mode]


async def test_run_names_servers_that_cannot_be_used_and_answers(program: Program):
    configure(program, absent=["/no/such/program"], works=plain(), floods=plain("garbage"))
    async with answering(program, ["hello", "hello"]):
        done = await program.run("run", "hi")
        assert (done.code, done.out.strip()) == (0, "hello")
        assert "absent is not available (failed): its program cannot be started" in done.err
        assert "floods is not available" in done.err
        assert "works" not in done.err
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
