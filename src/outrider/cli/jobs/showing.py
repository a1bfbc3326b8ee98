"""One run: where it stands, where it works, and what came of it."""

from argparse import Namespace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.reaching import named, tell_rows, used, warn_left_alone, with_jobs
from outrider.cli.store import folders
from outrider.cli.tables import counted
from outrider.errors import OutriderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.app.archive.archive import Approval
    from outrider.app.workspace.worktrees import Worktree
    from outrider.background.endings.reports import Report
    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run


def show(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "tuple[Run, Worktree | None, Report | None, Sequence[Approval], str]":
        run = await named(jobs, arguments.run)
        trace = (await jobs.trace(run.id)).format_tree() if arguments.trace else ""
        await warn_left_alone(jobs, [run])
        return run, await jobs.worktree(run.id), await jobs.report(run.id), await jobs.approvals(run.id), trace

    console = Console()
    run, tree, report, questions, trace = with_jobs(arguments, work)
    diff = report.changes.diff if report and report.changes else ""
    if arguments.json:
        console.print(_json(run, tree, report, {"trace": trace} if trace else {}))
    elif arguments.diff or arguments.trace:
        console.write("\n".join(text.rstrip("\n") for text in (diff if arguments.diff else "", trace) if text) + "\n")
    else:
        tell_rows(console, [run])
        for line in [*_beginning(run), *_questions(run, questions), *_ending(run, report), *_place(run, tree)]:
            console.print(line)
    return exits.DONE


def clean(arguments: Namespace) -> int:
    """What was committed stays on its branch, and everything is committed when a run ends."""

    async def work(jobs: "Jobs") -> "Worktree":
        from outrider.background.worktrees.worktrees import Worktrees

        run = await named(jobs, arguments.run)
        tree, worktrees = await jobs.worktree(run.id), Worktrees(folders())
        if not run.is_over:
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
    if not run.is_over:
        return ["", f"{used(outcome)} so far"]
    lines = ["", f"{used(outcome)}, ended with: {outcome.reason}", outcome.error or outcome.output]
    if report and report.changes and report.changes.stat:
        lines += ["", report.changes.stat]
    return lines


def _beginning(run: "Run") -> list[str]:
    if run.after_run:
        return ["", f"It begins when the run {short_id(run.after_run)} is over."]
    if run.begins is not None:
        return ["", f"It begins on {datetime.fromtimestamp(run.begins / 1000).astimezone():%Y-%m-%d at %H:%M}."]
    return []


def _questions(run: "Run", questions: "Sequence[Approval]") -> list[str]:
    """All that would run, and nothing shortened: whoever answers has to know."""
    if not questions:
        return []
    asked = [f"  {one.tool} {msgspec.json.encode(one.input).decode()}" for one in questions]
    name = short_id(run.id)
    return [
        "",
        "It waits for an answer:",
        *asked,
        f"Answer: outrider jobs approve {name}, or: outrider jobs deny {name}",
    ]


def _place(run: "Run", tree: "Worktree | None") -> list[str]:
    if tree is None:
        return []
    is_here = Path(tree.path).exists()
    lines = ["", f"Its worktree: {tree.path}" if is_here else f"Its worktree was {tree.path} on {tree.host}"]
    lines.append(f"Its branch: {tree.branch}, begun at {tree.base[:12]}")
    if tree.uncommitted:
        changes = counted(tree.uncommitted, "uncommitted change")
        lines.append(f"Not in it: {changes} that {tree.repository} had then.")
    if run.is_over:
        lines.append(f"To have what it did: cd {tree.repository} && git merge {tree.branch}")
        if is_here:
            lines.append(f"To remove the worktree and keep the branch: outrider jobs clean {short_id(run.id)}")
    return lines


def _json(run: "Run", tree: "Worktree | None", report: "Report | None", more: dict[str, Any]) -> str:
    """Everything about the run in one object, its diff included."""
    shown: dict[str, Any] = {**msgspec.to_builtins(run), "worktree": tree, "report": report, **more}
    return msgspec.json.encode(shown).decode()
