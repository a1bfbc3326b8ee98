"""`outrider undo` and `redo`: preview, revert or reapply the file changes of a turn."""

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli import exit_codes
from outrider.cli.output import Console
from outrider.cli.setup import attached_engine, user_folders, without_models
from outrider.config.settings import read_settings
from outrider.engine.archive import LAST_SESSION, open_archive
from outrider.engine.factory import standard_engine
from outrider.engine.undo_history import RestoreResult
from outrider.presentation.diffs import git_folder_of, group_git_files
from outrider.presentation.item_views import NO_BACKUP, restore_text

if TYPE_CHECKING:
    from outrider.engine.undo_history import FileChanges
    from outrider.remote.engine import RemoteFileChanges


def undo_turn(arguments: Namespace) -> int:
    return _print_actions(asyncio.run(_restore_files(arguments, "undo")), preview=arguments.preview)


def redo_turn(arguments: Namespace) -> int:
    return _print_actions(asyncio.run(_restore_files(arguments, "redo")), preview=arguments.preview)


async def _restore_files(arguments: Namespace, direction: str) -> RestoreResult:
    """Opens the session with an engine without models, and previews or performs the undo or redo. With `--attach`, the
    server does this."""
    if arguments.attach:
        return await _restore_attached(arguments, direction)
    async with open_archive(user_folders().store_file) as archive:
        folder = arguments.cwd or Path.cwd()
        session = await (archive.find_session(arguments.session) if arguments.session else archive.find_newest(folder))
    workspace = Path(session.workspace_directory or folder)
    settings = without_models(read_settings(cwd=workspace))
    async with standard_engine(settings, workspace=workspace, attended=False) as engine:
        return await _restore_changes(engine.file_changes(session.id), direction, preview=arguments.preview)


async def _restore_attached(arguments: Namespace, direction: str) -> RestoreResult:
    """Restores files of the server's machine. Without `--session`, the last used session of the server is meant."""
    from outrider.remote.engine import RemoteArchive  # lazy: most users undo on this machine

    async with attached_engine(arguments) as engine:
        session = await RemoteArchive(engine.client).find_session(arguments.session or LAST_SESSION)
        return await _restore_changes(engine.file_changes(session.id), direction, preview=arguments.preview)


async def _restore_changes(
    changes: "FileChanges | RemoteFileChanges", direction: str, *, preview: bool
) -> RestoreResult:
    if preview:
        return await changes.preview("undo" if direction == "undo" else "redo")
    return await (changes.undo() if direction == "undo" else changes.redo())


def _print_actions(restored: RestoreResult, *, preview: bool) -> int:
    """Prints the action for each file; the exit code is FAILURE if every file was skipped."""
    console = Console()
    if restored.off:
        console.print_stderr(f"outrider: {restored.off}")
        return exit_codes.FAILURE
    git_files: dict[str, list[str]] = {}
    for action in restored.actions:
        text = restore_text(action, preview=preview)
        if not text:
            continue
        if git_folder_of(action.path):
            git_files.setdefault(text, []).append(action.path)
            continue
        console.print(f"{action.path}: {text}")
        if preview and action.diff:
            console.print(action.diff.rstrip("\n"), "dim")
    for text, paths in git_files.items():
        for group in group_git_files(paths):
            console.print(f"{group}: {text}")
    for path in restored.uncovered:
        console.print_stderr(f"{path}: {NO_BACKUP}", "yellow")
    skipped = restored.conflicts or restored.doubtful
    return exit_codes.FAILURE if skipped and not restored.changed else exit_codes.SUCCESS
