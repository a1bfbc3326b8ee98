"""Writes changes of several files in one transaction, with optimistic locking and undo support.

A transaction holds the lock of the workspace, which commands with an overlay and their commits hold too.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, fcntl, open_folder
from outrider._sync import ThreadPool, wait_to_end
from outrider.errors import ToolFailure
from outrider.tools.text.encoding import TextEncoding, detect_encoding
from outrider.tools.tool import Progress, ToolContext
from outrider.tools.workspace_files import (
    MAX_FILE_SIZE,
    OPEN_FILE_FLAGS,
    CurrentContent,
    EditorFiles,
    FileLocation,
    SeenVersions,
    WorkspaceFiles,
    os_errors_as_failures,
    version_of,
)
from outrider.types.tool_declaration import FileOperation

LOCKS_FOLDER = "locks"
POLL_SECONDS = 0.05
WAIT_NOTE = "waiting for another command or edit in this workspace to end\n"


class WorkspaceLock:
    """Serializes what changes a workspace. The kernel releases the file lock when its process ends, also by a kill.

    The file is in the data folder, so it covers the processes that share one. Waiting can be cancelled.
    """

    def __init__(self, data: Path, workspace: Path) -> None:
        name = sha256(os.fsencode(workspace.resolve())).hexdigest()[:24]
        self._file = data / LOCKS_FOLDER / f"{name}.lock"
        self._tasks = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, on_wait: Callable[[str], object] | None = None) -> AsyncGenerator[None, None]:
        """Holds the lock; calls `on_wait` once with a note if it is not free."""
        notify = _once(on_wait)
        if self._tasks.locked():
            notify()
        async with self._tasks:  # within this process; the file lock is for other processes
            descriptor = self._open()
            try:
                # Polls, because a blocking flock would need a thread that cannot be cancelled.
                while descriptor is not None and not _try_lock(descriptor):
                    notify()
                    await asyncio.sleep(POLL_SECONDS)
                yield
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def _open(self) -> int | None:
        """Returns a descriptor of the lock file, None if the data folder cannot be written."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self._file, os.O_RDWR | os.O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600)
        except OSError:
            return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _once(on_wait: Callable[[str], object] | None) -> Callable[[], None]:
    waiting = [on_wait] if on_wait is not None else []

    def notify() -> None:
        if waiting:
            waiting.pop()(WAIT_NOTE)

    return notify


_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC | O_NOFOLLOW


class PlannedChange(msgspec.Struct, frozen=True):
    """A change of one file.

    - `location`: the file.
    - `before`: the expected content; None if there is no file.
    - `after`: the new content; None to delete the file.
    - `mode`: the permissions of a new file that replaces a moved one.
    - `in_editor`: True if the user's editor writes the file.
    """

    location: FileLocation
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    in_editor: bool = False


def commit_changes(changes: list[PlannedChange], editor: EditorFiles | None = None) -> None:
    """Applies all changes or none.

    Writes and fsyncs every new content to a temporary file first, then renames. If a rename fails, the earlier ones are
    reverted. `editor` writes the changes that are made in the user's editor. Raises ToolFailure; the files are then
    unchanged.
    """
    created_folders: list[str] = []
    try:
        with ExitStack() as stack:
            _apply_all([stack.enter_context(_stage_change(change, created_folders, editor)) for change in changes])
    except BaseException:
        _remove_folders(created_folders)
        raise


def remove_leftovers(path: Path) -> None:
    """Removes temporary files that a killed process left next to `path`."""
    temporary_name = re.compile(rf"\.{re.escape(path.name[:60])}\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError):
        for entry in list(path.parent.iterdir()):
            if temporary_name.fullmatch(entry.name):
                entry.unlink(missing_ok=True)


def _apply_all(staged: list["_StagedChange"]) -> None:
    applied: list[_StagedChange] = []
    try:
        for staged_change in staged:
            with os_errors_as_failures(staged_change.change.location.display):
                staged_change.apply()
            applied.append(staged_change)
    except BaseException:
        _revert_all(applied)
        raise
    for staged_change in applied:
        staged_change.sync_folder()


def _remove_folders(folders: list[str]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


@contextmanager
def _stage_change(
    change: PlannedChange, created_folders: list[str], editor: EditorFiles | None
) -> Generator["_StagedChange"]:
    parts = change.location.parts
    with ExitStack() as stack:
        with os_errors_as_failures(change.location.display):
            folder = stack.enter_context(
                open_folder(change.location.base, parts[:-1], created_folders if change.after is not None else None)
            )
            if change.in_editor and editor is not None:
                staged = _EditorChange(change, folder, parts[-1], editor)
            else:
                staged = _StagedChange(change, folder, parts[-1])
            stack.callback(staged.remove_temp)
            staged.write(change.after)
        yield staged


class _StagedChange:
    """A change whose new content is in a temporary file in the same folder."""

    def __init__(self, change: PlannedChange, folder: int, name: str) -> None:
        self.change = change
        self.folder = folder
        self.name = name
        self._temp_name: str | None = None
        self._original_stat = self._check_unchanged()

    def write(self, content: bytes | None) -> None:
        if content is None:
            return
        from outrider.permissions.paths.gitignore import temporary_name  # lazy: loaded with the first edit

        self._temp_name = temporary_name(self.name)
        fresh = self._original_stat is None and self.change.mode is None
        descriptor = os.open(self._temp_name, _NEW_FILE_FLAGS, 0o666 if fresh else 0o600, dir_fd=self.folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            self._copy_attributes(descriptor)
            os.fsync(descriptor)

    def apply(self) -> None:
        if self._current_identity() != _file_identity(self._original_stat):
            raise _conflict_failure(self.change)
        if self._temp_name is None:
            os.unlink(self.name, dir_fd=self.folder)
        elif self.change.before is None:
            # link() fails if the name exists, whereas rename() would silently replace a file that another process
            # created.
            self._link_new_file(self._temp_name)
        else:
            os.rename(self._temp_name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._temp_name = None

    def revert(self) -> None:
        if self.change.before is None:
            os.unlink(self.name, dir_fd=self.folder)
            return
        self.remove_temp()
        self.write(self.change.before)
        os.rename(self._temp_name or "", self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self._temp_name = None

    def sync_folder(self) -> None:
        """Fsyncs the folder, so that the rename survives a power failure."""
        with suppress(OSError):
            os.fsync(self.folder)

    def remove_temp(self) -> None:
        temp_name, self._temp_name = self._temp_name, None
        if temp_name is not None:
            with suppress(FileNotFoundError):
                os.unlink(temp_name, dir_fd=self.folder)

    def _link_new_file(self, temp_name: str) -> None:
        try:
            os.link(temp_name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        except FileExistsError:
            raise _conflict_failure(self.change) from None
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}:
                raise
            self._rename_to_new_name(temp_name)
        else:
            self.remove_temp()

    def _rename_to_new_name(self, temp_name: str) -> None:
        """Creates an empty file, which fails if the name exists, and replaces it: for file systems without links. A
        file of another process stays; only what one writes to the empty file before the rename is lost."""
        try:
            os.close(os.open(self.name, _NEW_FILE_FLAGS, 0o600, dir_fd=self.folder))
        except FileExistsError:
            raise _conflict_failure(self.change) from None
        try:
            os.rename(temp_name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except BaseException:
            os.unlink(self.name, dir_fd=self.folder)
            raise
        self._temp_name = None

    def _current_identity(self) -> tuple[int, ...] | None:
        try:
            return _file_identity(os.stat(self.name, dir_fd=self.folder, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _check_unchanged(self) -> os.stat_result | None:
        """Returns the file's stat, or None for a new file. Raises ToolFailure if the content differs from `before` or
        the file is not replaceable."""
        try:
            descriptor = os.open(self.name, OPEN_FILE_FLAGS, dir_fd=self.folder)
        except FileNotFoundError:
            if self.change.before is None:
                return None
            raise _conflict_failure(self.change) from None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if self.change.before is None or not stat.S_ISREG(status.st_mode) or file.read() != self.change.before:
                raise _conflict_failure(self.change)
        self._check_replaceable(status)
        return status

    def _check_replaceable(self, status: os.stat_result) -> None:
        name = self.change.location.display
        if status.st_nlink > 1:
            raise ToolFailure(
                f"{name} has {status.st_nlink} names (hard links); changing one would separate it from the others. "
                "Nothing was written"
            )
        if not os.access(self.name, os.W_OK, dir_fd=self.folder, effective_ids=True):
            raise ToolFailure(f"{name} is read-only. Nothing was written")

    def _copy_attributes(self, descriptor: int) -> None:
        """Copies owner, xattrs and mode. The owner comes first, because chown clears the setuid and setgid bits."""
        if self._original_stat is None:
            if self.change.mode is not None:
                os.fchmod(descriptor, self.change.mode)
            return
        with suppress(PermissionError):  # only root may give a file to another owner
            os.fchown(descriptor, self._original_stat.st_uid, self._original_stat.st_gid)
        _copy_xattrs(self.folder, self.name, descriptor)
        os.fchmod(descriptor, stat.S_IMODE(self._original_stat.st_mode))


class _EditorChange(_StagedChange):
    """A change that the user's editor makes in its buffer and on disk. Folders are created and checked here."""

    def __init__(self, change: PlannedChange, folder: int, name: str, editor: EditorFiles) -> None:
        self._editor = editor
        super().__init__(change, folder, name)

    def write(self, content: bytes | None) -> None:
        """Stages nothing: the editor writes the file itself."""

    def apply(self) -> None:
        self._write_in_editor(self.change.after)
        if self.change.before is None and self.change.mode is not None:
            os.chmod(self.name, self.change.mode, dir_fd=self.folder)
        if self.change.after != self.change.before and self._read_content() == self.change.before:
            raise ToolFailure(
                f"{self.change.location.display}: the user's editor did not write it; the file is unchanged"
            )

    def revert(self) -> None:
        if self.change.before is None:
            os.unlink(self.name, dir_fd=self.folder)
        else:
            self._write_in_editor(self.change.before)

    def _write_in_editor(self, content: bytes | None) -> None:
        location = self.change.location
        self._editor.write(location.real, location.display, content or b"")

    def _check_unchanged(self) -> os.stat_result | None:
        status = None
        with suppress(FileNotFoundError):
            status = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise _conflict_failure(self.change)
            self._check_replaceable(status)
        if self._read_content() != self.change.before:
            raise _conflict_failure(self.change)
        return status

    def _read_content(self) -> bytes | None:
        """Returns the text in the editor, or else the file."""
        try:
            with os.fdopen(os.open(self.name, OPEN_FILE_FLAGS, dir_fd=self.folder), "rb") as file:
                saved = file.read(MAX_FILE_SIZE + 1)
        except FileNotFoundError:
            saved = None
        return self._editor.read(self.change.location.real, self.change.location.display, saved).content


def _revert_all(applied: list[_StagedChange]) -> None:
    lost: list[str] = []
    for staged_change in reversed(applied):
        try:
            staged_change.revert()
        except (OSError, ToolFailure):
            lost.append(staged_change.change.location.display)
    if lost:
        raise ToolFailure(f"the transaction failed, and these files could not be reverted: {', '.join(lost)}")


def _copy_xattrs(folder: int, name: str, target: int) -> None:
    """Copies extended attributes (ACLs, capabilities, labels) as far as the system permits."""
    if not hasattr(os, "listxattr"):
        return
    with suppress(OSError), os.fdopen(os.open(name, OPEN_FILE_FLAGS, dir_fd=folder), "rb") as source:
        for attribute in os.listxattr(source.fileno()):
            with suppress(OSError):
                os.setxattr(target, attribute, os.getxattr(source.fileno(), attribute))


def _file_identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    return status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _conflict_failure(change: PlannedChange) -> ToolFailure:
    return ToolFailure(f"{change.location.display} was changed by another process. Nothing was written; read it again")


class FileRevision:
    """The old and new content of one file in a transaction. `before` is None if the file does not exist; it may be text
    of the user's editor that is not saved."""

    def __init__(
        self, location: FileLocation, current: CurrentContent, *, stale: bool, seen: bool, mode: int | None
    ) -> None:
        self.location = location
        self.current = current
        self.before = self.after = current.content
        self.stale = stale
        self.seen = seen
        self.mode = mode

    @property
    def encoding(self) -> TextEncoding:
        """Returns the encoding of the current content; UTF-8 for a new file. Raises ToolFailure for a binary file."""
        detected = detect_encoding(self.after or b"")
        if detected is None or detected.encode(detected.decode(self.after or b"")) != (self.after or b""):
            raise ToolFailure(f"{self.location.display} is a binary file, which cannot be edited as text")
        return detected

    @property
    def text(self) -> str:
        if self.after is None:
            raise ToolFailure(f"{self.location.display} does not exist")
        return self.encoding.decode(self.after)

    def set_text(self, text: str, encoding: TextEncoding) -> None:
        try:
            self.after = encoding.encode(text)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.start + 1].encode("unicode_escape", "surrogatepass").decode()
            raise ToolFailure(
                f"{self.location.display} is in {encoding.label}, which has no character {wrong}. Nothing was written"
            ) from error

    def to_change(self, editor: EditorFiles | None = None) -> PlannedChange:
        mode = None if self.before is not None else self.mode
        in_editor = editor is not None and editor.writes(self.current, self.after)
        return PlannedChange(self.location, self.before, self.after, mode, in_editor)


class RevisionSet:
    """The files of one call, with the resolved path as the key, so that a file named twice has one revision."""

    def __init__(self, files: WorkspaceFiles, ledger: SeenVersions, session_id: str) -> None:
        self._files = files
        self._seen_versions = ledger
        self._session_id = session_id
        self._revisions: dict[str, FileRevision] = {}

    def open(self, path: str, op: FileOperation = "edit") -> FileRevision:
        """Returns the revision of a file that may not exist. Deleting and moving apply to the name itself, which must
        not be a symbolic link."""
        location = self._files.locate(path, op)
        if not location.parts:
            raise ToolFailure(f"{location.display}: it is a folder")
        if location.real not in self._revisions:
            self._revisions[location.real] = self._read_revision(location)
        return self._revisions[location.real]

    def changed_revisions(self) -> Iterator[FileRevision]:
        return (revision for revision in self._revisions.values() if revision.after != revision.before)

    def record_seen(self, revision: FileRevision) -> None:
        """Records that the model has seen the current content, because the error message includes it."""
        if revision.before is not None:
            self._seen_versions.record(self._session_id, revision.location.real, version_of(revision.before))

    def _read_revision(self, location: FileLocation) -> FileRevision:
        try:
            status = os.lstat(location.real)
        except (FileNotFoundError, NotADirectoryError):
            return self._make_revision(location, self._files.read_current(location, None), None)
        if stat.S_ISLNK(status.st_mode):
            raise ToolFailure(f"{location.display} is a link; links are neither deleted nor moved")
        with self._files.open(location) as file:
            if status.st_size > MAX_FILE_SIZE:
                raise ToolFailure(
                    f"{location.display} has {status.st_size:,} bytes; files over {MAX_FILE_SIZE:,} are not changed"
                )
            before = file.read(MAX_FILE_SIZE + 1)
        return self._make_revision(location, self._files.read_current(location, before), stat.S_IMODE(status.st_mode))

    def _make_revision(self, location: FileLocation, current: CurrentContent, mode: int | None) -> FileRevision:
        if current.content is None:
            return FileRevision(location, current, stale=False, seen=True, mode=mode)
        seen_version = self._seen_versions.get(self._session_id, location.real)
        stale = seen_version is not None and seen_version != version_of(current.content)
        return FileRevision(location, current, stale=stale, seen=seen_version is not None, mode=mode)


T = TypeVar("T")

_threads = ThreadPool()  # shared: nothing closes an editor, so its own threads would outlive its session

SaveOriginals = Callable[[ToolContext, Sequence[PlannedChange]], AbstractAsyncContextManager[None]]
"""Callback that returns a context manager around the write: on entry it stores the original contents for undo, on exit
it inspects the result."""


def save_no_originals(context: ToolContext, changes: Sequence[PlannedChange]) -> AbstractAsyncContextManager[None]:
    """Stores nothing, so that the changes cannot be undone: the default callback."""
    return nullcontext()


class FileEditor:
    """Runs edit transactions one at a time, under `lock`. Nothing is written if the original contents cannot be stored
    for undo."""

    def __init__(
        self,
        files: WorkspaceFiles,
        keep: SaveOriginals = save_no_originals,
        ledger: SeenVersions | None = None,
        lock: WorkspaceLock | None = None,
    ) -> None:
        self.files = files
        self.seen_versions = ledger or SeenVersions()
        self._save_originals = keep
        self._lock = lock
        self._fallback_lock = asyncio.Lock()

    async def apply_plan(self, context: ToolContext, plan: Callable[[RevisionSet], T]) -> T:
        """Runs `plan`, which opens and changes revisions, then commits the changed ones.

        Nothing is written if the plan raises, or for a preview. Cancellation takes effect before the first write, or
        after the commit has finished.
        """
        if context.preview:
            planned = RevisionSet(self.files, self.seen_versions, context.session_id)
            return await _threads.run(lambda: plan(planned))
        async with self._hold_lock(context):
            revisions = RevisionSet(self.files, self.seen_versions, context.session_id)
            result: T = await _threads.run(lambda: plan(revisions))
            editor = self.files.editor
            changes = [revision.to_change(editor) for revision in revisions.changed_revisions()]
            if editor is not None:
                await wait_to_end(_threads.run(lambda: _save_buffers(revisions, editor)))
            async with AsyncExitStack() as retained:
                await self._enter_save(retained, context, changes)
                await wait_to_end(_threads.run(lambda: commit_changes(changes, editor)))
            for revision in revisions.changed_revisions():
                self._record_version(context.session_id, revision)
        return result

    def _hold_lock(self, context: ToolContext) -> AbstractAsyncContextManager[None]:
        if self._lock is None:
            return self._fallback_lock
        return self._lock.hold(lambda note: context.report(Progress(note)))

    async def _enter_save(self, retained: AsyncExitStack, context: ToolContext, changes: list[PlannedChange]) -> None:
        try:
            await retained.enter_async_context(self._save_originals(context, changes))
        except Exception as error:
            reason = getattr(error, "message", "") or str(error) or type(error).__name__
            names = ", ".join(change.location.display for change in changes)
            raise ToolFailure(
                f"{names}: its current content could not be stored for undo ({reason}). Nothing was written"
            ) from error

    def _record_version(self, session_id: str, revision: FileRevision) -> None:
        if revision.after is None:
            self.seen_versions.forget(session_id, revision.location.real)
        else:
            self.seen_versions.record(session_id, revision.location.real, version_of(revision.after))


def _save_buffers(revisions: RevisionSet, editor: EditorFiles) -> None:
    for revision in revisions.changed_revisions():
        location = revision.location
        editor.save_before_change(location.real, location.display, revision.current, revision.after)
