"""Says where a path leads, as the kernel would follow it: inside the workspace, outside, to something protected."""

import ntpath
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec import Struct

from outrider.permissions.paths.protected import Access, linked_git_folder, plants_repository, protecting

_NAMESPACE = re.compile(r"^[\\/]{2}|^\\\?\?\\|^\\\\[.?]\\")
_DEVICES = re.compile(r"^(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)\s*(?:[.:].*)?$", re.IGNORECASE)
_HOME = re.compile(r"^~(?:[\\/]|$)")
_ONLY_DOTS = re.compile(r"^(?!\.{1,2}$)[. ]+$")
_FORBIDDEN = re.compile(r'[<>"|?*\x00-\x1f]')


def contain_on_windows(
    path: str, *, root: str, cwd: str, access: Access
) -> tuple[Literal["inside", "outside", "protected", "reject"], str | None]:
    if _NAMESPACE.match(path) or _FORBIDDEN.search(path):
        return "reject", None
    if _HOME.match(path):
        return "outside", None
    drive, rest = ntpath.splitdrive(path)
    if (drive and not rest.startswith(("\\", "/"))) or ":" in rest:
        return "reject", None  # relative to a drive, or a stream of a file
    if any(_ONLY_DOTS.match(part) for part in re.split(r"[\\/]", rest)):
        return "reject", None  # dots and blanks at the end of a name are left out, and what remains is another name
    full = ntpath.normpath(ntpath.join(cwd, path))
    if any(_DEVICES.match(part) for part in full.split("\\")[1:]):
        return "reject", None
    home = ntpath.normpath(root)
    if not _below_windows(full, home):
        return "outside", full
    parts = [part.rstrip(" .") for part in full[len(home) :].strip("\\").split("\\")]
    return ("protected" if protecting(parts, access) else "inside"), full


def _below_windows(path: str, root: str) -> bool:
    path, root = ntpath.normcase(path), ntpath.normcase(root)
    return path == root or path.startswith(root.rstrip("\\") + "\\")


Kind = Literal["inside", "outside", "protected", "reject"]
MOST_LINKS = 40  # as the kernel
LONGEST_PATH = 4095  # bytes, as the kernel counts them without the NUL
LONGEST_NAME = 255
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://|^file:", re.IGNORECASE)
_WINDOWS_ROOT = re.compile(r"^[A-Za-z]:[\\/]|^\\\\")
# Doors of /proc that lead to wherever a process is; which process would walk through them is not known here.
_DOORS = re.compile(r"^/proc/[^/]+(?:/task/[^/]+)?/(?:cwd|root)$")
# These act on the name itself, never on what a link of that name points to.
_ON_THE_NAME = frozenset({"delete", "rename", "rename_source", "rename_dest"})
_READING = frozenset({"read", "list", "search"})
_OPS = _READING | _ON_THE_NAME | {"write", "create", "edit", "change"}


class Containment(Struct, frozen=True):
    kind: Kind
    real_path: str | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.kind == "inside"


class _Refused(Exception):
    pass


def contain(
    path: object,
    *,
    root: str | os.PathLike[str],
    cwd: str | os.PathLike[str],
    op: str = "read",
    extra_roots: Sequence[str | os.PathLike[str]] = (),
) -> Containment:
    """Where `path`, as written in `cwd`, leads; `op` is read, list, search, write, create, edit, delete or rename_dest.

    The answer is about now; whoever opens the file uses `outrider.permissions.paths.safe_open`, which holds it to it.
    """
    try:
        text = _checked(path, op)
        if _WINDOWS_ROOT.match(os.fspath(root)) and os.sep == "/":
            return _on_windows(text, os.fspath(root), os.fspath(cwd), op)
        extra = [os.fspath(place) for place in extra_roots if os.path.isdir(place)]  # noqa: PTH112
        return _contain(text, [os.fspath(root), *extra], os.fspath(cwd), op)
    except _Refused as refused:
        return Containment("reject", None, str(refused))


def _on_windows(text: str, root: str, cwd: str, op: str) -> Containment:
    kind, real = contain_on_windows(text, root=root, cwd=cwd, access="read" if op in _READING else "write")
    return Containment(kind, real, "judged by its text")


def _checked(path: object, op: str) -> str:
    if op not in _OPS:
        raise _Refused(f"no operation is called {op!r}")
    if isinstance(path, os.PathLike | bytes):
        path = os.fsdecode(path)  # pyright: ignore[reportUnknownArgumentType] - a PathLike of str or bytes
    if not isinstance(path, str):
        raise _Refused("a path is a text")
    if not path or "\0" in path:
        raise _Refused("an empty path, or one with a NUL")
    if _URL.match(path):
        raise _Refused("an address where a path is expected")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise _Refused("no file can have a name with half a character") from None
    return path


def _contain(text: str, roots: list[str], cwd: str, op: str) -> Containment:
    real_roots = [_real_root(root) for root in roots]
    full = os.path.join(cwd, os.path.expanduser(text) if text.startswith("~") else text)  # noqa: PTH111, PTH118
    if not full.startswith("/"):
        full = os.path.join(Path.cwd(), full)  # noqa: PTH118
    walk = _Walk(follow_last=op not in _ON_THE_NAME)
    real = walk.resolve(full)
    home = next((root for root in real_roots if _below(real, root)), None)
    if home is None:
        return Containment("outside", real, "it leads outside the workspace")
    written = os.path.normpath(full)
    seen = {real, written, *walk.visited}
    if name := _protected(seen, [*real_roots, *(os.path.normpath(root) for root in roots)], op):
        return Containment("protected", real, f"{name} is protected")
    _refuse_unfit(full, real, home, op)
    return Containment("inside", real)


def _real_root(root: str) -> str:
    if not os.path.isdir(root):  # noqa: PTH112
        raise _Refused("the workspace is missing")
    return os.path.realpath(root)


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class _Walk:
    """Follows a path component by component; what does not exist yet is taken as written."""

    def __init__(self, *, follow_last: bool) -> None:
        self.follow_last = follow_last
        self.links = 0
        self.visited: list[str] = []

    def resolve(self, path: str) -> str:
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise _Refused("the path is too long")
        at, todo = "/", [part for part in reversed(path.split("/")) if part not in {"", "."}]
        directory_wanted = path.endswith(("/", "/."))
        while todo:
            name = todo.pop()
            if name == "..":
                at = os.path.dirname(at)  # noqa: PTH120
                continue
            at = self._step(at, name, todo, last=not todo and not directory_wanted)
        return at

    def _step(self, at: str, name: str, todo: list[str], *, last: bool) -> str:
        if len(os.fsencode(name)) > LONGEST_NAME:
            raise _Refused("a name is too long")
        here = at.rstrip("/") + "/" + name
        try:
            mode = os.lstat(here).st_mode
        except FileNotFoundError:
            return here
        except NotADirectoryError:
            raise _Refused("a file stands where a folder is expected") from None
        except OSError:
            return here
        if stat.S_ISLNK(mode) and not (last and not self.follow_last):
            return self._follow(at, here, todo)
        if todo and not stat.S_ISDIR(mode):
            raise _Refused("a file stands where a folder is expected")
        return here

    def _follow(self, at: str, here: str, todo: list[str]) -> str:
        if _DOORS.match(here):
            raise _Refused("a door of /proc leads to another place for every process")
        self.visited.append(here)
        self.links += 1
        if self.links > MOST_LINKS:
            raise _Refused("too many links, or a circle of them")
        target = os.readlink(here)  # noqa: PTH115
        todo.extend(part for part in reversed(target.split("/")) if part not in {"", "."})
        return "/" if target.startswith("/") else at


def _protected(paths: set[str], roots: list[str], op: str) -> str | None:
    access = "read" if op in _READING else "write"
    for path in paths:
        for root in roots:
            if not _below(path, root):
                continue
            parts = path[len(root) :].strip("/").split("/")
            if name := protecting(parts, access):
                return name
            if access == "write" and (plants_repository(Path(path)) or _in_git_folder(path, root)):
                return parts[-1]
    return None


def _in_git_folder(path: str, root: str) -> bool:
    folder = linked_git_folder(Path(root))
    return folder is not None and _below(path, str(folder))


def _refuse_unfit(full: str, real: str, home: str, op: str) -> None:
    """A file is read and written as a file; a pipe or device would block or do something else."""
    if op not in {"read", "write", "create", "edit", "search"}:
        return
    try:
        mode = Path(real).stat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        if real != home and op != "search":
            raise _Refused("it is a folder")
    elif full.endswith(("/", "/.")):
        raise _Refused("a file with a slash at its end")
    elif not stat.S_ISREG(mode):
        raise _Refused("it is not a regular file")


_TAKEN_APART = frozenset(" \t\n\v\f\r'\"\\")
MOST = 10_000  # entries that are looked at


def link_out(folder: str, root: str, names: Collection[str] = ()) -> str | None:
    """Why opening what is found below the folder may read something outside; None: no link leads out. Where patterns
    for names are given, what matches none of them is not opened."""
    seen = 0
    for entry in islice(_entries(folder), MOST):
        seen += 1
        if entry.is_symlink() and _is_meant(entry.name, names) and not _is_below(os.path.realpath(entry.path), root):
            return f"{entry.name} is a link that leads out of the workspace"
    return None if seen < MOST else "there are too many files to look at for links; with -type f none is opened"


def unruly_name(start: str, folder: str) -> str | None:
    """Why names below the folder, written as text, may be taken for others; None: each stays one word and no option."""
    seen = 0
    for name in (start, *(entry.name for entry in islice(_entries(folder), MOST))):
        seen += 1
        if name.startswith("-") or not _TAKEN_APART.isdisjoint(name):
            return f"{name!r} is a name that is taken apart"
    return None if seen < MOST else "there are too many files to look at for unusual names"


def _is_meant(name: str, patterns: Collection[str]) -> bool:
    """Patterns with brackets or backslashes are read in several ways, and so take in every name."""
    return not patterns or any(
        set(pattern) & set("[\\") or fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns
    )


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below the folder; what cannot be read, nobody else can open either."""
    waiting = [folder]
    while waiting:
        try:
            found = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        waiting += (entry.path for entry in found if entry.is_dir(follow_symlinks=False))
        yield from found


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
