"""Folders and files of the server's machine for front ends: a bounded view of a workspace, and the choice of one.

Secret files and files that a rule hides from the agent are not shown."""

import asyncio
import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from outrider.engine.engine import Engine
from outrider.errors import ToolFailure
from outrider.permissions import reasons
from outrider.permissions.paths.protected import find_protected_name
from outrider.permissions.redaction.terminal import is_fully_visible
from outrider.permissions.rules import DeniedReads
from outrider.tools.workspace_files import ReadBounds, WorkspaceFiles, read_lines

MAX_ENTRIES = 2_000
MAX_SCANNED = 20_000
SHOWN_LINES = ReadBounds(lines=5_000, characters=400_000)


class FolderEntry(msgspec.Struct, frozen=True):
    """An entry of a folder. `hidden` entries cannot be opened: they hold secrets, or a rule forbids reading them."""

    name: str
    kind: Literal["folder", "file", "link"]
    size: int = 0
    hidden: bool = False


class FolderListing(msgspec.Struct, frozen=True):
    """The entries of a folder, folders first. With `truncated` there are more."""

    path: str
    entries: tuple[FolderEntry, ...]
    truncated: bool = False


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file.

    - `path`: the path in the workspace.
    - `size`: the size of the file in bytes.
    - `text`: the lines from `first` on.
    - `first`: the number of the first line in `text`.
    - `total`: the number of lines in the file, if known.
    - `truncated`: whether the file has more lines.
    - `note`: why the text is not shown.
    """

    path: str
    size: int
    text: str = ""
    first: int = 1
    total: int | None = None
    truncated: bool = False
    note: str = ""


class FolderChoice(msgspec.Struct, frozen=True):
    """A folder that may become a workspace, with the folders in it and the one above it."""

    path: str
    parent: str
    folders: tuple[str, ...]
    truncated: bool = False


async def list_workspace_folder(engine: Engine, session_id: str, folder: str = "") -> FolderListing:
    """Returns the entries of a folder of the session's workspace. Raises ToolFailure for a folder outside of it."""
    files = await _open_files(engine, session_id)
    return await asyncio.to_thread(_list_folder, files, folder or ".")


async def read_workspace_file(engine: Engine, session_id: str, path: str, first: int = 1) -> FileView:
    """Returns the lines of a file from `first` on. Raises ToolFailure for a file that may not be read."""
    files = await _open_files(engine, session_id)
    return engine.redact(await asyncio.to_thread(_read_file, files, path, first))


async def list_folder_choices(path: str) -> FolderChoice:
    """Returns the folders in a folder, without hidden ones. Raises LookupError if the path is not a folder."""
    return await asyncio.to_thread(_list_choices, path or "~")


async def _open_files(engine: Engine, session_id: str) -> WorkspaceFiles:
    session = await engine.store.get(session_id)
    workspace = Path(session.workspace_directory or ".")
    agent = engine.runtime.find_agent(session.agent if session.agent in engine.runtime.spec.agents else "")
    denied = DeniedReads((*engine.runtime.rules.deny, *agent.permissions.get("deny", ())), workspace)
    data, limits = engine.runtime.data, engine.runtime.find_limits(session)

    def is_denied(real_path: str) -> bool:
        return denied.includes(real_path) or (limits is not None and limits.hides(real_path, files.root))

    private = [data] if data else ()
    files = await asyncio.to_thread(lambda: WorkspaceFiles(workspace, private=private, is_denied=is_denied))
    if limits is not None and limits.has_left(str(workspace), files.root):
        raise ToolFailure(reasons.OWNER_LEFT)
    return files


def _list_folder(files: WorkspaceFiles, folder: str) -> FolderListing:
    location = files.locate(folder, "list")
    with files.open_folder(location) as descriptor, os.scandir(descriptor) as scanned:
        visible = [entry for entry in islice(scanned, MAX_SCANNED) if is_fully_visible(entry.name)]
        visible.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name))
        entries = tuple(_describe_entry(files, location.parts, entry) for entry in visible[:MAX_ENTRIES])
    return FolderListing("/".join(location.parts), entries, truncated=len(visible) > MAX_ENTRIES)


def _describe_entry(files: WorkspaceFiles, parents: list[str], entry: "os.DirEntry[str]") -> FolderEntry:
    parts = [*parents, entry.name]
    hidden = find_protected_name(parts, "read") is not None or files.is_denied("/".join([files.root, *parts]))
    if entry.is_symlink():
        return FolderEntry(entry.name, "link", hidden=hidden)
    if entry.is_dir():
        return FolderEntry(entry.name, "folder", hidden=hidden)
    size = 0
    with suppress(OSError):
        size = entry.stat(follow_symlinks=False).st_size
    return FolderEntry(entry.name, "file", size, hidden=hidden)


def _read_file(files: WorkspaceFiles, path: str, first: int) -> FileView:
    location = files.locate(path, "read")
    if location.base != files.root:
        raise ToolFailure(f"{location.display}: it is not in the workspace")
    with files.open(location) as file:
        size = os.fstat(file.fileno()).st_size
        excerpt = read_lines(file, first, SHOWN_LINES)
    shown_path = "/".join(location.parts)
    if excerpt is None:
        return FileView(path=shown_path, size=size, note="not a text")
    text = "\n".join(excerpt.lines).encode("utf-8", "replace").decode()
    return FileView(
        path=shown_path, size=size, text=text, first=first, total=excerpt.total, truncated=excerpt.truncated
    )


def _list_choices(path: str) -> FolderChoice:
    folder = Path(path)
    try:
        folder = folder.expanduser().resolve(strict=True)
        with os.scandir(folder) as scanned:
            names = [
                entry.name
                for entry in islice(scanned, MAX_SCANNED)
                if not entry.name.startswith(".") and is_fully_visible(entry.name) and entry.is_dir()
            ]
    except (OSError, RuntimeError) as error:
        raise LookupError(f"{folder} is not a folder that can be listed") from error
    names.sort(key=str.casefold)
    return FolderChoice(str(folder), str(folder.parent), tuple(names[:MAX_ENTRIES]), truncated=len(names) > MAX_ENTRIES)
