"""Separates the changed files of git repositories in an outcome: plain data that git records, and files that can steer
git.

Git writes into the overlay like any other program, so that a script sees the commits that it made, and git does not run
on hostile data outside the sandbox. Plain data are objects, refs, logs, the index and the state of a merge or rebase.
All other files in a git folder, at any depth, can make git run programs or read other files, so they are protected. A
new repository is protected too, because git applies its settings as soon as it runs in it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from outrider.permissions.paths.protected import (
    GIT_DATA_FILES,
    GIT_DATA_FOLDERS,
    GIT_DATA_NAMES,
    GIT_FOLDER,
    find_linked_git_folder,
    find_protected_name,
    fold_name,
    list_link_targets,
    replaces_protected_folder,
)
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.programs.workspace_config import list_hooks_folders, parse_index
from outrider.processes.sandbox.overlay import OverlayChange, is_whiteout, lstat_or_none

_LFS_FOLDERS = split_names("objects tmp incomplete cache logs")
_OBJECT_INFO = split_names("packs commit-graph commit-graphs")
# Files of a bare repository that steer git. Other names in such a folder are ordinary files.
_STEERING_NAMES = split_names(
    """config config.worktree hooks info modules worktrees commondir gitdir shallow grafts branches remotes"""
)
_HEAD = re.compile(rb"ref: refs/[^\s\x00-\x1f\x7f]+\n?|[0-9a-f]{40}\n?|[0-9a-f]{64}\n?")
_REPLACED = re.compile(rb"refs/replace/")
# `exec` lines of a rebase run programs; an unknown command may be one of a newer git.
_SAFE_TODO = re.compile(
    rb"\s*(?:#|$)|\s*(?:p|pick|r|reword|e|edit|s|squash|f|fixup|d|drop|l|label|t|reset|m|merge|u|update-ref|b|break|noop)"
    rb"(?:\s|$)"
)
_CHECKED_FILES = split_names("HEAD index packed-refs git-rebase-todo git-rebase-todo.backup todo")
_COMMAND_LISTS = split_names("rebase-merge rebase-apply sequencer")
_MAX_CHECKED_BYTES = 64_000_000


class RepositoryChanges(msgspec.Struct, frozen=True):
    """Changed paths in git folders. `data` maps the paths of plain data to their git folder, `steering` contains all
    other paths, and `removed` maps paths to the git folder that was deleted or replaced with them."""

    data: dict[str, str] = {}
    steering: frozenset[str] = frozenset()
    removed: dict[str, str] = {}

    @property
    def entries(self) -> dict[str, str]:
        """The git folder for each path that a question does not list separately."""
        return self.data | self.removed


class OutsideRepository(msgspec.Struct, frozen=True):
    """A git folder that belongs to a workspace but is outside of it: the git folder of a linked worktree, a submodule,
    or a repository that contains the workspace.

    `own` is the subfolder of a linked worktree, with a slash at the end. With `branch`, only refs in the same folder as
    this branch may change.
    """

    folder: str
    own: str = ""
    branch: str = ""


class OverlayView:
    """The folder below an overlay together with its upper folder, as a command saw it."""

    def __init__(self, lower: Path, upper: Path) -> None:
        self.lower, self.upper = lower, upper
        self._known: dict[str, bool] = {}

    def exists(self, path: str) -> bool:
        """Returns whether the path exists in the view. Also returns True for files below a replaced folder."""
        if path not in self._known:
            status = lstat_or_none(self.upper / path)
            is_present = lstat_or_none(self.lower / path) is not None if status is None else not is_whiteout(status)
            self._known[path] = is_present
        return self._known[path]

    def is_bare_repository(self, folder: str) -> bool:
        """Returns whether git would use a folder as a repository without a work tree."""
        prefix = f"{folder}/" if folder else ""
        if not self.exists(f"{prefix}HEAD"):
            return False
        return self.exists(f"{prefix}commondir") or (self.exists(f"{prefix}objects") and self.exists(f"{prefix}refs"))

    def read_new(self, path: str) -> bytes | None:
        """Returns the content that a command wrote; None if it cannot be read or is too large."""
        return _read_file(self.upper / path)

    def read_old(self, path: str) -> bytes:
        return _read_file(self.lower / path) or b""


def _read_file(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_CHECKED_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= _MAX_CHECKED_BYTES else None


def sort_recorded(
    view: OverlayView, changes: Iterable[OverlayChange], repository: OutsideRepository
) -> RepositoryChanges:
    """Separates the changes of a git folder outside the workspace. Commands in the worktree of a run may write objects
    and the branch, index and HEAD of the worktree; changes of other branches are treated as steering."""
    sorted_changes = sort_changes(view, changes, inside=True)
    if not repository.branch:
        return sorted_changes
    folder = f"refs/heads/{repository.branch}".rpartition("/")[0] + "/"
    allowed = ("objects", "lfs", repository.own.rstrip("/"), folder.rstrip("/"), f"logs/{folder}".rstrip("/"))
    foreign = {
        path
        for path in sorted_changes.data
        if not any(path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/") for name in allowed)
    }
    data = {path: root for path, root in sorted_changes.data.items() if path not in foreign}
    return RepositoryChanges(data, sorted_changes.steering | foreign, sorted_changes.removed)


def sort_changes(view: OverlayView, changes: Iterable[OverlayChange], *, inside: bool = False) -> RepositoryChanges:
    """Separates plain data of git repositories from files that can steer git. With `inside`, the overlay covers a git
    folder, so all changes are in it."""
    changes = list(changes)
    data: dict[str, str] = {}
    steering: set[str] = set()
    ended = {change.path.removesuffix("/HEAD") for change in changes if _ends_repository(change)}
    for change in changes:
        for folder, subpath, bare in _git_folders_of(view, change.path, inside=inside):
            if bare and subpath[0] not in GIT_DATA_NAMES | _STEERING_NAMES:
                continue
            root = _data_root(view, folder, subpath, change)
            if root is None or folder in ended:
                steering.add(change.path)
            else:
                data.setdefault(change.path, root)
    ended_folders = {path for path in ended if fold_name(path.rpartition("/")[2]) == GIT_FOLDER and path in steering}
    removed = {path: folder for path in steering for folder in ended_folders if path.startswith(f"{folder}/")}
    return RepositoryChanges(
        {path: root for path, root in data.items() if path not in steering}, frozenset(steering), removed
    )


def _ends_repository(change: OverlayChange) -> bool:
    """Returns whether a git folder or its HEAD is deleted or replaced."""
    name = change.path.rpartition("/")[2]
    is_gone = change.kind == "deleted" or change.changes_type
    return is_gone and change.base is not None and (fold_name(name) == GIT_FOLDER or name == "HEAD")


def _git_folders_of(view: OverlayView, path: str, *, inside: bool) -> Iterator[tuple[str, list[str], bool]]:
    """Yields each git folder that contains a path, the parts of the path below it, and whether it is a bare
    repository."""
    parts = path.split("/")
    if inside:
        yield "", parts, False
        return
    for depth, name in enumerate(parts):
        if fold_name(name) == GIT_FOLDER:
            yield "/".join(parts[: depth + 1]), parts[depth + 1 :], False
            return
        if view.is_bare_repository("/".join(parts[:depth])):
            yield "/".join(parts[:depth]), parts[depth:], True


def _data_root(view: OverlayView, folder: str, subpath: list[str], change: OverlayChange) -> str | None:
    """Returns the git folder whose plain data a changed path belongs to; None if the path can steer git."""
    if not subpath or change.file in ("link", "special") or _was_link(change):
        return None
    prefix = f"{folder}/" if folder else ""
    match subpath:
        case ["modules", *below]:  # the git folders of submodules, whose names may contain slashes
            for depth in range(1, len(below)):
                inner = f"{prefix}modules/{'/'.join(below[:depth])}"
                if view.exists(f"{inner}/HEAD"):
                    return _data_root(view, inner, below[depth:], change)
            return None
        case ["worktrees", _, first, *below]:
            subpath = [first, *below]
            is_data = first != "objects" and _is_data(subpath, change)
        case _:
            is_data = _is_data(subpath, change)
    return folder if is_data and _has_safe_content(view, change, subpath) else None


def _was_link(change: OverlayChange) -> bool:
    return change.base is not None and (change.base.mode & 0o170000) == 0o120000


def _is_data(subpath: list[str], change: OverlayChange) -> bool:
    match subpath:
        case ["HEAD"]:  # creating or deleting it creates or ends a repository
            return change.kind == "modified" and not change.changes_type
        case [name] if name in GIT_DATA_FILES:
            return change.file == "file" and not change.changes_type
        case ["objects", *below]:
            return _is_object(below, change)
        case ["refs", "replace", *_]:
            return False
        case ["lfs", name, *_]:
            return name in _LFS_FOLDERS
        case ["lfs"]:
            return change.file == "folder"
        case [name] if name in GIT_DATA_FOLDERS:
            return change.file == "folder" and not change.changes_type
        case [name, *_]:
            return name in GIT_DATA_FOLDERS
        case _:
            return False


def _is_object(below: list[str], change: OverlayChange) -> bool:
    """Returns whether the change adds an object. Git never changes an object, and deletes objects only in a garbage
    collection."""
    if change.file == "folder":
        return change.kind != "deleted" and not change.changes_type
    if below[:1] == ["info"] or below == ["pack", "multi-pack-index"]:
        return below[0] == "pack" or below[1:2] in ([name] for name in _OBJECT_INFO)
    return change.kind == "created"


def _has_safe_content(view: OverlayView, change: OverlayChange, subpath: list[str]) -> bool:
    """Returns whether the content of a data file cannot make git run a program or use another repository."""
    if change.kind == "deleted" or change.file != "file" or subpath[-1] not in _CHECKED_FILES:
        return True
    content = view.read_new(change.path) if len(subpath) == 1 or subpath[0] in _COMMAND_LISTS else b""
    if content is None:
        return False
    match subpath:
        case ["HEAD"]:
            return _HEAD.fullmatch(content) is not None
        case ["index"]:
            return not find_index_dangers(view.read_old(change.path), content)
        case ["packed-refs"]:
            return not _REPLACED.search(content)
        case [folder, *_] if folder in _COMMAND_LISTS:
            return all(map(_SAFE_TODO.match, content.split(b"\n")))
        case _:
            return True


_SUSPICIOUS = re.compile(rb"\x00\x00\xe0\x00|\.git|git~|\.\.|//|link|[\x80-\xff]\.?g", re.IGNORECASE)


def find_index_dangers(old: bytes, new: bytes) -> str:
    """Returns why a new index is dangerous: it adds a nested repository, has a path into a git folder or out of the
    work tree, or has an unknown format. Returns "" for an ordinary index."""
    is_plain = new[:4] == b"DIRC" and new[4:8] in (b"\0\0\0\2", b"\0\0\0\3")
    if is_plain and not _SUSPICIOUS.search(new):
        return ""
    old_nested = {path for entry in parse_index(old) if entry is not None for path, nested in [entry] if nested}
    for entry in parse_index(new):
        if entry is None:
            return "its format is not understood"
        path, nested = entry
        if nested and path not in old_nested:
            return f"it adds the nested repository {path}"
        if any(fold_name(part) in ("", ".", "..", GIT_FOLDER, "git~1") for part in path.split("/")):
            return f"it contains the path {path}"
    return ""


def list_protected(workspace: Path, upper: Path, changes: Iterable[OverlayChange]) -> set[str]:
    """Returns the changed paths that steer tools or contain secrets, including files that are the target of a link with
    a protected name, and files that git runs as hooks."""
    changes = list(changes)
    sorted_changes = sort_changes(OverlayView(workspace, upper), changes)
    targets = (*list_link_targets(str(workspace)), *list_hooks_folders(workspace)) if changes else ()
    return {
        change.path
        for change in changes
        if change.path in sorted_changes.steering
        or (change.path not in sorted_changes.data and _has_protected_name(change))
        or any(change.path == target or change.path.startswith(f"{target}/") for target in targets)
    }


def _has_protected_name(change: OverlayChange) -> bool:
    parts = change.path.split("/")
    provides = change.file == "link" and replaces_protected_folder(parts)
    return provides or find_protected_name(parts, "write") is not None


_WORKTREE_SETTING = re.compile(r"^\s*worktree\s*=\s*(?P<path>[^#;\"\\\s][^#;\"\\]*?)\s*$", re.MULTILINE)


def find_outside_repository(workspace: Path) -> OutsideRepository | None:
    """Returns the git folder that git uses in a workspace, if it is outside the workspace and belongs to it.

    A `.git` file is part of the workspace and may name any folder, for example another repository of the user.
    Therefore the folder must name the worktree too.
    """
    top = next((folder for folder in (workspace, *workspace.parents) if os.path.lexists(folder / GIT_FOLDER)), None)
    if top is None:
        return None
    marker = top / GIT_FOLDER
    if marker.is_dir():
        is_own = top != workspace and not marker.is_symlink() and marker.stat().st_uid == os.getuid()
        return OutsideRepository(str(marker)) if is_own and (marker / "HEAD").is_file() else None
    folder = find_linked_git_folder(top)
    repository = None if folder is None else _linked_repository(folder, marker) or _submodule_repository(folder, top)
    is_inside = repository is not None and Path(repository.folder).is_relative_to(workspace)
    return (
        repository
        if repository is not None and not is_inside and (Path(repository.folder) / "HEAD").is_file()
        else None
    )


def _linked_repository(folder: Path, marker: Path) -> OutsideRepository | None:
    common = folder.parent.parent
    shared, back = (_read_file(folder / name) or b"" for name in ("commondir", "gitdir"))
    if folder.parent.name != "worktrees" or shared.strip() not in (b"../..", os.fsencode(common)):
        return None
    if os.path.realpath(os.fsdecode(back.strip() or b"/")) != os.path.realpath(marker):
        return None
    return OutsideRepository(str(common), own=f"worktrees/{folder.name}/")


def _submodule_repository(folder: Path, top: Path) -> OutsideRepository | None:
    if "modules" not in folder.parts or (folder / "commondir").exists():
        return None
    config = (_read_file(folder / "config") or b"").decode("utf-8", "replace")
    back = [os.path.realpath(folder / match["path"]) for match in _WORKTREE_SETTING.finditer(config)]
    return OutsideRepository(str(folder)) if back == [os.path.realpath(top)] else None
