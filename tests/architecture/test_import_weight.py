"""Commands load only what they need: start-up cost grows with every module and library that is imported.

The limits count modules of the package that are loaded when a command has finished, or when the terminal application
has drawn its first screen, with the `__init__` files of its folders and without the built-in tools of a command, which
every session has. They are near what is loaded today, so that a merge or an import at module level that slows a command
down is noticed; raise one only together with a measurement. For `run`, two more counts are limited: modules without the
`__init__` files, and files of which a function was called, so that more than their definitions ran."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.scripted_server import ModelServer, serving

PROBE = """
import json, sys, threading
called = set()
def note_call(frame, event, _):
    if event == "call" and not frame.f_code.co_name.startswith("<") and frame.f_code.co_flags & 2:
        called.add(frame.f_globals.get("__name__", ""))
threading.setprofile(note_call)
sys.setprofile(note_call)
sys.argv = ["outrider", *{arguments!r}]
from outrider.cli.main import main
sys.stdout, out = sys.stderr, sys.stdout
code = main()
sys.setprofile(None)
names = sorted(sys.modules)
own = [name for name in names if name.partition(".")[0] == "outrider" and ".tools.builtin." not in name]
files = [name for name in own if not hasattr(sys.modules[name], "__path__")]
out.write(json.dumps({{"code": code, "own": own, "all": names, "files": files, "called": sorted(called & set(own))}}))
"""
HEAVY = {
    "textual",
    "starlette",
    "uvicorn",
    "mcp",
    "acp",
    "dbos",
    "sqlalchemy",
    "psycopg",
    "aiohttp",
    "rich",
    "pydantic",
}
# Modules of the standard library that are slow to load, and that a short run does not need.
ARCHIVES = {"bz2", "gzip", "lzma", "shutil", "tarfile", "tempfile", "zipfile"}
UNUSED = ARCHIVES | {
    "ctypes",
    "dataclasses",
    "difflib",
    "glob",
    "mimetypes",
    "random",
    "tree_sitter",
    "html",
    "http.client",
}


def loaded(tmp_path: Path, *arguments: str, **environment: str) -> dict[str, list[str]]:
    home = {"OUTRIDER_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "OUTRIDER_NO_UPDATE": "1"}
    (tmp_path / "work").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(arguments=list(arguments))],
        env=os.environ | home | environment,
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["code"] == 0, done.stderr
    return found


@pytest.mark.parametrize(
    ("command", "limit"),
    [("--version", 5), ("--help", 10), ("sessions list", 61), ("models list", 82), ("config", 81)],
)
def test_a_command_loads_few_modules_and_no_heavy_library(command: str, limit: int, tmp_path: Path):
    found = loaded(tmp_path, *command.split())
    assert len(found["own"]) <= limit, f"{len(found['own'])} modules: {found['own']}"
    assert not HEAVY & set(found["all"])


def test_a_short_run_loads_no_front_end_and_few_modules(tmp_path: Path):
    with serving(ModelServer(0)) as model:
        environment = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": model.url, "OUTRIDER_MODEL": "openai/mock"}
        found = loaded(tmp_path, "run", "hi", **environment)
    assert len(found["own"]) <= 144, f"{len(found['own'])} modules: {found['own']}"
    assert len(found["files"]) <= 117, f"{len(found['files'])} files: {found['files']}"
    assert len(found["called"]) <= 107, f"{len(found['called'])} called files: {found['called']}"
    assert not HEAVY & set(found["all"])
    assert not UNUSED & set(found["all"])
    assert not [
        name for name in found["own"] if name.startswith(("outrider.tui", "outrider.server", "outrider.background"))
    ]


def test_a_command_loads_the_parser_and_the_sandbox_and_little_more(tmp_path: Path):
    with serving(ModelServer(1)) as model:
        environment = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": model.url, "OUTRIDER_MODEL": "openai/mock"}
        found = loaded(tmp_path, "run", "hi", **environment)
    assert len(found["own"]) <= 187, f"{len(found['own'])} modules: {found['own']}"
    assert not (ARCHIVES | {"dataclasses", "difflib", "importlib.resources"}) & set(found["all"])


# It writes the modules that are loaded when it gets a signal; the program draws and waits for input meanwhile.
TERMINAL_PROBE = """
import json, os, signal, sys
def write_modules(*_):
    with open({listing!r} + ".new", "w") as file:
        json.dump(sorted(sys.modules), file)
    os.rename({listing!r} + ".new", {listing!r})
signal.signal(signal.SIGUSR1, write_modules)
sys.argv = ["outrider"]
from outrider.cli.main import main
sys.exit(main())
"""


def test_the_terminal_application_starts_without_servers_and_background_jobs(tmp_path: Path):
    pytest.importorskip("textual", reason="the extra `terminal` is not installed")
    pytest.importorskip("pyte", reason="pyte is not installed")
    from tests.e2e.tui.conftest import environment, write_script
    from tests.e2e.tui.terminal import Terminal

    home, workspace, listing = tmp_path / "home", tmp_path / "workspace", tmp_path / "modules.json"
    home.mkdir()
    workspace.mkdir()
    write_script(home, ["Hello."])
    program = (sys.executable, "-c", TERMINAL_PROBE.format(listing=str(listing)))
    terminal = Terminal([], cwd=workspace, environ=environment(home), program=program)
    try:
        terminal.wait_for("outrider", "agent", "script/demo")
        time.sleep(1)  # the session opens after the first drawing
        terminal.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while not listing.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        names = json.loads(listing.read_text())
    finally:
        terminal.close()
    own = [name for name in names if name.partition(".")[0] == "outrider"]
    assert "outrider.tui.app" in own
    assert len(own) <= 200, f"{len(own)} modules: {own}"
    assert not (HEAVY - {"textual", "rich"}) & set(names)
    assert not [name for name in own if name.startswith(("outrider.server", "outrider.background", "outrider.acp"))]
