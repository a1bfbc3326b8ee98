"""Opens workspace files without a race: a symlink swapped in after the containment check makes the open fail.

It uses openat2 with RESOLVE_BENEATH on Linux, and on other systems opens each path component with O_NOFOLLOW.
"""

import contextlib
import errno
import os
import stat
import struct
import sys
from collections.abc import Generator
from pathlib import Path

from outrider._posix import O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NONBLOCK
from outrider.permissions.paths.containment import Containment, contain

_OPENAT2 = 437
_RESOLVE_FLAGS = 0x08 | 0x04 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_OPEN_FLAGS = O_CLOEXEC | O_NOCTTY | O_NONBLOCK
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FOLDER_FLAGS = os.O_RDONLY | O_DIRECTORY | O_CLOEXEC | _NO_FOLLOW


class PathRefused(PermissionError):
    """Raised if the path may not be opened; `containment` has the classification and the reason."""

    def __init__(self, containment: Containment) -> None:
        super().__init__(errno.EACCES, containment.reason or containment.kind)
        self.containment = containment


def open_to_read(path: str, *, root: str, cwd: str, allow_protected: bool = False) -> int:
    """Opens a regular file inside the workspace for reading and returns its descriptor. Raises PathRefused."""
    root_path, parts = _locate_target(path, root, cwd, "read", allow_protected)
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
    root_path, parts = _locate_target(path, root, cwd, "write", allow_protected)
    with _open_parent(root_path, parts[:-1], make=True) as folder:
        descriptor = os.open(parts[-1], os.O_RDWR | os.O_CREAT | _OPEN_FLAGS | _NO_FOLLOW, 0o666, dir_fd=folder)
    return _require_regular_file(descriptor, links=1)


def write_atomically(path: str, content: bytes, *, root: str, cwd: str, allow_protected: bool = False) -> None:
    """Replaces a file by rename, so that a crash leaves either the old or the new content. Preserves the file mode."""
    root_path, parts = _locate_target(path, root, cwd, "write", allow_protected)
    with _open_parent(root_path, parts[:-1], make=True) as folder:
        temporary = f".{parts[-1][:100]}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC | _NO_FOLLOW
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
            before = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(before.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _locate_target(path: str, root: str, cwd: str, op: str, allow_protected: bool) -> tuple[str, list[str]]:  # noqa: FBT001
    found = contain(path, root=root, cwd=cwd, op=op)
    if found.real_path is None or not (found.ok or (found.kind == "protected" and allow_protected)):
        raise PathRefused(found)
    root_path = os.path.realpath(root)
    parts = found.real_path[len(root_path) :].strip("/").split("/")
    if parts == [""]:
        raise PathRefused(Containment("reject", found.real_path, "it is a folder"))
    return root_path, parts


def _open_beneath(root_path: str, parts: list[str], flags: int) -> int:
    """Opens the resolved path without following any symlink; `contain` has already resolved them."""
    top = os.open(root_path, _FOLDER_FLAGS)
    try:
        descriptor = _call_openat2(top, "/".join(parts), flags | _OPEN_FLAGS)
        if descriptor is not None:
            return descriptor
    finally:
        os.close(top)
    with _open_parent(root_path, parts[:-1], make=False) as folder:
        return os.open(parts[-1], flags | _OPEN_FLAGS | _NO_FOLLOW, dir_fd=folder)


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


@contextlib.contextmanager
def _open_parent(root_path: str, parts: list[str], *, make: bool) -> Generator[int]:
    """Opens the folder below `root_path` component by component with O_NOFOLLOW; closes it on exit."""
    folder = os.open(root_path, _FOLDER_FLAGS)
    try:
        for part in parts:
            subfolder = _open_subfolder(folder, part, make=make)
            os.close(folder)
            folder = subfolder
        yield folder
    finally:
        os.close(folder)


def _open_subfolder(folder: int, part: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=folder)
    return os.open(part, _FOLDER_FLAGS, dir_fd=folder)


def _require_regular_file(descriptor: int, links: int | None = None) -> int:
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and (links is None or found.st_nlink <= links):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    reason = "it has several hard links" if stat.S_ISREG(found.st_mode) else "it is not a regular file"
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
