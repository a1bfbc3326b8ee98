"""One run: where it stands, where it works, and what came of it."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.reaching import named, tell_rows, with_jobs
from outrider.cli.store import folders
from outrider.cli.tables import cost_text, tokens_text
from outrider.errors import OutriderError

if TYPE_CHECKING:
    from outrider.app.workspace.worktrees import Worktree
    from outrider.background.endings.reports import Report
    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run


def show(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "tuple[Run, Worktree | None, Report | None, str]":
        run = await named(jobs, arguments.run)
        trace = (await jobs.trace(run.id)).format_tree() if arguments.trace else ""
        return run, await jobs.worktree(run.id), await jobs.report(run.id), trace

    console = Console()
    run, tree, report, trace = with_jobs(arguments, work)
    diff = report.changes.diff if report and report.changes else ""
    if arguments.json:
        console.print(_json(run, tree, report, {"trace": trace} if trace else {}))
    elif arguments.diff or arguments.trace:
        console.write("\n".join(text.rstrip("\n") for text in (diff if arguments.diff else "", trace) if text) + "\n")
    else:
        tell_rows(console, [run])
        for line in [*_ending(run, report), *_place(tree)]:
            console.print(line)
    return exits.DONE


def clean(arguments: Namespace) -> int:
    """What was committed stays on its branch, and everything is committed when a run ends."""

    async def work(jobs: "Jobs") -> "Worktree":
        from outrider.background.runs import OVER
        from outrider.background.worktrees.worktrees import Worktrees

        run = await named(jobs, arguments.run)
        tree, worktrees = await jobs.worktree(run.id), Worktrees(folders())
        if run.state not in OVER:
            raise OutriderError(f"this run is {run.state}; cancel it first")
        if tree is None or not worktrees.holds(tree):
            raise OutriderError("this run has no worktree on this machine")
        worktrees.remove(tree)
        return tree

    tree = with_jobs(arguments, work)
    Console().say(f"Removed {tree.path}. What the run did stays on the branch {tree.branch}.")
    return exits.DONE


def _ending(run: "Run", report: "Report | None") -> list[str]:
    outcome = report.outcome if report else run.outcome
    if outcome is None:
        return []
    used = f"{outcome.steps} steps, {tokens_text(outcome.tokens.total)} tokens, {cost_text(outcome.cost)}"
    lines = ["", f"{used}, ended with: {outcome.reason}", outcome.error or outcome.output]
    if report and report.changes and report.changes.stat:
        lines += ["", report.changes.stat]
    return lines


def _place(tree: "Worktree | None") -> list[str]:
    if tree is None:
        return []
    lines = ["", f"It works in {tree.path}" if Path(tree.path).exists() else f"It worked in {tree.path} on {tree.host}"]
    lines.append(f"on the branch {tree.branch}, begun at {tree.base[:12]}.")
    if tree.uncommitted:
        lines.append(f"{tree.uncommitted} changes in {tree.repository} were not committed then, and are not in it.")
    lines.append(f"To have what it did: cd {tree.repository} && git merge {tree.branch}")
    return lines


def _json(run: "Run", tree: "Worktree | None", report: "Report | None", more: dict[str, Any]) -> str:
    """Everything about the run in one object, its diff included."""
    shown: dict[str, Any] = {**msgspec.to_builtins(run), "worktree": tree, "report": report, **more}
    return msgspec.json.encode(shown).decode()
