"""What has the system start a worker with the user's session: a unit of systemd, or an agent of launchd."""

import plistlib
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from outrider.app.config.folders import Folders
from outrider.cli import exits
from outrider.cli.console import Console

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
