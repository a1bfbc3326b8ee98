"""Type checkers in strict mode infer the types of results and report planted mistakes in programs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


def check_with_pyright(program: Path, folder: Path) -> set[int]:
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")], "include": [str(program)]})
    )
    command = [str(Path(sys.executable).with_name("basedpyright")), "--outputjson", "-p", str(folder)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}


def check_with_mypy(program: Path, folder: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--show-absolute-path", str(program)]
    command += ["--cache-dir", str(folder / "cache")]
    environment = {"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-outrider.*]\nignore_errors = True\nfollow_imports = silent\n")
    done = subprocess.run(
        [*command, "--config-file", str(settings)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(rf"^{re.escape(str(program))}:(\d+): error", done.stdout, re.M)}


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_with_pyright, check_with_mypy])
@pytest.mark.parametrize("name", ["library", "mistakes", "more_mistakes"])
def test_planted_mistakes_are_reported_and_nothing_else(name: str, check, tmp_path: Path):
    program = PROGRAMS / f"{name}.py"
    lines = program.read_text().splitlines()
    planted = {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}
    found = check(program, tmp_path)
    assert {number: lines[number - 1] for number in planted - found} == {}, "mistakes that were not reported"
    assert {number: lines[number - 1] for number in found - planted} == {}, "reports about correct lines"
