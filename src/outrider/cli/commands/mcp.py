"""`outrider mcp add, list, test, login, logout, remove, import`: your MCP servers."""

import asyncio
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from outrider.cli import exit_codes
from outrider.cli.output import Console, format_table
from outrider.config.settings import Settings, read_settings
from outrider.engine import mcp_servers
from outrider.errors import ConfigurationError
from outrider.presentation.formats import format_count

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def list_servers(arguments: Namespace) -> int:
    """Prints the configured servers, and why others are not used."""
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    servers, notices = mcp_servers.list_configured(settings)
    if arguments.json:
        for server in servers:
            console.print(msgspec.json.encode(server).decode())
    elif servers:
        heads = ("name", "address", "configured by", "login")
        for line in format_table(heads, [msgspec.structs.astuple(server) for server in servers], console.width):
            console.print(line)
    for notice in (*settings.notices, *notices):
        console.print_stderr(f"outrider: {notice}", "yellow")
    if not servers and not arguments.json:
        console.print_stderr("There are no MCP servers. Add one: outrider mcp add NAME -- COMMAND, or --url URL")
    return exit_codes.SUCCESS


def add_server(arguments: Namespace) -> int:
    """Adds a server to your file, or to the `.mcp.json` of the folder."""
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    file = _target_file(settings, arguments)
    if not _NAME.fullmatch(arguments.name):
        raise ConfigurationError(f"{arguments.name!r} is not a name of a server: use letters, digits, '-', '_' and '.'")
    entry = _entry_from_arguments(arguments)
    mcp_servers.add_entry(file, arguments.name, entry, settings.environ, replace=arguments.force)
    console.print_stderr(f"{arguments.name} was added to {file}")
    if arguments.project:
        console.print_stderr("It is started after `outrider trust`, which shows it for approval.")
    console.print_stderr(f"Try it: outrider mcp test {arguments.name}")
    return exit_codes.SUCCESS


def remove_server(arguments: Namespace) -> int:
    """Removes a server from your file or from the `.mcp.json` of the folder, and its stored login."""
    settings = read_settings(cwd=arguments.cwd)
    file = _target_file(settings, arguments)
    revocation = asyncio.run(mcp_servers.remove_entry(settings, file, arguments.name))
    console = Console()
    console.print_stderr(f"{arguments.name} was removed from {file}")
    if revocation is not None:
        console.print_stderr(f"Its login was deleted; {revocation.text}.")
    return exit_codes.SUCCESS


def import_servers(arguments: Namespace) -> int:
    """Adds the servers of other tools' configuration files to your file."""
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    lines = mcp_servers.import_servers(settings, arguments.file or "", dry_run=arguments.dry_run)
    for line in lines:
        console.print_stderr(line)
    if not lines:
        console.print_stderr("No MCP servers were found in the configuration files of other tools.")
    return exit_codes.SUCCESS if lines else exit_codes.FAILURE


def test_server(arguments: Namespace) -> int:
    """Connects to one server or all, and prints what they offer."""
    return asyncio.run(_print_reports(Console(), read_settings(cwd=arguments.cwd), arguments.name))


def log_in(arguments: Namespace) -> int:
    """Logs in to a server in the browser and stores the login."""
    console, settings = Console(), read_settings(cwd=arguments.cwd)

    async def show(url: str) -> None:
        console.print_stderr(f"Log in to {arguments.name} in your browser:\n\n  {url}\n")
        if not arguments.no_browser:
            import webbrowser

            await asyncio.to_thread(webbrowser.open, url)

    if asyncio.run(mcp_servers.log_in(settings, arguments.name, show)):
        console.print_stderr(f"You are logged in to {arguments.name}.", "green")
    else:
        console.print_stderr(f"{arguments.name} needs no login.")
    return exit_codes.SUCCESS


def log_out(arguments: Namespace) -> int:
    """Deletes the stored login of a server and revokes its tokens."""
    revocation = asyncio.run(mcp_servers.log_out(read_settings(cwd=arguments.cwd), arguments.name))
    Console().print_stderr(
        f"The login for {arguments.name} was deleted; {revocation.text}."
        if revocation is not None
        else f"There is no login for {arguments.name}."
    )
    return exit_codes.SUCCESS


async def _print_reports(console: Console, settings: Settings, name: str) -> int:
    failed = False
    async for report in mcp_servers.try_servers(settings, name):
        if report.error:
            failed = True
            console.print_stderr(f"✗ {report.name}: {report.error}", "red")
            continue
        console.print(f"✓ {report.name}: {format_count(len(report.tools), 'tool')}", "green")
        for tool, description in report.tools:
            summary = (description.strip().splitlines() or [""])[0]
            console.print(f"    {tool}  {summary}"[: console.width])
        for kind, names in (("prompts", report.prompts), ("resources", report.resources)):
            if names:
                console.print(f"    {kind}: {', '.join(names[:20])}")
    return exit_codes.FAILURE if failed else exit_codes.SUCCESS


def _target_file(settings: Settings, arguments: Namespace) -> Path:
    return mcp_servers.project_file(settings.workspace) if arguments.project else settings.folders.servers_file


def _entry_from_arguments(arguments: Namespace) -> dict[str, Any]:
    command = list(arguments.command)
    if bool(command) == bool(arguments.url):
        raise ConfigurationError("give either a command after --, or --url")
    for flag, is_given, target in (
        ("--env", bool(arguments.env and arguments.url), "a server with a URL"),
        ("--header", bool(arguments.header and command), "a command"),
        ("--sse", bool(arguments.sse and command), "a command"),
    ):
        if is_given:
            raise ConfigurationError(f"{flag} has no effect for {target}")
    if arguments.url:
        entry: dict[str, Any] = {"type": "sse" if arguments.sse else "http", "url": arguments.url}
        if arguments.header:
            entry["headers"] = dict(_parse_pairs(arguments.header, ":", "--header"))
        return entry
    entry = {"command": command[0], "args": command[1:]}
    if arguments.env:
        entry["env"] = dict(_parse_pairs(arguments.env, "=", "--env"))
    return entry


def _parse_pairs(values: list[str], separator: str, flag: str) -> Iterator[tuple[str, str]]:
    for value in values:
        name, separator_found, text = value.partition(separator)
        if not separator_found or not name.strip():
            raise ConfigurationError(f"{flag} {value!r}: expected NAME{separator}VALUE")
        yield name.strip(), text.strip()
