"""Commands load only what they need: start-up cost grows with every module and library that is imported.

The limits count modules of the package that are loaded when a command has finished. They are near what is loaded today,
so that a merge or an import at module level that slows a command down is noticed; raise one only together with a
measurement."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import json, sys
sys.argv = ["outrider", *{arguments!r}]
from outrider.cli.main import main
sys.stdout, out = sys.stderr, sys.stdout
code = main()
names = sorted(sys.modules)
out.write(json.dumps({{"code": code, "own": [n for n in names if n.partition(".")[0] == "outrider"], "all": names}}))
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
    [("--version", 6), ("--help", 20), ("sessions list", 75), ("models list", 75), ("config", 40)],
)
def test_a_command_loads_few_modules_and_no_heavy_library(command: str, limit: int, tmp_path: Path):
    found = loaded(tmp_path, *command.split())
    assert len(found["own"]) <= limit, f"{len(found['own'])} modules: {found['own']}"
    assert not HEAVY & set(found["all"])
