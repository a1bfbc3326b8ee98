"""How the commands about runs reach them, and how they tell of them."""

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.store import folders
from outrider.cli.tables import ago, table
from outrider.errors import ConfigurationError, OutriderError
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run

T = TypeVar("T")


def with_jobs(arguments: Namespace, work: "Callable[[Jobs], Awaitable[T]]") -> T:
    require()

    async def whole() -> T:
        from outrider.background.standard import standard_jobs

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
