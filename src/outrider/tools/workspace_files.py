"""The files that tools may touch; where a path leads is decided when it is opened, and refusals are said in words."""

import errno
import io
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.containment import Containment, contain
from outrider.tools.text.diff import LONGEST_LINE, shortened
from outrider.tools.text.encoding import Encoding, detect, without_ending

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


@contextmanager
def open_folder(home: str, parts: Sequence[str], made: list[str] | None = None) -> Generator[int]:
    """The folder below `home`. With a list `made`, missing folders are made and their paths added to it."""
    folder = os.open(home, FOLDER)
    try:
        for depth, part in enumerate(parts, 1):
            if made is not None and _make(part, folder):
                made.append("/".join([home, *parts[:depth]]))
            deeper = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def _make(name: str, folder: int) -> bool:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


Granted = Callable[[Containment, str], bool]
"""Whether a place outside the workspace, or a protected one, may be used for an operation after all."""

LARGEST = 32 * 1024 * 1024  # bytes of a file that is read whole, and so can be changed
_READING = frozenset({"read", "list", "search"})
_CONTROL = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_WORDS = {
    errno.EACCES: "the system does not allow it",
    errno.EPERM: "the system does not allow it",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "a file stands where a folder is expected",
    errno.ELOOP: "a link was put in its way meanwhile",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENXIO: "it is not a regular file",
}


class Place(msgspec.Struct, frozen=True):
    """Where a path led when it was looked at: `real` lies below `home` and is opened from there, through no link."""

    real: str
    home: str
    shown: str

    @property
    def parts(self) -> list[str]:
        return [part for part in self.real[len(self.home) :].split("/") if part]


class Files:
    """`readable` names folders beside the workspace that may be read: kept outputs, skills."""

    def __init__(
        self, root: str | Path, *, readable: Sequence[str | Path] = (), granted: Granted = lambda _, __: False
    ) -> None:
        self.root = os.path.realpath(root)
        self._readable = [os.path.realpath(folder) for folder in readable]
        self._granted = granted

    def locate(self, path: str, op: str) -> Place:
        """Where the path leads for `op` (see `contain`); what may not be used raises ToolFailure."""
        shown = printable(path)
        self._require_workspace()
        extra = [folder for folder in self._readable if op in _READING and os.path.isdir(folder)]  # noqa: PTH112
        found = contain(path, root=self.root, cwd=self.root, op=op, extra_roots=extra)
        if found.real_path is None:
            raise ToolFailure(f"{shown}: {found.reason}{_hint(found.reason, op)}")
        if not found.ok and not self._granted(found, op):
            raise ToolFailure(f"{shown}: {found.reason}, and may not be used without approval")
        home = next((root for root in [self.root, *extra] if _below(found.real_path, root)), "/")
        return Place(found.real_path, home, self._name(found.real_path))

    @contextmanager
    def open(self, place: Place) -> Generator[BinaryIO]:
        """A regular file, opened to be read without ever waiting for it."""
        with telling(place.shown, near=place.real), open_folder(place.home, place.parts[:-1]) as folder:
            if not place.parts:
                raise IsADirectoryError(errno.EISDIR, "")
            descriptor = os.open(place.parts[-1], FILE, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolFailure(f"{place.shown}: it is not a regular file")
            with telling(place.shown):
                yield file

    @contextmanager
    def folder(self, place: Place) -> Generator[int]:
        with telling(place.shown, near=place.real), open_folder(place.home, place.parts) as folder:
            yield folder

    def _require_workspace(self) -> None:
        """A workspace that was deleted, or replaced by a link to somewhere else, is not followed."""
        if not os.path.isdir(self.root):  # noqa: PTH112
            raise ToolFailure(f"the workspace {self.root} does not exist any more")
        if os.path.realpath(self.root) != self.root:
            raise ToolFailure(f"the workspace {self.root} was replaced by a link; nothing in it is used")

    def _name(self, real: str) -> str:
        inside = _below(real, self.root)
        return printable(os.path.relpath(real, self.root) if inside else real)


def printable(path: object, limit: int = 300) -> str:
    """A path for a message: on one line, and no longer than is useful."""
    text = re.sub(_CONTROL, lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), str(path))
    return (text if len(text) <= limit else f"{text[:limit]}…") or "(empty path)"


@contextmanager
def telling(shown: str, near: str = "") -> Generator[None]:
    """What the system refuses is a failure that the model can read."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailure(f"{shown} does not exist{_similar(near)}") from error
    except OSError as error:
        words = _WORDS.get(error.errno or 0) or error.strerror or str(error)
        raise ToolFailure(f"{shown}: {words}", errno=error.errno) from error


def _similar(path: str) -> str:
    """Names beside a missing one that may have been meant."""
    folder, _, name = path.rpartition("/")
    try:
        names = [entry.name for entry in islice(os.scandir(folder or "/"), 5000)] if name else []
    except OSError:
        return ""
    near = get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(map(printable, near))}?" if near else ""


def _hint(reason: str, op: str) -> str:
    return "; list shows what is in it" if "folder" in reason and op == "read" else ""


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


_MOST = 20_000

Version = bytes


def version_of(content: bytes) -> Version:
    return blake2b(content, digest_size=16).digest()


class SeenVersions:
    """Bounded: the versions seen longest ago are forgotten, and such a file must be read again."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], Version] = OrderedDict()

    def saw(self, session_id: str, path: str, version: Version) -> None:
        self._seen[session_id, path] = version
        self._seen.move_to_end((session_id, path))
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)

    def seen(self, session_id: str, path: str) -> Version | None:
        return self._seen.get((session_id, path))

    def forget(self, session_id: str, path: str) -> None:
        self._seen.pop((session_id, path), None)


_SAMPLE = 64 * 1024


class Piece(msgspec.Struct, frozen=True):
    """Lines from `first` on. `total` is None when the file is too large to count them; `version` likewise."""

    lines: tuple[str, ...]
    first: int
    total: int | None
    encoding: Encoding
    version: Version | None
    cut: bool


class Bounds(msgspec.Struct, frozen=True):
    lines: int
    characters: int


def read_piece(file: BinaryIO, first: int, bounds: Bounds) -> Piece | None:
    """None for a binary file."""
    if os.fstat(file.fileno()).st_size <= LARGEST:
        raw = file.read(LARGEST + 1)
        encoding = detect(raw)
        return encoding and _piece(io.BytesIO(raw), encoding, first, bounds, version_of(raw))
    sample = file.read(_SAMPLE)
    file.seek(0)
    encoding = detect(sample, whole=False)
    return encoding and _piece(file, encoding, first, bounds, None)


def _piece(file: BinaryIO, encoding: Encoding, first: int, bounds: Bounds, version: Version | None) -> Piece:
    file.seek(len(encoding.bom))
    sample = file.read(_SAMPLE).decode(encoding.name, "replace")
    file.seek(len(encoding.bom))
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    errors = encoding.errors if version else "replace"
    text = io.TextIOWrapper(file, encoding=encoding.name, errors=errors, newline=newline)
    try:
        lines = _lines(text)
        skipped = sum(1 for _ in islice(lines, first - 1))
        kept, cut = _fill(lines, bounds)
        total = skipped + len(kept) + cut + sum(1 for _ in lines) if version or not cut else None
        return Piece(tuple(kept), first, total, encoding, version, bool(cut))
    finally:
        text.detach()


def _fill(lines: Iterator[str], bounds: Bounds) -> tuple[list[str], int]:
    """As many lines as fit, and 1 if one more was taken that did not."""
    kept: list[str] = []
    room = bounds.characters
    for line in lines:
        room -= len(line) + 8  # the number and its tab
        if len(kept) >= bounds.lines or (room < 0 and kept):
            return kept, 1
        kept.append(line)
    return kept, 0


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Lines cut to what is shown; the rest of a very long one is passed over piece by piece."""
    while line := text.readline(LONGEST_LINE * 4):
        more = 0
        end = line
        while not end.endswith(("\n", "\r")) and (end := text.readline(_SAMPLE)):
            more += len(without_ending(end))
        yield shortened(line, LONGEST_LINE) if not more else _cut(line, more)


def _cut(line: str, more: int) -> str:
    return f"{shortened(line[:LONGEST_LINE])}… [{len(line) - LONGEST_LINE + more:,} more characters in this line]"
