"""Access to workspace files for tools: resolves paths, opens them without following links, and reads lines."""

import errno
import io
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec

from outrider._posix import (
    FOLDER_FLAGS,
    O_CLOEXEC,
    O_NOCTTY,
    O_NOFOLLOW,
    O_NONBLOCK,
    is_within,
    open_folder,
    require_posix,
)
from outrider.errors import ToolFailure
from outrider.tools.text.encoding import (
    MAX_LINE_LENGTH,
    TextEncoding,
    detect_encoding,
    shorten_line,
    without_ending,
)
from outrider.types.tool_declaration import FileOperation

if TYPE_CHECKING:
    from outrider.permissions.paths.containment import Containment

UNSAVED_NOTE = "this is unsaved text in the user's editor; commands, searches and other programs see the saved file"
_PLAIN_TEXT = TextEncoding()  # UTF-8 without a byte order mark: what editors exchange
_EDITOR_ENCODINGS = (
    "utf-8",
    "latin-1",
    "cp1252",
    "utf-16",
)  # editors may decode a file in another encoding as one of these


class EditorBuffers(Protocol):
    """Access to the buffers of an editor. The methods block, so they are called in threads."""

    can_read: bool
    can_write: bool

    def includes(self, path: str) -> bool:
        """Returns whether a path is in a folder that is open in the editor, so that the editor can write it."""
        ...

    def read_text(self, path: str) -> str | None:
        """Returns the text of a file with its unsaved changes. None means that the editor does not provide it: the file
        does not exist, or the editor cannot open it. Raises ToolFailure if the editor does not respond."""
        ...

    def write_text(self, path: str, text: str) -> None:
        """Replaces the text of a file and saves it. Raises ToolFailure if the editor refuses, or if it does not respond
        and may still write."""
        ...


class CurrentContent(msgspec.Struct, frozen=True):
    """The content of a file; None if it does not exist. `unsaved` means that the saved file differs, and `in_editor`
    that changes are made through the editor, if it can write."""

    content: bytes | None
    unsaved: bool = False
    in_editor: bool = False


class EditorFiles:
    """Reads and writes files through the buffers of an editor, and tracks which of them are not saved."""

    def __init__(self, buffers: EditorBuffers) -> None:
        self._buffers = buffers
        self._unsaved: dict[str, str] = {}  # names for messages by path

    def read(self, path: str, name: str, saved: bytes | None) -> CurrentContent:
        """Returns the current content of a file, whose content on disk is `saved`. Files that are not UTF-8 are changed
        on disk, because editors decode them in different ways, unless the editor has unsaved text of them."""
        encoding = _PLAIN_TEXT if saved is None else detect_encoding(saved)
        if encoding is None:
            return CurrentContent(saved)
        is_plain = encoding == _PLAIN_TEXT
        if not self._buffers.can_read:
            return CurrentContent(saved, in_editor=is_plain and self._buffers.includes(path))
        text = self._buffers.read_text(path)
        if text is None:
            self._unsaved.pop(path, None)
            return CurrentContent(saved, in_editor=is_plain and self._buffers.includes(path))
        content = _encode_as(text, saved, encoding)
        if content is None or content == saved:
            self._unsaved.pop(path, None)
            return CurrentContent(saved, in_editor=is_plain and content is not None)
        self._unsaved[path] = name
        return CurrentContent(content, unsaved=True, in_editor=is_plain)

    def write(self, path: str, name: str, content: bytes) -> None:
        """Writes plain text through the editor. Raises ToolFailure if the editor does not write."""
        try:
            self._buffers.write_text(path, content.decode())
        except ToolFailure as failure:
            raise ToolFailure(f"{name}: {failure.message}") from failure

    def writes(self, current: CurrentContent, new_content: bytes | None) -> bool:
        """Returns whether a change is made through the editor. Deletions are not, because the protocol cannot delete
        files."""
        return current.in_editor and self._buffers.can_write and new_content is not None and is_plain_text(new_content)

    def save_before_change(self, path: str, name: str, current: CurrentContent, new_content: bytes | None) -> None:
        """Saves unsaved text that a change replaces, so that undo can restore it. Raises ToolFailure if the text cannot
        be saved, or the file would be deleted or moved."""
        if not current.unsaved or current.content is None:
            return
        if not self.writes(current, new_content):
            raise ToolFailure(
                f"{name} has unsaved changes in the user's editor. Nothing was written; ask the user to save the file"
            )
        self.write(path, name, current.content)

    def list_unsaved(self, read_saved: "SavedReader") -> list[str]:
        """Returns the names of files that were not saved when they were last used, and are still not saved."""
        return [name for path, name in list(self._unsaved.items()) if self.read(path, name, read_saved(path)).unsaved]


class SavedReader(Protocol):
    """Callback that returns the content of a file on disk, None if it does not exist."""

    def __call__(self, path: str, /) -> bytes | None: ...


def is_plain_text(content: bytes) -> bool:
    return detect_encoding(content) == _PLAIN_TEXT


def _encode_as(text: str, saved: bytes | None, encoding: TextEncoding) -> bytes | None:
    """Returns the text of a buffer as it would be saved; None if the encoding cannot represent it. Editors may
    normalize line endings, drop a byte order mark, and decode other encodings wrongly."""
    if saved is not None:
        saved_text = encoding.decode(saved)
        as_displayed = {
            saved_text,
            *(saved.decode(name, "replace") for name in _EDITOR_ENCODINGS if encoding != _PLAIN_TEXT),
        }
        if _normalize_lines(text) in map(_normalize_lines, as_displayed):
            return saved
        if "\r\n" in saved_text and saved_text.count("\r\n") == saved_text.count("\n") and "\r" not in text:
            text = text.replace("\n", "\r\n")
    try:
        return encoding.encode(text)
    except UnicodeEncodeError:
        return None if encoding == _PLAIN_TEXT else text.encode("utf-8", "replace")


def _normalize_lines(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


OPEN_FILE_FLAGS = os.O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK


IsGranted = Callable[["Containment", str], bool]
"""Callback that returns True if a path outside the workspace, or a protected one, is approved for an operation."""

MAX_FILE_SIZE = 32 * 1024 * 1024  # largest file that is read completely and can be edited
MAX_LISTED_ENTRIES = 500
_MAX_SCANNED_ENTRIES = 100_000
_MAX_CHECKED_FILES = 2_000  # of one command; the editor is asked about each
_READ_OPERATIONS = frozenset({"read", "list", "search"})
_SHOWN_PATH = 300  # characters
_CONTROL = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_ERROR_TEXTS = {
    errno.EACCES: "the system does not allow it",
    errno.EPERM: "the system does not allow it",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.ELOOP: "a part of its path was replaced by a link meanwhile",
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
    """Locates and opens files of a workspace.

    - `root`: the folder of the workspace.
    - `readable`: further folders that may be read: stored outputs, skills, folders that the user named.
    - `private`: folders with Outrider's own files. A workspace that contains them does not give access to them.
    - `granted`: returns whether a path outside the workspace, or a protected one, is approved for an operation.
    - `is_denied`: returns whether a rule forbids reading a resolved path. Tools that list or search leave it out.
    - `buffers`: the buffers of the user's editor, which may have unsaved text.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        readable: Sequence[str | Path] = (),
        private: Sequence[str | Path] = (),
        granted: IsGranted = lambda _, __: False,
        is_denied: Callable[[str], bool] = lambda _: False,
        buffers: EditorBuffers | None = None,
    ) -> None:
        require_posix("access to the files of a workspace")
        self.root = os.path.realpath(root)
        self.is_denied = is_denied
        self._readable = [os.path.realpath(folder) for folder in readable]
        folders = [os.path.realpath(folder) for folder in private]
        self._private = [
            folder
            for folder in folders
            if any(folder != root and is_within(folder, root) for root in (self.root, *self._readable))
        ]
        self._own_folders = folders
        self._granted = granted
        self.editor = EditorFiles(buffers) if buffers is not None else None

    def locate(self, path: str, op: FileOperation) -> FileLocation:
        """Resolves the path for the operation `op` (see `contain`). Raises ToolFailure if access is not allowed."""
        name = printable_path(path)
        self._check_workspace()
        extra = [folder for folder in self._readable if op in _READ_OPERATIONS and os.path.isdir(folder)]  # noqa: PTH112
        from outrider.permissions.paths.containment import contain  # lazy: loaded with the first call

        containment = contain(path, root=self.root, cwd=self.root, op=op, extra_roots=extra)
        if containment.real_path is None:
            raise ToolFailure(f"{name}: {containment.reason}{_list_hint(containment.reason, op)}")
        if self.is_denied(containment.real_path):
            raise ToolFailure(f"{name}: a rule forbids reading it")
        if not containment.ok and not self._granted(containment, op):
            raise ToolFailure(f"{name}: {containment.reason}, and may not be used without approval")
        if self._is_private(containment.real_path, extra):
            raise ToolFailure(f"{name}: it belongs to Outrider itself; only the user changes it")
        home = next((root for root in [self.root, *extra] if is_within(containment.real_path, root)), "")
        if containment.ok and not home:  # `contain` has resolved the root again
            raise ToolFailure(f"the workspace {self.root} was replaced by a link; nothing in it is used")
        return FileLocation(containment.real_path, home or "/", self._display_path(containment.real_path))

    def _is_private(self, real: str, readable: Sequence[str]) -> bool:
        """Returns whether a path is in a private folder, and not in a readable folder inside it."""
        return any(
            is_within(real, folder)
            and not any(is_within(real, inner) and is_within(inner, folder) for inner in readable)
            for folder in self._private
        )

    def locate_folder(self, path: str) -> FileLocation | None:
        """Returns the location of a folder to list, or None if the path is not a folder. Raises ToolFailure if access
        is not allowed."""
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

    def read_current(self, location: FileLocation, saved: bytes | None) -> CurrentContent:
        """Returns the content of a file with unsaved changes of the user's editor; `saved` is that on disk."""
        if self.editor is None or any(is_within(location.real, folder) for folder in self._own_folders):
            return CurrentContent(saved)
        return self.editor.read(location.real, location.display, saved)

    @contextmanager
    def open_current(self, location: FileLocation) -> Generator[tuple[BinaryIO, bool]]:
        """Opens a file as the user's editor shows it. Yields the content and whether it is not saved."""
        if self.editor is None or _file_size(location.real) > MAX_FILE_SIZE:
            with self.open(location) as file:
                yield file, False
            return
        try:
            with self.open(location) as file:
                saved = file.read(MAX_FILE_SIZE + 1)
        except ToolFailure:
            current = self.read_current(location, None)
            if current.content is None:
                raise
        else:
            current = self.read_current(location, saved)
        yield io.BytesIO(current.content or b""), current.unsaved

    def find_unsaved(self, paths: Iterable[str]) -> list[str]:
        """Returns which of the files, relative to the workspace, have unsaved text in the user's editor. Raises
        ToolFailure if the editor does not respond."""
        if self.editor is None:
            return []
        checked = [path for path in islice(paths, _MAX_CHECKED_FILES) if _is_small_file(f"{self.root}/{path}")]
        editor, root = self.editor, self.root
        return [path for path in checked if editor.read(f"{root}/{path}", path, _read_saved(f"{root}/{path}")).unsaved]

    def list_unsaved(self) -> list[str]:
        """Returns the names of files with unsaved changes in the user's editor, as far as tools have used them."""
        return self.editor.list_unsaved(_read_saved) if self.editor is not None else []

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
            listed = list(islice(lines, MAX_LISTED_ENTRIES))
            is_truncated = next(lines, None) is not None
        text = "\n".join(listed) or "(the folder is empty)"
        if is_truncated:
            text += f"\n\n(only the first {MAX_LISTED_ENTRIES} entries; list a folder inside it, or use glob)"
        return text

    def _list_entries(self, folder: int, depth: int, path: str, indent: str = "") -> Iterator[str]:
        from outrider.permissions.paths.gitignore import VCS_FOLDERS

        with os.scandir(folder) as entries:
            listed = list(islice(entries, _MAX_SCANNED_ENTRIES))
        visible = [entry for entry in listed if not self.is_denied(f"{path}/{entry.name}")]
        visible.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name))
        for entry in visible:
            yield f"{indent}{printable_path(entry.name)}{_entry_suffix(entry)}"
            if depth > 1 and entry.is_dir(follow_symlinks=False) and entry.name not in VCS_FOLDERS:
                yield from self._list_subfolder(folder, entry.name, depth - 1, f"{path}/{entry.name}", indent + "  ")

    def _list_subfolder(self, folder: int, name: str, depth: int, path: str, indent: str) -> Iterator[str]:
        try:
            deeper = os.open(name, FOLDER_FLAGS, dir_fd=folder)
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
        inside = is_within(real, self.root)
        return printable_path(os.path.relpath(real, self.root) if inside else real)


def _file_size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _is_small_file(path: str) -> bool:
    """Returns whether a path is a file that an editor may have open, or does not exist."""
    try:
        status = os.lstat(path)
    except OSError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_SIZE


def _read_saved(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  the path was resolved when a tool used it
            return file.read(MAX_FILE_SIZE)
    except OSError:
        return None


def _entry_suffix(entry: "os.DirEntry[str]") -> str:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return ""
    if stat.S_ISDIR(status.st_mode):
        return "/"
    if stat.S_ISLNK(status.st_mode):
        return " (link)"
    return f" ({status.st_size:,} bytes)" if stat.S_ISREG(status.st_mode) else " (not a file)"


def printable_path(path: object) -> str:
    """Returns a path for a message: escaped to one line and truncated."""
    text = re.sub(_CONTROL, lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), str(path))
    return (text if len(text) <= _SHOWN_PATH else f"{text[:_SHOWN_PATH]}…") or "(empty path)"


@contextmanager
def os_errors_as_failures(name: str, near: str = "") -> Generator[None]:
    """Converts OSError to a ToolFailure with a message for the model."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailure(f"{name} does not exist{_suggest_similar(near)}") from error
    except OSError as error:
        message = _ERROR_TEXTS.get(error.errno or 0) or error.strerror or str(error)
        raise ToolFailure(f"{name}: {message}", errno=error.errno) from error


def _suggest_similar(path: str) -> str:
    """Returns a hint with similar names in the same folder."""
    from difflib import get_close_matches  # lazy: only for mistakes

    folder, _, name = path.rpartition("/")
    try:
        names = [entry.name for entry in islice(os.scandir(folder or "/"), 5000)] if name else []
    except OSError:
        return ""
    near = get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(map(printable_path, near))}?" if near else ""


def _list_hint(reason: str, op: str) -> str:
    return "; list shows what is in it" if "folder" in reason and op == "read" else ""


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


def read_lines(file: BinaryIO, first_line: int, bounds: ReadBounds) -> FileLines | None:
    """Reads lines within the bounds. Returns None for a binary file."""
    if isinstance(file, io.BytesIO) or os.fstat(file.fileno()).st_size <= MAX_FILE_SIZE:
        raw = file.read(MAX_FILE_SIZE + 1)
        encoding = detect_encoding(raw)
        return encoding and _read_decoded(io.BytesIO(raw), encoding, first_line, bounds, version_of(raw))
    sample = file.read(_SAMPLE_SIZE)
    file.seek(0)
    encoding = detect_encoding(sample, complete=False)
    return encoding and _read_decoded(file, encoding, first_line, bounds, None)


def _read_decoded(
    file: BinaryIO, encoding: TextEncoding, first_line: int, bounds: ReadBounds, version: Version | None
) -> FileLines:
    file.seek(len(encoding.bom))
    sample = file.read(_SAMPLE_SIZE).decode(encoding.name, "replace")
    file.seek(len(encoding.bom))
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    errors = encoding.errors if version else "replace"
    text = io.TextIOWrapper(file, encoding=encoding.name, errors=errors, newline=newline)
    try:
        lines = _iterate_lines(text)
        skipped = sum(1 for _ in islice(lines, first_line - 1))
        retained, cut = _take_lines(lines, bounds)
        total = skipped + len(retained) + cut + sum(1 for _ in lines) if version or not cut else None
        return FileLines(tuple(retained), first_line, total, encoding, version, bool(cut))
    finally:
        text.detach()


def _take_lines(lines: Iterator[str], bounds: ReadBounds) -> tuple[list[str], int]:
    """Returns the lines that fit, and 1 if one more line was consumed."""
    retained: list[str] = []
    room = bounds.characters
    for line in lines:
        room -= len(line) + 8  # line number and tab
        if len(retained) >= bounds.lines or (room < 0 and retained):
            return retained, 1
        retained.append(line)
    return retained, 0


def _iterate_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yields truncated lines. The rest of an overlong line is skipped in chunks to bound memory."""
    while line := text.readline(MAX_LINE_LENGTH * 4):
        cut_characters = 0
        end = line
        while not end.endswith(("\n", "\r")) and (end := text.readline(_SAMPLE_SIZE)):
            cut_characters += len(without_ending(end))
        yield shorten_line(line, MAX_LINE_LENGTH) if not cut_characters else _truncate_line(line, cut_characters)


def _truncate_line(line: str, cut_characters: int) -> str:
    hidden = len(line) - MAX_LINE_LENGTH + cut_characters
    return f"{shorten_line(line[:MAX_LINE_LENGTH])}… [{hidden:,} more characters in this line]"
