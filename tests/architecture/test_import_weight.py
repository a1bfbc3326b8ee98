"""Commands load only what they need: start-up cost grows with every module and library that is imported.

The limits count modules of the package that are loaded when a command has finished, with the `__init__` files of its
folders and without the built-in tools, which every session has. They are near what is loaded today, so that a merge or
an import at module level that slows a command down is noticed; raise one only together with a measurement. For `run`,
two more counts are limited: modules without the `__init__` files, and files of which a function was called, so that
more than their definitions ran."""

import json
import os
import subprocess
import sys
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


def test_the_terminal_application_starts_without_servers_and_background_jobs():
    code = "import json, sys, outrider.tui.app; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names = json.loads(done.stdout)
    own = [name for name in names if name.partition(".")[0] == "outrider"]
    assert len(own) <= 60, f"{len(own)} modules: {own}"
    assert not (HEAVY - {"textual", "rich"}) & set(names)
