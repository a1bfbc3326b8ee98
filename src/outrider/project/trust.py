"""Trust in a workspace: what its project files would add, whether the user trusts it, and which executable items are
approved.

The files of an untrusted workspace are only read to be shown to the user.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from outrider._lazy import lazy_pattern
from outrider.permissions.redaction.terminal import escape_control_characters, reveal_for_terminal
from outrider.types.validate import is_object


class TrustedWorkspace(Struct, frozen=True):
    """A trusted workspace: time of the decision in milliseconds, and approved files (relative path to SHA-256).

    `seen` has the other files that take effect, as the user saw them last; None if an older version stored the entry.
    """

    since: int
    items: dict[str, str] = {}
    seen: dict[str, str] | None = None


class TrustList:
    """The trust file in the user's configuration directory. It is outside every workspace, so no agent can edit
    it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def is_trusted(self, workspace: str | os.PathLike[str]) -> bool:
        return _workspace_key(workspace) in self._read()

    def is_approved(self, workspace: str | os.PathLike[str], item: str, content: bytes) -> bool:
        """Returns whether the item was approved with exactly this content."""
        entry = self._read().get(_workspace_key(workspace))
        return entry is not None and entry.items.get(item) == content_hash(content)

    def trust(self, workspace: str | os.PathLike[str], *, time: int) -> None:
        with self._lock():
            workspaces = self._read()
            workspaces.setdefault(_workspace_key(workspace), TrustedWorkspace(time))
            self._write(workspaces)

    def approve(self, workspace: str | os.PathLike[str], item: str, content: bytes) -> None:
        """Approves the content of one item. Raises ValueError if the workspace is not trusted."""
        with self._lock():
            workspaces, key = self._read(), _workspace_key(workspace)
            if key not in workspaces:
                raise ValueError(f"{key} is not a trusted workspace; trust it before approving files in it")
            items = {**workspaces[key].items, item: content_hash(content)}
            workspaces[key] = msgspec.structs.replace(workspaces[key], items=items)
            self._write(workspaces)

    def remember_seen(self, workspace: str | os.PathLike[str], hashes: dict[str, str]) -> None:
        """Stores the hashes of the files that the user has seen; does nothing if the workspace is not trusted."""
        with self._lock():
            workspaces, key = self._read(), _workspace_key(workspace)
            if key not in workspaces:
                return
            stored = workspaces[key].seen
            if stored is None or stored != {**stored, **hashes}:
                workspaces[key] = msgspec.structs.replace(workspaces[key], seen={**(stored or {}), **hashes})
                self._write(workspaces)

    def find_seen(self, workspace: str | os.PathLike[str]) -> dict[str, str] | None:
        entry = self._read().get(_workspace_key(workspace))
        return entry.seen if entry else None

    def revoke(self, workspace: str | os.PathLike[str]) -> None:
        with self._lock():
            workspaces = self._read()
            if workspaces.pop(_workspace_key(workspace), None) is not None:
                self._write(workspaces)

    def load(self) -> dict[str, TrustedWorkspace]:
        return self._read()

    def _lock(self) -> AbstractContextManager[None]:
        from outrider.permissions.paths.containment import lock_file  # lazy: most commands only read the list

        return lock_file(self._file)

    def _read(self) -> dict[str, TrustedWorkspace]:
        """Reads the file; one that is missing, corrupt, foreign-owned or writable by other users is treated as
        empty."""
        try:
            status = self._file.lstat()
            if status.st_mode & 0o022 or status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                return {}
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, TrustedWorkspace])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self, workspaces: dict[str, TrustedWorkspace]) -> None:
        from outrider.permissions.paths.containment import write_private_file

        write_private_file(self._file, msgspec.json.format(msgspec.json.encode(workspaces, order="sorted")))


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _workspace_key(workspace: str | os.PathLike[str]) -> str:
    """Returns the real path, so that a symlink to a trusted folder is trusted too."""
    return os.path.realpath(workspace)


class ProjectFolder(msgspec.Struct, frozen=True):
    """`root` is the top of the git repository that contains `folder`, or `folder` itself. Trust is granted to the
    root."""

    root: Path
    folder: Path

    def folder_chain(self) -> Iterator[Path]:
        """Yields the folders from the root down to the working folder."""
        yield self.root
        for depth in range(len(self.folder.relative_to(self.root).parts)):
            yield self.root.joinpath(*self.folder.relative_to(self.root).parts[: depth + 1])

    def read_file(self, path: Path, limit: int) -> bytes | None:
        """Returns up to `limit` bytes of a project file, or None if it may not be read.

        Links to files outside, files with secrets, pipes and devices are not read.
        """
        if not os.path.lexists(path):
            return None
        try:
            from outrider.permissions.paths.containment import open_to_read  # lazy: most projects have no such file

            descriptor = open_to_read(str(path), root=str(self.root), cwd=str(self.root))
        except (OSError, ValueError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit)

    def list_folder(self, folder: Path) -> list[Path]:
        """Returns the sorted entries of a project folder; an empty list if it resolves to a path outside."""
        try:
            if not folder.resolve(strict=True).is_relative_to(self.root):
                return []
            return sorted(folder.iterdir())
        except (OSError, ValueError, RuntimeError):
            return []


def find_project(folder: Path, home: Path) -> ProjectFolder:
    """Returns the project of a folder: its repository root, or the folder itself. This checks file names only and runs
    no program. It stops below the home folder and at a folder of another owner, because their files are not part of the
    project."""
    folder, home = folder.resolve(), home.resolve()
    owner = _owner_id(folder)
    for parent in (folder, *folder.parents):
        if parent != folder and (parent == home or _owner_id(parent) != owner):
            break
        if os.path.lexists(parent / ".git"):
            return ProjectFolder(parent, folder)
    return ProjectFolder(folder, folder)


def _owner_id(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


ItemKind = Literal["configuration", "instructions", "skill", "command", "MCP server", "hooks"]
TrustState = Literal["trusted", "untrusted", "nothing to trust"]

CONFIG_FILE = Path(".outrider/config.toml")
SERVERS_FILE = Path(".mcp.json")
INSTRUCTIONS_FILE = "AGENTS.md"
SKILL_FOLDERS = (Path(".outrider/skills"), Path(".agents/skills"), Path(".claude/skills"))
SKILL_FILE = "SKILL.md"
COMMAND_FOLDERS = (Path(".outrider/commands"), Path(".claude/commands"))
HOOK_FILES = (Path(".outrider/hooks.json"), Path(".claude/settings.json"))
MAX_ITEMS = 200
MAX_FILE_BYTES = 1 << 20


class TrustItem(msgspec.Struct, frozen=True):
    """One item that a workspace adds.

    - `kind`: the kind of the item.
    - `name`: its kind and location, safe to print on a terminal.
    - `content`: its content, safe to print on a terminal.
    - `executable`: True if it starts a program or opens a connection.
    - `approved_as`: an executable item is used only if exactly these bytes were approved.
    - `key`: the key of the item in its file.
    """

    kind: ItemKind
    name: str
    content: str
    executable: bool = False
    approved_as: bytes = b""
    key: str = ""


class WorkspaceTrust:
    """The user's decisions about one project, stored in the data folder under the project's real path."""

    def __init__(self, project: ProjectFolder, file: Path) -> None:
        self.project = project
        self._list = TrustList(file)

    @property
    def trusted(self) -> bool:
        return self._list.is_trusted(self.project.root)

    @property
    def state(self) -> TrustState:
        """The trust state as a string for front ends."""
        if self.trusted:
            return "trusted"
        return "untrusted" if self.list_names() else "nothing to trust"

    def list_items(self) -> tuple[TrustItem, ...]:
        """Returns everything that trust would enable, to be shown before the user decides."""
        file_items = [item for kind, path in self._item_paths() for item in self._file_items(kind, path)]
        return tuple([*file_items, *executable_items(self.project)][:MAX_ITEMS])

    def list_names(self) -> list[str]:
        """Returns the names of `list_items` without reading the files."""
        file_names = [
            _display_path(path, self.project)
            for _, path in self._item_paths()
            if self.project.read_file(path, 1) is not None
        ]
        return [*file_names, *(item.name for item in executable_items(self.project))][:MAX_ITEMS]

    def unapproved_items(self) -> tuple[TrustItem, ...]:
        """Returns the executable items that are new or changed since their approval."""
        return tuple(item for item in executable_items(self.project) if not self.is_approved(item))

    def changed_files(self) -> tuple[str, ...]:
        """Returns the names of the files that take effect and are new or changed since the user saw them."""
        seen_hashes = self._list.find_seen(self.project.root)
        if seen_hashes is None:
            return ()
        return tuple(name for name, digest in self._hash_files().items() if seen_hashes.get(name) != digest)

    def remember_files(self) -> None:
        """Stores that the user has seen which files take effect now."""
        self._list.remember_seen(self.project.root, self._hash_files())

    def _hash_files(self) -> dict[str, str]:
        contents = ((path, self.project.read_file(path, MAX_FILE_BYTES)) for _, path in self._item_paths())
        return {
            _display_path(path, self.project): content_hash(content)
            for path, content in contents
            if content is not None
        }

    def trust(self, shown: Iterable[TrustItem] = ()) -> None:
        """Stores trust in the workspace, and approvals of the executable items exactly as they were shown."""
        self._list.trust(self.project.root, time=int(time.time() * 1000))
        self.approve(shown)
        self.remember_files()

    def approve(self, shown: Iterable[TrustItem]) -> None:
        """Stores an approval for each executable item in the list."""
        for item in shown:
            if item.executable:
                self._list.approve(self.project.root, item.name, item.approved_as)

    def revoke_trust(self) -> None:
        """Deletes all decisions about the workspace."""
        self._list.revoke(self.project.root)

    def is_approved(self, item: TrustItem) -> bool:
        """Returns whether exactly this content of an executable item was approved."""
        return self._list.is_approved(self.project.root, item.name, item.approved_as)

    def _item_paths(self) -> Iterator[tuple[ItemKind, Path]]:
        yield "configuration", self.project.root / CONFIG_FILE
        for folder in self.project.folder_chain():
            yield "instructions", folder / INSTRUCTIONS_FILE
        for path in skill_files(self.project):
            yield "skill", path
        for path in command_files(self.project).values():
            yield "command", path

    def _file_items(self, kind: ItemKind, path: Path) -> Iterator[TrustItem]:
        content = self.project.read_file(path, MAX_FILE_BYTES)
        if content is not None:
            yield TrustItem(
                kind, _display_path(path, self.project), reveal_for_terminal(content.decode("utf-8", "replace"))
            )


def skill_files(project: ProjectFolder) -> list[Path]:
    """Returns the paths of all skill files of the project."""
    folders = [project.root / folder for folder in SKILL_FOLDERS]
    return [entry / SKILL_FILE for folder in folders for entry in project.list_folder(folder)]


def command_files(project: ProjectFolder) -> dict[str, Path]:
    """Returns the files of the project's commands by name. A file in a subfolder has the name FOLDER:FILE."""
    entries = [path for folder in COMMAND_FOLDERS for path in project.list_folder(project.root / folder)]
    files = [(path.stem, path) for path in entries if path.suffix == ".md"]
    for folder in entries:
        if folder.suffix != ".md":
            files += [
                (f"{folder.name}:{path.stem}", path) for path in project.list_folder(folder) if path.suffix == ".md"
            ]
    return dict(reversed(files[:MAX_ITEMS]))  # of several files with one name, the first is used


def executable_items(project: ProjectFolder) -> list[TrustItem]:
    """Returns the items of a project that start programs: MCP servers and hooks."""
    return [*server_items(project), *hook_items(project)]


def hook_items(project: ProjectFolder) -> list[TrustItem]:
    """Returns one item for each file of the project that defines hooks."""
    documents = ((name, _read_json(project, project.root / name)) for name in HOOK_FILES)
    return [_hook_item(project, name, document["hooks"]) for name, document in documents if document.get("hooks")]


class ApprovedHooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an approval of a hook file covers: the hooks, and the SHA-256 of the files of the project that their
    commands name. A script that has changed since is not run."""

    hooks: Any
    files: dict[str, str] = {}


def decode_approved_hooks(item: TrustItem) -> ApprovedHooks:
    try:
        return msgspec.json.decode(item.approved_as, type=ApprovedHooks)
    except msgspec.ValidationError:
        return ApprovedHooks(msgspec.json.decode(item.approved_as))  # the commands name no file of the project


def _hook_item(project: ProjectFolder, name: Path, hooks: Any) -> TrustItem:
    scripts = {path: content for command in _commands_in(hooks) for path, content in _scripts_of(project, command)}
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in scripts.items()}
    approved = ApprovedHooks(hooks, digests) if digests else hooks
    sections = [json.dumps(hooks, sort_keys=True)]
    sections += [f"{path}:\n{content.decode('utf-8', 'replace')}" for path, content in scripts.items()]
    return TrustItem(
        "hooks",
        str(name),
        reveal_for_terminal("\n\n".join(sections)),
        executable=True,
        approved_as=msgspec.json.encode(approved, order="sorted"),
        key=str(name),
    )


_MAX_HOOK_NESTING = 8
_PROJECT_VARIABLE = lazy_pattern(r"[\"']?\$(?:CLAUDE_PROJECT_DIR\b|\{CLAUDE_PROJECT_DIR\})[\"']?/?")
_COMMAND_WORD = lazy_pattern(r"[^\s\"'`$;|&<>(){}=]+")


def _commands_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yields the commands of hooks, however they are nested."""
    if depth > _MAX_HOOK_NESTING:
        return
    if is_object(value):
        if isinstance(command := value.get("command"), str):
            yield command
        value = list(value.values())
    if isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _commands_in(inner, depth + 1)


def _scripts_of(project: ProjectFolder, command: str) -> Iterator[tuple[str, bytes]]:
    """Yields the files of the project that a command names, with their content."""
    for word in dict.fromkeys(_COMMAND_WORD.findall(_PROJECT_VARIABLE.sub("", command))):
        path = Path(os.path.normpath(project.root / word))
        if path.is_relative_to(project.root) and path.is_file():
            yield str(path.relative_to(project.root)), project.read_file(path, MAX_FILE_BYTES) or b""


def _read_json(project: ProjectFolder, path: Path) -> dict[str, Any]:
    try:
        document: Any = msgspec.json.decode(project.read_file(path, MAX_FILE_BYTES) or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return document if is_object(document) else {}


def server_items(project: ProjectFolder) -> list[TrustItem]:
    """Returns one item for each server in `.mcp.json`. Each has a separate approval, so a change of one does not affect
    the others."""
    servers: Any = _read_json(project, project.root / SERVERS_FILE).get("mcpServers")
    if not is_object(servers):
        return []
    return [_server_item(name, entry) for name, entry in servers.items()]


def _server_item(name: str, entry: Any) -> TrustItem:
    written = msgspec.json.encode(entry, order="sorted")
    visible_text = json.dumps(entry, sort_keys=True)  # ASCII only, so that it contains no invisible characters
    return TrustItem(
        "MCP server",
        _display_text(f"{SERVERS_FILE}: {name}"),
        visible_text,
        executable=True,
        approved_as=written,
        key=name,
    )


def _display_path(path: Path, project: ProjectFolder) -> str:
    return _display_text(str(path.relative_to(project.root)))


def _display_text(name: str) -> str:
    return escape_control_characters(name)
