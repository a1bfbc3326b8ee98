"""CPU time of a permission decision: command lines from simple to adversarial, and paths."""

import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure
from outrider.permissions import contain, decide

ROUNDS = 30
PLAIN = [
    "ls -la",
    "cat README.md",
    "git status",
    "git log --oneline -5",
    "grep -rn TODO src",
    "rg -n x src | head -20",
    "find . -name '*.py' -print0 | xargs -0 grep -n def",
    "cd src && wc -l *.py",
    "sed -n '1,20p' README.md",
    "npm test 2>&1 | tail -50",
    'for f in src/*.py; do head -1 "$f"; done',
    "python3 -m pytest -q",
    "rm -rf build",
]
ADVERSARIAL = [
    "echo " + "a" * 9_900,
    "(" * 3_000,
    "$(" * 2_000,
    "'" * 5_001,
    "echo " + "$(echo " * 20 + ")" * 20,
    "ls " + "{a,b}" * 500,
    "cat */*/*/*/*",
    "; ".join(["ls"] * 250),
    "bash -c " * 50 + "ls",
    "timeout 5 " * 200 + "ls",
    "x=1; " * 1_000,
    "[[ " * 500,
]


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        for number in range(200):
            (workspace / f"src/m{number % 10}").mkdir(parents=True, exist_ok=True)
            (workspace / f"src/m{number % 10}/f{number}.py").write_text("x")
        decide("shell", {"command": "ls"}, mode="plan", workspace=workspace)
        plain = timed(PLAIN, workspace, ROUNDS)
        hard = timed(ADVERSARIAL, workspace, 3)
        paths = timed_paths(workspace)
    return [
        Figure("decide: plain command, median", plain[len(plain) // 2], "ms"),
        figure("decide: plain command, p99", plain[int(len(plain) * 0.99)], 5),
        figure("decide: adversarial command, slowest", hard[-1], 50),
        figure("contain: one path", paths, 0.5),
    ]


def figure(name: str, value: float, limit: float) -> Figure:
    return Figure(name, value, "ms", target=f"< {limit:g} ms", ok=value < limit)


def timed(commands: list[str], workspace: Path, rounds: int) -> list[float]:
    taken: list[float] = []
    for command in commands * rounds:
        start = time.process_time()
        decide("shell", {"command": command}, mode="plan", workspace=workspace)
        taken.append((time.process_time() - start) * 1000)
    return sorted(taken)


def timed_paths(workspace: Path) -> float:
    start = time.process_time()
    for number in range(1_000):
        contain(f"src/m{number % 10}/../m1/f1.py", root=workspace, cwd=workspace)
    return time.process_time() - start
