"""What is ordered, and when it begins: at once, later, after another run, or again and again."""

from argparse import ArgumentTypeError, Namespace
from contextlib import suppress
from datetime import datetime, timedelta
from getpass import getuser
from typing import TYPE_CHECKING

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.reaching import named, several, with_jobs
from outrider.cli.jobs.resident import ensure
from outrider.cli.options import seconds
from outrider.cli.settings import settings_of
from outrider.cli.tables import counted, table
from outrider.errors import ConfigurationError, OutriderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.app.config.settings import Settings
    from outrider.background.jobs import Jobs, Order, Place
    from outrider.background.times.schedules import Schedule


def order_of(arguments: Namespace, settings: "Settings", *, place: "Place") -> "Order":
    from outrider.background.runs import Terms

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
    from outrider.background.worktrees.worktrees import uncommitted

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
