"""`outrider jobs logs` and `follow`: what a run and the agents that it calls have said and done, and what they do."""

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.printing import JsonPrinter, TextPrinter
from outrider.cli.jobs.reaching import LEFT_ALONE, named, with_jobs
from outrider.cli.jobs.ringing import ring

if TYPE_CHECKING:
    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run

_CODES = {"done": exits.DONE, "canceled": exits.INTERRUPTED, "waiting": exits.NOT_APPROVED}


def logs(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> int:
        from outrider.background.following.follow import so_far

        run = await named(jobs, arguments.run)
        printer = _printer(arguments)
        async with aclosing(so_far(jobs, run.id, after=arguments.after)) as changes:
            async for change in changes:
                printer.change(change)
        printer.end()
        return exits.DONE

    return with_jobs(arguments, work)


def follow(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> int:
        return await follow_run(arguments, jobs, (await named(jobs, arguments.run)).id)

    try:
        return with_jobs(arguments, work)
    except KeyboardInterrupt:
        Console().say("\nThe run goes on; this was only a look at it.")
        return exits.INTERRUPTED


async def follow_run(arguments: Namespace, jobs: "Jobs", run_id: str) -> int:
    """Until the run is over; its exit code is what the run came to."""
    from outrider.background.following.follow import follow as followed
    from outrider.background.runs import Run

    printer, run = _printer(arguments), None
    news = aclosing(followed(jobs, run_id, after=getattr(arguments, "after", 0), called=True))
    async with _told_if_left_alone(jobs, run_id), news as changes:
        async for new in changes:
            if not isinstance(new, Run):
                printer.change(new)
            elif not (run := new).is_over:
                printer.run(run)
    if run is None:
        return exits.FAILED
    printer.run(run)  # the last word, after what was kept until then
    ring(f"{run.state}: {run.prompt}")
    return _CODES.get(run.state, _failed(run))


@asynccontextmanager
async def _told_if_left_alone(jobs: "Jobs", run_id: str) -> AsyncGenerator[None]:
    from outrider.background.following.follow import until_left_alone

    async def tell() -> None:
        await until_left_alone(jobs, run_id)
        Console().say(LEFT_ALONE, "yellow")

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


def _failed(run: "Run") -> int:
    return exits.LIMIT if run.outcome and run.outcome.reason == "limit" else exits.FAILED


def _printer(arguments: Namespace) -> JsonPrinter | TextPrinter:
    return JsonPrinter() if arguments.json else TextPrinter()
