"""`outrider worker`: in this terminal, or as the one that starts by itself."""

import asyncio
import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.reaching import require
from outrider.cli.jobs.units import print_unit
from outrider.cli.main import version
from outrider.cli.run.interrupts import interrupts
from outrider.cli.settings import settings_of
from outrider.cli.store import folders
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider.app.config.settings import Settings
    from outrider.background.resident.post import Post

_OTHERWISE = """\
The worker that is at work was started by another version, or with other keys, addresses or OUTRIDER_ variables than are
set here. To have these count: outrider worker --restart"""


def worker(arguments: Namespace) -> int:
    require()
    if arguments.status:
        return _status()
    if arguments.stop:
        return _stop()
    if arguments.restart:
        return _restart(settings_of(arguments))
    if arguments.print_unit:
        return print_unit(arguments, folders(), os.environ)
    from outrider.app.config.folders import make_private
    from outrider.background.resident.post import Post
    from outrider.background.resident.starting import terms_of

    settings = settings_of(arguments)
    post = Post(make_private(settings.data), terms_of(os.environ, version()) if arguments.resident else ())
    taken = arguments.database is None and post.take()
    if arguments.resident and not taken:
        return exits.DONE
    asyncio.run(_work(arguments, settings, post if taken else None))
    return exits.DONE


def ensure(arguments: Namespace, settings: "Settings | None" = None) -> None:
    """See to it that somebody works on what was submitted here. Those who share a server have workers of their own."""
    if not arguments.worker or arguments.database:
        return
    if settings is not None and settings.missing:
        Console().say(f"No worker was started: {settings.missing}")
        return
    from outrider.background.resident.post import differs
    from outrider.background.resident.starting import ensure_worker, terms_of

    there = ensure_worker(folders(), os.environ)
    if there is not None and differs(there, terms_of(os.environ, version())):
        Console().say(_OTHERWISE, "yellow")


async def _work(arguments: Namespace, settings: "Settings", post: "Post | None") -> None:
    from outrider.background.resident.idling import until_idle
    from outrider.background.resident.log import log_of, write_down
    from outrider.background.standard import standard_worker

    write_down(sys.stderr)
    with interrupts() as heard:
        async with standard_worker(settings, arguments.database, runs=arguments.runs) as one:
            how = "it ends when there is nothing left" if arguments.resident else "Ctrl+C ends it and gives them back"
            Console().say(f"The worker {short_id(one.id)} waits for runs; {how}.")
            endings: list[asyncio.Task[Any]] = [asyncio.create_task(heard.wanted.wait())]
            if arguments.resident and post is not None:
                idle = until_idle(one.jobs, post, seconds=arguments.idle, log=log_of(settings.folders))
                endings.append(asyncio.create_task(idle))
            await _first(endings)
            if heard.wanted.is_set():
                Console().say("It gives its runs back and ends; Ctrl+C again ends it at once.")
        if post is not None:
            post.leave()


async def _first(endings: list[asyncio.Task[Any]]) -> None:
    _, rest = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
    for ending in rest:
        ending.cancel()
    if rest:
        await asyncio.wait(rest)


def _status() -> int:
    from outrider.background.resident.log import log_of
    from outrider.background.resident.post import Post

    holder, console = Post(folders().data).holder(), Console()
    if holder is None:
        console.print("There is no worker on this machine.")
        return exits.FAILED
    console.print(
        f"A worker is at work as process {holder.pid}; if it started by itself, its log is {log_of(folders())}"
    )
    return exits.DONE


def _restart(settings: "Settings") -> int:
    """With the program, the keys and the addresses of now; what it worked on goes on."""
    from outrider.background.resident.starting import ensure_worker

    if settings.missing:
        raise ConfigurationError(settings.missing)
    _stop()
    ensure_worker(folders(), os.environ)
    Console().say("Another one starts.")
    return exits.DONE


def _stop() -> int:
    from outrider.background.resident.starting import stop_worker

    holder = stop_worker(folders())
    Console().say(f"The worker, process {holder.pid}, has ended." if holder else "There is no worker on this machine.")
    return exits.DONE
