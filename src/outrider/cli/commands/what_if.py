"""`outrider what-if`: reruns a copy of a session from one of its steps with a change, and compares the results."""

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Any

from outrider.cli import exit_codes
from outrider.cli.commands.run import read_text_argument
from outrider.cli.output import Console
from outrider.cli.setup import user_folders
from outrider.config.settings import read_settings
from outrider.engine.archive import open_archive
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError
from outrider.session_replay.what_if import WhatIf, what_if


def run_what_if(arguments: Namespace) -> int:
    """Rerun the session, and print the comparison."""
    result = asyncio.run(_run_variant(arguments))
    console = Console()
    console.print(result.text())
    console.print_stderr(f"the variant is stored as session {result.session.id}")
    return exit_codes.SUCCESS if result.end.reason == "completed" else exit_codes.FAILURE


async def _run_variant(arguments: Namespace) -> WhatIf:
    async with open_archive(user_folders().store_file) as archive:
        session = await archive.find_session(arguments.session)
    workspace = Path(session.workspace_directory or arguments.cwd or Path.cwd())
    async with standard_engine(read_settings(cwd=workspace), workspace=workspace, attended=False) as engine:
        return await what_if(engine, session.id, at_step=arguments.at_step, **_parse_changes(arguments))


def _parse_changes(arguments: Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `what_if` from the options that were given."""
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
