"""Puts changes of several files on the disk: all of them, or none."""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.gitignore import unfinished
from outrider.tools.context import ToolContext
from outrider.tools.text.encoding import Encoding, detect
from outrider.tools.threads import Threads
from outrider.tools.workspace_files import FILE, LARGEST, Files, Place, SeenVersions, open_folder, telling, version_of

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Change(msgspec.Struct, frozen=True):
    """One file: `before` is what it held (None: it did not exist), `after` what it shall hold (None: nothing).

    `mode` is for a new file that takes the place of another.
    """

    place: Place
    before: bytes | None
    after: bytes | None
    mode: int | None = None


def commit(changes: list[Change]) -> None:
    """Every new content is on the disk beside its file before the first file changes; a change that fails is
    followed by the return of those before it. Raises ToolFailure, and then nothing has changed."""
    made: list[str] = []
    try:
        with ExitStack() as stack:
            _put_all([stack.enter_context(_staged(change, made)) for change in changes])
    except BaseException:
        _remove(made)
        raise


def clear_leftovers(path: Path) -> None:
    """Remove what lies beside a file since a program was killed that was about to write it."""
    waiting = re.compile(rf"\.{re.escape(path.name[:60])}\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError):
        for found in list(path.parent.iterdir()):
            if waiting.fullmatch(found.name):
                found.unlink(missing_ok=True)


def _put_all(staged: list["_Staged"]) -> None:
    done: list[_Staged] = []
    try:
        for one in staged:
            with telling(one.change.place.shown):
                one.put()
            done.append(one)
    except BaseException:
        _take_back(done)
        raise
    for one in done:
        one.settle()


def _remove(folders: list[str]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


@contextmanager
def _staged(change: Change, made: list[str]) -> Generator["_Staged"]:
    parts = change.place.parts
    with ExitStack() as stack:
        with telling(change.place.shown):
            folder = stack.enter_context(
                open_folder(change.place.home, parts[:-1], made if change.after is not None else None)
            )
            staged = _Staged(change, folder, parts[-1])
            stack.callback(staged.clear)
            staged.write(change.after)
        yield staged


class _Staged:
    """A change whose new content waits beside the file under another name."""

    def __init__(self, change: Change, folder: int, name: str) -> None:
        self.change = change
        self.folder = folder
        self.name = name
        self._waiting: str | None = None
        self._found = self._require_unchanged()

    def write(self, content: bytes | None) -> None:
        if content is None:
            return
        self._waiting = unfinished(self.name)
        fresh = self._found is None and self.change.mode is None
        descriptor = os.open(self._waiting, _NEW, 0o666 if fresh else 0o600, dir_fd=self.folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            self._keep_attributes(descriptor)
            os.fsync(descriptor)

    def put(self) -> None:
        if self._identity_now() != _identity(self._found):
            raise _changed(self.change)
        if self._waiting is None:
            os.unlink(self.name, dir_fd=self.folder)
        elif self.change.before is None:
            # A link fails where a rename would silently replace what somebody else made meanwhile.
            self._put_new(self._waiting)
        else:
            os.rename(self._waiting, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._waiting = None

    def take_back(self) -> None:
        if self.change.before is None:
            os.unlink(self.name, dir_fd=self.folder)
            return
        self.clear()
        self.write(self.change.before)
        os.rename(self._waiting or "", self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self._waiting = None

    def settle(self) -> None:
        """The new name itself survives a power cut, too."""
        with suppress(OSError):
            os.fsync(self.folder)

    def clear(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(FileNotFoundError):
                os.unlink(waiting, dir_fd=self.folder)

    def _put_new(self, waiting: str) -> None:
        try:
            os.link(waiting, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        except FileExistsError:
            raise _changed(self.change) from None
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}:
                raise
            os.rename(waiting, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._waiting = None
        else:
            self.clear()

    def _identity_now(self) -> tuple[int, ...] | None:
        try:
            return _identity(os.stat(self.name, dir_fd=self.folder, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _require_unchanged(self) -> os.stat_result | None:
        """The file as it stands, if it still holds what the change was planned on and can be replaced."""
        try:
            descriptor = os.open(self.name, FILE, dir_fd=self.folder)
        except FileNotFoundError:
            if self.change.before is None:
                return None
            raise _changed(self.change) from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if self.change.before is None or not stat.S_ISREG(found.st_mode) or file.read() != self.change.before:
                raise _changed(self.change)
        self._require_replaceable(found)
        return found

    def _require_replaceable(self, found: os.stat_result) -> None:
        shown = self.change.place.shown
        if found.st_nlink > 1:
            raise ToolFailure(
                f"{shown} has {found.st_nlink} names (hard links); changing one would part it from the others. "
                "Nothing was written"
            )
        if not os.access(self.name, os.W_OK, dir_fd=self.folder, effective_ids=True):
            raise ToolFailure(f"{shown} is read-only. Nothing was written")

    def _keep_attributes(self, descriptor: int) -> None:
        """Owner first: changing it takes special bits of the mode away."""
        if self._found is None:
            if self.change.mode is not None:
                os.fchmod(descriptor, self.change.mode)
            return
        with suppress(PermissionError):
            os.fchown(descriptor, self._found.st_uid, self._found.st_gid)
        _copy_extended(self.folder, self.name, descriptor)
        os.fchmod(descriptor, stat.S_IMODE(self._found.st_mode))


def _take_back(done: list[_Staged]) -> None:
    lost: list[str] = []
    for one in reversed(done):
        try:
            one.take_back()
        except OSError:
            lost.append(one.change.place.shown)
    if lost:
        raise ToolFailure(f"the changes failed half way, and these could not be brought back: {', '.join(lost)}")


def _copy_extended(folder: int, name: str, target: int) -> None:
    """Access lists, capabilities and labels, where the system has them and lets us."""
    if not hasattr(os, "listxattr"):
        return
    with suppress(OSError), os.fdopen(os.open(name, FILE, dir_fd=folder), "rb") as source:
        for attribute in os.listxattr(source.fileno()):
            with suppress(OSError):
                os.setxattr(target, attribute, os.getxattr(source.fileno(), attribute))


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _changed(change: Change) -> ToolFailure:
    return ToolFailure(
        f"{change.place.shown} was changed by somebody else meanwhile. Nothing was written; read it again"
    )


class Revision:
    """One file: `before` is what it holds (None: it does not exist), `after` what it shall hold."""

    def __init__(self, place: Place, before: bytes | None, *, stale: bool, seen: bool, mode: int | None) -> None:
        self.place = place
        self.before = before
        self.after = before
        self.stale = stale
        self.seen = seen
        self.mode = mode

    @property
    def encoding(self) -> Encoding:
        """Of the content so far; UTF-8 for a new file."""
        found = detect(self.after or b"")
        if found is None or found.encode(found.decode(self.after or b"")) != (self.after or b""):
            raise ToolFailure(f"{self.place.shown} is a binary file, which cannot be edited as text")
        return found

    @property
    def text(self) -> str:
        if self.after is None:
            raise ToolFailure(f"{self.place.shown} does not exist")
        return self.encoding.decode(self.after)

    def write(self, text: str, encoding: Encoding) -> None:
        try:
            self.after = encoding.encode(text)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.start + 1].encode("unicode_escape", "surrogatepass").decode()
            raise ToolFailure(
                f"{self.place.shown} is in {encoding.label}, which has no character {wrong}. Nothing was written"
            ) from error

    def change(self) -> Change:
        return Change(self.place, self.before, self.after, None if self.before is not None else self.mode)


class Revisions:
    """The files of one call by their real paths, so that a file named twice is one revision."""

    def __init__(self, files: Files, ledger: SeenVersions, session_id: str) -> None:
        self._files = files
        self._ledger = ledger
        self._session_id = session_id
        self._revisions: dict[str, Revision] = {}

    def open(self, path: str, op: str = "edit") -> Revision:
        """Of a file that may or may not exist. Deleting and moving act on the name, which is no link then."""
        place = self._files.locate(path, op)
        if not place.parts:
            raise ToolFailure(f"{place.shown}: it is a folder")
        if place.real not in self._revisions:
            self._revisions[place.real] = self._read(place)
        return self._revisions[place.real]

    def changed(self) -> Iterator[Revision]:
        return (revision for revision in self._revisions.values() if revision.after != revision.before)

    def saw(self, revision: Revision) -> None:
        """The model is shown what the file holds now, in the words of a refusal."""
        if revision.before is not None:
            self._ledger.saw(self._session_id, revision.place.real, version_of(revision.before))

    def _read(self, place: Place) -> Revision:
        try:
            found = os.lstat(place.real)
        except (FileNotFoundError, NotADirectoryError):
            return Revision(place, None, stale=False, seen=True, mode=None)
        if stat.S_ISLNK(found.st_mode):
            raise ToolFailure(f"{place.shown} is a link; links are neither deleted nor moved")
        with self._files.open(place) as file:
            if found.st_size > LARGEST:
                raise ToolFailure(f"{place.shown} has {found.st_size:,} bytes; files over {LARGEST:,} are not changed")
            before = file.read(LARGEST + 1)
        known = self._ledger.seen(self._session_id, place.real)
        return Revision(
            place,
            before,
            stale=known is not None and known != version_of(before),
            seen=known is not None,
            mode=stat.S_IMODE(found.st_mode),
        )


T = TypeVar("T")

Keep = Callable[[ToolContext, Sequence[Change]], AbstractAsyncContextManager[None]]
"""Stands around the writing of changes: entered, it has kept what the files hold, so that the changes can be undone;
left, it sees what has become of them."""


def keep_nothing(context: ToolContext, changes: Sequence[Change]) -> AbstractAsyncContextManager[None]:
    """For editors whose changes nobody wants to undo."""
    return nullcontext()


class Editor:
    """If the old contents cannot be kept, nothing is written."""

    def __init__(self, files: Files, keep: Keep = keep_nothing, ledger: SeenVersions | None = None) -> None:
        self.files = files
        self.ledger = ledger or SeenVersions()
        self._keep = keep
        self._turnstile = asyncio.Lock()
        self._threads = Threads(4)

    async def change(self, context: ToolContext, plan: Callable[[Revisions], T]) -> T:
        """Runs the plan, which opens revisions and changes them, and writes what became different. A plan that raises
        changes nothing; cancelling either comes before the first byte or waits for the last."""
        async with self._turnstile:
            revisions = Revisions(self.files, self.ledger, context.session_id)
            result: T = await self._threads.run(lambda: plan(revisions))
            changes = [revision.change() for revision in revisions.changed()]
            async with AsyncExitStack() as kept:
                await self._enter(kept, context, changes)
                await _whole(asyncio.ensure_future(self._threads.run(lambda: commit(changes))))
            for revision in revisions.changed():
                self._note(context.session_id, revision)
        return result

    async def _enter(self, kept: AsyncExitStack, context: ToolContext, changes: list[Change]) -> None:
        try:
            await kept.enter_async_context(self._keep(context, changes))
        except Exception as error:
            why = getattr(error, "message", "") or str(error) or type(error).__name__
            shown = ", ".join(change.place.shown for change in changes)
            raise ToolFailure(
                f"{shown}: its present content could not be kept for undo ({why}). Nothing was written"
            ) from error

    def _note(self, session_id: str, revision: Revision) -> None:
        if revision.after is None:
            self.ledger.forget(session_id, revision.place.real)
        else:
            self.ledger.saw(session_id, revision.place.real, version_of(revision.after))


async def _whole(writing: "asyncio.Future[None]") -> None:
    """Once begun, writing is not left half way: what is reported about it must be true."""
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()
        raise
