"""The reference servers of the MCP project, from npm."""

import asyncio
import os
import shutil
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider.tools.mcp.config import HttpServer, ServerLimits, StdioServer
from outrider.tools.mcp.connection import ElicitationReply, McpHost
from outrider.tools.mcp.toolset import McpServers
from outrider.types.tool_state import ToolCompleted, ToolError
from tests.e2e.mcp_servers.tool_calls import output_of, run, server_of, until

VERSION = "2026.8.31"
CACHE = Path(__file__).parents[2] / ".cache" / "mcp-servers"
PACKAGES = [f"@modelcontextprotocol/server-{name}@{VERSION}" for name in ("everything", "filesystem")]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs():
    """Where the servers' programs are; installed once."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    folder = CACHE / "node_modules" / ".bin"
    if not (folder / "mcp-server-filesystem").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        argv = [npm, "install", "--prefix", str(CACHE), "--no-audit", "--no-fund", "--silent", *PACKAGES]
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=100)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"needs a registry of packages: {error}")
    return folder


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def everything(transport, programs, folder):
    async def ask(question):
        return ElicitationReply("accept", {"name": "Ada"})

    program, limits = str(programs / "mcp-server-everything"), ServerLimits(shutdown=1)
    host = McpHost(folder, dict(os.environ), limits, ask)
    if transport == "stdio":
        async with McpServers([StdioServer(name="every", command=program, args=("stdio",))], host) as servers:
            yield servers
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    argv, quiet = [program, "streamableHttp"], subprocess.DEVNULL
    with subprocess.Popen(argv, env=os.environ | {"PORT": str(port)}, stdout=quiet, stderr=quiet) as process:
        try:
            await until(lambda: answers(port), 20)
            config = HttpServer(name="every", url=f"http://127.0.0.1:{port}/mcp")
            async with McpServers([config], host) as servers:
                yield servers
        finally:
            process.kill()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_everything_can_be_used(programs, tmp_path, transport):
    received = []
    async with everything(transport, programs, tmp_path) as servers:
        server = server_of(servers)
        assert server.status.state == "ready", server.status
        assert "Everything Server" in server.instructions
        assert await output_of(servers, "echo", message="hi") == "Echo: hi"
        image = await run(servers, "get-tiny-image")
        assert isinstance(image, ToolCompleted)
        assert image.attachments[0].mime_type == "image/png"
        structured = await run(servers, "get-structured-content", location="Chicago")
        assert isinstance(structured, ToolCompleted)
        assert "temperature" in structured.metadata["structured"]
        assert "demo://resource" in await output_of(servers, "get-resource-links", count=2)
        working = run(servers, "trigger-long-running-operation", report=received.append, duration=0.5, steps=2)
        assert isinstance(await working, ToolCompleted)
        assert {"done": 2.0, "total": 2.0} in [one.metadata.get("progress") for one in received]
        assert "Name: Ada" in await output_of(servers, "trigger-elicitation-request")
        assert tmp_path.as_uri() in await output_of(servers, "get-roots-list")
        wrong = await run(servers, "get-sum", a="one")
        assert isinstance(wrong, ToolError)
        resources = await server.list_resources()
        assert any(one.is_template for one in resources)
        first = next(one for one in resources if not one.is_template)
        assert (await server.read_resource(first.uri)).content
        prompts = {prompt.name: prompt for prompt in await server.list_prompts()}
        assert [one.required for one in prompts["args-prompt"].arguments] == [True, False]
        messages = await server.get_prompt("args-prompt", {"city": "Bonn"})
        assert "Bonn" in messages[0].content.content


async def test_files_are_read_and_what_is_outside_is_refused_by_the_server(programs, tmp_path):
    (tmp_path / "a.txt").write_text("words")
    program = str(programs / "mcp-server-filesystem")
    config = StdioServer(name="files", command=program, args=(str(tmp_path),))
    async with McpServers([config], McpHost(tmp_path, dict(os.environ), ServerLimits(shutdown=1))) as servers:
        assert await output_of(servers, "read_text_file", path=str(tmp_path / "a.txt")) == "words"
        outside = await run(servers, "read_text_file", path="/etc/hostname")
        assert isinstance(outside, ToolError)
        assert "denied" in outside.error
        many = [run(servers, "read_text_file", path=str(tmp_path / "a.txt")) for _ in range(50)]
        async with asyncio.TaskGroup() as tasks:
            ended = [tasks.create_task(one) for one in many]
        assert all(isinstance(one.result(), ToolCompleted) for one in ended)
