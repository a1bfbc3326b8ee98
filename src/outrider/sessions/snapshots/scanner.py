"""Scans the files of a workspace within limits and stores their contents in its private SQLite file."""

import hashlib
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from outrider.errors import StoreError, StoreVersionError
from outrider.permissions.paths.gitignore import (
    IGNORE_FILES,
    TEMPORARY_NAME,
    IgnoreRules,
    extend_rules,
    is_excluded,
    read_ignore_file,
)
from outrider.permissions.paths.protected import find_protected_name
from outrider.sessions.database_files import (
    FairFileLock,
    configure_connection,
    open_connection,
    prepare_file,
    prepare_folder,
    translate_errors,
)
from outrider.sessions.records import to_storable_text
from outrider.types.ids import new_id

SCHEMA_VERSION = 1
_TABLES = (
    "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS changes
    (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body BLOB NOT NULL) STRICT""",
    """CREATE TABLE IF NOT EXISTS belongs
    (session TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (session, number)) STRICT, WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS under_way (id TEXT PRIMARY KEY, mark INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT",
)


class SnapshotDatabase:
    """A SQLite connection with a lock, usable from any thread. A full disk raises StorageFullError."""

    def __init__(self, path: Path) -> None:
        prepare_folder(path)
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        file_lock = FairFileLock(path)
        try:
            with translate_errors(path), file_lock:
                prepare_file(path)
                self._db = _open_connection(path)
        finally:
            file_lock.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Runs a transaction: commits at the end, rolls back on an exception. A nested one joins the outer one."""
        with self._lock, translate_errors(self.path):
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield self._db
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._commit_transaction()

    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, translate_errors(self.path):
            return self._db.execute(statement, values).fetchall()

    def used_bytes(self) -> int:
        """Returns the size without free pages."""
        pages, free, page = (
            self.fetch_all(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page

    def vacuum_free_pages(self) -> None:
        """Returns free pages to the file system. `execute` would stop after the first page, hence `executescript`."""
        with self._lock, translate_errors(self.path):
            self._db.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _commit_transaction(self) -> None:
        try:
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _open_connection(path: Path) -> sqlite3.Connection:
    db = open_connection(path)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        configure_connection(db, path)
        _create_tables(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreVersionError(
            f"{path} has schema version {version}; this program reads versions up to {SCHEMA_VERSION}. Update Outrider."
        )
    if version < SCHEMA_VERSION:
        for table in _TABLES:
            db.execute(table)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


_COMPRESSION_LEVEL = 1


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class ContentStore:
    def __init__(self, database: SnapshotDatabase) -> None:
        self._database = database

    def put_content(self, content: bytes) -> str:
        name = content_hash(content)
        self.put_contents([(name, content)])
        return name

    def put_contents(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Stores contents by their hashes, compressed; existing ones stay."""
        with self._database.transaction() as db:
            for name, content in contents:
                if not db.execute("SELECT 1 FROM objects WHERE name = ?", (name,)).fetchone():
                    db.execute("INSERT INTO objects VALUES (?, ?)", (name, zlib.compress(content, _COMPRESSION_LEVEL)))

    def get_content(self, name: str) -> bytes:
        """Returns a content. Raises StoreError if it is missing or damaged."""
        rows = self._database.fetch_all("SELECT body FROM objects WHERE name = ?", (name,))
        if not rows:
            raise StoreError(f"the content {name} is not stored any more")
        try:
            content = zlib.decompress(rows[0][0])
        except zlib.error as error:
            raise StoreError(f"the content {name} is damaged") from error
        if content_hash(content) != name:
            raise StoreError(f"the content {name} is damaged")
        return content

    def delete_all_except(self, names: Collection[str]) -> None:
        stored_names = [row[0] for row in self._database.fetch_all("SELECT name FROM objects")]
        with self._database.transaction() as db:
            db.executemany(
                "DELETE FROM objects WHERE name = ?", [(name,) for name in stored_names if name not in names]
            )
        self._database.vacuum_free_pages()


# Generated, large, and often not ignored yet because a new project has no ignore file.
GENERATED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".gradle"}
)


def walk_files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields all files below the root with their stat result, in a stable order, without ignored files."""
    waiting: list[tuple[str, IgnoreRules | None]] = [("", None)]
    while waiting:
        folder, above = waiting.pop()
        entries = _sorted_entries(f"{root}/{folder}")
        rules = _ignore_rules(root, folder, entries, above)
        subfolders: list[tuple[str, IgnoreRules | None]] = []
        for entry in entries:
            path = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_excluded(rules, path, is_folder=is_folder) or (is_folder and entry.name in GENERATED_FOLDERS):
                continue
            if is_folder:
                subfolders.append((f"{path}/", rules))
                continue
            if entry.name.endswith(".tmp") and TEMPORARY_NAME.fullmatch(entry.name):
                continue
            try:
                yield path, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
        waiting += reversed(subfolders)


def _sorted_entries(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _ignore_rules(
    root: str, folder: str, entries: "list[os.DirEntry[str]]", above: IgnoreRules | None
) -> IgnoreRules | None:
    names = [entry.name for entry in entries if entry.name in IGNORE_FILES]
    return extend_rules(folder, [line for name in names for line in read_ignore_file(f"{root}/{folder}{name}")], above)


# A file that changed this shortly before it was read may change again within the resolution of its mtime.
_RECENT_CHANGE_NS = 50_000_000
_BATCH_BYTES = 4 * 1024 * 1024


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one scan and of the stored contents; files above a limit are listed as uncovered.

    `written_bytes` is the limit for files that a tool names before it writes them.
    """

    files: int = 50_000
    file_bytes: int = 8 * 1024 * 1024
    written_bytes: int = 64 * 1024 * 1024
    bytes: int = 512 * 1024 * 1024
    seconds: float = 10.0
    quota_bytes: int = 1024 * 1024 * 1024


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file at one time: the hash of its content (of the target for a link) and its mode."""

    hash: str
    mode: int
    link: bool = False


class WorkspaceSnapshot(msgspec.Struct, frozen=True):
    """The files of a workspace at one time; `paths` is None for the whole workspace.

    `uncovered` files were too large or unreadable. `cut` is the first file beyond a limit: it and all later files are
    unknown. `ignoring` are the ignore files that applied.
    """

    images: dict[str, FileState]
    uncovered: tuple[str, ...] = ()
    paths: tuple[str, ...] | None = None
    cut: str = ""
    ignoring: dict[str, FileState] = {}
    id: str = msgspec.field(default_factory=new_id)


class ScannedFile(msgspec.Struct, frozen=True, array_like=True):
    """A cache entry: size, mtime, inode and mode of a file when it was read, and its state."""

    stamp: tuple[int, int, int, int]
    image: FileState


class WorkspaceScanner:
    """Takes snapshots of one workspace. Files with an unchanged stat are not read again; `scanned` is the cache."""

    def __init__(
        self, root: Path, objects: ContentStore, limits: SnapshotLimits, scanned: dict[str, ScannedFile]
    ) -> None:
        self._root = str(root)
        self._objects = objects
        self._limits = limits
        self.scanned = scanned
        # Paths that are not protected, from the last scan: checking a name costs as much as a stat of the file.
        self._unprotected: frozenset[str] = frozenset()

    def scan_all(self) -> WorkspaceSnapshot:
        snapshot = self._scan_files(walk_files(self._root), None)
        self._unprotected = frozenset(snapshot.images)  # a copy: changes of other calls are added to the images
        return snapshot

    def scan_paths(self, paths: Iterable[str]) -> WorkspaceSnapshot:
        sorted_paths = tuple(sorted(set(paths)))
        return self._scan_files(self._stat_paths(sorted_paths), sorted_paths)

    def _stat_paths(self, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        for path in paths:
            try:
                status = os.lstat(f"{self._root}/{path}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield path, status

    def _scan_files(
        self, files: Iterator[tuple[str, os.stat_result]], paths: tuple[str, ...] | None
    ) -> WorkspaceSnapshot:
        images: dict[str, FileState] = {}
        uncovered: list[str] = []
        largest = self._limits.file_bytes if paths is None else self._limits.written_bytes
        reader = _FileReader(self._objects, self._limits.bytes, largest, self.scanned)
        deadline = time.monotonic() + self._limits.seconds
        cut = ""
        for path, status in files:
            if len(images) >= self._limits.files or reader.bytes <= 0 or time.monotonic() > deadline:
                cut = path
                break
            if paths is None and path not in self._unprotected and find_protected_name(path.split("/"), "read"):
                # The image would store a secret that the user never named. A commit or an edit of the file names it.
                uncovered.append(to_storable_text(path))
                continue
            cached = self.scanned.get(path)
            if cached is not None and cached.stamp == _stat_stamp(status):
                images[path] = cached.image
                continue
            try:
                path.encode()  # a name that is not UTF-8 cannot be stored
                images[path] = reader.read_file(path, f"{self._root}/{path}", status)
            except FileNotFoundError:
                continue
            except ValueError:
                uncovered.append(to_storable_text(path))
        reader.flush_contents()
        ignoring = {path: image for path, image in images.items() if path.endswith(IGNORE_FILES)}
        return WorkspaceSnapshot(images, tuple(uncovered), paths, to_storable_text(cut), ignoring)


class _FileReader:
    """Reads files during one scan, stores contents in batches, and caches a file after its content is stored."""

    def __init__(self, objects: ContentStore, max_bytes: int, largest: int, scanned: dict[str, ScannedFile]) -> None:
        self._objects = objects
        self._largest = largest
        self._seen = scanned
        self._contents: list[tuple[str, bytes]] = []
        self._waiting = 0
        self._fresh: dict[str, ScannedFile] = {}
        self.bytes = max_bytes

    def read_file(self, path: str, absolute: str, status: os.stat_result) -> FileState:
        content = read_content(absolute, status, self._largest)
        image = _file_state(content_hash(content), status)
        self._contents.append((image.hash, content))
        self.bytes -= len(content)
        self._waiting += len(content)
        if time.time_ns() - status.st_mtime_ns > _RECENT_CHANGE_NS:
            self._fresh[path] = ScannedFile(_stat_stamp(status), image)
        if self._waiting > _BATCH_BYTES:
            self.flush_contents()
        return image

    def flush_contents(self) -> None:
        if self._contents:
            self._objects.put_contents(self._contents)
        self._seen.update(self._fresh)
        self._contents, self._fresh, self._waiting = [], {}, 0


def current_file_state(path: str, objects: ContentStore, limit: int) -> FileState | None:
    """Stores the current content of a file and returns its state; None if there is no file.

    Raises ValueError for a special file, and for a file above the limit."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return None
    return _file_state(objects.put_content(read_content(path, status, limit)), status)


def read_content(path: str, status: os.stat_result, limit: int) -> bytes:
    if stat.S_ISLNK(status.st_mode):
        return os.fsencode(os.readlink(path))  # noqa: PTH115
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if status.st_size > limit:
        raise ValueError(f"{path} is larger than {limit} bytes")
    try:
        descriptor = os.open(path, os.O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:  # an OSError would look like a failure of the store
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _file_state(name: str, status: os.stat_result) -> FileState:
    return FileState(name, stat.S_IMODE(status.st_mode), stat.S_ISLNK(status.st_mode))


def _stat_stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode)
