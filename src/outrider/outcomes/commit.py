"""Commits the files that a sandboxed command changed in its overlay to the workspace.

Every new content is staged next to its target first; then each file is replaced by one rename, so that a killed process
leaves either the old or the new file. Running the commit again completes it. No path is reached through a link.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, nearest_folder, open_folder
from outrider.permissions.paths.gitignore import temporary_name
from outrider.processes.sandbox.overlay import FileStamp, OverlayChange, lstat_or_none, same_content
from outrider.sessions.failpoints import failpoint
from outrider.tools.edit_transaction import remove_leftovers

_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC | O_NOFOLLOW
_COPY_BYTES = 1 << 24
_MODE_BITS = 0o1777  # without setuid and setgid, which a command could use against the user later
_CONFLICT_ERRORS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.ENOENT)
_CLONE_FILE = 0x40049409  # FICLONE: shares the blocks of a file instead of copying them


class CommitResult(msgspec.Struct, frozen=True):
    """The paths that were committed, and the paths that were not changed, because another program changed them
    (`conflicts`) or the user's editor has unsaved text of them (`unsaved`)."""

    committed: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()


def find_conflicts(workspace: Path, upper: Path, changes: Iterable[OverlayChange]) -> tuple[str, ...]:
    """Returns the paths that differ from the version that the command saw, unless they already have the new content."""
    workspace = workspace.resolve()
    return tuple(change.path for change in changes if _is_conflict(change, workspace, upper))


def _is_conflict(change: OverlayChange, workspace: Path, upper: Path) -> bool:
    status = _lstat_inside(workspace, change.path)
    now = None if status is None else FileStamp.of_status(status)
    if now == change.base or is_committed(workspace, upper, change):
        return False
    if now is None and change.changes_type:
        return False  # a killed commit has removed what the change replaces
    if now is not None and _is_new_folder(change, now):
        return False
    # The times of a folder change with every file in it, so only its kind and mode are compared.
    are_folders = now is not None and change.base is not None and now.is_folder and change.base.is_folder
    return not (are_folders and now is not None and change.base is not None and now.mode == change.base.mode)


def _is_new_folder(change: OverlayChange, now: FileStamp) -> bool:
    """Returns whether a killed commit has created this folder but not yet set its mode."""
    creates = change.file == "folder" and (change.kind == "created" or change.changes_type)
    mode, while_filled = stat.S_IMODE(now.mode), 0o700 | change.mode
    return creates and now.is_folder and mode & 0o700 == 0o700 and not mode & ~while_filled


def _lstat_inside(workspace: Path, path: str) -> os.stat_result | None:
    """Returns the status of a path; None if it does not exist, or if a parent folder is a link."""
    parent = os.path.dirname(workspace / path)  # noqa: PTH120
    return lstat_or_none(workspace / path) if os.path.realpath(parent) == parent else None


def is_committed(workspace: Path, upper: Path, change: OverlayChange) -> bool:
    """Returns whether the workspace has the state after the change."""
    now = _lstat_inside(workspace, change.path)
    if change.kind == "deleted":
        return now is None
    if now is None or stat.S_IMODE(now.st_mode) & _MODE_BITS != change.mode & _MODE_BITS:
        return False
    match change.file:
        case "folder":
            return stat.S_ISDIR(now.st_mode)
        case "link":
            return (
                stat.S_ISLNK(now.st_mode) and (workspace / change.path).readlink() == (upper / change.path).readlink()
            )
        case "file":
            same_size = stat.S_ISREG(now.st_mode) and now.st_size == change.size
            return same_size and same_content(str(workspace / change.path), str(upper / change.path))
        case "special":
            return True  # never committed


def commit_outcome(workspace: Path, upper: Path, changes: Sequence[OverlayChange]) -> CommitResult:
    """Applies the changes to the workspace, except those in conflict. Raises OSError before the first change if the
    new contents cannot be written, for example because the disk is full."""
    workspace = workspace.resolve()
    conflicts = set(find_conflicts(workspace, upper, changes))
    selected = [
        change
        for change in changes
        if change.path not in conflicts and change.file != "special" and not is_committed(workspace, upper, change)
    ]
    staged: dict[str, tuple[str, ...]] = {}
    try:
        for change in _with_content(selected):
            staged[change.path] = _stage_file(workspace, upper, change)
            failpoint("FP-outcome-staging")
        failpoint("FP-outcome-staged")
        _remove_deleted(workspace, selected)
        _make_folders(workspace, selected)
        for change in _with_content(selected):
            failpoint("FP-mid-outcome")
            _install_file(workspace, change, staged.pop(change.path))
        _set_folder_modes(workspace, selected)
    finally:
        for *folders, name in staged.values():
            with suppress(OSError), open_folder(str(workspace), folders) as folder:
                os.unlink(name, dir_fd=folder)
    remaining = {change.path for change in selected if not is_committed(workspace, upper, change)}
    committed = [change.path for change in selected if change.path not in remaining]
    return CommitResult(tuple(committed), tuple(sorted(conflicts | remaining)))


def remove_staged(workspace: Path, changes: Iterable[OverlayChange]) -> None:
    """Removes temporary files that a killed commit left."""
    for change in _with_content(changes):
        for folder in (workspace / change.path).parents:
            remove_leftovers(folder / Path(change.path).name)
            if folder == workspace:
                break


def _with_content(changes: Iterable[OverlayChange]) -> Iterator[OverlayChange]:
    return (change for change in changes if change.kind != "deleted" and change.file in ("file", "link"))


def _stage_file(workspace: Path, upper: Path, change: OverlayChange) -> tuple[str, ...]:
    """Writes the new content to a file in the deepest existing folder of its path. Returns the path of this staged
    file."""
    *folders, name = change.path.split("/")
    nearest = nearest_folder(str(workspace), folders)
    staged_name = temporary_name(name)
    with open_folder(str(workspace), nearest) as folder:
        if change.file == "link":
            os.symlink((upper / change.path).readlink(), staged_name, dir_fd=folder)
        else:
            target = os.open(staged_name, _NEW_FILE_FLAGS, 0o600, dir_fd=folder)
            try:
                _copy_file(str(upper / change.path), target, change, workspace)
            except BaseException:
                os.close(target)
                os.unlink(staged_name, dir_fd=folder)
                raise
            os.close(target)
    return (*nearest, staged_name)


def _copy_file(source_path: str, target: int, change: OverlayChange, workspace: Path) -> None:
    """Copies content, extended attributes, owner, mode and times, and waits for the disk."""
    source = os.open(source_path, os.O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
    try:
        status = os.fstat(source)
        _copy_content(source, target)
        _copy_attributes(source, target)
        if change.base is not None and (existing := lstat_or_none(workspace / change.path)) is not None:
            with suppress(PermissionError):
                os.fchown(target, existing.st_uid, existing.st_gid)
        os.fchmod(target, change.mode & _MODE_BITS)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(target)
    finally:
        os.close(source)


def _copy_attributes(source: int, target: int) -> None:
    """Copies extended attributes, except those of the overlay itself."""
    for attribute in os.listxattr(source):
        if not attribute.startswith(("user.overlay.", "trusted.overlay.")):
            with suppress(OSError):
                os.setxattr(target, attribute, os.getxattr(source, attribute))


def _copy_content(source: int, target: int) -> None:
    import fcntl

    try:
        fcntl.ioctl(target, _CLONE_FILE, source)
    except OSError:  # another file system, or one that cannot share blocks
        size = os.fstat(source).st_size
        os.ftruncate(target, size)
        for start, end in _data_ranges(source, size):
            os.lseek(source, start, os.SEEK_SET)
            os.lseek(target, start, os.SEEK_SET)
            _copy_range(source, target, end - start)


def _data_ranges(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges in which a file has content. The holes of a sparse file take no space, but would take space in
    a plain copy."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: there is no content after this position
                yield end, size
            return
        end = os.lseek(source, start, os.SEEK_HOLE)
        yield start, end


def _copy_range(source: int, target: int, size: int) -> None:
    while size > 0 and (chunk := os.read(source, min(size, _COPY_BYTES))):
        size -= len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]


def _remove_deleted(workspace: Path, changes: Sequence[OverlayChange]) -> None:
    """Removes deleted and replaced files and folders, the deepest first. A folder that another program uses stays."""
    for change in sorted(changes, key=lambda change: change.path, reverse=True):
        if change.kind != "deleted" and not change.changes_type:
            continue
        failpoint("FP-mid-outcome")
        *folders, name = change.path.split("/")
        with suppress(FileNotFoundError, NotADirectoryError), open_folder(str(workspace), folders) as folder:
            _remove_entry(name, folder, is_folder=change.base is not None and change.base.is_folder)
            _sync_folder(folder)


def _remove_entry(name: str, folder: int, *, is_folder: bool) -> None:
    if not is_folder:
        os.unlink(name, dir_fd=folder)
        return
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder)


def _make_folders(workspace: Path, changes: Sequence[OverlayChange]) -> None:
    for change in changes:
        if change.file == "folder" and (change.kind == "created" or change.changes_type):
            *folders, name = change.path.split("/")
            # The owner's permissions are needed until the files are in place; `_set_folder_modes` sets the final mode.
            with suppress(FileExistsError), open_folder(str(workspace), folders) as folder:
                failpoint("FP-mid-outcome")
                os.mkdir(name, 0o700 | change.mode & _MODE_BITS, dir_fd=folder)
                _sync_folder(folder)


def _install_file(workspace: Path, change: OverlayChange, staged: Sequence[str]) -> None:
    *staged_folders, staged_name = staged
    with open_folder(str(workspace), staged_folders) as source:
        try:
            _rename_to(workspace, change, source, staged_name)
        except OSError as error:
            # Another program has created or changed something at this path meanwhile, so the change is a conflict.
            os.unlink(staged_name, dir_fd=source)
            if error.errno not in _CONFLICT_ERRORS:
                raise


def _rename_to(workspace: Path, change: OverlayChange, source: int, staged_name: str) -> None:
    *folders, name = change.path.split("/")
    with open_folder(str(workspace), folders, None if change.kind == "modified" else []) as target:
        if change.kind == "created" and _exists(name, target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        os.rename(staged_name, name, src_dir_fd=source, dst_dir_fd=target)
        _sync_folder(target)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _set_folder_modes(workspace: Path, changes: Sequence[OverlayChange]) -> None:
    for change in sorted(changes, key=lambda change: change.path, reverse=True):
        if change.file == "folder" and change.kind != "deleted":
            failpoint("FP-mid-outcome")
            with suppress(OSError), open_folder(str(workspace), change.path.split("/")) as folder:
                os.fchmod(folder, change.mode & _MODE_BITS)


def _sync_folder(folder: int) -> None:
    """Fsyncs a folder, so that a rename in it survives a power failure."""
    with suppress(OSError):
        os.fsync(folder)
