"""What the files of a workspace are at one moment, looked at within bounds."""

import hashlib
import os
import stat
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from outrider.errors import StoreError
from outrider.permissions.paths.gitignore import IGNORE_FILES, REPOSITORIES, UNFINISHED, Rules, parse
from outrider.sessions.records import sayable
from outrider.sessions.snapshots.database import Database
from outrider.types.ids import new_id

_LEVEL = 1


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Objects:
    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, content: bytes) -> str:
        name = name_of(content)
        self.put_all([(name, content)])
        return name

    def put_all(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Contents under the names that `name_of` gave them."""
        with self._database.writing() as db:
            for name, content in contents:
                if not db.execute("SELECT 1 FROM objects WHERE name = ?", (name,)).fetchone():
                    db.execute("INSERT INTO objects VALUES (?, ?)", (name, zlib.compress(content, _LEVEL)))

    def get(self, name: str) -> bytes:
        """Raises StoreError if it is not there, or not what it was."""
        rows = self._database.read("SELECT body FROM objects WHERE name = ?", (name,))
        if not rows:
            raise StoreError(f"the content {name} is not kept any more")
        try:
            content = zlib.decompress(rows[0][0])
        except zlib.error as error:
            raise StoreError(f"the content {name} is damaged") from error
        if name_of(content) != name:
            raise StoreError(f"the content {name} is damaged")
        return content

    def keep_only(self, names: Collection[str]) -> None:
        found = [row[0] for row in self._database.read("SELECT name FROM objects")]
        with self._database.writing() as db:
            db.executemany("DELETE FROM objects WHERE name = ?", [(name,) for name in found if name not in names])
        self._database.shrink()


# Made by programs from what is elsewhere, large, and often left to ignore files that are not written yet.
GENERATED = frozenset(
    {"node_modules", "__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".gradle"}
)


def walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Paths below the root, each with its status; the same order every time."""
    waiting: list[tuple[str, Rules | None]] = [("", None)]
    while waiting:
        folder, above = waiting.pop()
        entries = _entries(f"{root}/{folder}")
        rules = _rules(root, folder, entries, above)
        inner: list[tuple[str, Rules | None]] = []
        for entry in entries:
            path = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in REPOSITORIES or (is_folder and entry.name in GENERATED):
                continue
            if rules is not None and rules.ignores(path, is_folder=is_folder):
                continue
            if is_folder:
                inner.append((f"{path}/", rules))
                continue
            if UNFINISHED.fullmatch(entry.name):
                continue
            try:
                yield path, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
        waiting += reversed(inner)


def _entries(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _rules(root: str, folder: str, entries: "list[os.DirEntry[str]]", above: Rules | None) -> Rules | None:
    names = [entry.name for entry in entries if entry.name in IGNORE_FILES and entry.is_file()]
    lines = [line for name in names for line in _lines(f"{root}/{folder}{name}")]
    return Rules(folder, parse(lines), above) if lines else above


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  thousands of folders
            return file.read().splitlines()
    except OSError:
        return []


# A file that changed this shortly before it was read may change again without its time telling.
_FRESH_NS = 50_000_000
_BATCH_BYTES = 4 * 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one look at the workspace, and of all that is kept. What is over them is named, not covered. A file
    that a tool is about to write may be as large as tools can write."""

    files: int = 50_000
    file_bytes: int = 8 * 1024 * 1024
    written_bytes: int = 64 * 1024 * 1024
    bytes: int = 512 * 1024 * 1024
    seconds: float = 10.0
    quota_bytes: int = 1024 * 1024 * 1024


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was: where its content is kept (for a link, its target), and its permissions."""

    hash: str
    mode: int
    link: bool = False


class Snapshot(msgspec.Struct, frozen=True):
    """`paths` is None for the whole workspace. What is `uncovered` was too large, or unreadable. `cut` names the file
    at which a bound was met: nothing is known of that one and the others after it. `ignoring` are the ignore files
    that were in force."""

    images: dict[str, FileState]
    uncovered: tuple[str, ...] = ()
    paths: tuple[str, ...] | None = None
    cut: str = ""
    ignoring: dict[str, FileState] = {}
    id: str = msgspec.field(default_factory=new_id)


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A file's size, times, number and mode when it was read, and what it held."""

    stamp: tuple[int, int, int, int]
    image: FileState


class WorkspaceScanner:
    """Takes snapshots of one workspace; files that look unchanged since the last one are not read again. `seen` says
    what was known before, and grows."""

    def __init__(self, root: Path, objects: Objects, limits: Limits, seen: dict[str, Seen]) -> None:
        self._root = str(root)
        self._objects = objects
        self._limits = limits
        self.seen = seen

    def take(self) -> Snapshot:
        return self._look(walk(self._root), None)

    def take_paths(self, paths: Iterable[str]) -> Snapshot:
        wanted = tuple(sorted(set(paths)))
        return self._look(self._named(wanted), wanted)

    def _named(self, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        for path in paths:
            try:
                status = os.lstat(f"{self._root}/{path}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield path, status

    def _look(self, files: Iterator[tuple[str, os.stat_result]], wanted: tuple[str, ...] | None) -> Snapshot:
        images: dict[str, FileState] = {}
        uncovered: list[str] = []
        largest = self._limits.file_bytes if wanted is None else self._limits.written_bytes
        reading = _Reading(self._objects, self._limits.bytes, largest, self.seen)
        deadline = time.monotonic() + self._limits.seconds
        cut = ""
        for path, status in files:
            if len(images) >= self._limits.files or reading.bytes <= 0 or time.monotonic() > deadline:
                cut = path
                break
            known = self.seen.get(path)
            if known is not None and known.stamp == _stamp(status):
                images[path] = known.image
                continue
            try:
                path.encode()  # a name that is no text cannot be written down
                images[path] = reading.read(path, f"{self._root}/{path}", status)
            except FileNotFoundError:
                continue
            except ValueError:
                uncovered.append(sayable(path))
        reading.keep()
        ignoring = {path: image for path, image in images.items() if path.endswith(IGNORE_FILES)}
        return Snapshot(images, tuple(uncovered), wanted, sayable(cut), ignoring)


class _Reading:
    """Files that are read in one look: their contents are kept many at a time, and remembered once they are."""

    def __init__(self, objects: Objects, most: int, largest: int, seen: dict[str, Seen]) -> None:
        self._objects = objects
        self._largest = largest
        self._seen = seen
        self._contents: list[tuple[str, bytes]] = []
        self._waiting = 0
        self._fresh: dict[str, Seen] = {}
        self.bytes = most

    def read(self, path: str, place: str, status: os.stat_result) -> FileState:
        content = content_of(place, status, self._largest)
        image = _image(name_of(content), status)
        self._contents.append((image.hash, content))
        self.bytes -= len(content)
        self._waiting += len(content)
        if time.time_ns() - status.st_mtime_ns > _FRESH_NS:
            self._fresh[path] = Seen(_stamp(status), image)
        if self._waiting > _BATCH_BYTES:
            self.keep()
        return image

    def keep(self) -> None:
        if self._contents:
            self._objects.put_all(self._contents)
        self._seen.update(self._fresh)
        self._contents, self._fresh, self._waiting = [], {}, 0


def current_image(place: str, objects: Objects, limit: int) -> FileState | None:
    """A file as it is now, its content kept; None if there is none. Raises ValueError for what is no file, or too
    large."""
    try:
        status = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return None
    return _image(objects.put(content_of(place, status, limit)), status)


def content_of(place: str, status: os.stat_result, limit: int) -> bytes:
    if stat.S_ISLNK(status.st_mode):
        return os.fsencode(os.readlink(place))  # noqa: PTH115
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


def _image(name: str, status: os.stat_result) -> FileState:
    return FileState(name, stat.S_IMODE(status.st_mode), stat.S_ISLNK(status.st_mode))


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode)
