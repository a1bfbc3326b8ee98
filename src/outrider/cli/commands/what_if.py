"""`outrider what-if`, `replay` and `compare`: run sessions again, with or without a change, and compare the results."""

import asyncio
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from outrider.cli import exit_codes
from outrider.cli.commands.run import read_text_argument
from outrider.cli.output import Console
from outrider.cli.parser import add_cwd_option, format_examples
from outrider.cli.setup import user_folders
from outrider.config.settings import CommandFlags, read_settings
from outrider.engine.archive import open_archive
from outrider.engine.factory import CASSETTES, standard_engine
from outrider.errors import ConfigurationError
from outrider.session_replay.recorded_session import Replay, load_session
from outrider.session_replay.replay import find_cassette, replay
from outrider.session_replay.what_if import Comparison, WhatIf, compare, what_if


def run_what_if(arguments: Namespace) -> int:
    """Reruns the session, and prints the comparison."""
    result = asyncio.run(_run_variant(arguments))
    console = Console()
    console.print(result.text())
    console.print_stderr(f"the variant is stored as session {result.session.id}")
    return exit_codes.SUCCESS if result.end.reason == "completed" else exit_codes.FAILURE


async def _run_variant(arguments: Namespace) -> WhatIf:
    async with open_archive(user_folders().store_file) as archive:
        session = await archive.find_session(arguments.session)
    workspace = Path(session.workspace_directory or arguments.cwd or Path.cwd())
    model = arguments.model if "/" in (arguments.model or "") else None
    settings = read_settings(cwd=workspace, flags=CommandFlags(model=model))
    if model and settings.missing:
        raise ConfigurationError(settings.missing)
    async with standard_engine(settings, workspace=workspace, attended=False) as engine:
        return await what_if(engine, session.id, at_step=arguments.at_step, **_parse_changes(arguments))


def _parse_changes(arguments: Namespace) -> dict[str, Any]:
    """Returns the keyword arguments of `what_if` from the options that were given."""
    changes: dict[str, Any] = {}
    for name in ("model", "agent"):
        if getattr(arguments, name):
            changes[name] = getattr(arguments, name)
    if arguments.instructions:
        changes["instructions"] = read_text_argument(arguments.instructions)
    results = dict(_parse_result(text) for text in arguments.result)
    return changes | ({"results": results} if results else {})


def _parse_result(text: str) -> tuple[str, str]:
    call_id, mark, result = text.partition("=")
    if not mark or not call_id:
        raise ConfigurationError(f"{text!r} has no call id; pass --result CALL_ID='the new result'")
    return call_id, result


def declare_replay(parser: ArgumentParser) -> None:
    """Declares the arguments of `outrider replay`."""
    parser.description = (
        "Run a recorded session again, offline: the current agents, prompts and tools get the recorded answers of the\n"
        "model and the recorded results. Prints each step and what differs; the exit code is 1 if anything does.\n"
        "Sessions are recorded with `[recording] enabled = true` in the configuration file."
    )
    parser.epilog = format_examples(
        "outrider replay last",
        "outrider replay 1a2b3c4d --ignore system     # the instructions may differ",
        "outrider replay last --fresh-results          # run the tools again",
    )
    add_cwd_option(parser)
    parser.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
    parser.add_argument("--cassette", metavar="FILE", type=Path, help="the recording (default: the one of the session)")
    parser.add_argument(
        "--ignore", metavar="FIELD", action="append", default=[], help="a field of requests that may differ"
    )
    parser.add_argument("--fresh-results", action="store_true", help="run the tools instead of using recorded results")
    parser.set_defaults(execute="outrider.cli.commands.what_if:run_replay")


def declare_compare(parser: ArgumentParser) -> None:
    """Declares the arguments of `outrider compare`."""
    parser.description = (
        "Compare two sessions after the last message that they share: answer, steps, calls, tokens, cost and time.\n"
        "The exit code is 1 if the answers or the calls differ."
    )
    parser.epilog = format_examples("outrider compare 1a2b3c4d last")
    parser.add_argument("first", metavar="SESSION", help="an id, the end of one, or `last`")
    parser.add_argument("second", metavar="SESSION", help="another one")
    parser.set_defaults(execute="outrider.cli.commands.what_if:run_compare")


def run_replay(arguments: Namespace) -> int:
    """Replays the session, and prints what differs."""
    result = asyncio.run(_replay_session(arguments))
    Console().print(result.text())
    return exit_codes.SUCCESS if result.same else exit_codes.FAILURE


async def _replay_session(arguments: Namespace) -> Replay:
    async with open_archive(user_folders().store_file) as archive:
        session = await archive.find_session(arguments.session)
    workspace = Path(session.workspace_directory or arguments.cwd or Path.cwd())
    settings = read_settings(cwd=workspace)
    cassette = arguments.cassette or find_cassette(settings.data_folder / CASSETTES, session.id)
    async with standard_engine(settings, workspace=workspace, attended=False) as engine:
        return await replay(
            engine, session.id, cassette=cassette, fresh_results=arguments.fresh_results, ignore=arguments.ignore
        )


def run_compare(arguments: Namespace) -> int:
    """Compares two sessions, and prints the table."""
    result = asyncio.run(_compare_sessions(arguments))
    Console().print(result.text())
    return exit_codes.SUCCESS if result.same else exit_codes.FAILURE


async def _compare_sessions(arguments: Namespace) -> Comparison:
    async with open_archive(user_folders().store_file) as archive:
        pair = [await archive.find_session(name) for name in (arguments.first, arguments.second)]
        first, second = [await load_session(archive.store, session.id) for session in pair]
    return compare(first, second)
