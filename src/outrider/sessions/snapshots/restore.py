"""Puts files back: everything is prepared first, and nothing outside the workspace is ever reached through a link."""

import contextlib
import os
import stat
from collections.abc import Generator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from outrider.sessions.snapshots.images import Image
from outrider.sessions.snapshots.objects import Objects
from outrider.types.ids import new_id

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Step(msgspec.Struct, frozen=True):
    """`expected` is what must be there now; None is no file."""

    path: str
    expected: Image | None
    wanted: Image | None


def restore(root: Path, steps: Sequence[Step], objects: Objects) -> None:
    """All new contents are written beside their places; only then are files replaced and removed."""
    prepared: list[tuple[Step, str]] = []
    try:
        for step in steps:
            if step.wanted is not None:
                prepared.append((step, _prepare(root, step.path, step.wanted, objects)))
    except BaseException:
        for step, aside in prepared:
            with contextlib.suppress(OSError), _folder(root, step.path) as folder:
                os.unlink(aside, dir_fd=folder)
        raise
    for step, aside in prepared:
        with _folder(root, step.path) as folder:
            os.replace(aside, PurePosixPath(step.path).name, src_dir_fd=folder, dst_dir_fd=folder)
    for step in steps:
        if step.wanted is None:
            _remove(root, step.path)


def _prepare(root: Path, path: str, image: Image, objects: Objects) -> str:
    aside = f".{new_id()}.tmp"
    content = objects.get(image.hash)
    with _folder(root, path, make=True) as folder:
        if image.link:
            os.symlink(os.fsdecode(content), aside, dir_fd=folder)
            return aside
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(aside, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), stat.S_IMODE(image.mode))
        except BaseException:
            os.unlink(aside, dir_fd=folder)
            raise
    return aside


def _remove(root: Path, path: str) -> None:
    """The file, and the folders that it leaves empty."""
    with contextlib.suppress(FileNotFoundError), _folder(root, path) as folder:
        os.unlink(PurePosixPath(path).name, dir_fd=folder)
    for parent in PurePosixPath(path).parents:
        if str(parent) == ".":
            return
        try:
            (root / parent).rmdir()
        except OSError:
            return


@contextlib.contextmanager
def _folder(root: Path, path: str, *, make: bool = False) -> Generator[int]:
    """A descriptor of the file's folder, reached step by step without following a link."""
    descriptor = os.open(root, _FOLDER)
    try:
        for name in PurePosixPath(path).parts[:-1]:
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
