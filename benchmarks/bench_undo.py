"""Cost of undo: scanning a workspace before and after a command, compared with git and an index."""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.figure import Figure
from outrider.sessions.snapshots.tracker import ChangeTracker

FILES, FOLDERS, ROUNDS = 3_000, 60, 15
IGNORED = "*.pyc\n__pycache__/\nbuild/\ndist/\n*.egg-info\nnode_modules/\n.venv/\n*.log\n/out\n*.so\n.cache\n"


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        workspace = furnished(home / "workspace")
        with closing(ChangeTracker(home / "kept", workspace)) as snapshots:
            git = Git(workspace, home / "index")
            first_theirs = timed(git.look)
            first = timed(lambda: snapshots.discard_snapshot(snapshots.take_snapshot()))
            ours, theirs = take_turns(snapshots, git, workspace)
            one = statistics.median([timed(lambda: change_one(snapshots, workspace, n)) for n in range(ROUNDS)])  # noqa: B023
    cost, ratio = ours * 1000, ours / theirs
    return [
        Figure("undo: a command among 3,000 files, both looks", cost, "ms", ratio, "<= 2x git's", ok=ratio <= 2),
        Figure("undo: the first look at 3,000 files", first * 1000, "ms", first / first_theirs),
        Figure("undo: a file that a tool writes", one * 1000, "ms"),
    ]


class Git:
    """Adds everything to a separate index and writes a tree, as an undo based on git does."""

    def __init__(self, workspace: Path, index: Path) -> None:
        self._environment = os.environ | {"GIT_INDEX_FILE": str(index)}
        self._workspace = workspace

    def look(self) -> None:
        for command in (["add", "-A"], ["write-tree"]):
            subprocess.run(
                ["git", *command], cwd=self._workspace, env=self._environment, check=True, stdout=subprocess.DEVNULL
            )


def furnished(workspace: Path) -> Path:
    for number in range(FILES):
        path = workspace / f"package_{number % FOLDERS}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value_{number} = {number}\n" * 150)
    (workspace / ".gitignore").write_text(IGNORED)
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    time.sleep(0.1)
    return workspace


def take_turns(snapshots: ChangeTracker, git: Git, workspace: Path) -> tuple[float, float]:
    """Seconds of our scan and of git's, alternating, each around the change of one file."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(ROUNDS):
        ours.append(timed(lambda: command(snapshots, workspace, number)))  # noqa: B023
        theirs.append(timed(lambda: around_command(git, workspace, number)))  # noqa: B023
    return statistics.median(ours), statistics.median(theirs)


def command(snapshots: ChangeTracker, workspace: Path, number: int) -> None:
    before = snapshots.take_snapshot()
    change(workspace, f"ours {number}")
    assert snapshots.record_changes(before)


def around_command(git: Git, workspace: Path, number: int) -> None:
    git.look()
    change(workspace, f"theirs {number}")
    git.look()


def change_one(snapshots: ChangeTracker, workspace: Path, number: int) -> None:
    before = snapshots.take_snapshot([CHANGED])
    change(workspace, f"one {number}")
    assert snapshots.record_changes(before)


CHANGED = "package_7/module_7.py"


def change(workspace: Path, text: str) -> None:
    (workspace / CHANGED).write_text(text)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
