"""Resolves a path as the kernel would, classifies the target (inside the workspace, outside, protected or rejected),
and opens it without a race: a symlink swapped in after the check makes the open fail.

Opening uses openat2 with RESOLVE_BENEATH on Linux; on other systems each path component is opened with O_NOFOLLOW.
"""

import contextlib
import errno
import ntpath
import os
import re
import stat
import struct
import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from outrider._lazy import lazy_pattern
from outrider._posix import O_CLOEXEC, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, is_within, open_folder
from outrider.errors import ConfigurationError
from outrider.permissions.paths.protected import (
    Access,
    find_linked_git_folder,
    find_protected_name,
    list_link_targets,
    may_create_bare_repository,
)
from outrider.types.tool_declaration import FileOperation

_NAMESPACE = lazy_pattern(r"^[\\/]{2}|^\\\?\?\\|^\\\\[.?]\\")
_DEVICES = lazy_pattern(r"^(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)\s*(?:[.:].*)?$", re.IGNORECASE)
_HOME = lazy_pattern(r"^~(?:[\\/]|$)")
_ONLY_DOTS = lazy_pattern(r"^(?!\.{1,2}$)[. ]+$")
_FORBIDDEN = lazy_pattern(r'[<>"|?*\x00-\x1f]')


def contain_on_windows(
    path: str, *, root: str, cwd: str, access: Access
) -> tuple[Literal["inside", "outside", "protected", "reject"], str | None]:
    """Classifies a Windows path by its text alone, without access to the file system."""
    if _NAMESPACE.match(path) or _FORBIDDEN.search(path):
        return "reject", None
    if _HOME.match(path):
        return "outside", None
    drive, tail = ntpath.splitdrive(path)
    if (drive and not tail.startswith(("\\", "/"))) or ":" in tail:
        return "reject", None  # relative to a drive, or an NTFS alternate data stream
    if any(_ONLY_DOTS.match(part) for part in re.split(r"[\\/]", tail)):
        return "reject", None  # Windows strips trailing dots and spaces, which yields a different name
    full = ntpath.normpath(ntpath.join(cwd, path))
    if any(_DEVICES.match(part) for part in full.split("\\")[1:]):
        return "reject", None
    home = ntpath.normpath(root)
    if not _is_below_windows(full, home):
        return "outside", full
    parts = [part.rstrip(" .") for part in full[len(home) :].strip("\\").split("\\")]
    return ("protected" if find_protected_name(parts, access) else "inside"), full


def _is_below_windows(path: str, root: str) -> bool:
    path, root = ntpath.normcase(path), ntpath.normcase(root)
    return path == root or path.startswith(root.rstrip("\\") + "\\")


ContainmentKind = Literal["inside", "outside", "protected", "reject"]
MAX_SYMLINKS = 40  # the limit of the Linux kernel
MAX_PATH_BYTES = 4095  # PATH_MAX of the Linux kernel without the terminating NUL
MAX_NAME_BYTES = 255
FOLDER_REJECTED = "it is a folder"
_URL = lazy_pattern(r"^[a-z][a-z0-9+.-]*://|^file:", re.IGNORECASE)
_WINDOWS_ROOT = lazy_pattern(r"^[A-Za-z]:[\\/]|^\\\\")
# Magic links of /proc resolve to a directory of the process that follows them, which is not this process.
_PROC_MAGIC_LINKS = lazy_pattern(r"^/proc/[^/]+(?:/task/[^/]+)?/(?:cwd|root)$")
# These operations act on the directory entry itself and do not follow a symlink.
_NO_FOLLOW_OPS = frozenset({"delete", "rename", "rename_source", "rename_dest"})
_READ_OPS = frozenset({"read", "list", "search"})
_OPS = frozenset(get_args(FileOperation))


class Containment(Struct, frozen=True):
    """The classification of a path, its resolved path, and the reason if it is not inside the workspace."""

    kind: ContainmentKind
    real_path: str | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the path is inside the workspace and not protected."""
        return self.kind == "inside"


class _PathRejected(Exception):
    pass


def contain(
    path: object,
    *,
    root: str | os.PathLike[str],
    cwd: str | os.PathLike[str],
    op: FileOperation = "read",
    extra_roots: Sequence[str | os.PathLike[str]] = (),
) -> Containment:
    """Resolves `path` relative to `cwd` and classifies it.

    `op` is what the caller is going to do with it. The result is a snapshot: open the file with
    `open_to_read` or `open_to_write`, which fail if a link is swapped in afterwards.
    """
    for name, folder in (("root", root), ("cwd", cwd)):
        if not isinstance(folder, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"contain(): {name} is a path, such as {name}='/srv/project', got {folder!r}")
    try:
        text = _validate_path(path, op)
        if _WINDOWS_ROOT.match(os.fspath(root)) and os.sep == "/":
            return _on_windows(text, os.fspath(root), os.fspath(cwd), op)
        extra = [os.fspath(extra_root) for extra_root in extra_roots if os.path.isdir(extra_root)]  # noqa: PTH112
        return _classify_path(text, [os.fspath(root), *extra], os.fspath(cwd), op)
    except _PathRejected as error:
        return Containment("reject", None, str(error))


def _on_windows(text: str, root: str, cwd: str, op: FileOperation) -> Containment:
    kind, real = contain_on_windows(text, root=root, cwd=cwd, access="read" if op in _READ_OPS else "write")
    return Containment(kind, real, "classified by its text, as a Windows path")


def _validate_path(path: object, op: FileOperation) -> str:
    if op not in _OPS:
        raise _PathRejected(f"unknown operation {op!r}")
    if isinstance(path, os.PathLike | bytes):
        path = os.fsdecode(path)  # pyright: ignore[reportUnknownArgumentType] - a PathLike of str or bytes
    if not isinstance(path, str):
        raise _PathRejected("the path is not a string")
    if not path or "\0" in path:
        raise _PathRejected("the path is empty or contains a NUL byte")
    if _URL.match(path):
        raise _PathRejected("it is a URL, not a path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise _PathRejected("the path contains a lone surrogate, which no file name can have") from None
    return path


def _classify_path(text: str, roots: list[str], cwd: str, op: FileOperation) -> Containment:
    real_roots = [_real_root(root) for root in roots]
    full = os.path.join(cwd, os.path.expanduser(text) if text.startswith("~") else text)  # noqa: PTH111, PTH118
    if not full.startswith("/"):
        full = os.path.join(Path.cwd(), full)  # noqa: PTH118
    resolver = _PathResolver(follow_last=op not in _NO_FOLLOW_OPS)
    real = resolver.resolve(full)
    home = next((root for root in real_roots if is_within(real, root)), None)
    if home is None:
        return Containment("outside", real, "it is outside the workspace")
    # The path as written and every symlink on the way are checked too: a harmless target must not hide a protected
    # name.
    paths = {real, os.path.normpath(full), *resolver.visited}
    if name := _find_protected(paths, [*real_roots, *(os.path.normpath(root) for root in roots)], op):
        return Containment("protected", real, f"{name} is protected")
    _reject_unfit_file(full, real, home, op)
    return Containment("inside", real)


def _real_root(root: str) -> str:
    if not os.path.isdir(root):  # noqa: PTH112
        raise _PathRejected("the workspace directory does not exist")
    return os.path.realpath(root)


class _PathResolver:
    """Resolves a path component by component; a component that does not exist yet is used as written.

    `os.path.realpath` is not enough: it neither reports the symlinks it passes nor limits their number as the kernel
    does."""

    def __init__(self, *, follow_last: bool) -> None:
        self.follow_last = follow_last
        self.links = 0
        self.visited: list[str] = []

    def resolve(self, path: str) -> str:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise _PathRejected("the path is too long")
        current, pending = "/", [part for part in reversed(path.split("/")) if part not in {"", "."}]
        directory_wanted = path.endswith(("/", "/."))
        while pending:
            name = pending.pop()
            if name == "..":
                current = os.path.dirname(current)  # noqa: PTH120
                continue
            current = self._resolve_component(current, name, pending, is_last=not pending and not directory_wanted)
        return current

    def _resolve_component(self, current: str, name: str, pending: list[str], *, is_last: bool) -> str:
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            raise _PathRejected("a name is too long")
        candidate = current.rstrip("/") + "/" + name
        try:
            mode = os.lstat(candidate).st_mode
        except FileNotFoundError:
            return candidate
        except NotADirectoryError:
            raise _PathRejected("a component of the path is a file, not a folder") from None
        except OSError:
            return candidate
        if stat.S_ISLNK(mode) and not (is_last and not self.follow_last):
            return self._follow_link(current, candidate, pending)
        if pending and not stat.S_ISDIR(mode):
            raise _PathRejected("a component of the path is a file, not a folder")
        return candidate

    def _follow_link(self, current: str, candidate: str, pending: list[str]) -> str:
        if _PROC_MAGIC_LINKS.match(candidate):
            raise _PathRejected("a magic link of /proc resolves differently for every process")
        self.visited.append(candidate)
        self.links += 1
        if self.links > MAX_SYMLINKS:
            raise _PathRejected("the path has too many symlinks, or a loop of them")
        target = os.readlink(candidate)  # noqa: PTH115
        pending.extend(part for part in reversed(target.split("/")) if part not in {"", "."})
        return "/" if target.startswith("/") else current


def _find_protected(paths: set[str], roots: list[str], op: FileOperation) -> str | None:
    access = "read" if op in _READ_OPS else "write"
    for path in paths:
        for root in roots:
            if not is_within(path, root):
                continue
            parts = path[len(root) :].strip("/").split("/")
            if name := find_protected_name(parts, access):
                return name
            if access == "write" and (may_create_bare_repository(Path(path)) or _in_git_folder(path, root)):
                return parts[-1]
            if access == "write" and any(is_within("/".join(parts), target) for target in list_link_targets(root)):
                return parts[-1]
    return None


def _in_git_folder(path: str, root: str) -> bool:
    folder = find_linked_git_folder(Path(root))
    return folder is not None and is_within(path, str(folder))


def _reject_unfit_file(full: str, real: str, home: str, op: FileOperation) -> None:
    """Rejects everything that is not a regular file, because a pipe blocks and a device has side effects."""
    if op not in {"read", "write", "create", "edit", "search"}:
        return
    try:
        mode = Path(real).stat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        if real != home and op != "search":
            raise _PathRejected(FOLDER_REJECTED)
    elif full.endswith(("/", "/.")):
        raise _PathRejected("it is a file, but the path ends with a slash")
    elif not stat.S_ISREG(mode):
        raise _PathRejected("it is not a regular file")


_SPLIT_CHARS = frozenset(" \t\n\v\f\r'\"\\")
MAX_SCANNED_ENTRIES = 10_000


def find_escaping_link(folder: str, root: str, names: Collection[str] = ()) -> str | None:
    """Returns why reading below the folder may leave the workspace, or None if no symlink leads out.

    With `names`, only entries that match one of these patterns are read, so other links are ignored.
    """
    count = 0
    for entry in islice(_walk_entries(folder), MAX_SCANNED_ENTRIES):
        count += 1
        if (
            entry.is_symlink()
            and _matches_any_pattern(entry.name, names)
            and not is_within(os.path.realpath(entry.path), root)
        ):
            return f"{entry.name} is a symlink to a target outside the workspace"
    if count < MAX_SCANNED_ENTRIES:
        return None
    return "there are too many files to check for symlinks; with -type f no symlink is opened"


def find_unsafe_name(start: str, folder: str, *, globs: bool = False) -> str | None:
    """Returns why a name below the folder is unsafe as plain text output, or None.

    A name with a space, quote or backslash splits into several arguments; one with a leading dash becomes an option.
    With `globs`, a name with `*`, `?` or `[` is unsafe too, because the shell expands it.
    """
    unsafe = _SPLIT_CHARS | frozenset("*?[") if globs else _SPLIT_CHARS
    count = 0
    for name in (start, *(entry.name for entry in islice(_walk_entries(folder), MAX_SCANNED_ENTRIES))):
        count += 1
        if name.startswith("-") or not unsafe.isdisjoint(name):
            return f"the file name {name!r} would be split or read as an option"
    return None if count < MAX_SCANNED_ENTRIES else "there are too many files to check for unsafe names"


def _matches_any_pattern(name: str, patterns: Collection[str]) -> bool:
    """Returns whether a pattern matches; one with brackets or backslashes matches all, since programs read it
    differently."""
    return not patterns or any(
        set(pattern) & set("[\\") or fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns
    )


def _walk_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yields all entries below the folder. Skips unreadable folders: the checked command cannot read them either."""
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        waiting += (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        yield from entries


_OPENAT2 = 437
_RESOLVE_FLAGS = 0x08 | 0x04 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_OPEN_FLAGS = O_CLOEXEC | O_NOCTTY | O_NONBLOCK


class PathRefused(PermissionError):
    """Raised if the path may not be opened; `containment` has the classification and the reason."""

    def __init__(self, containment: Containment) -> None:
        super().__init__(errno.EACCES, containment.reason or containment.kind)
        self.containment = containment


def open_to_read(path: str, *, root: str, cwd: str, allow_protected: bool = False) -> int:
    """Opens a regular file inside the workspace for reading and returns its descriptor. Raises PathRefused."""
    root_path, parts = _locate_target(path, root, cwd, "read", allow_protected=allow_protected)
    descriptor = _open_beneath(root_path, parts, os.O_RDONLY)
    return _require_regular_file(descriptor)


def read_regular_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """Returns up to `limit` bytes of a file, links followed. Raises OSError for a pipe or a device: it could block."""
    with os.fdopen(_require_regular_file(os.open(path, os.O_RDONLY | _OPEN_FLAGS)), "rb") as file:
        return file.read(limit)


def open_to_write(path: str, *, root: str, cwd: str, allow_protected: bool = False) -> int:
    """Opens a regular file for writing and returns its descriptor; creates it and its folders, does not truncate.

    Raises PathRefused, also for a file with several hard links: another link may be outside the workspace.
    """
    root_path, parts = _locate_target(path, root, cwd, "write", allow_protected=allow_protected)
    with open_folder(root_path, parts[:-1], []) as folder:
        descriptor = os.open(parts[-1], os.O_RDWR | os.O_CREAT | _OPEN_FLAGS | O_NOFOLLOW, 0o666, dir_fd=folder)
    return _require_regular_file(descriptor, links=1)


def write_atomically(path: str, content: bytes, *, root: str, cwd: str, allow_protected: bool = False) -> None:
    """Replaces a file by rename, so that a crash leaves either the old or the new content. Preserves the file mode."""
    root_path, parts = _locate_target(path, root, cwd, "write", allow_protected=allow_protected)
    with open_folder(root_path, parts[:-1], []) as folder:
        temporary = f".{parts[-1][:100]}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC | O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            _write_content(descriptor, content, folder, parts[-1])
            os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def _write_content(descriptor: int, content: bytes, folder: int, name: str) -> None:
    with os.fdopen(descriptor, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            old_status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(old_status.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(old_status.st_mode))
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _locate_target(
    path: str, root: str, cwd: str, op: FileOperation, *, allow_protected: bool
) -> tuple[str, list[str]]:
    containment = contain(path, root=root, cwd=cwd, op=op)
    if containment.real_path is None or not (containment.ok or (containment.kind == "protected" and allow_protected)):
        raise PathRefused(containment)
    root_path = os.path.realpath(root)
    parts = containment.real_path[len(root_path) :].strip("/").split("/")
    if parts == [""]:
        raise PathRefused(Containment("reject", containment.real_path, "it is a folder"))
    return root_path, parts


def _open_beneath(root_path: str, parts: list[str], flags: int) -> int:
    """Opens the resolved path without following any symlink; `contain` has already resolved them."""
    with open_folder(root_path, []) as top:
        descriptor = _call_openat2(top, "/".join(parts), flags | _OPEN_FLAGS)
        if descriptor is not None:
            return descriptor
    with open_folder(root_path, parts[:-1]) as folder:
        return os.open(parts[-1], flags | _OPEN_FLAGS | O_NOFOLLOW, dir_fd=folder)


def _call_openat2(folder: int, path: str, flags: int) -> int | None:
    """Calls openat2 and returns the descriptor, or None if the kernel or a seccomp filter does not support it."""
    if sys.platform != "linux":
        return None
    import ctypes  # lazy: a run that opens no file does not load it

    how = struct.pack("=QQQ", flags, 0, _RESOLVE_FLAGS)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = call(_OPENAT2, folder, os.fsencode(path), how, len(how))
    if result >= 0:
        return int(result)
    number = ctypes.get_errno()
    if number in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:
        return None
    raise OSError(number, os.strerror(number), path)


def _require_regular_file(descriptor: int, links: int | None = None) -> int:
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and (links is None or status.st_nlink <= links):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    reason = "it has several hard links" if stat.S_ISREG(status.st_mode) else "it is not a regular file"
    raise PathRefused(Containment("reject", None, reason))


def write_private_file(path: Path, content: bytes) -> None:
    """Writes a file that only the user can read, with missing folders. A crash leaves either the old or the new
    content."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lock_file(path: Path) -> Generator[None]:
    """Holds a lock next to the file while it is read and replaced; other processes wait for it."""
    from outrider._posix import fcntl  # lazy: only commands that change shared files need it

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | O_NOFOLLOW, 0o600)
    try:
        if os.name == "posix":
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
