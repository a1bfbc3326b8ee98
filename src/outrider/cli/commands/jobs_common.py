"""How the commands about runs reach them, and how they tell of them."""

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

import msgspec

from outrider.cli import registry as exits
from outrider.cli.output import Console, ago, cost_text, counted, table, tokens_text
from outrider.cli.setup import folders
from outrider.engine.archive import short_id
from outrider.errors import ConfigurationError, OutriderError
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.background.jobs import Jobs
    from outrider.background.records import Outcome, Run


T = TypeVar("T")
LEFT_ALONE = "No worker is at work. The next submit starts one, or start it here: outrider worker"


def with_jobs(arguments: Namespace, work: "Callable[[Jobs], Awaitable[T]]") -> T:
    require()

    async def whole() -> T:
        from outrider.background.factory import standard_jobs

        async with standard_jobs(folders(), arguments.database) as jobs:
            return await work(jobs)

    return asyncio.run(whole())


async def named(jobs: "Jobs", name: str) -> "Run":
    """By its id or the end of one, as it is shown."""
    found = [run for run in await jobs.list(limit=1000) if run.id.endswith(name)]
    if len(found) != 1:
        raise OutriderError(f"{several(len(found), 'run')} an id that ends with {name!r}")
    return found[0]


def several(count: int, name: str) -> str:
    return f"{count} {name}s have" if count else f"no {name} has"


async def warn_left_alone(jobs: "Jobs", runs: "Sequence[Run]") -> None:
    if await jobs.left_alone(runs):
        Console().say(LEFT_ALONE, "yellow")


def used(outcome: "Outcome") -> str:
    cost = "cost unknown" if outcome.cost is None else cost_text(outcome.cost)
    return f"{counted(outcome.steps, 'step')}, {tokens_text(outcome.tokens.total)} tokens, {cost}"


def tell(arguments: Namespace, runs: "Sequence[Run]") -> int:
    console = Console()
    if arguments.json:
        for run in runs:
            console.print(msgspec.json.encode(run).decode())
    elif not runs:
        console.say("There is no run yet. Submit one: outrider jobs submit 'look for dead links'")
    else:
        tell_rows(console, runs)
    return exits.DONE


def tell_rows(console: Console, runs: "Sequence[Run]") -> None:
    now = now_ms()
    rows = [(short_id(run.id), run.state, ago(run.created or now, now), str(run.attempts), run.prompt) for run in runs]
    for line in table(("run", "state", "submitted", "attempts", "prompt"), rows, console.width):
        console.print(line)


def require() -> None:
    if find_spec("dbos") is None:
        raise ConfigurationError("background runs are not installed: pip install 'outrider[background]'")
