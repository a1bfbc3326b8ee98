"""Product: a nightly maintenance job. It works on a copy of a repository, runs the checks and leaves a branch.

    python examples/nightly_maintenance.py ~/project 'update the dependencies and fix what breaks'
    python examples/nightly_maintenance.py                       # a demonstration

Start it from cron or a pipeline. Commands run in the sandbox without a network; every change is committed to a new
branch with the agent's summary as its message, and the work tree of the repository is not touched. The exit code is 0
if there is a branch to merge or nothing to do, and 1 if the agent did not finish."""

import asyncio
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from example_model import choose_model

from outrider import Agent, Limits, RunResult
from outrider.workspace import Workspace

INSTRUCTIONS = """You maintain a repository at night, without anyone to ask. Make the smallest change that does the
task, run the checks that the repository has, and end with a summary of what you changed and what you could not do."""
LIMITS = Limits(turns=60, seconds=3_600)
DEMO_ANSWERS = [
    {"tool": "read", "input": {"file_path": "app.py"}},
    {"tool": "edit", "input": {"file_path": "app.py", "old_string": "pritn", "new_string": "print"}},
    {"tool": "shell", "input": {"command": "python3 app.py"}},
    "Fixed the misspelled call in app.py; the program runs.",
]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


async def work(folder: Path, task: str) -> RunResult[str]:
    provider, model = choose_model(DEMO_ANSWERS)
    agent = Agent("maintainer", INSTRUCTIONS, model=model, provider="model", mode="background")
    async with Workspace(folder, agent, [provider], limits=LIMITS, attended=False) as workspace:
        return await workspace.prompt(task)


def maintain(repository: Path, task: str) -> int:
    branch = f"maintenance/{datetime.now(UTC):%Y-%m-%d-%H%M%S}"
    tree = Path(tempfile.mkdtemp()) / "tree"
    git(repository, "worktree", "add", "-q", "-b", branch, str(tree))
    try:
        result = asyncio.run(work(tree, task))
        print(result.text)
        print(f"{result.usage.tokens.total} tokens; ended because of: {result.termination_reason}")
        if git(tree, "status", "--porcelain"):
            git(tree, "add", "-A")
            git(tree, "-c", "user.name=maintenance", "-c", "user.email=none@example.org", "commit", "-qm", result.text)
            print(git(tree, "show", "--stat", "--format=", "HEAD"))
            print(f"merge it with: git merge {branch}")
        return 0 if result.termination_reason == "completed" else 1
    finally:
        git(repository, "worktree", "remove", "--force", str(tree))


def make_demo_repository() -> Path:
    folder = Path(tempfile.mkdtemp())
    git(folder, "init", "-q")
    (folder / "app.py").write_text('pritn("hello")\n', encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=demo", "-c", "user.email=none@example.org", "commit", "-qm", "Add the program")
    return folder


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(maintain(Path(sys.argv[1]), sys.argv[2]))
    sys.exit(maintain(make_demo_repository(), "Fix what is broken."))
