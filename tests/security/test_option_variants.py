"""No call of a known program that the analyser proves to only read has an effect when it really runs.

The analyser reads options by tables, the programs by their own rules. Where these differ, a word that looks like a
value can be an option with an effect. Each call runs in a sandbox; strace and a comparison of all files are the judge.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.permissions.shell.analysis import analyse_script
from tests.security.option_variants import CallGenerator
from tests.security.strace_effects import available, build, effects

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not available, reason="needs Linux with bubblewrap (bwrap) and strace"),
]
COUNT = int(os.environ.get("OUTRIDER_VARIANTS") or (20_000 if os.environ.get("OUTRIDER_SOAK") else 500))
SEED = int(os.environ.get("OUTRIDER_SEED", "20260101"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("options")
    workspace = build(place)
    subprocess.run(["tar", "-cf", "a.tar", "README.md", "src"], cwd=workspace, check=True)
    subprocess.run(["gzip", "-k", "notes.txt"], cwd=workspace, check=True)
    (workspace / "notes.txt.gz").rename(workspace / "a.gz")
    (workspace / "options").write_text("-o PWNED ../out/secret.txt\n")
    return place


def proven(commands: list[str], base: Path) -> list[str]:
    root = str(base / "ws")
    return [command for command in commands if not analyse_script(command, root=root, cwd=root).unproven_reasons]


def judge(commands: list[str], base: Path, record_property: Callable[[str, object], None]) -> None:
    distinct = list(dict.fromkeys(commands))
    allowed = proven(distinct, base)
    found = {command: seen for command, seen in zip(allowed, effects(allowed, base), strict=True) if seen}
    record_property("figures", f"{len(distinct)} calls, {len(allowed)} proven and run, {len(found)} with an effect")
    assert found == {}
    assert len(allowed) > len(distinct) // 20


def test_each_option_of_each_program(base: Path, record_property: Callable[[str, object], None]):
    commands = list(dict.fromkeys(CallGenerator(SEED).each_option()))
    step = max(1, len(commands) // COUNT)
    judge(commands[SEED % step :: step], base, record_property)


def test_pairs_of_options(base: Path, record_property: Callable[[str, object], None]):
    generator = CallGenerator(SEED + 1)
    judge([generator.make() for _ in range(COUNT)], base, record_property)
