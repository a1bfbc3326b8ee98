"""Type checkers in strict mode infer the types of results and report planted mistakes in programs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


NAMES = ("library", "mistakes", "more_mistakes", "product", "product_mistakes")
Found = dict[str, set[int]]
"""The lines with an error, by the name of the program."""


def check_with_pyright(programs: list[Path], folder: Path) -> Found:
    (folder / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "extraPaths": [str(ROOT / "src")],
                "include": [str(program) for program in programs],
            }
        )
    )
    command = [str(Path(sys.executable).with_name("basedpyright")), "--outputjson", "-p", str(folder)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    places = [(Path(one["file"]).stem, one["range"]["start"]["line"] + 1) for one in errors]
    return {program.stem: {line for name, line in places if name == program.stem} for program in programs}


def check_with_mypy(programs: list[Path], folder: Path) -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--show-absolute-path"]
    command += [*map(str, programs), "--cache-dir", os.devnull]
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
    return {
        program.stem: {int(line) for line in re.findall(rf"^{re.escape(str(program))}:(\d+): error", done.stdout, re.M)}
        for program in programs
    }


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_with_pyright, check_with_mypy])
def test_planted_mistakes_are_reported_and_nothing_else(check: Callable[[list[Path], Path], Found], tmp_path: Path):
    """One run checks all programs: most of its time is spent on the package."""
    programs = [PROGRAMS / f"{name}.py" for name in NAMES]
    found = check(programs, tmp_path)
    for program in programs:
        lines = program.read_text().splitlines()
        planted = {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}
        reported = found[program.stem]
        assert {number: lines[number - 1] for number in planted - reported} == {}, "mistakes that were not reported"
        assert {number: lines[number - 1] for number in reported - planted} == {}, "reports about correct lines"
