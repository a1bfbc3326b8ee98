"""Puts files back: everything is prepared first, and nothing outside the workspace is ever reached through a link."""

import contextlib
import os
import stat
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec

from outrider.sessions import faults
from outrider.sessions.snapshots.images import Image
from outrider.sessions.snapshots.objects import Objects

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Step(msgspec.Struct, frozen=True):
    """`expected` is what must be there now; None is no file."""

    path: str
    expected: Image | None
    wanted: Image | None


def restore(root: Path, steps: Sequence[Step], objects: Objects, name: str) -> None:
    """All new contents are written to the side, under names made from `name`; only then are files removed and put.

    Removing comes first, since a file may have taken a folder's place, or a folder a file's.
    """
    put = [step for step in steps if step.wanted is not None]
    try:
        prepared = [_prepare(root, step, objects, _aside(name, number)) for number, step in enumerate(put)]
    except BaseException:
        clear(root, [step.path for step in put], name)
        raise
    for step in steps:
        faults.reach("FP-mid-undo")
        if step.wanted is None:
            _remove(root, step.path)
    for number, (step, near) in enumerate(zip(put, prepared, strict=True)):
        faults.reach("FP-mid-undo")
        *folders, last = step.path.split("/")
        with _folder(root, near) as source, _folder(root, folders, make=True) as target:
            _remove_empty(root / step.path)
            os.replace(_aside(name, number), last, src_dir_fd=source, dst_dir_fd=target)


def clear(root: Path, paths: Sequence[str], name: str) -> None:
    """Remove what lies on the side for these paths, as a restoring that failed or was killed leaves it."""
    for number, path in enumerate(paths):
        folders = path.split("/")[:-1]
        for depth in range(len(folders) + 1):
            with contextlib.suppress(OSError), _folder(root, folders[:depth]) as folder:
                os.unlink(_aside(name, number), dir_fd=folder)


def _aside(name: str, number: int) -> str:
    return f".{name}-{number}.tmp"


def _prepare(root: Path, step: Step, objects: Objects, aside: str) -> list[str]:
    """Written into the deepest folder on the way that is there, from where it can be moved at once; says which."""
    image = step.wanted
    assert image is not None
    content = objects.get(image.hash)
    near = _nearest(root, step.path.split("/")[:-1])
    with _folder(root, near) as folder:
        if image.link:
            os.symlink(os.fsdecode(content), aside, dir_fd=folder)
            return near
        with os.fdopen(os.open(aside, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), stat.S_IMODE(image.mode))
    return near


def _nearest(root: Path, folders: list[str]) -> list[str]:
    for depth in range(len(folders), 0, -1):
        with contextlib.suppress(OSError), _folder(root, folders[:depth]):
            return folders[:depth]
    return []


def _remove(root: Path, path: str) -> None:
    """The file, and the folders that it leaves empty."""
    *folders, last = path.split("/")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _folder(root, folders) as folder:
        os.unlink(last, dir_fd=folder)
    for depth in range(len(folders), 0, -1):
        try:
            with _folder(root, folders[: depth - 1]) as above:
                os.rmdir(folders[depth - 1], dir_fd=above)
        except OSError:
            return


def _remove_empty(place: Path) -> None:
    """Folders without a file in them may stand where a file is to go back to; a link or a file stops it."""
    for folder, _, _ in os.walk(place, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


@contextlib.contextmanager
def _folder(root: Path, folders: Sequence[str], *, make: bool = False) -> Generator[int]:
    """A descriptor of a folder below the root, reached step by step without following a link."""
    descriptor = os.open(root, _FOLDER)
    try:
        for name in folders:
            inner = _enter(descriptor, name, make=make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(folder: int, name: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)
