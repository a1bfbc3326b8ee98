"""What a turn did to files: looked at, taken back, done again."""

import asyncio
from argparse import Namespace
from pathlib import Path

from outrider.cli import registry as exits
from outrider.cli.output import Console
from outrider.cli.setup import folders, modelless
from outrider.config.settings import read_settings
from outrider.engine.archive import open_archive
from outrider.engine.factory import standard_engine
from outrider.engine.undo_history import Restored

_WORDS = {
    "create": ("would be made again", "made again"),
    "change": ("would be changed back", "changed back"),
    "delete": ("would be deleted", "deleted"),
    "conflict": ("was changed by somebody else since, and would be left alone", "changed by somebody else, left alone"),
    "doubtful": ("was perhaps not changed by an agent, and would be left alone", "perhaps not an agent's, left alone"),
}


def undo(arguments: Namespace) -> int:
    return _tell(asyncio.run(_restored(arguments, "undo")), preview=arguments.preview)


def redo(arguments: Namespace) -> int:
    return _tell(asyncio.run(_restored(arguments, "redo")), preview=arguments.preview)


async def _restored(arguments: Namespace, direction: str) -> Restored:
    async with open_archive(folders().store) as archive:
        place = arguments.cwd or Path.cwd()
        found = await (archive.find(arguments.session) if arguments.session else archive.newest(place))
    workspace = Path(found.workspace_directory or place)
    settings = modelless(read_settings(cwd=workspace))
    async with standard_engine(settings, workspace=workspace, attended=False) as engine:
        changes = engine.file_changes(found.id)
        if arguments.preview:
            return await changes.preview("undo" if direction == "undo" else "redo")
        return await (changes.undo() if direction == "undo" else changes.redo())


def _tell(restored: Restored, *, preview: bool) -> int:
    console = Console()
    if restored.off:
        console.say(f"outrider: {restored.off}")
        return exits.FAILED
    for one in restored.actions:
        if one.action in _WORDS:
            console.print(f"{one.path}: {_WORDS[one.action][0 if preview else 1]}")
            if preview and one.diff:
                console.print(one.diff.rstrip("\n"), "dim")
    for path in restored.uncovered:
        console.say(f"{path}: may have been changed too, and was not kept", "yellow")
    left = restored.conflicts or restored.doubtful
    return exits.FAILED if left and not restored.changed else exits.DONE
