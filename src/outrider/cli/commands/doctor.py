"""`outrider doctor`: checks versions, folders, store, settings, providers, tools and terminal."""

import asyncio
import os
from argparse import Namespace
from collections.abc import Iterator

import msgspec

from outrider.cli import exit_codes
from outrider.cli.main import program_version
from outrider.cli.output import Console
from outrider.cli.parser import import_object
from outrider.cli.setup import user_folders
from outrider.config.settings import Settings, read_settings
from outrider.engine import diagnostics as health
from outrider.engine.diagnostics import DiagnosticFinding, check_network
from outrider.errors import OutriderError

_STATUS_MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red")}


def run_doctor(arguments: Namespace) -> int:
    """Prints the findings, as text or JSON; the exit code is FAILURE if any finding is a problem."""
    console, healthy = Console(), True
    for finding in _run_checks(arguments, console):
        healthy = healthy and finding.status != "problem"
        if arguments.json:
            console.print(msgspec.json.encode(finding).decode())
            continue
        mark, style = _STATUS_MARKS[finding.status]
        console.print(f"{mark} {finding.name}: {finding.says}", "" if finding.status == "ok" else style)
        for line in finding.remedy.splitlines():
            console.print(f"    {line}")
    return exit_codes.SUCCESS if healthy else exit_codes.FAILURE


def _run_checks(arguments: Namespace, console: Console) -> Iterator[DiagnosticFinding]:
    """Yields findings one by one, so that the user sees progress. Invalid settings skip the checks that need them."""
    yield from health.check_versions(program_version())
    yield from health.check_folders(user_folders())
    yield from health.check_store(user_folders().store_file, repair=arguments.repair, compact=arguments.compact)
    if arguments.compact:
        yield from _delete_unused_outputs()
    yield from _check_runs(repair=arguments.repair)
    try:
        settings = read_settings(cwd=arguments.cwd)
    except OutriderError as error:
        yield DiagnosticFinding(
            "settings", "problem", str(error), "fix the file; `outrider config path` prints its path"
        )
    else:
        yield from health.check_providers(settings)
        tools = list(health.check_tools(settings, os.environ))
        yield from tools
        yield from _check_operators(settings, tools)
        yield from health.check_hooks(settings)
        yield from _check_servers(settings)
        yield from asyncio.run(_check_providers(settings)) if arguments.network else ()
    yield _check_terminal(console)


def _check_operators(settings: Settings, tools: list[DiagnosticFinding]) -> Iterator[DiagnosticFinding]:
    """Reports that operators of the server of this data folder can run no commands, because it has no sandbox."""
    path = settings.data_folder / "server" / "users.json"
    if not path.exists():
        return
    directory = import_object("outrider.server.users:UserDirectory")(path)
    if directory.declined_sandbox:
        why, remedy = "the server was started with --no-sandbox", "start it without --no-sandbox"
    elif not settings.sandbox.image and any(tool.name == "sandbox" and tool.status == "problem" for tool in tools):
        why, remedy = "there is no sandbox", "make the sandbox work; docs/deploy.md has the options for containers"
    else:
        return
    try:
        has_operators = directory.has_operators
    except OutriderError as error:
        yield DiagnosticFinding("server", "problem", str(error))
        return
    if has_operators:
        yield DiagnosticFinding("server", "problem", f"commands of operators are denied: {why}", remedy)


def _check_servers(settings: Settings) -> list[DiagnosticFinding]:
    try:
        return asyncio.run(health.check_servers(settings))
    except OutriderError as error:
        return [DiagnosticFinding("MCP servers", "problem", str(error))]


def _delete_unused_outputs() -> Iterator[DiagnosticFinding]:
    from outrider.engine.archive import delete_unused_outputs

    path = user_folders().store_file
    try:
        count = asyncio.run(delete_unused_outputs(path)) if path.exists() else 0
    except OutriderError:
        return  # the check of the store reports it
    yield DiagnosticFinding("outputs", "ok", f"{count:,} stored outputs of no session were deleted")


def _check_runs(*, repair: bool) -> Iterator[DiagnosticFinding]:
    """Checks the runs database. A file that a worker has open is not moved: it would continue to write to it."""
    findings = list(health.check_runs(user_folders().runs_file))
    if repair and any(finding.status == "problem" for finding in findings):
        from outrider.background.local_worker import WorkerLock  # lazy: it imports DBOS

        if WorkerLock(user_folders().data).holder() is None:
            findings = list(health.check_runs(user_folders().runs_file, repair=True))
    yield from findings


async def _check_providers(settings: Settings) -> list[DiagnosticFinding]:
    """Requests the model list of every provider concurrently."""
    async with asyncio.TaskGroup() as tasks:
        checks = [tasks.create_task(check_network(provider)) for provider in settings.providers]
    return [task.result() for task in checks]


def _check_terminal(console: Console) -> DiagnosticFinding:
    encoding = (console.out.encoding or "").lower()
    if encoding not in ("utf-8", "utf8"):
        return DiagnosticFinding(
            "terminal", "note", f"its encoding is {encoding}", "set LANG to a UTF-8 locale, such as C.UTF-8"
        )
    if not console.out_is_terminal:
        return DiagnosticFinding("terminal", "ok", "stdout is not a terminal")
    colours = "without colors" if console.is_plain else "with colors"
    return DiagnosticFinding("terminal", "ok", f"{console.width} columns, {colours}")
