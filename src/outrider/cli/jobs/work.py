"""What the commands do that submit runs and order them about."""

from argparse import Namespace
from typing import TYPE_CHECKING

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.following import follow
from outrider.cli.jobs.reaching import named, tell, warn_left_alone, with_jobs
from outrider.cli.jobs.resident import ensure
from outrider.cli.jobs.timing import order_of, place_of, warn_of_questions, warn_of_what_is_missing
from outrider.cli.settings import settings_of
from outrider.errors import OutriderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run


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
