"""What the files of a workspace are at one moment, looked at within bounds."""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from outrider.sessions.snapshots.ignore import ALWAYS, IGNORE_FILES, Rules, parse
from outrider.sessions.snapshots.objects import Objects

# A file that changed this shortly before it was read may change again without its time telling.
_FRESH_NS = 50_000_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one look at the workspace, and of all that is kept. What is over them is named, not covered."""

    files: int = 50_000
    file_bytes: int = 8 * 1024 * 1024
    bytes: int = 512 * 1024 * 1024
    seconds: float = 20.0
    quota_bytes: int = 1024 * 1024 * 1024


class Image(msgspec.Struct, frozen=True):
    """A file as it was: where its content is kept (for a link, its target), and its permissions."""

    hash: str
    mode: int
    link: bool = False


class Snapshot(msgspec.Struct, frozen=True, weakref=True):
    """`paths` is None for the whole workspace. What is `uncovered` was too large, too much or unreadable."""

    images: dict[str, Image]
    uncovered: tuple[str, ...] = ()
    paths: tuple[str, ...] | None = None


class _Seen(msgspec.Struct, frozen=True):
    stamp: tuple[int, int, int, int]
    image: Image


class Camera:
    """Takes snapshots of one workspace; files that look unchanged since the last one are not read again."""

    def __init__(self, root: Path, objects: Objects, limits: Limits) -> None:
        self._root = root
        self._objects = objects
        self._limits = limits
        self._seen: dict[str, _Seen] = {}

    def take(self) -> Snapshot:
        return self._look(_walk(self._root), None)

    def take_paths(self, paths: Iterable[str]) -> Snapshot:
        wanted = tuple(sorted(set(paths)))
        return self._look(iter(wanted), wanted)

    def forget(self) -> None:
        """Contents may have been dropped: read every file again."""
        self._seen.clear()

    def _look(self, paths: Iterator[str], wanted: tuple[str, ...] | None) -> Snapshot:
        images: dict[str, Image] = {}
        uncovered: list[str] = []
        budget = self._limits.bytes
        deadline = time.monotonic() + self._limits.seconds
        for path in paths:
            if len(images) >= self._limits.files or budget <= 0 or time.monotonic() > deadline:
                uncovered.append("… and everything after it: " + path)
                break
            try:
                image, read = self._image(path)
            except FileNotFoundError:
                continue
            except ValueError:
                uncovered.append(path)
                continue
            budget -= read
            images[path] = image
        return Snapshot(images, tuple(uncovered), wanted)

    def _image(self, path: str) -> tuple[Image, int]:
        place = self._root / path
        try:
            status = place.lstat()
        except NotADirectoryError as error:
            raise FileNotFoundError(str(place)) from error
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode)
        known = self._seen.get(path)
        if known is not None and known.stamp == stamp:
            return known.image, 0
        content = _content(place, status, self._limits.file_bytes)
        image = Image(self._objects.put(content), stat.S_IMODE(status.st_mode), stat.S_ISLNK(status.st_mode))
        if time.time_ns() - status.st_mtime_ns > _FRESH_NS:
            self._seen[path] = _Seen(stamp, image)
        return image, len(content)


def current_image(place: Path, objects: Objects, limit: int) -> Image | None:
    """A file as it is now; None if there is none. Raises ValueError for what is no file, or too large."""
    try:
        status = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    content = _content(place, status, limit)
    return Image(objects.put(content), stat.S_IMODE(status.st_mode), stat.S_ISLNK(status.st_mode))


def _content(place: Path, status: os.stat_result, limit: int) -> bytes:
    if stat.S_ISLNK(status.st_mode):
        return os.fsencode(place.readlink())
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{place} is not a plain file")
    if status.st_size > limit:
        raise ValueError(f"{place} is larger than {limit} bytes")
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:  # not to be taken for a failure to keep it
        raise ValueError(f"{place} cannot be read: {error.strerror}") from error


def _walk(root: Path) -> Iterator[str]:
    """Every file that is not ignored, as a path below the root; links are not followed."""
    waiting: list[tuple[str, Rules | None]] = [("", None)]
    while waiting:
        folder, above = waiting.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            continue
        rules = _rules(root, folder, {entry.name for entry in entries}, above)
        inner: list[tuple[str, Rules | None]] = []
        for entry in entries:
            path = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in ALWAYS or (rules is not None and rules.ignores(path, is_folder=is_folder)):
                continue
            if is_folder:
                inner.append((f"{path}/", rules))
            else:
                yield path
        waiting += reversed(inner)


def _rules(root: Path, folder: str, names: set[str], above: Rules | None) -> Rules | None:
    lines: list[str] = []
    for name in IGNORE_FILES:
        if name in names:
            try:
                lines += (root / folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
    return Rules(folder, parse(lines), above) if lines else above
