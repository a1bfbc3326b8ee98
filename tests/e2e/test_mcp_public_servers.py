"""One conversation with each public MCP server, with the standard engine; skipped if its program is not available."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from outrider.providers.scripted import call
from tests.e2e.test_mcp_engine import calls, settled
from tests.fixtures.standard_engine import Place

CACHE = Path(__file__).parents[2] / ".cache" / "mcp-servers"
VERSION = "2026.8.31"
NPM_PACKAGES = (
    *(f"@modelcontextprotocol/server-{name}@{VERSION}" for name in ("everything", "filesystem", "memory")),
    "@playwright/mcp@latest",
)
PYTHON_SERVERS = ("mcp-server-git", "mcp-server-fetch", "mcp-server-time")
pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A web page on this machine."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<title>A page</title><h1>Hello</h1><p>The kettle boils.</p>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def from_npm(program: str) -> str:
    """A program of the npm registry. All of them are installed at once, since most of what they need is the same."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    folder = CACHE / "npm"
    complete = folder / "complete"
    with lock_of("npm"):
        if not complete.exists():
            folder.mkdir(exist_ok=True)
            options = ["--no-audit", "--no-fund", "--silent"]
            try:
                argv = [npm, "install", "--prefix", str(folder), *options, *NPM_PACKAGES]
                subprocess.run(argv, check=True, capture_output=True, timeout=200)
                complete.touch()
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"needs a npm registry: {error}")
    return str(folder / "node_modules" / ".bin" / program)


@contextmanager
def lock_of(kind: str) -> Iterator[None]:
    """Another worker may run another of these tests."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def from_python(program: str) -> list[str]:
    """A program of the package index. All of them are installed at once, in one virtual environment without pip: most
    of what they need is the same. uv, if it is installed, takes a tenth of the CPU time of pip."""
    folder = CACHE / "python"
    complete = folder / "complete"
    with lock_of("python"):
        pip = find_spec("pip")
        if not complete.exists() and pip is not None and pip.origin is not None:
            environment = [sys.executable, "-m", "venv", "--without-pip", "--clear", folder]
            runner = Path(pip.origin).with_name("__pip-runner__.py")  # as `pip --python` starts it
            install = [folder / "bin" / "python", runner, "install", "--quiet", "--no-compile"]
            if uv := shutil.which("uv", path=f"{CACHE.parent / 'tools' / 'bin'}:{os.environ['PATH']}"):
                install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
            try:
                subprocess.run(environment, check=True, capture_output=True, timeout=100)
                subprocess.run([*install, *PYTHON_SERVERS], check=True, capture_output=True, timeout=200)
                complete.touch()
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"needs an index of Python packages: {error}")
    if not complete.exists():
        pytest.skip("needs pip")
    return [str(folder / "bin" / program)]


async def story(place: Place, argv: list[str], *steps: tuple[str, dict[str, Any]], **env: str) -> list[str]:
    """The outputs of these calls of one server, each found by its name and called by `call_mcp_tool`."""
    entry = {"command": argv[0], "args": argv[1:], "env": env}
    (place.own / "mcp.json").write_text(json.dumps({"mcpServers": {"it": entry}}))
    (place.own / "config.toml").write_text('[egress]\ntrusted_servers = ["it"]\n')  # it runs on this machine
    script = [[call("call_mcp_tool", tool=f"mcp__it__{tool}", arguments=given)] for tool, given in steps]
    async with place.engine([*script, "done"], allow=("mcp__it__*",)) as engine:
        await settled(engine)
        (server,) = engine.runtime.mcp_servers.describe_servers()
        assert server.state == "ready", server.text
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        parts = await calls(engine, session)
    assert [part.tool for part in parts] == [f"mcp__it__{tool}" for tool, _ in steps]
    return [part.state.text for part in parts]


async def test_everything_adds_and_echoes(place: Place):
    program = from_npm("mcp-server-everything")
    echo, total = await story(place, [program, "stdio"], ("echo", {"message": "hi"}), ("get-sum", {"a": 2, "b": 3}))
    assert (echo, "5" in total) == ("Echo: hi", True)


async def test_filesystem_writes_and_reads_a_file_of_the_workspace(place: Place):
    program = from_npm("mcp-server-filesystem")
    path = str(place.workspace / "a.txt")
    _, text, outside = await story(
        place,
        [program, str(place.workspace)],
        ("write_file", {"path": path, "content": "words"}),
        ("read_text_file", {"path": path}),
        ("read_text_file", {"path": "/etc/hostname"}),
    )
    assert (text, "denied" in outside) == ("words", True)


async def test_memory_remembers_an_entity(place: Place):
    program = from_npm("mcp-server-memory")
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
    _, found = await story(
        place,
        [program],
        ("create_entities", {"entities": [ada]}),
        ("search_nodes", {"query": "program"}),
        MEMORY_FILE_PATH=str(place.home / "memory.jsonl"),
    )
    assert "wrote the first program" in found


async def test_git_shows_the_log_of_a_repository(place: Place):
    program = from_python("mcp-server-git")
    git = ["git", "-C", str(place.workspace), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", "init", "-q", str(place.workspace)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first words"], check=True)
    (log,) = await story(place, program, ("git_log", {"repo_path": str(place.workspace)}))
    assert "first words" in log


async def test_fetch_reads_a_page(place: Place, site: str):
    program = from_python("mcp-server-fetch")
    (text,) = await story(place, [*program, "--ignore-robots-txt", "--allow-private-ips"], ("fetch", {"url": site}))
    assert "The kettle boils." in text


async def test_time_converts_between_zones(place: Place):
    program = from_python("mcp-server-time")
    given = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    (text,) = await story(place, [*program, "--local-timezone", "Europe/Berlin"], ("convert_time", given))
    assert "Asia/Tokyo" in text


async def test_playwright_opens_a_page(place: Place, site: str):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    program = from_npm("playwright-mcp")
    argv = [program, "--headless", "--isolated", "--no-sandbox", "--executable-path", browser]
    (opened,) = await story(place, argv, ("browser_navigate", {"url": site}))
    assert "A page" in opened
