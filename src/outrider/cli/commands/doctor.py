"""Everything that has to be in order, looked at."""

import asyncio
import os
from argparse import Namespace
from collections.abc import Iterator

import msgspec

from outrider.cli import registry as exits
from outrider.cli.main import version
from outrider.cli.output import Console
from outrider.cli.setup import folders
from outrider.config.settings import Settings, read_settings
from outrider.engine import diagnostics as health
from outrider.engine.diagnostics import Finding, reached
from outrider.errors import OutriderError

_MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red")}


def execute(arguments: Namespace) -> int:
    console, healthy = Console(), True
    for finding in _findings(arguments, console):
        healthy = healthy and finding.status != "problem"
        if arguments.json:
            console.print(msgspec.json.encode(finding).decode())
            continue
        mark, style = _MARKS[finding.status]
        console.print(f"{mark} {finding.name}: {finding.says}", "" if finding.status == "ok" else style)
        for line in finding.remedy.splitlines():
            console.print(f"    {line}")
    return exits.DONE if healthy else exits.FAILED


def _findings(arguments: Namespace, console: Console) -> Iterator[Finding]:
    yield from health.versions(version())
    yield from health.places(folders())
    yield from health.store(folders().store, repair=arguments.repair, compact=arguments.compact)
    try:
        settings = read_settings(cwd=arguments.cwd)
    except OutriderError as error:
        yield Finding("settings", "problem", str(error), "mend the file, or see `outrider config path`")
    else:
        yield from health.providers(settings)
        yield from health.tools(settings, os.environ)
        yield from asyncio.run(_network(settings)) if arguments.network else ()
    yield _terminal(console)


async def _network(settings: Settings) -> list[Finding]:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(reached(provider)) for provider in settings.providers]
    return [task.result() for task in asked]


def _terminal(console: Console) -> Finding:
    encoding = (console.out.encoding or "").lower()
    if encoding not in ("utf-8", "utf8"):
        return Finding("terminal", "note", f"it takes {encoding}", "set LANG to a UTF-8 locale, such as C.UTF-8")
    if not console.out_is_terminal:
        return Finding("terminal", "ok", "stdout is not a terminal now")
    colours = "without colours" if console.is_plain else "with colours"
    return Finding("terminal", "ok", f"{console.width} columns, {colours}")
