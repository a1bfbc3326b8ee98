"""Shared helpers of the job commands: opening the job store, finding a run by id, printing runs."""

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from outrider.cli import exit_codes
from outrider.cli.output import Console, format_table
from outrider.cli.setup import attached_engine, user_folders
from outrider.errors import ConfigurationError, OutriderError, StoreUnavailableError
from outrider.presentation.formats import format_age, format_cost, format_count, format_tokens, short_id
from outrider.types.ids import now_ms
from outrider.types.tool_declaration import parse_rule

if TYPE_CHECKING:
    from outrider.background.heartbeat import WorkerInfo
    from outrider.background.jobs import JobClient
    from outrider.background.records import Run, RunOutcome


T = TypeVar("T")
NO_WORKER_MESSAGE = "No worker is running. The next submit starts one; to start one here: outrider worker"
NO_SHARED_WORKER_MESSAGE = "No worker is alive for this database. To start one here: outrider worker --database …"
_OUTAGE_SECONDS = 60.0  # how long a command waits for an unavailable database


def run_with_jobs(
    arguments: Namespace, work: "Callable[[JobClient], Awaitable[T]]", *, is_repeatable: bool = False
) -> T:
    """Opens the job store of this machine, the database of `--database` or the jobs of the server of `--attach`, and
    returns the result of `work` on it. If the database is lost, work that `is_repeatable` starts again."""
    require_background()
    if arguments.attach:
        return asyncio.run(_run_attached(arguments, work))

    async def open_and_run() -> T:
        from outrider.background.database import is_outage
        from outrider.background.factory import standard_jobs

        deadline, has_started, is_announced = monotonic() + _OUTAGE_SECONDS, False, False
        while True:
            try:
                async with standard_jobs(user_folders(), arguments.database) as jobs:
                    has_started = True
                    return await work(jobs)
            except Exception as problem:
                is_outage_error = isinstance(problem, StoreUnavailableError) or is_outage(problem)
                if (has_started and not is_repeatable) or not is_outage_error or monotonic() > deadline:
                    raise
                if not is_announced:
                    Console().print_stderr(f"Waiting for database: {problem}", "yellow")
                is_announced = True
            await asyncio.sleep(1)

    return asyncio.run(open_and_run())


async def _run_attached(arguments: Namespace, work: "Callable[[JobClient], Awaitable[T]]") -> T:
    from outrider.cli.commands.jobs_attached import RemoteJobs  # lazy: most users have the runs on this machine

    async with attached_engine(arguments) as engine:
        return await work(cast("JobClient", RemoteJobs(engine)))


async def find_run(jobs: "JobClient", name: str) -> "Run":
    """Returns the run whose id ends with `name`. Raises OutriderError unless exactly one matches."""
    run_ids = await jobs.find_run_ids(name)
    if len(run_ids) != 1:
        raise OutriderError(f"{match_count_text(len(run_ids), 'run')} an id that ends with {name!r}")
    return await jobs.get_run(run_ids[0])


def match_count_text(count: int, name: str) -> str:
    """Returns the start of an error message for a number of matches other than one."""
    return f"{count} {name}s have" if count else f"no {name} has"


async def warn_without_worker(jobs: "JobClient", runs: "Sequence[Run]") -> None:
    """Warns if runs are queued and no worker is running."""
    if await jobs.unattended_runs(runs):
        Console().print_stderr(NO_SHARED_WORKER_MESSAGE if jobs.is_shared else NO_WORKER_MESSAGE, "yellow")


_OLD_WORKER = """\
A worker of version 0.1 is registered (process {pid} on {host}). It {effect}. Stop it, or start one of this version: \
outrider worker --restart"""
_FIRST_HEARTBEAT_SECONDS = 2.5  # a worker that has just started has not reported its version yet


async def reject_old_worker(
    jobs: "JobClient", arguments: Namespace, *, start_seconds: float = _FIRST_HEARTBEAT_SECONDS
) -> None:
    """Raises ConfigurationError if a living worker of version 0.1 would apply weaker rules than the arguments name, or
    could not read them. Warns if it would ignore other arguments. A newer worker may take `start_seconds` to report its
    version."""
    if arguments.attach:
        return
    strict_options = ["--deny"] * bool(arguments.deny) + ["--ask"] * bool(arguments.ask)
    strict_options += [f"--allow {text!r}" for text in arguments.allow if parse_rule(text).right]
    ignored_options = [f"--{name}" for name in ("approval", "effort") if getattr(arguments, name, None)]
    if not (strict_options or ignored_options) or (worker := await _find_old_worker(jobs, start_seconds)) is None:
        return
    effect = f"would apply {', '.join(strict_options)} in part or not at all, so nothing was submitted"
    if not strict_options:
        effect = f"ignores {', '.join(ignored_options)} if it executes the run"
    text = _OLD_WORKER.format(pid=worker.owner.pid, host=worker.owner.host, effect=effect)
    if strict_options:
        raise ConfigurationError(text)
    Console().print_stderr(text, "yellow")


async def _find_old_worker(jobs: "JobClient", start_seconds: float) -> "WorkerInfo | None":
    deadline = monotonic() + start_seconds
    while True:
        old_worker = next((worker for worker in await jobs.list_workers() if worker.is_version_0_1), None)
        if old_worker is None or monotonic() > deadline:
            return old_worker
        await asyncio.sleep(0.25)


def format_usage(outcome: "RunOutcome") -> str:
    """Formats the steps, tokens and cost of an outcome."""
    cost = "cost unknown" if outcome.cost is None else format_cost(outcome.cost)
    return f"{format_count(outcome.steps, 'step')}, {format_tokens(outcome.tokens.total)} tokens, {cost}"


def format_failure(outcome: "RunOutcome | None") -> str:
    """Returns the line that states why a run failed."""
    from outrider.background.records import describe_failure

    return f"Reason: {describe_failure(outcome)}"


def print_runs(arguments: Namespace, runs: "Sequence[Run]") -> int:
    """Prints runs as a table or JSON, and returns the exit code."""
    console = Console()
    if arguments.json:
        for run in runs:
            console.print(msgspec.json.encode(run).decode())
    elif not runs:
        console.print_stderr("There are no runs yet. Submit one: outrider jobs submit 'look for dead links'")
    else:
        print_run_table(console, runs)
    return exit_codes.SUCCESS


def print_run_table(console: Console, runs: "Sequence[Run]") -> None:
    now = now_ms()
    rows = [
        (short_id(run.id), format_state(run), format_age((now - created) / 1000), str(run.attempts), run.prompt)
        for run in runs
        for created in [run.created or now]
    ]
    for line in format_table(("run", "state", "submitted", "attempts", "prompt"), rows, console.width):
        console.print(line)


def format_state(run: "Run") -> str:
    """Returns the state of a run, and what it waits for."""
    return f"{run.state}, waiting for {run.waiting_for}" if run.waiting_for else run.state


def require_background() -> None:
    """Raises ConfigurationError if the optional dependency DBOS is not installed."""
    if find_spec("dbos") is None:
        raise ConfigurationError("background runs are not installed: pip install 'outrider[background]'")
