"""What the commands about runs do."""

import asyncio
import signal
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.settings import settings_of
from outrider.cli.store import folders
from outrider.cli.tables import ago, cost_text, table
from outrider.errors import ConfigurationError, OutriderError
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run


def submit(arguments: Namespace) -> int:
    settings = settings_of(arguments)

    async def work(jobs: "Jobs") -> "Sequence[Run]":
        from outrider.background.jobs import Place

        return [
            await jobs.submit(
                arguments.prompt,
                workspace=str(settings.workspace),
                agent=arguments.agent or "",
                mode=arguments.mode or "background",
                limits=settings.limits,
                place=Place(priority=arguments.priority, after=arguments.after),
            )
        ]

    return _told(arguments, work)


def list_runs(arguments: Namespace) -> int:
    return _told(arguments, lambda jobs: jobs.list(limit=arguments.limit))


def show(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Sequence[Run]":
        return [await _named(jobs, arguments.run)]

    def tell(console: Console, runs: "Sequence[Run]") -> None:
        for run in runs:
            _tell(console, [run])
            outcome = run.outcome
            if outcome is not None:
                console.print(f"\n{outcome.steps} steps, {cost_text(outcome.cost)}, ended with: {outcome.reason}")
                console.print(outcome.error or outcome.output)

    return _told(arguments, work, tell)


def cancel(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Sequence[Run]":
        return [await jobs.cancel((await _named(jobs, arguments.run)).id)]

    return _told(arguments, work)


def retry(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> "Sequence[Run]":
        return [await jobs.retry((await _named(jobs, arguments.run)).id)]

    return _told(arguments, work)


def approve(arguments: Namespace) -> int:
    return _answered(arguments, allow=True)


def deny(arguments: Namespace) -> int:
    return _answered(arguments, allow=False)


def worker(arguments: Namespace) -> int:
    _require()
    settings = settings_of(arguments)

    async def work() -> None:
        from outrider.background.standard import standard_worker

        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with standard_worker(settings, arguments.database, at_once=arguments.at_once) as one:
            Console().say(f"The worker {short_id(one.id)} waits for runs; Ctrl+C ends it and gives them back.")
            await stop.wait()

    asyncio.run(work())
    return exits.DONE


def _answered(arguments: Namespace, *, allow: bool) -> int:
    async def work(jobs: "Jobs") -> "Sequence[Run]":
        run = await _named(jobs, arguments.run)
        questions = await jobs.approvals(run.id)
        if not questions:
            raise OutriderError(f"the run {short_id(run.id)} waits for no answer")
        for question in questions:
            Console().say(
                f"{'yes' if allow else 'no'} to {question.tool} {msgspec.json.encode(question.input).decode()}"
            )
            await jobs.approve(question.id, allow=allow, by="the command line")
        return [run]

    return _told(arguments, work)


async def _named(jobs: "Jobs", name: str) -> "Run":
    """By its id or the end of one, as it is shown."""
    found = [run for run in await jobs.list(limit=1000) if run.id.endswith(name)]
    if len(found) != 1:
        raise OutriderError(f"{len(found) or 'no'} runs have an id that ends with {name!r}")
    return found[0]


def _told(
    arguments: Namespace,
    work: "Callable[[Jobs], Awaitable[Sequence[Run]]]",
    tell: "Callable[[Console, Sequence[Run]], None] | None" = None,
) -> int:
    _require()

    async def whole() -> "Sequence[Run]":
        from outrider.background.standard import standard_jobs

        async with standard_jobs(folders(), arguments.database) as jobs:
            return await work(jobs)

    console, runs = Console(), asyncio.run(whole())
    if arguments.json:
        for run in runs:
            console.print(msgspec.json.encode(run).decode())
    elif not runs:
        console.say("There is no run yet. Submit one: outrider jobs submit 'look for dead links'")
    else:
        (tell or _tell)(console, runs)
    return exits.DONE


def _tell(console: Console, runs: "Sequence[Run]") -> None:
    now = now_ms()
    rows = [(short_id(run.id), run.state, ago(run.created or now, now), str(run.attempts), run.prompt) for run in runs]
    for line in table(("run", "state", "submitted", "attempts", "prompt"), rows, console.width):
        console.print(line)


def _require() -> None:
    if find_spec("dbos") is None:
        raise ConfigurationError("background runs are not installed: pip install 'outrider[background]'")
