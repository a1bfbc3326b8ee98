"""Opens files of the workspace so that a link swapped in after the decision cannot lead outside."""

import contextlib
import errno
import os
import stat
import struct
import sys
from collections.abc import Generator

from outrider.permissions.paths.containment import Containment, contain

_OPENAT2 = 437
_RESOLVE = 0x08 | 0x04 | 0x02  # beneath the folder, through no link, through no door of /proc
_AT_ONCE = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | _NO_LINK


class PathRefused(PermissionError):
    """The path may not be opened; `containment` says why."""

    def __init__(self, containment: Containment) -> None:
        super().__init__(errno.EACCES, containment.reason or containment.kind)
        self.containment = containment


def open_to_read(path: str, *, root: str, cwd: str, allow_protected: bool = False) -> int:
    """A descriptor of a regular file inside the workspace."""
    home, parts = _decided(path, root, cwd, "read", allow_protected)
    descriptor = _open(home, parts, os.O_RDONLY)
    return _regular(descriptor)


def open_to_write(path: str, *, root: str, cwd: str, allow_protected: bool = False) -> int:
    """A descriptor of a regular file, made with its folders where missing; nothing is truncated.

    A file with a second name is refused: the other name may lie outside.
    """
    home, parts = _decided(path, root, cwd, "write", allow_protected)
    with _parent(home, parts[:-1], make=True) as folder:
        descriptor = os.open(parts[-1], os.O_RDWR | os.O_CREAT | _AT_ONCE | _NO_LINK, 0o666, dir_fd=folder)
    return _regular(descriptor, links=1)


def write_at_once(path: str, content: bytes, *, root: str, cwd: str, allow_protected: bool = False) -> None:
    """The file holds either the old or the new content, whatever happens; its mode stays."""
    home, parts = _decided(path, root, cwd, "write", allow_protected)
    with _parent(home, parts[:-1], make=True) as folder:
        temporary = f".{parts[-1][:100]}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINK
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            _fill(descriptor, content, folder, parts[-1])
            os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def _fill(descriptor: int, content: bytes, folder: int, name: str) -> None:
    with os.fdopen(descriptor, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            before = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(before.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _decided(path: str, root: str, cwd: str, op: str, allow_protected: bool) -> tuple[str, list[str]]:  # noqa: FBT001
    found = contain(path, root=root, cwd=cwd, op=op)
    if found.real_path is None or not (found.ok or (found.kind == "protected" and allow_protected)):
        raise PathRefused(found)
    home = os.path.realpath(root)
    parts = found.real_path[len(home) :].strip("/").split("/")
    if parts == [""]:
        raise PathRefused(Containment("reject", found.real_path, "it is a folder"))
    return home, parts


def _open(home: str, parts: list[str], flags: int) -> int:
    """Opens what was decided on, through no link at all: the decision has followed them already."""
    top = os.open(home, _FOLDER)
    try:
        descriptor = _openat2(top, "/".join(parts), flags | _AT_ONCE)
        if descriptor is not None:
            return descriptor
    finally:
        os.close(top)
    with _parent(home, parts[:-1], make=False) as folder:
        return os.open(parts[-1], flags | _AT_ONCE | _NO_LINK, dir_fd=folder)


def _openat2(folder: int, path: str, flags: int) -> int | None:
    """None where the kernel has no such call."""
    if sys.platform != "linux":
        return None
    import ctypes  # by those who open a file: a short run opens none

    how = struct.pack("=QQQ", flags, 0, _RESOLVE)
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
def _parent(home: str, parts: list[str], *, make: bool) -> Generator[int]:
    """The folder below `home`, walked name by name without following a link."""
    folder = os.open(home, _FOLDER)
    try:
        for part in parts:
            deeper = _enter(folder, part, make=make)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def _enter(folder: int, part: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=folder)
    return os.open(part, _FOLDER, dir_fd=folder)


def _regular(descriptor: int, links: int | None = None) -> int:
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and (links is None or found.st_nlink <= links):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    reason = "it has a second name" if stat.S_ISREG(found.st_mode) else "it is not a regular file"
    raise PathRefused(Containment("reject", None, reason))
