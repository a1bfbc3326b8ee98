"""`outrider jobs`: submits, schedules, lists, shows, answers, cancels and retries background runs."""

from argparse import ArgumentTypeError, Namespace
from contextlib import suppress
from datetime import datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cli import exit_codes
from outrider.cli.commands.jobs_common import (
    find_run,
    format_failure,
    format_usage,
    match_count_text,
    print_run_table,
    print_runs,
    reject_old_worker,
    run_with_jobs,
    warn_without_worker,
)
from outrider.cli.commands.jobs_follow import follow_run
from outrider.cli.commands.worker import ensure_worker_running
from outrider.cli.output import Console, format_table
from outrider.cli.parser import parse_duration
from outrider.cli.setup import settings_from_arguments, user_folders
from outrider.config.environment import read_option_defaults
from outrider.errors import ConfigurationError, OutriderError
from outrider.presentation.formats import escape_control_characters, format_bytes, format_count, format_time, short_id
from outrider.types.ids import new_id, now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.background.jobs import JobClient, JobOptions, QueuePlacement
    from outrider.background.records import Run, RunFilter
    from outrider.background.reports import JobReport
    from outrider.background.schedules import Schedule
    from outrider.background.workspace_snapshots import SnapshotInfo
    from outrider.config.settings import Settings
    from outrider.engine.archive import Approval
    from outrider.project.sandbox import RunWorktree

_TO_THE_SECOND = "%Y-%m-%d %H:%M:%S"


def build_job_options(arguments: Namespace, settings: "Settings", *, placement: "QueuePlacement") -> "JobOptions":
    """Returns the keyword arguments of a submitted or scheduled run. The worker reads the other settings itself."""
    from outrider.background.records import JobOverrides

    options: JobOptions = {
        "workspace": str(settings.workspace),
        "agent": arguments.agent or "",
        "mode": arguments.mode or "background",
        "limits": settings.limits,
        "place": placement,
        "worktree": arguments.worktree,
        "webhook": arguments.webhook or "",
        "terms": JobOverrides(
            model=arguments.model or "",
            effort=arguments.effort or "",
            allow=tuple(arguments.allow),
            ask=tuple(arguments.ask),
            deny=tuple(arguments.deny),
        ),
    }
    if arguments.approval:
        options["approval"] = arguments.approval
    return options


def choose_user(arguments: Namespace, settings: "Settings") -> str:
    """Returns the name under which runs take turns with those of other users: that of `--user`, of OUTRIDER_USER or of
    the settings; by default the login name, which is the same for all users in most containers."""
    default_user = read_option_defaults(settings.environ).user
    return arguments.user or default_user or settings.background.user or getuser()


async def choose_placement(arguments: Namespace, jobs: "JobClient", settings: "Settings") -> "QueuePlacement":
    """Returns the queue placement of a run. `--after` is either a time or the id of a run to wait for."""
    from outrider.background.jobs import QueuePlacement

    placement, after = (
        QueuePlacement(queue=arguments.queue, user=choose_user(arguments, settings), priority=arguments.priority),
        arguments.after,
    )
    if not after:
        return placement
    delay = None if await _is_run(jobs, after) else delay_until(after, datetime.now().astimezone())
    if delay is not None:
        return msgspec.structs.replace(placement, after=delay)
    try:
        return msgspec.structs.replace(placement, after_run=(await find_run(jobs, after)).id)
    except OutriderError as problem:
        hint = "--after takes a time (90s, 15m, 2h, 22:30, 2026-12-01T07:00) or the id of a run"
        raise ConfigurationError(f"{hint}, but {problem}") from None


async def _is_run(jobs: "JobClient", name: str) -> bool:
    """Returns whether `name` is the end of a run id. This is checked before times, because a short id may consist of
    digits only."""
    return len(name) >= 8 and bool(await jobs.find_run_ids(name))


def delay_until(after: str, now: datetime) -> float | None:
    """Returns the seconds until the time `after`, or None if it is not a time (it may be a run id)."""
    with suppress(ArgumentTypeError):
        return parse_duration(after)
    with suppress(ValueError):
        clock = datetime.strptime(after, "%H:%M").time()
        start = datetime.combine(now, clock, now.tzinfo)
        return ((start if start > now else start + timedelta(days=1)) - now).total_seconds()
    with suppress(ValueError):
        start = datetime.fromisoformat(after)
        return max(start.timestamp() - now.timestamp(), 0.001)  # without a zone: local time
    return None


def warn_about_uncommitted_changes(arguments: Namespace, settings: "Settings") -> None:
    """Warns that a worktree does not contain uncommitted changes."""
    from outrider.background.worktrees import count_uncommitted, git_runner

    if arguments.worktree and (changed := count_uncommitted(str(settings.workspace), git_runner(settings.folders))):
        Console().print_stderr(
            f"The run starts from the last commit, without {format_count(changed, 'uncommitted change')}."
        )


def warn_about_mode(arguments: Namespace) -> None:
    """Warns that `--ask` rules deny calls in background mode, and that `--approval` only has an effect in agent
    mode."""
    mode = arguments.mode or "background"
    if arguments.approval and mode != "agent":
        Console().print_stderr(
            f"--approval has no effect in {mode} mode: only agent mode has approval levels. Use --mode agent."
        )
    if arguments.ask and mode == "background":
        Console().print_stderr(
            "Background mode asks no questions: calls that match --ask are denied. To be asked, use --mode agent."
        )


def schedule_run(arguments: Namespace) -> int:
    """Creates a schedule and prints it."""
    settings = settings_from_arguments(arguments)

    async def create_schedule(jobs: "JobClient") -> "Schedule":
        from outrider.background.jobs import QueuePlacement

        await reject_old_worker(jobs, arguments)
        user = choose_user(arguments, settings)
        placement = QueuePlacement(queue=arguments.queue, user=user, priority=arguments.priority)
        options = build_job_options(arguments, settings, placement=placement)
        return await jobs.add_schedule(arguments.cron, arguments.prompt, timezone=arguments.timezone, **options)

    schedule = run_with_jobs(arguments, create_schedule)
    warn_about_mode(arguments)
    ensure_worker_running(arguments, settings)
    return _print_schedules(arguments, [schedule])


def list_schedules(arguments: Namespace) -> int:
    """Prints all schedules."""
    return _print_schedules(arguments, run_with_jobs(arguments, lambda jobs: jobs.list_schedules()))


def pause_schedule(arguments: Namespace) -> int:
    async def pause_found(jobs: "JobClient") -> "Schedule":
        return await jobs.pause_schedule((await _find_schedule(jobs, arguments.schedule)).id)

    return _print_schedules(arguments, [run_with_jobs(arguments, pause_found)])


def resume_schedule(arguments: Namespace) -> int:
    async def resume_found(jobs: "JobClient") -> "Schedule":
        return await jobs.resume_schedule((await _find_schedule(jobs, arguments.schedule)).id)

    schedule = run_with_jobs(arguments, resume_found)
    ensure_worker_running(arguments)
    return _print_schedules(arguments, [schedule])


def delete_schedule(arguments: Namespace) -> int:
    async def delete_found(jobs: "JobClient") -> "Schedule":
        schedule = await _find_schedule(jobs, arguments.schedule)
        await jobs.remove_schedule(schedule.id)
        return schedule

    schedule = run_with_jobs(arguments, delete_found)
    Console().print_stderr(f"{short_id(schedule.id)} is deleted.")
    return exit_codes.SUCCESS


async def _find_schedule(jobs: "JobClient", name: str) -> "Schedule":
    """Returns the schedule whose id ends with `name`. Raises OutriderError unless exactly one matches."""
    schedules = [schedule for schedule in await jobs.list_schedules() if schedule.id.endswith(name)]
    if len(schedules) != 1:
        raise OutriderError(f"{match_count_text(len(schedules), 'schedule')} an id that ends with {name!r}")
    return schedules[0]


def _print_schedules(arguments: Namespace, schedules: "Sequence[Schedule]") -> int:
    console = Console()
    if arguments.json:
        for schedule in schedules:
            console.print(msgspec.json.encode(schedule).decode())
        return exit_codes.SUCCESS
    if not schedules:
        console.print_stderr(
            "There are no schedules. Create one: outrider jobs schedule '0 7 * * *' 'look for dead links'"
        )
        return exit_codes.SUCCESS
    rows = [
        (short_id(schedule.id), schedule.cron, _format_next_time(schedule), schedule.prompt) for schedule in schedules
    ]
    for line in format_table(("schedule", "cron", "next", "prompt"), rows, console.width):
        console.print(line)
    return exit_codes.SUCCESS


def _format_next_time(schedule: "Schedule") -> str:
    """Returns the next time of a schedule in its time zone."""
    from zoneinfo import ZoneInfo

    if schedule.paused:
        return "paused"
    return f"{format_time(schedule.due, zone=ZoneInfo(schedule.timezone))} {schedule.timezone}"


def submit_run(arguments: Namespace) -> int:
    """Submits a run and prints it; with `--wait`, follows it."""
    if arguments.attach and arguments.wait:
        raise ConfigurationError("--wait cannot be used with --attach; see `outrider jobs show RUN --attach URL`")
    settings, run_id = settings_from_arguments(arguments), new_id()

    async def submit_prompt(jobs: "JobClient") -> "Run":
        await reject_old_worker(jobs, arguments)
        options = build_job_options(arguments, settings, placement=await choose_placement(arguments, jobs, settings))
        options["run_id"] = run_id
        run = await jobs.submit_run(arguments.prompt, **options)
        await warn_without_worker(jobs, [run])
        return run

    run = run_with_jobs(arguments, submit_prompt, is_repeatable=True)  # the same id submits a run only once
    if not arguments.attach:
        warn_about_uncommitted_changes(arguments, settings)
    warn_about_mode(arguments)
    ensure_worker_running(arguments, settings)
    if arguments.wait:
        return follow_run(Namespace(**{**vars(arguments), "run": run.id, "after": 0}))
    code = print_runs(arguments, [run])
    if not arguments.json:
        Console().print_stderr(f"Follow it: outrider jobs follow {short_id(run.id)}")
    return code


def list_runs(arguments: Namespace) -> int:
    """Prints the newest runs that match the filters, with a hint for runs that wait for approval."""

    async def load_runs(jobs: "JobClient") -> "Sequence[Run]":
        runs = await jobs.find_runs(build_run_filter(arguments), limit=arguments.limit)
        await warn_without_worker(jobs, runs)
        for provider, until in (await jobs.list_paused_providers()).items():
            end = format_time(until, _TO_THE_SECOND)
            Console().print_stderr(
                f"Provider {provider} is paused after errors; its runs stay queued until {end}.", "yellow"
            )
        return runs

    runs = run_with_jobs(arguments, load_runs, is_repeatable=True)
    has_filter = arguments.state or arguments.since or arguments.queue or arguments.user
    code = _print_selected(arguments, runs) if has_filter else print_runs(arguments, runs)
    waiting = [short_id(run.id) for run in runs if run.state == "waiting"]
    if waiting and not arguments.json:
        Console().print_stderr(f"Waiting for an answer: {', '.join(waiting)}. See `outrider jobs show {waiting[0]}`.")
    return code


def build_run_filter(arguments: Namespace) -> "RunFilter":
    from outrider.background.records import RunFilter

    return RunFilter(
        states=tuple(arguments.state),
        since=0 if arguments.since is None else now_ms() - round(arguments.since * 1000),
        queue=arguments.queue or "",
        user=arguments.user or "",
    )


async def select_runs(arguments: Namespace, jobs: "JobClient", states: tuple[str, ...]) -> "Sequence[Run]":
    """Returns the runs with the given ids, or else those that match the filters and are in one of `states`."""
    selection = build_run_filter(arguments)
    has_filter = bool(selection.states or selection.since or selection.queue or selection.user)
    if bool(arguments.run) == has_filter:
        raise ConfigurationError("name runs, or select them with --state, --failed, --since, --queue or --user")
    if arguments.run:
        return [await find_run(jobs, name) for name in arguments.run]
    return [run for run in await jobs.find_runs(selection) if run.state in states]


def cancel_run(arguments: Namespace) -> int:
    """Cancels runs. If one has open calls, a worker is needed to end them."""

    async def cancel_found(jobs: "JobClient") -> "tuple[list[Run], bool]":
        canceled: list[Run] = []
        left_open = False
        for run in await select_runs(arguments, jobs, ("delayed", "queued", "running", "waiting")):
            if run.is_over:
                Console().print_stderr(f"The run is already {run.state}.")
            canceled.append(await jobs.cancel_run(run.id))
            left_open |= await jobs.needs_cleanup(run.id)
        return canceled, left_open

    runs, left_open = run_with_jobs(arguments, cancel_found)
    if left_open:
        ensure_worker_running(arguments)
    return _print_selected(arguments, runs)


def retry_run(arguments: Namespace) -> int:
    """Resumes failed or canceled runs."""

    async def retry_found(jobs: "JobClient") -> "list[Run]":
        return [await jobs.retry_run(run.id) for run in await select_runs(arguments, jobs, ("failed", "canceled"))]

    runs = run_with_jobs(arguments, retry_found)
    if runs:
        ensure_worker_running(arguments)
    return _print_selected(arguments, runs)


def _print_selected(arguments: Namespace, runs: "Sequence[Run]") -> int:
    if not runs and not arguments.json:
        Console().print_stderr("No run matches.")
        return exit_codes.SUCCESS
    return print_runs(arguments, runs)


def approve_calls(arguments: Namespace) -> int:
    return _answer_approvals(arguments, allow=True)


def deny_calls(arguments: Namespace) -> int:
    return _answer_approvals(arguments, allow=False)


def _answer_approvals(arguments: Namespace, *, allow: bool) -> int:
    """Answers open approvals of a run, and starts a worker, because a waiting run has none."""
    if allow:
        _check_answer_options(arguments)

    async def answer_open_approvals(jobs: "JobClient") -> "Run":
        run = await find_run(jobs, arguments.run)
        approvals = await jobs.open_approvals(run.id)
        if not approvals:
            raise OutriderError(f"run {short_id(run.id)} is not waiting for approval")
        numbers: list[int] = arguments.call or list(range(1, len(approvals) + 1))
        if unknown := [number for number in numbers if not 1 <= number <= len(approvals)]:
            raise OutriderError(f"run {short_id(run.id)} has no call {unknown[0]}; it waits for {len(approvals)}")
        selected = [approvals[number - 1] for number in numbers]
        answers = [_create_answer(arguments, approval, allow=allow) for approval in selected]
        for approval, answer in zip(selected, answers, strict=True):
            await jobs.answer_approval(approval.id, by=_SENDER, **answer)
            Console().print_stderr(
                f"{'approved' if allow else 'denied'}: {approval.tool} {msgspec.json.encode(approval.input).decode()}"
            )
        return run

    run = run_with_jobs(arguments, answer_open_approvals)
    ensure_worker_running(arguments)
    if arguments.json:
        return print_runs(arguments, [run])
    Console().print_stderr(f"The run resumes. Follow it: outrider jobs follow {short_id(run.id)}")
    return exit_codes.SUCCESS


def _check_answer_options(arguments: Namespace) -> None:
    if (arguments.choice or arguments.keep) and (arguments.outside or arguments.scope != "once"):
        raise ConfigurationError("--choice and --keep name the whole answer; omit --for and --outside")
    if arguments.width and arguments.scope == "once" and not arguments.choice:
        raise OutriderError("--width describes a lasting answer; add --for session, project or always")


def _create_answer(arguments: Namespace, approval: "Approval", *, allow: bool) -> dict[str, Any]:
    """Returns the answer as keyword arguments. Raises ConfigurationError for a choice or for files that the question
    does not have."""
    if not allow:
        return {"allow": False, "words": arguments.reason}
    if not (arguments.choice or arguments.keep):
        outside = {"choice": "outside"} if arguments.outside else {}
        return {"allow": True, "scope": arguments.scope, "width": arguments.width, **outside}
    from outrider.presentation.approvals import KEEP_SOME, approval_view, choice_by_id

    view, choice_id = approval_view(approval), arguments.choice or KEEP_SOME.id
    choice = choice_by_id(view.choices, choice_id)
    if choice is None or choice.kind == "deny":
        offered = ", ".join(offered_choice.id for offered_choice in view.choices if offered_choice.kind == "allow")
        raise ConfigurationError(f"{view.title!r} cannot be approved by {choice_id!r}; its choices are {offered}")
    if choice.picks_files != bool(arguments.keep):
        raise ConfigurationError(f"the choice {KEEP_SOME.id} needs --keep NAME, and no other choice has files")
    if arguments.width and choice.scope == "once":
        raise ConfigurationError(f"--width describes a lasting answer, and {choice.id} is not one")
    if unmatched := next((name for name in arguments.keep if not view.match_files([name])), ""):
        files = ", ".join(view.match_files(["*"]))
        raise ConfigurationError(f"--keep {unmatched}: no such file was changed; the command changed {files}")
    return view.answer(choice.id, files=view.match_files(arguments.keep), width=arguments.width)


_SENDER = "the command line"


def show_run(arguments: Namespace) -> int:
    """Prints the state, approvals, result and worktree of a run, or its diff or trace."""

    async def load_details(
        jobs: "JobClient",
    ) -> "tuple[Run, RunWorktree | None, SnapshotInfo | None, JobReport | None, Sequence[Approval], str]":
        run = await find_run(jobs, arguments.run)
        trace = (await jobs.load_trace(run.id)).format_tree() if arguments.trace else ""
        await warn_without_worker(jobs, [run])
        return (
            run,
            await jobs.get_worktree(run.id),
            await jobs.get_snapshot(run.id),
            await jobs.get_report(run.id),
            await jobs.open_approvals(run.id),
            trace,
        )

    console = Console()
    run, tree, snapshot, report, questions, trace = run_with_jobs(arguments, load_details, is_repeatable=True)
    diff = report.changes.diff if report and report.changes else ""
    if arguments.json:
        extra = {"snapshot": snapshot, **({"trace": trace} if trace else {})}
        console.print(_encode_details(run, tree, report, extra))
    elif arguments.diff or arguments.trace:
        console.write("\n".join(text.rstrip("\n") for text in (diff if arguments.diff else "", trace) if text) + "\n")
    else:
        print_run_table(console, [run])
        for line in [
            *_start_lines(run),
            *_approval_lines(run, questions),
            *_outcome_lines(run, report),
            *_worktree_lines(run, tree),
            *_snapshot_lines(snapshot),
        ]:
            console.print(line)
    return exit_codes.SUCCESS


def remove_worktree(arguments: Namespace) -> int:
    """Removes the worktree of a run that has ended. Its branch has the changes, because a run commits everything when
    it ends."""

    async def find_and_remove(jobs: "JobClient") -> "RunWorktree":
        from outrider.background.worktrees import WorktreeManager

        run = await find_run(jobs, arguments.run)
        tree, worktrees = await jobs.get_worktree(run.id), WorktreeManager(user_folders())
        if not run.is_over:
            raise OutriderError(f"the run is {run.state}; cancel it first")
        if tree is None or not worktrees.exists_here(tree):
            raise OutriderError("the run has no worktree on this machine")
        worktrees.remove_worktree(tree)
        return tree

    tree = run_with_jobs(arguments, find_and_remove)
    Console().print_stderr(f"Removed {tree.path}. The changes are on the branch {tree.branch}.")
    return exit_codes.SUCCESS


def _outcome_lines(run: "Run", report: "JobReport | None") -> list[str]:
    """Returns the usage so far, or the result, error and changed files of a run that has ended."""
    outcome = report.outcome if report else run.outcome
    if outcome is None:
        return []
    if not run.is_over:
        return ["", f"{format_usage(outcome)} so far"]
    lines = ["", f"{format_usage(outcome)}, ended with: {outcome.reason}"]
    if run.state == "failed":
        outcomes = [stored for stored in (outcome, run.outcome) if stored is not None and stored.error]
        lines.append(format_failure(outcomes[0] if outcomes else outcome))
    lines += [outcome.output] if outcome.output else []
    if report and report.changes and report.changes.stat:
        lines += ["", report.changes.stat]
    return lines


def _start_lines(run: "Run") -> list[str]:
    if run.after_run:
        return ["", f"Starts when run {short_id(run.after_run)} ends."]
    if run.begins is None:
        return []
    if run.waiting_for:
        error = run.outcome.error if run.outcome else ""
        return [
            "",
            f"Waiting for {run.waiting_for}: {error}",
            f"Next attempt: {format_time(run.begins, _TO_THE_SECOND)}.",
        ]
    return ["", f"Starts on {format_time(run.begins, '%Y-%m-%d at %H:%M')}."]


def _approval_lines(run: "Run", approvals: "Sequence[Approval]") -> list[str]:
    """Returns the open approvals with their complete questions, because the user decides on exactly these."""
    if not approvals:
        return []
    name = short_id(run.id)
    return [
        "",
        "Waiting for approval:",
        *(line for number, approval in enumerate(approvals, 1) for line in _question_lines(number, approval)),
        f"Answer: outrider jobs approve {name}, or: outrider jobs deny {name} --reason TEXT",
    ]


def _question_lines(number: int, approval: "Approval") -> list[str]:
    """Returns the complete question, the choices of a yes, and what a lasting answer covers."""
    from outrider.presentation.approvals import approval_view, question_text  # lazy: most runs wait for nothing

    view = approval_view(approval)
    choices = [
        f"--choice {choice.id}" + (" --keep NAME" if choice.picks_files else "") + f": {choice.label}"
        for choice in view.choices
        if choice.kind == "allow"
    ]
    widths = [
        f"--width {width.id}: {width.label}: {width.rule_text}" + (f" ({width.history})" if width.history else "")
        for width in view.widths
    ]
    return [
        f"  {number}. {view.title}",
        *(f"       {line}".rstrip() for line in question_text(view).split("\n")),
        "",
        *(f"       {escape_control_characters(line)}" for line in (*choices, *widths)),
        "",
    ]


def _worktree_lines(run: "Run", tree: "RunWorktree | None") -> list[str]:
    if tree is None:
        return []
    is_here = Path(tree.path).exists()
    lines = ["", f"Worktree: {tree.path}" if is_here else f"Worktree: {tree.path} on {tree.host}, not on this machine"]
    lines.append(f"Branch: {tree.branch}, from commit {tree.base[:12]}")
    if tree.uncommitted:
        changes = format_count(tree.uncommitted, "uncommitted change")
        lines.append(f"Not included: {changes} in {tree.repository} when the run started.")
    if run.is_over:
        lines.append(f"To merge its changes: cd {tree.repository} && git merge {tree.branch}")
        if is_here:
            lines.append(f"To remove the worktree and keep the branch: outrider jobs clean {short_id(run.id)}")
    return lines


def _snapshot_lines(snapshot: "SnapshotInfo | None") -> list[str]:
    """Returns what is stored for another machine that would continue the run."""
    if snapshot is None:
        return []
    if snapshot.omitted:
        return [f"Not stored for other machines: {snapshot.omitted}."]
    time, files = format_time(snapshot.time, "%H:%M:%S"), format_count(snapshot.files, "changed file")
    return [f"Stored for other machines at {time}: {files}, {format_bytes(snapshot.bytes)}"]


def _encode_details(run: "Run", tree: "RunWorktree | None", report: "JobReport | None", extra: dict[str, Any]) -> str:
    """Encodes the run with its worktree and report (which contains the diff) as one JSON object."""
    details: dict[str, Any] = {**msgspec.to_builtins(run), "worktree": tree, "report": report, **extra}
    return msgspec.json.encode(details).decode()
