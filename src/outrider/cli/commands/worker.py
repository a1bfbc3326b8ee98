"""`outrider worker`: in this terminal, or as the one that starts by itself."""

import asyncio
import os
import plistlib
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cli import registry as exits
from outrider.cli.commands.jobs_common import require
from outrider.cli.commands.run import interrupts
from outrider.cli.main import version
from outrider.cli.output import Console
from outrider.cli.setup import folders, settings_of
from outrider.config.paths import Folders
from outrider.engine.archive import short_id
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider.background.local_worker import WorkerLock
    from outrider.config.settings import Settings


NAME = "outrider-worker"
_LABEL = "dev.outrider.worker"
_KEPT = ("OUTRIDER_HOME", "PATH")  # where things lie; keys are written into a file of their own
_SYSTEMD = """\
[Unit]
Description=Outrider: runs that go on in the background

[Service]
ExecStart={command}
{environ}
EnvironmentFile=-{keys}
Restart=on-failure
RestartSec=10

[Install]
WantedBy=default.target
"""


class Unit(msgspec.Struct, frozen=True):
    """`place` is where the system looks for it, `starts` are the commands that have it start now and from then on."""

    text: str
    place: Path
    starts: tuple[str, ...]


def print_unit(arguments: Namespace, folders: Folders, environ: Mapping[str, str]) -> int:
    """The unit is printed; what to do with it is said beside it."""
    unit, console = unit_for(sys.platform, worker_command(arguments), folders, environ), Console()
    console.write(unit.text)
    console.say(f"Write this to {unit.place}, then:")
    for line in unit.starts:
        console.say(f"  {line}")
    console.say(f"Keys: lines like ANTHROPIC_API_KEY=… in {keys_of(folders)}, readable by you only.")
    return exits.DONE


def worker_command(arguments: Namespace) -> list[str]:
    given = {"--database": arguments.database, "--runs": arguments.runs}
    more = [word for name, value in given.items() if value for word in (name, str(value))]
    return [sys.executable, "-m", "outrider", "worker", *more]


def keys_of(folders: Folders) -> Path:
    return folders.config / "worker.env"


def unit_for(platform: str, command: Sequence[str], folders: Folders, environ: Mapping[str, str]) -> Unit:
    kept = {name: environ[name] for name in _KEPT if environ.get(name)}
    if platform == "darwin":
        return _launchd(command, folders, kept)
    return _systemd(command, folders, kept)


def _systemd(command: Sequence[str], folders: Folders, environ: Mapping[str, str]) -> Unit:
    text = _SYSTEMD.format(
        command=" ".join(_quoted(word).replace("$", "$$") for word in command),
        environ="\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in environ.items()),
        keys=_percent(str(keys_of(folders))),
    )
    place = folders.home / ".config" / "systemd" / "user" / f"{NAME}.service"
    return Unit(text, place, (f"systemctl --user enable --now {NAME}", "loginctl enable-linger"))


def _launchd(command: Sequence[str], folders: Folders, environ: Mapping[str, str]) -> Unit:
    """It reads no file of keys, so a shell does, and becomes the worker."""
    keys = shlex.quote(str(keys_of(folders)))
    log = str(folders.data / "worker.log")
    agent = {
        "Label": _LABEL,
        "ProgramArguments": ["/bin/sh", "-c", f"set -a; [ ! -f {keys} ] || . {keys}; exec {shlex.join(command)}"],
        "EnvironmentVariables": dict(environ),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    place = folders.home / "Library" / "LaunchAgents" / f"{_LABEL}.plist"
    text = plistlib.dumps(agent).decode()
    return Unit(text, place, (f"launchctl bootstrap gui/$(id -u) {shlex.quote(str(place))}",))


def _quoted(word: str) -> str:
    escaped = _percent(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _percent(text: str) -> str:
    """systemd puts things in place of words that begin with a percent sign."""
    return text.replace("%", "%%")


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
    from outrider.background.local_worker import WorkerLock, terms_of
    from outrider.config.paths import make_private

    settings = settings_of(arguments)
    post = WorkerLock(make_private(settings.data), terms_of(os.environ, version()) if arguments.resident else ())
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
    from outrider.background.local_worker import differs, ensure_worker, terms_of

    there = ensure_worker(folders(), os.environ)
    if there is not None and differs(there, terms_of(os.environ, version())):
        Console().say(_OTHERWISE, "yellow")


async def _work(arguments: Namespace, settings: "Settings", post: "WorkerLock | None") -> None:
    from outrider.background.factory import standard_worker
    from outrider.background.local_worker import log_of, until_idle, write_down

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
    from outrider.background.local_worker import WorkerLock, log_of

    holder, console = WorkerLock(folders().data).holder(), Console()
    if holder is None:
        console.print("There is no worker on this machine.")
        return exits.FAILED
    console.print(
        f"A worker is at work as process {holder.pid}; if it started by itself, its log is {log_of(folders())}"
    )
    return exits.DONE


def _restart(settings: "Settings") -> int:
    """With the program, the keys and the addresses of now; what it worked on goes on."""
    from outrider.background.local_worker import ensure_worker

    if settings.missing:
        raise ConfigurationError(settings.missing)
    _stop()
    ensure_worker(folders(), os.environ)
    Console().say("Another one starts.")
    return exits.DONE


def _stop() -> int:
    from outrider.background.local_worker import stop_worker

    holder = stop_worker(folders())
    Console().say(f"The worker, process {holder.pid}, has ended." if holder else "There is no worker on this machine.")
    return exits.DONE
