"""A session that runs on from one of its steps with something otherwise, beside what it was."""

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Any

from outrider.cli import registry as exits
from outrider.cli.commands.run import said
from outrider.cli.output import Console
from outrider.cli.setup import folders
from outrider.config.settings import read_settings
from outrider.engine.archive import open_archive
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError
from outrider.session_replay.what_if import WhatIf, what_if


def execute(arguments: Namespace) -> int:
    found = asyncio.run(_done(arguments))
    console = Console()
    console.print(found.text())
    console.say(f"the other course is kept as session {found.session.id}")
    return exits.DONE if found.end.reason == "completed" else exits.FAILED


async def _done(arguments: Namespace) -> WhatIf:
    async with open_archive(folders().store) as archive:
        session = await archive.find(arguments.session)
    workspace = Path(session.workspace_directory or arguments.cwd or Path.cwd())
    async with standard_engine(read_settings(cwd=workspace), workspace=workspace, attended=False) as engine:
        return await what_if(engine, session.id, at_step=arguments.at_step, **_changes(arguments))


def _changes(arguments: Namespace) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in ("model", "agent"):
        if getattr(arguments, name):
            changes[name] = getattr(arguments, name)
    if arguments.instructions:
        changes["instructions"] = said(arguments.instructions)
    results = dict(_result(text) for text in arguments.result)
    return changes | ({"results": results} if results else {})


def _result(text: str) -> tuple[str, str]:
    call_id, mark, result = text.partition("=")
    if not mark or not call_id:
        raise ConfigurationError(f"{text!r} names no call; write --result CALL_ID='what it gave'")
    return call_id, result
