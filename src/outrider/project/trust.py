"""What a workspace would bring along, whether the user trusts it, and what in it was approved by content.

Until a workspace is trusted, nothing of what is listed here counts: it is read to be shown, and no more."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from outrider.permissions.paths.safe_open import open_to_read
from outrider.permissions.redaction.terminal import for_terminal
from outrider.permissions.trust import TrustList
from outrider.types.validate import is_object


class Project(msgspec.Struct, frozen=True):
    """`root` is the top of the repository that `folder` lies in, or `folder` itself. Trust is given to the root."""

    root: Path
    folder: Path

    def folders(self) -> Iterator[Path]:
        """From the root down to the working directory."""
        yield self.root
        for depth in range(len(self.folder.relative_to(self.root).parts)):
            yield self.root.joinpath(*self.folder.relative_to(self.root).parts[: depth + 1])

    def read(self, path: Path, limit: int) -> bytes | None:
        """What a file of the project holds, up to `limit` bytes; None where there is none that may be read.

        Links that lead outside, secrets under another name, pipes and devices are none."""
        if not os.path.lexists(path):
            return None
        try:
            descriptor = open_to_read(str(path), root=str(self.root), cwd=str(self.root))
        except (OSError, ValueError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit)

    def entries(self, folder: Path) -> list[Path]:
        """What lies in a folder of the project, in order; nothing where it leads outside."""
        try:
            if not folder.resolve(strict=True).is_relative_to(self.root):
                return []
            return sorted(folder.iterdir())
        except (OSError, ValueError, RuntimeError):
            return []


def find_project(folder: Path, home: Path) -> Project:
    """Looks at names only, runs nothing, and never goes up to the user's own folder or to somebody else's."""
    folder, home = folder.resolve(), home.resolve()
    owner = _owner(folder)
    for place in (folder, *folder.parents):
        if place != folder and (place == home or _owner(place) != owner):
            break
        if os.path.lexists(place / ".git"):
            return Project(place, folder)
    return Project(folder, folder)


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


ItemKind = Literal["configuration", "instructions", "skill", "MCP server"]
TrustState = Literal["trusted", "untrusted", "nothing to trust"]

CONFIGURATION = Path(".outrider/config.toml")
SERVERS = Path(".mcp.json")
INSTRUCTIONS = "AGENTS.md"
SKILL_FOLDERS = (Path(".outrider/skills"), Path(".agents/skills"), Path(".claude/skills"))
SKILL_FILE = "SKILL.md"
MOST_ITEMS = 200
LARGEST = 1 << 20


class TrustItem(msgspec.Struct, frozen=True):
    """`name` says what and where, `content` what it is; both can be shown on a terminal as they are.

    What is `executable` starts a program or visits an address, and counts only once exactly `approved_as` was
    approved; `key` is its name as it is written."""

    kind: ItemKind
    name: str
    content: str
    executable: bool = False
    approved_as: bytes = b""
    key: str = ""


class WorkspaceTrust:
    """The user's word about one project, kept under the data directory by the project's real path."""

    def __init__(self, project: Project, file: Path) -> None:
        self.project = project
        self._list = TrustList(file)

    @property
    def trusted(self) -> bool:
        return self._list.trusts(self.project.root)

    @property
    def state(self) -> TrustState:
        if self.trusted:
            return "trusted"
        return "untrusted" if self.names() else "nothing to trust"

    def items(self) -> tuple[TrustItem, ...]:
        """Everything that would count, to be shown before the user decides."""
        found = [item for kind, path in self._places() for item in self._file(kind, path)]
        return tuple([*found, *server_items(self.project)][:MOST_ITEMS])

    def names(self) -> list[str]:
        """What `items` would be about, without a look into the files."""
        found = [_shown(path, self.project) for _, path in self._places() if self.project.read(path, 1) is not None]
        return [*found, *(item.name for item in server_items(self.project))][:MOST_ITEMS]

    def waiting(self) -> tuple[TrustItem, ...]:
        """Executable items that are new or have changed since they were approved."""
        return tuple(item for item in server_items(self.project) if not self.approves(item))

    def trust(self, shown: Iterable[TrustItem] = ()) -> None:
        """Trust the workspace from now on, and approve the executable items that were shown, as they were shown."""
        self._list.trust(self.project.root, time=int(time.time() * 1000))
        self.approve(shown)

    def approve(self, shown: Iterable[TrustItem]) -> None:
        for item in shown:
            if item.executable:
                self._list.approve(self.project.root, item.name, item.approved_as)

    def distrust(self) -> None:
        """Forget everything that was said about the workspace."""
        self._list.forget(self.project.root)

    def approves(self, item: TrustItem) -> bool:
        return self._list.approves(self.project.root, item.name, item.approved_as)

    def _places(self) -> Iterator[tuple[ItemKind, Path]]:
        yield "configuration", self.project.root / CONFIGURATION
        for folder in self.project.folders():
            yield "instructions", folder / INSTRUCTIONS
        for path in skill_files(self.project):
            yield "skill", path

    def _file(self, kind: ItemKind, path: Path) -> Iterator[TrustItem]:
        content = self.project.read(path, LARGEST)
        if content is not None:
            yield TrustItem(kind, _shown(path, self.project), for_terminal(content.decode("utf-8", "replace")))


def skill_files(project: Project) -> list[Path]:
    folders = [project.root / folder for folder in SKILL_FOLDERS]
    return [entry / SKILL_FILE for folder in folders for entry in project.entries(folder)]


def server_items(project: Project) -> list[TrustItem]:
    """The servers of `.mcp.json`, each by itself: a changed one is asked about, the others stay approved."""
    content = project.read(project.root / SERVERS, LARGEST)
    try:
        document: Any = msgspec.json.decode(content or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return []
    servers: Any = document.get("mcpServers") if is_object(document) else None
    if not is_object(servers):
        return []
    return [_server_item(name, entry) for name, entry in servers.items()]


def _server_item(name: str, entry: Any) -> TrustItem:
    written = msgspec.json.encode(entry, order="sorted")
    shown = json.dumps(entry, sort_keys=True)  # in ASCII, so that nothing in it is invisible
    return TrustItem("MCP server", _plain(f"{SERVERS}: {name}"), shown, executable=True, approved_as=written, key=name)


def _shown(path: Path, project: Project) -> str:
    return _plain(str(path.relative_to(project.root)))


def _plain(name: str) -> str:
    return for_terminal(name, keep_lines=False)
