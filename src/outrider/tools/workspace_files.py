"""Access to workspace files for tools: resolves paths, opens them without following links, and reads lines."""

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

from outrider._posix import O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, require_posix
from outrider.errors import ToolFailure
from outrider.permissions.paths.containment import Containment, contain
from outrider.permissions.paths.gitignore import VCS_FOLDERS
from outrider.tools.text.diff import MAX_LINE_LENGTH, shorten_line
from outrider.tools.text.encoding import TextEncoding, detect_encoding, without_ending

OPEN_FOLDER_FLAGS = os.O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW
OPEN_FILE_FLAGS = os.O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK


@contextmanager
def open_folder(home: str, parts: Sequence[str], made: list[str] | None = None) -> Generator[int]:
    """Opens the folder below `home` without following links. If `made` is a list, creates missing folders and appends
    their paths."""
    folder = os.open(home, OPEN_FOLDER_FLAGS)
    try:
        for depth, part in enumerate(parts, 1):
            if made is not None and _make_folder(part, folder):
                made.append("/".join([home, *parts[:depth]]))
            deeper = os.open(part, OPEN_FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def _make_folder(name: str, folder: int) -> bool:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


IsGranted = Callable[[Containment, str], bool]
"""Callback that returns True if a path outside the workspace, or a protected one, is approved for an operation."""

MAX_FILE_SIZE = 32 * 1024 * 1024  # largest file that is read completely and can be edited
MAX_LISTED_ENTRIES = 500
_MAX_SCANNED_ENTRIES = 100_000
_READ_OPERATIONS = frozenset({"read", "list", "search"})
_CONTROL = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_ERROR_TEXTS = {
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


class FileLocation(msgspec.Struct, frozen=True):
    """A resolved path. `real` is below `base` and is opened from there without following links; `display` is the path
    for messages."""

    real: str
    base: str
    display: str

    @property
    def parts(self) -> list[str]:
        return [part for part in self.real[len(self.base) :].split("/") if part]


class WorkspaceFiles:
    """Locates and opens files of a workspace. `readable` lists further folders that may be read: stored outputs,
    skills. `private` folders hold Outrider's own files: a workspace that contains them does not give access to them.
    `is_denied` returns whether a rule forbids to read a resolved path; tools that list or search leave it out."""

    def __init__(
        self,
        root: str | Path,
        *,
        readable: Sequence[str | Path] = (),
        private: Sequence[str | Path] = (),
        granted: IsGranted = lambda _, __: False,
        is_denied: Callable[[str], bool] = lambda _: False,
    ) -> None:
        require_posix("access to the files of a workspace")
        self.root = os.path.realpath(root)
        self.is_denied = is_denied
        self._readable = [os.path.realpath(folder) for folder in readable]
        folders = [os.path.realpath(folder) for folder in private]
        self._private = [folder for folder in folders if folder != self.root and _is_below(folder, self.root)]
        self._granted = granted

    def locate(self, path: str, op: str) -> FileLocation:
        """Resolves the path for the operation `op` (see `contain`). Raises ToolFailure if access is not allowed."""
        shown = printable_path(path)
        self._check_workspace()
        extra = [folder for folder in self._readable if op in _READ_OPERATIONS and os.path.isdir(folder)]  # noqa: PTH112
        found = contain(path, root=self.root, cwd=self.root, op=op, extra_roots=extra)
        if found.real_path is None:
            raise ToolFailure(f"{shown}: {found.reason}{_list_hint(found.reason, op)}")
        if self.is_denied(found.real_path):
            raise ToolFailure(f"{shown}: a rule forbids to read it")
        if not found.ok and not self._granted(found, op):
            raise ToolFailure(f"{shown}: {found.reason}, and may not be used without approval")
        if any(_is_below(found.real_path, folder) for folder in self._private) and not any(
            _is_below(found.real_path, folder) for folder in extra
        ):
            raise ToolFailure(f"{shown}: it belongs to Outrider itself; only the user changes it")
        home = next((root for root in [self.root, *extra] if _is_below(found.real_path, root)), "/")
        return FileLocation(found.real_path, home, self._display_path(found.real_path))

    def locate_folder(self, path: str) -> FileLocation | None:
        """Resolves the path for a listing; None if it is no folder that may be listed."""
        if not os.path.isdir(os.path.join(self.root, path)):  # noqa: PTH112, PTH118
            return None
        return self.locate(path, "list")

    @contextmanager
    def open(self, location: FileLocation) -> Generator[BinaryIO]:
        """Opens a regular file for reading. The flags prevent blocking on a pipe or device."""
        with (
            os_errors_as_failures(location.display, near=location.real),
            open_folder(location.base, location.parts[:-1]) as folder,
        ):
            if not location.parts:
                raise IsADirectoryError(errno.EISDIR, "")
            descriptor = os.open(location.parts[-1], OPEN_FILE_FLAGS, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolFailure(f"{location.display}: it is not a regular file")
            with os_errors_as_failures(location.display):
                yield file

    @contextmanager
    def open_folder(self, location: FileLocation) -> Generator[int]:
        with (
            os_errors_as_failures(location.display, near=location.real),
            open_folder(location.base, location.parts) as folder,
        ):
            yield folder

    def list_folder(self, location: FileLocation, depth: int = 1) -> str:
        """Returns the entries of a folder as lines, subfolders first, then files with their sizes."""
        with self.open_folder(location) as folder:
            lines = self._list_entries(folder, depth, location.real)
            shown = list(islice(lines, MAX_LISTED_ENTRIES))
            more = next(lines, None) is not None
        text = "\n".join(shown) or "(the folder is empty)"
        if more:
            text += f"\n\n(only the first {MAX_LISTED_ENTRIES} entries; list a folder inside it, or use glob)"
        return text

    def _list_entries(self, folder: int, depth: int, path: str, indent: str = "") -> Iterator[str]:
        with os.scandir(folder) as entries:
            listed = list(islice(entries, _MAX_SCANNED_ENTRIES))
        found = [entry for entry in listed if not self.is_denied(f"{path}/{entry.name}")]
        found.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name))
        for entry in found:
            yield f"{indent}{printable_path(entry.name)}{_entry_suffix(entry)}"
            if depth > 1 and entry.is_dir(follow_symlinks=False) and entry.name not in VCS_FOLDERS:
                yield from self._list_subfolder(folder, entry.name, depth - 1, f"{path}/{entry.name}", indent + "  ")

    def _list_subfolder(self, folder: int, name: str, depth: int, path: str, indent: str) -> Iterator[str]:
        try:
            deeper = os.open(name, OPEN_FOLDER_FLAGS, dir_fd=folder)
        except OSError:
            return
        try:
            yield from self._list_entries(deeper, depth, path, indent)
        finally:
            os.close(deeper)

    def _check_workspace(self) -> None:
        """Raises ToolFailure if the workspace was deleted or replaced by a symbolic link."""
        if not os.path.isdir(self.root):  # noqa: PTH112
            raise ToolFailure(f"the workspace {self.root} does not exist any more")
        if os.path.realpath(self.root) != self.root:
            raise ToolFailure(f"the workspace {self.root} was replaced by a link; nothing in it is used")

    def _display_path(self, real: str) -> str:
        inside = _is_below(real, self.root)
        return printable_path(os.path.relpath(real, self.root) if inside else real)


def _entry_suffix(entry: "os.DirEntry[str]") -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return ""
    if stat.S_ISDIR(found.st_mode):
        return "/"
    if stat.S_ISLNK(found.st_mode):
        return " (link)"
    return f" ({found.st_size:,} bytes)" if stat.S_ISREG(found.st_mode) else " (not a file)"


def printable_path(path: object, limit: int = 300) -> str:
    """Returns a path for a message: escaped to one line and truncated."""
    text = re.sub(_CONTROL, lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), str(path))
    return (text if len(text) <= limit else f"{text[:limit]}…") or "(empty path)"


@contextmanager
def os_errors_as_failures(shown: str, near: str = "") -> Generator[None]:
    """Converts OSError to a ToolFailure with a message for the model."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailure(f"{shown} does not exist{_suggest_similar(near)}") from error
    except OSError as error:
        message = _ERROR_TEXTS.get(error.errno or 0) or error.strerror or str(error)
        raise ToolFailure(f"{shown}: {message}", errno=error.errno) from error


def _suggest_similar(path: str) -> str:
    """Returns a hint with similar names in the same folder."""
    folder, _, name = path.rpartition("/")
    try:
        names = [entry.name for entry in islice(os.scandir(folder or "/"), 5000)] if name else []
    except OSError:
        return ""
    near = get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(map(printable_path, near))}?" if near else ""


def _list_hint(reason: str, op: str) -> str:
    return "; list shows what is in it" if "folder" in reason and op == "read" else ""


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


_MAX_ENTRIES = 20_000

Version = bytes


def version_of(content: bytes) -> Version:
    return blake2b(content, digest_size=16).digest()


class SeenVersions:
    """Content hashes of the files that each session has read. The cache is bounded: a file whose entry was evicted must
    be read again."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], Version] = OrderedDict()

    def record(self, session_id: str, path: str, version: Version) -> None:
        self._seen[session_id, path] = version
        self._seen.move_to_end((session_id, path))
        while len(self._seen) > _MAX_ENTRIES:
            self._seen.popitem(last=False)

    def get(self, session_id: str, path: str) -> Version | None:
        return self._seen.get((session_id, path))

    def forget(self, session_id: str, path: str) -> None:
        self._seen.pop((session_id, path), None)


_SAMPLE_SIZE = 64 * 1024


class FileLines(msgspec.Struct, frozen=True):
    """Lines of a file from `first` on. `total` and `version` are None if the file is too large to be read
    completely."""

    lines: tuple[str, ...]
    first: int
    total: int | None
    encoding: TextEncoding
    version: Version | None
    truncated: bool


class ReadBounds(msgspec.Struct, frozen=True):
    lines: int
    characters: int


def read_lines(file: BinaryIO, first: int, bounds: ReadBounds) -> FileLines | None:
    """Reads lines within the bounds. Returns None for a binary file."""
    if os.fstat(file.fileno()).st_size <= MAX_FILE_SIZE:
        raw = file.read(MAX_FILE_SIZE + 1)
        encoding = detect_encoding(raw)
        return encoding and _read_decoded(io.BytesIO(raw), encoding, first, bounds, version_of(raw))
    sample = file.read(_SAMPLE_SIZE)
    file.seek(0)
    encoding = detect_encoding(sample, complete=False)
    return encoding and _read_decoded(file, encoding, first, bounds, None)


def _read_decoded(
    file: BinaryIO, encoding: TextEncoding, first: int, bounds: ReadBounds, version: Version | None
) -> FileLines:
    file.seek(len(encoding.bom))
    sample = file.read(_SAMPLE_SIZE).decode(encoding.name, "replace")
    file.seek(len(encoding.bom))
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    errors = encoding.errors if version else "replace"
    text = io.TextIOWrapper(file, encoding=encoding.name, errors=errors, newline=newline)
    try:
        lines = _iterate_lines(text)
        skipped = sum(1 for _ in islice(lines, first - 1))
        kept, cut = _take_lines(lines, bounds)
        total = skipped + len(kept) + cut + sum(1 for _ in lines) if version or not cut else None
        return FileLines(tuple(kept), first, total, encoding, version, bool(cut))
    finally:
        text.detach()


def _take_lines(lines: Iterator[str], bounds: ReadBounds) -> tuple[list[str], int]:
    """Returns the lines that fit, and 1 if one more line was consumed."""
    kept: list[str] = []
    room = bounds.characters
    for line in lines:
        room -= len(line) + 8  # line number and tab
        if len(kept) >= bounds.lines or (room < 0 and kept):
            return kept, 1
        kept.append(line)
    return kept, 0


def _iterate_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yields truncated lines. The rest of an overlong line is skipped in chunks to bound memory."""
    while line := text.readline(MAX_LINE_LENGTH * 4):
        more = 0
        end = line
        while not end.endswith(("\n", "\r")) and (end := text.readline(_SAMPLE_SIZE)):
            more += len(without_ending(end))
        yield shorten_line(line, MAX_LINE_LENGTH) if not more else _truncate_line(line, more)


def _truncate_line(line: str, more: int) -> str:
    return (
        f"{shorten_line(line[:MAX_LINE_LENGTH])}… [{len(line) - MAX_LINE_LENGTH + more:,} more characters in this line]"
    )
