"""What the commands do that submit runs and order them about."""

from argparse import ArgumentTypeError, Namespace
from contextlib import suppress
from datetime import datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cli import registry as exits
from outrider.cli.commands.jobs_common import named, several, tell, tell_rows, used, warn_left_alone, with_jobs
from outrider.cli.commands.jobs_follow import follow
from outrider.cli.commands.worker import ensure
from outrider.cli.output import Console, counted, table
from outrider.cli.parser import seconds
from outrider.cli.setup import folders, settings_of
from outrider.engine.archive import short_id
from outrider.errors import ConfigurationError, OutriderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.background.jobs import Jobs, Order, Place
    from outrider.background.records import Run
    from outrider.background.reports import Report
    from outrider.background.schedules import Schedule
    from outrider.config.settings import Settings
    from outrider.engine.archive import Approval
    from outrider.project.sandbox import Worktree


def order_of(arguments: Namespace, settings: "Settings", *, place: "Place") -> "Order":
    from outrider.background.records import Terms

    return {
        "workspace": str(settings.workspace),
        "agent": arguments.agent or "",
        "mode": arguments.mode or "background",
        "limits": settings.limits,
        "place": place,
        "worktree": arguments.worktree,
        "webhook": arguments.webhook or "",
        "terms": Terms(
            model=arguments.model or "",
            allow=tuple(arguments.allow),
            ask=tuple(arguments.ask),
            deny=tuple(arguments.deny),
        ),
    }


async def place_of(arguments: Namespace, jobs: "Jobs") -> "Place":
    from outrider.background.jobs import Place

    place, after = Place(queue=arguments.queue, user=getuser(), priority=arguments.priority), arguments.after
    if not after:
        return place
    wait = None if await _is_run(jobs, after) else _wait(after, datetime.now().astimezone())
    if wait is not None:
        return msgspec.structs.replace(place, after=wait)
    try:
        return msgspec.structs.replace(place, after_run=(await named(jobs, after)).id)
    except OutriderError as problem:
        hint = "--after takes a time (90s, 15m, 2h, 22:30, 2026-12-01T07:00) or the id of a run"
        raise ConfigurationError(f"{hint}, and {problem}") from None


async def _is_run(jobs: "Jobs", name: str) -> bool:
    """An id as it is shown may look like a number of seconds."""
    return len(name) >= 8 and any(run.id.endswith(name) for run in await jobs.list(limit=1000))


def _wait(after: str, now: datetime) -> float | None:
    """Seconds until then; None for what is no time, and so perhaps the id of a run."""
    with suppress(ArgumentTypeError):
        return seconds(after)
    with suppress(ValueError):
        clock = datetime.strptime(after, "%H:%M").time()
        at = datetime.combine(now, clock, now.tzinfo)
        return ((at if at > now else at + timedelta(days=1)) - now).total_seconds()
    with suppress(ValueError):
        at = datetime.fromisoformat(after)
        return max(at.timestamp() - now.timestamp(), 0.001)  # one without a zone is of this machine's
    return None


def warn_of_what_is_missing(arguments: Namespace, settings: "Settings") -> None:
    from outrider.background.worktrees import uncommitted

    if arguments.worktree and (changed := uncommitted(str(settings.workspace))):
        Console().say(f"The run begins with the last commit, without {counted(changed, 'uncommitted change')}.")


def warn_of_questions(arguments: Namespace) -> None:
    if arguments.ask and (arguments.mode or "background") == "background":
        Console().say("In background mode nobody is asked: what --ask names is refused. With --mode agent it is asked.")


def schedule(arguments: Namespace) -> int:
    settings = settings_of(arguments)

    async def work(jobs: "Jobs") -> "Schedule":
        from outrider.background.jobs import Place

        place = Place(queue=arguments.queue, user=getuser(), priority=arguments.priority)
        order = order_of(arguments, settings, place=place)
        return await jobs.schedule(arguments.cron, arguments.prompt, timezone=arguments.timezone, **order)

    made = with_jobs(arguments, work)
    warn_of_questions(arguments)
    ensure(arguments, settings)
    return _tell(arguments, [made])


def schedules(arguments: Namespace) -> int:
    return _tell(arguments, with_jobs(arguments, lambda jobs: jobs.schedules()))


def pause(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Schedule":
        return await jobs.pause_schedule((await _named(jobs, arguments.schedule)).id)

    return _tell(arguments, [with_jobs(arguments, work)])


def resume(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Schedule":
        return await jobs.resume_schedule((await _named(jobs, arguments.schedule)).id)

    resumed = with_jobs(arguments, work)
    ensure(arguments)
    return _tell(arguments, [resumed])


def unschedule(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Schedule":
        found = await _named(jobs, arguments.schedule)
        await jobs.unschedule(found.id)
        return found

    ended = with_jobs(arguments, work)
    Console().say(f"{short_id(ended.id)} is no longer submitted.")
    return exits.DONE


async def _named(jobs: "Jobs", name: str) -> "Schedule":
    found = [one for one in await jobs.schedules() if one.id.endswith(name)]
    if len(found) != 1:
        raise OutriderError(f"{several(len(found), 'schedule')} an id that ends with {name!r}")
    return found[0]


def _tell(arguments: Namespace, found: "Sequence[Schedule]") -> int:
    console = Console()
    if arguments.json:
        for one in found:
            console.print(msgspec.json.encode(one).decode())
        return exits.DONE
    if not found:
        console.say(
            "Nothing is scheduled. Schedule something: outrider jobs schedule '0 7 * * *' 'look for dead links'"
        )
        return exits.DONE
    rows = [(short_id(one.id), one.cron, _time(one), one.prompt) for one in found]
    for line in table(("schedule", "cron", "next", "prompt"), rows, console.width):
        console.print(line)
    return exits.DONE


def _time(one: "Schedule") -> str:
    from zoneinfo import ZoneInfo

    if one.paused:
        return "paused"
    return f"{datetime.fromtimestamp(one.due / 1000, ZoneInfo(one.timezone)):%Y-%m-%d %H:%M} {one.timezone}"


def submit(arguments: Namespace) -> int:
    settings = settings_of(arguments)

    async def work(jobs: "Jobs") -> "Run":
        order = order_of(arguments, settings, place=await place_of(arguments, jobs))
        return await jobs.submit(arguments.prompt, **order)

    run = with_jobs(arguments, work)
    warn_of_what_is_missing(arguments, settings)
    warn_of_questions(arguments)
    ensure(arguments, settings)
    if arguments.wait:
        return follow(Namespace(**{**vars(arguments), "run": run.id, "after": 0}))
    code = tell(arguments, [run])
    if not arguments.json:
        Console().say(f"Watch it: outrider jobs follow {short_id(run.id)}")
    return code


def list_runs(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Sequence[Run]":
        runs = await jobs.list(limit=arguments.limit)
        await warn_left_alone(jobs, runs)
        return runs

    runs = with_jobs(arguments, work)
    code = tell(arguments, runs)
    waiting = [short_id(run.id) for run in runs if run.state == "waiting"]
    if waiting and not arguments.json:
        Console().say(f"Waiting for an answer: {', '.join(waiting)}. See `outrider jobs show {waiting[0]}`.")
    return code


def cancel(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "tuple[Run, bool]":
        run = await named(jobs, arguments.run)
        if run.is_over:
            Console().say(f"It was {run.state} already.")
        return await jobs.cancel(run.id), await jobs.is_left_open(run.id)

    run, left_open = with_jobs(arguments, work)
    if left_open:
        ensure(arguments)
    return tell(arguments, [run])


def retry(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Run":
        return await jobs.retry((await named(jobs, arguments.run)).id)

    run = with_jobs(arguments, work)
    ensure(arguments)
    return tell(arguments, [run])


def approve(arguments: Namespace) -> int:
    return _answered(arguments, allow=True)


def deny(arguments: Namespace) -> int:
    return _answered(arguments, allow=False)


def _answered(arguments: Namespace, *, allow: bool) -> int:
    async def work(jobs: "Jobs") -> "Run":
        run = await named(jobs, arguments.run)
        questions = await jobs.approvals(run.id)
        if not questions:
            raise OutriderError(f"the run {short_id(run.id)} waits for no answer")
        for question in questions:
            Console().say(
                f"{'yes' if allow else 'no'} to {question.tool} {msgspec.json.encode(question.input).decode()}"
            )
            await jobs.approve(question.id, allow=allow, by="the command line")
        return run

    run = with_jobs(arguments, work)
    ensure(arguments)
    if arguments.json:
        return tell(arguments, [run])
    Console().say(f"It goes on. Watch it: outrider jobs follow {short_id(run.id)}")
    return exits.DONE


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
        from outrider.background.worktrees import Worktrees

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
