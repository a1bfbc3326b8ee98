"""Generated commands that are allowed have no effect when they are executed; harmless ones are allowed."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.shell_analysis import judge as decide
from tests.security.command_variants import damaged, harmful, harmless
from tests.security.strace_effects import available, build, effects

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not available, reason="needs Linux with bubblewrap (bwrap) and strace"),
]
COUNT = int(os.environ.get("OUTRIDER_VARIANTS") or (10_000 if os.environ.get("OUTRIDER_SOAK") else 450))
SEED = int(os.environ.get("OUTRIDER_SEED", "20260101"))
SHARE = 0.95


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("variants")
    build(place)
    return place


def runs(command: str, base: Path) -> bool:
    return decide("shell", {"command": command}, mode="plan", workspace=base / "ws").effect == "allow"


def with_effects(commands: list[str], base: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for start in range(0, len(commands), 500):
        batch = commands[start : start + 500]
        found |= {command: seen for command, seen in zip(batch, effects(batch, base), strict=True) if seen}
    return found


def distinct(make: Callable[[random.Random], str], count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return list(dict.fromkeys(make(chance) for _ in range(count)))


def test_the_judge_sees_an_effect_where_there_is_one(base: Path, tmp_path: Path):
    build(tmp_path)
    effectful = [
        "touch PWNED",
        "cat ../out/secret.txt",
        "echo x > PWNED",
        "./script.sh",
        "git branch pwned",
        "rm notes.txt",
    ]
    assert all(effects(effectful, tmp_path))
    assert effects(["ls", "cat README.md | wc -l", "git status", "echo x > /dev/null"], base) == [[], [], [], []]


def test_harmless_compositions_run_unasked_and_are_harmless(base: Path):
    commands = distinct(harmless, COUNT // 3, SEED)
    allowed = [command for command in commands if runs(command, base)]
    assert with_effects(allowed, base) == {}
    asked = [command for command in commands if command not in set(allowed)]
    assert len(allowed) >= SHARE * len(commands), asked


def test_nothing_harmful_runs_unasked(base: Path):
    commands = distinct(harmful, COUNT, SEED + 1)
    assert with_effects([command for command in commands if runs(command, base)], base) == {}


def test_no_damaged_command_line_is_read_otherwise_than_the_shell_reads_it(base: Path):
    commands = distinct(damaged, COUNT, SEED + 2)
    assert with_effects([command for command in commands if runs(command, base)], base) == {}
