"""Copy-on-write overlays: what a sandboxed command writes to the workspace is collected in a separate folder.

The kernel's overlay file system stores changed files in the upper folder, a deleted name as a character device with
number 0/0 (a whiteout), and marks a folder whose lower content is hidden with the attribute `user.overlay.opaque`.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import islice, zip_longest
from pathlib import Path
from uuid import uuid4

import msgspec

from outrider._posix import O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK
from outrider.types.outcomes import ChangeKind, FileKind

_OPAQUE = "user.overlay.opaque"
_COMPARE_BYTES = 1 << 20
MAX_CHANGES = 500_000
_MAX_WALKED, _MAX_COPIED, _MAX_COPIED_FILE = 200_000, 1 << 28, 1 << 26


class OverlayFolders(msgspec.Struct, frozen=True):
    """The folders of one overlay mount. `layers` are read-only and lie above the workspace, lowest first."""

    upper: Path
    work: Path
    layers: tuple[Path, ...] = ()

    @classmethod
    def create(cls, root: Path, layers: Sequence[Path] = ()) -> "OverlayFolders":
        """Creates empty folders for a mount below `root`, which must not exist."""
        root.mkdir(parents=True, mode=0o700)
        upper, work = root / "upper", root / "work"
        upper.mkdir(mode=0o755)
        work.mkdir(mode=0o700)
        return cls(upper, work, tuple(layers))


class FileStamp(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a version of a file without reading it. Any write changes `ctime`."""

    mode: int
    size: int
    mtime: int
    ctime: int
    inode: int

    @classmethod
    def of_status(cls, status: os.stat_result) -> "FileStamp":
        return cls(status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    @classmethod
    def of_path(cls, path: str | Path) -> "FileStamp | None":
        """Returns the stamp of a path, or None if there is no file. Links are not followed."""
        status = lstat_or_none(path)
        return None if status is None else cls.of_status(status)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


class OverlayChange(msgspec.Struct, frozen=True):
    """One path that differs between the workspace and the view of the command.

    `base` is the version in the workspace that the change replaces, or None if there was none. For a folder, only its
    creation, its removal or a new mode is a change; the files in it are separate changes.
    """

    path: str
    kind: ChangeKind
    file: FileKind
    mode: int = 0
    size: int = 0
    base: FileStamp | None = None

    @property
    def shown_path(self) -> str:
        """The path as text that can be stored, sent and shown in one line, see `show_path`."""
        return show_path(self.path)

    @property
    def changes_type(self) -> bool:
        """Whether a folder replaces a file, or a file replaces a folder."""
        return self.kind == "modified" and self.base is not None and self.base.is_folder != (self.file == "folder")

    @property
    def is_only_folder(self) -> bool:
        """Whether a folder is created, removed or gets another mode, and no file changes with it."""
        was_folder = self.base is None or self.base.is_folder
        return was_folder and (self.file == "folder" or self.kind == "deleted")


def is_text(path: str) -> bool:
    """Returns whether a path is valid UTF-8, so that it can be stored."""
    return path.encode("utf-8", "replace").decode() == path


def parents_of(path: str) -> list[str]:
    """Returns the folders above a path, the topmost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def show_path(path: str) -> str:
    """Returns a path with escapes for line breaks, invisible characters and bytes that are not UTF-8.

    Backslashes are escaped too, so different paths stay different.
    """
    if path.isprintable() and "\\" not in path:
        return path
    return "".join(_escape(char) if not char.isprintable() or char == "\\" else char for char in path)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def read_changes(workspace: Path, folders: OverlayFolders) -> list[OverlayChange]:
    """Returns what a command changed, sorted by path. Call it after the command and its children have ended.

    Raises OSError if there are too many changes, or if folders are nested deeper than paths can name them.
    """
    reader = _ChangeReader(str(workspace), str(folders.upper))
    try:
        changes = list(islice(reader.read_folder("", _LowerFolder(exists=True, hidden=False)), MAX_CHANGES + 1))
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "its folders are nested too deeply") from None
    if len(changes) > MAX_CHANGES:
        raise OSError(errno.E2BIG, f"it changed more than {MAX_CHANGES:,} files")
    return sorted(changes, key=lambda change: change.path)


class _LowerFolder(msgspec.Struct, frozen=True):
    """The folder of the workspace below a folder of the upper layer: whether there is one, and whether the command did
    not see its content."""

    exists: bool
    hidden: bool


class _ChangeReader:
    def __init__(self, workspace: str, upper: str) -> None:
        self._workspace = workspace
        self._upper = upper

    def read_folder(self, folder: str, lower: _LowerFolder) -> Iterator[OverlayChange]:
        """Yields the changes below a folder of the upper layer; `folder` is "" or ends with a slash."""
        with os.scandir(f"{self._upper}/{folder}") as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                yield from self._read_entry(f"{folder}{entry.name}", entry, lower)

    def _read_entry(self, path: str, entry: "os.DirEntry[str]", lower: _LowerFolder) -> Iterator[OverlayChange]:
        status = entry.stat(follow_symlinks=False)
        # Without a folder there, the path could lead through a link.
        base = FileStamp.of_path(f"{self._workspace}/{path}") if lower.exists else None
        if is_whiteout(status):
            yield from self._read_removal(path, base)
        elif stat.S_ISDIR(status.st_mode):
            yield from self._read_subfolder(path, status, base, lower)
        else:
            yield from self._read_file(path, status, base)

    def _read_removal(self, path: str, base: FileStamp | None) -> Iterator[OverlayChange]:
        """Yields the removal of a path; one that existed in a layer only leaves the workspace as it is."""
        if base is None:
            return
        if base.is_folder:
            yield from self._removed_below(path)
        yield OverlayChange(path, "deleted", _file_kind(base.mode), base=base)

    def _read_subfolder(
        self, path: str, status: os.stat_result, base: FileStamp | None, parent: _LowerFolder
    ) -> Iterator[OverlayChange]:
        mode = stat.S_IMODE(status.st_mode)
        if base is None:
            yield OverlayChange(path, "created", "folder", mode)
        elif stat.S_IMODE(base.mode) != mode or not base.is_folder:
            yield OverlayChange(path, "modified", "folder", mode, base=base)
        exists = base is not None and base.is_folder
        # The kernel marks only the topmost of nested folders that hide what is below.
        hidden = parent.hidden or _is_opaque(f"{self._upper}/{path}")
        if exists and hidden:
            yield from self._removed_below(path, still_in=f"{self._upper}/{path}")
        yield from self.read_folder(f"{path}/", _LowerFolder(exists, hidden))

    def _read_file(self, path: str, status: os.stat_result, base: FileStamp | None) -> Iterator[OverlayChange]:
        kind, mode, size = _file_kind(status.st_mode), stat.S_IMODE(status.st_mode), status.st_size
        if base is None:
            yield OverlayChange(path, "created", kind, mode, size)
        elif base.is_folder:
            yield from self._removed_below(path)
            yield OverlayChange(path, "modified", kind, mode, size, base)
        elif not _is_same_file(f"{self._workspace}/{path}", f"{self._upper}/{path}"):
            yield OverlayChange(path, "modified", kind, mode, size, base)

    def _removed_below(self, path: str, still_in: str = "") -> Iterator[OverlayChange]:
        """Yields the removal of everything below a folder of the workspace, except names that are in `still_in`."""
        for name in sorted(_list_names(f"{self._workspace}/{path}")):
            if still_in and os.path.lexists(f"{still_in}/{name}"):
                continue
            below = f"{path}/{name}"
            base = FileStamp.of_path(f"{self._workspace}/{below}")
            if base is not None and base.is_folder:
                yield from self._removed_below(below)
            if base is not None:
                yield OverlayChange(below, "deleted", _file_kind(base.mode), base=base)


def is_whiteout(status: os.stat_result) -> bool:
    """Returns whether an entry of an upper folder marks a deleted name."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def lstat_or_none(path: str | Path) -> os.stat_result | None:
    """Returns the status of a path without following links, or None if there is no such path."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_opaque(folder: str) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE, follow_symlinks=False) in (b"y", b"x")
    except OSError:
        return False


def _list_names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _file_kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "special"


def _is_same_file(old: str, new: str) -> bool:
    """Returns whether two files have the same type, mode and content; their times are ignored."""
    old_status, new_status = os.lstat(old), os.lstat(new)
    if (old_status.st_mode, old_status.st_size) != (new_status.st_mode, new_status.st_size):
        return False
    if stat.S_ISLNK(old_status.st_mode):
        return os.readlink(old) == os.readlink(new)  # noqa: PTH115
    return stat.S_ISREG(old_status.st_mode) and same_content(old, new)


def _open_regular(path: str) -> FileIO:
    """Opens a regular file. Raises OSError for a link or a pipe, which another process may have put in its place."""
    descriptor = os.open(path, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    file = FileIO(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def same_content(old: str, new: str) -> bool:
    """Returns whether two regular files have equal content. An unreadable file counts as different."""
    try:
        with _open_regular(old) as old_file, _open_regular(new) as new_file:
            chunks = zip_longest(*(iter(partial(file.read, _COMPARE_BYTES), b"") for file in (old_file, new_file)))
            return all(old_chunk == new_chunk for old_chunk, new_chunk in chunks)
    except OSError:
        return False


def list_foreign_files(workspace: Path) -> list[str]:
    """Returns files, links and folders that belong to other users or groups, folders first, within limits.

    The sandbox's user namespace has only one user and one group, so the kernel cannot copy them when a command changes
    them.
    """
    paths: list[str] = []
    entries = size = 0
    for folder, names, files in os.walk(workspace):
        for name in (*names, *files):
            entries += 1
            status = lstat_or_none(f"{folder}/{name}")
            if entries > _MAX_WALKED or size > _MAX_COPIED:
                return paths
            if status is not None and _is_foreign(status) and status.st_size <= _MAX_COPIED_FILE:
                size += status.st_size
                paths.append(os.path.relpath(f"{folder}/{name}", workspace))
    return paths


def copy_foreign_files(workspace: Path, upper: Path, paths: Iterable[str]) -> None:
    """Copies paths into an empty upper folder, where they belong to this user and a command can change them."""
    from shutil import copy2  # loaded late: imports the archive modules

    for path in paths:
        if os.path.isdir(f"{workspace}/{path}") and not os.path.islink(f"{workspace}/{path}"):  # noqa: PTH112, PTH114
            _make_folders_like(workspace, upper, path)
            continue
        _make_folders_like(workspace, upper, os.path.dirname(path))  # noqa: PTH120
        with suppress(OSError):
            copy2(f"{workspace}/{path}", f"{upper}/{path}", follow_symlinks=False)


def _is_foreign(status: os.stat_result) -> bool:
    return (status.st_uid, status.st_gid) != (os.getuid(), os.getgid()) and (
        stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
    )


def _make_folders_like(workspace: Path, upper: Path, path: str) -> None:
    """Creates a folder and those above it in the upper folder, with the modes that they have in the workspace."""
    parts = path.split("/") if path else []
    for depth in range(1, len(parts) + 1):
        below = "/".join(parts[:depth])
        if not os.path.lexists(f"{upper}/{below}"):
            os.mkdir(f"{upper}/{below}")  # noqa: PTH102
            os.chmod(f"{upper}/{below}", stat.S_IMODE(os.lstat(f"{workspace}/{below}").st_mode))  # noqa: PTH101


_FOLDER_FLAGS = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC


def remove_tree(root: Path) -> None:
    """Deletes a tree of an overlay. Folders without permissions, such as the kernel's `work/work`, are opened first.

    Subfolders are moved to the top before they are emptied: a command can nest them deeper than a path may be long.
    """
    try:
        top = os.open(root, _FOLDER_FLAGS)
    except OSError:
        return
    unremovable: set[str] = set()
    while names := {*os.listdir(top)} - unremovable:  # noqa: PTH208
        unremovable |= {name for name in names if not _try_to_remove(name, top)}
    os.close(top)
    with suppress(OSError):
        root.rmdir()


def _try_to_remove(name: str, top: int) -> bool:
    try:
        _remove_entry(name, top, top)
    except OSError:
        return False
    return True


def _remove_entry(name: str, folder: int, top: int) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(name, stat.S_IRWXU, dir_fd=folder)
    if folder != top:
        os.rename(name, uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
        return
    inner = os.open(name, _FOLDER_FLAGS, dir_fd=top)
    try:
        for below in os.listdir(inner):  # noqa: PTH208
            _remove_entry(below, inner, top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def merge_into_layer(upper: Path, layer: Path, path: str) -> None:
    """Moves an entry of an upper folder into a layer, which later overlays have above the workspace.

    Both folders must be on one file system. No link is followed: a command chose what both folders contain.
    """
    parts = path.split("/")
    for depth in range(1, len(parts)):
        _copy_folder("/".join(parts[:depth]), upper, layer)
    _merge_entry(f"{upper}/{path}", f"{layer}/{path}")


def _copy_folder(path: str, upper: Path, layer: Path) -> None:
    """Creates a folder in a layer as it is in the upper folder, because the mode of the topmost layer applies.

    A link in its place is replaced. An earlier command may have put it there, and following it would lead out of the
    layer.
    """
    source, target = f"{upper}/{path}", f"{layer}/{path}"
    status = lstat_or_none(target)
    if status is not None and stat.S_ISDIR(status.st_mode):
        return
    if status is not None:
        os.unlink(target)  # noqa: PTH108
    os.mkdir(target)  # noqa: PTH102
    os.chmod(target, stat.S_IMODE(os.lstat(source).st_mode))  # noqa: PTH101
    if _is_opaque(source):
        os.setxattr(target, _OPAQUE, b"y", follow_symlinks=False)


def hides_path(layer: Path, path: str) -> bool:
    """Returns whether a layer hides what the workspace has at a path: the layer has a link, a file or a whiteout there
    or on the way, or a folder on the way that hides everything below."""
    above = str(layer)
    for name in path.split("/"):
        if above != str(layer) and _is_opaque(above):
            return True
        above = f"{above}/{name}"
        status = lstat_or_none(above)
        if status is None:
            return False
        if not stat.S_ISDIR(status.st_mode):
            return True
    return False


def is_confusing_link(path: Path) -> bool:
    """Returns whether a path is a link to another file while bubblewrap sets up a sandbox, by its names for the old and
    the new root. Inside the sandbox such a link has no target."""
    try:
        target = os.readlink(path)  # noqa: PTH115
    except OSError:
        return False
    return not {"oldroot", "newroot"}.isdisjoint(target.split("/"))


def remove_from_layer(layer: Path, path: str, *, is_folder: bool) -> None:
    """Removes a path from a layer, so that it does not hide the workspace any more; a folder stays if `is_folder`.

    A path that is reached through a link is outside the layer and is left alone.
    """
    *folders, name = path.split("/")
    above = str(layer)
    for folder in folders:
        above = f"{above}/{folder}"
        status = lstat_or_none(above)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return
    status = lstat_or_none(f"{above}/{name}")
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(f"{above}/{name}")  # noqa: PTH108
    elif not is_folder:
        remove_tree(Path(above, name))


def _merge_entry(source: str, target: str) -> None:
    status, target_status = os.lstat(source), lstat_or_none(target)
    both_folders = stat.S_ISDIR(status.st_mode) and target_status is not None and stat.S_ISDIR(target_status.st_mode)
    if both_folders and not _is_opaque(source):
        for name in _list_names(source):
            _merge_entry(f"{source}/{name}", f"{target}/{name}")
        return
    if target_status is not None:
        if stat.S_ISDIR(target_status.st_mode):
            remove_tree(Path(target))
        else:
            os.unlink(target)  # noqa: PTH108
    os.rename(source, target)  # noqa: PTH104
