"""Snapshots of worktrees in the run database, so that a run continues on another machine with its uncommitted files."""

import os
import stat
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec
import sqlalchemy as sa

from outrider._posix import open_folder
from outrider.background.database import RunDatabase
from outrider.types.ids import now_ms


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that differs from the base commit. `data` is the content, or the target of a link."""

    path: str
    kind: Literal["file", "link", "deleted"] = "file"
    data: bytes = b""
    executable: bool = False


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a worktree: the number of its `files`, their total size in `bytes`, and the `time` in Unix
    milliseconds. `omitted` says why nothing is stored."""

    files: int = 0
    bytes: int = 0
    time: int = 0
    omitted: str = ""


def capture_files(root: Path, names: Iterable[str], limit: int) -> list[SnapshotFile] | None:
    """Reads the named files below `root`, without following links. Returns None if they have more than `limit`
    bytes. Raises OSError if the worktree is not a folder, so that its files do not count as deleted."""
    files: list[SnapshotFile] = []
    size = 0
    with open_folder(_resolved(root), []):
        for name in names:
            if (file := _capture_file(root, name, limit - size)) is not None:
                files.append(file)
                size += len(file.data)
            if size > limit:
                return None
    return files


def _capture_file(root: Path, name: str, max_bytes: int) -> SnapshotFile | None:
    try:
        with _open_parent(root, name) as (folder, base):
            status = os.stat(base, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return SnapshotFile(path=name, kind="link", data=os.fsencode(os.readlink(base, dir_fd=folder)))
            if not stat.S_ISREG(status.st_mode):
                return None
            descriptor = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return SnapshotFile(path=name, kind="deleted")
    return SnapshotFile(path=name, data=data, executable=bool(status.st_mode & 0o100))


def restore_files(root: Path, files: Sequence[SnapshotFile]) -> None:
    """Writes the files below `root`, without following links. Deletions come first, because a file may have become a
    folder or a folder a file."""
    for file in sorted(files, key=lambda file: file.kind != "deleted"):
        with suppress(FileNotFoundError, NotADirectoryError):
            _restore_file(root, file)


def _restore_file(root: Path, file: SnapshotFile) -> None:
    with _open_parent(root, file.path, create=file.kind != "deleted") as (folder, base):
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(base, dir_fd=folder)
        if file.kind == "link":
            os.symlink(os.fsdecode(file.data), base, dir_fd=folder)
        elif file.kind == "file":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(base, flags, 0o777 if file.executable else 0o666, dir_fd=folder), "wb") as output:
                output.write(file.data)
    if file.kind == "deleted":
        _remove_empty_parents(root, Path(file.path))


def _remove_empty_parents(root: Path, path: Path) -> None:
    with suppress(OSError):  # a folder that is not empty stays
        for parent in path.parents[:-1]:
            with _open_parent(root, str(parent)) as (folder, base):
                os.rmdir(base, dir_fd=folder)


@contextmanager
def _open_parent(root: Path, name: str, *, create: bool = False) -> Generator[tuple[int, str]]:
    """Opens the folder of a file, one folder after the other, because a command may replace one by a link."""
    *folders, base = Path(name).parts
    if Path(name).is_absolute() or ".." in folders or base == ".." or ".git" in (*folders, base):
        raise FileNotFoundError(name)
    with open_folder(_resolved(root), folders, [] if create else None) as descriptor:
        yield descriptor, base


def _resolved(root: Path) -> str:
    """Resolves the folder of the worktree. The worktree itself may not be a link: a command can replace it."""
    return str(root.parent.resolve() / root.name)


class SnapshotTable:
    """The table of snapshots: the latest one of each run that is not over. With `worker_id` it stores only those of
    runs that this worker owns, because a worker that was paused may have lost its runs to others."""

    def __init__(self, database: RunDatabase, worker_id: str = "") -> None:
        self._engine = database.engine
        self._worker_id = worker_id
        self._entries = f"{database.table_prefix}entries"
        self._table = f"{database.table_prefix}snapshots"
        self._body = "CAST(:body AS BYTEA)" if database.is_postgres else ":body"  # the type of NULL

    def store_snapshot(self, run_id: str, files: Sequence[SnapshotFile], omitted: str = "") -> SnapshotInfo:
        """Replaces the snapshot of the run; `omitted` says why it has no files."""
        size = sum(len(file.data) for file in files)
        info = SnapshotInfo(files=len(files), bytes=size, time=now_ms(), omitted=omitted)
        values = {
            "id": run_id,
            "worker": self._worker_id,
            "info": msgspec.json.encode(info).decode(),
            "body": None if omitted else zlib.compress(msgspec.msgpack.encode(files), 1),
        }
        owned = f"SELECT 1 FROM {self._entries} WHERE id = :id AND worker = :worker AND state = 'assigned'"
        statement = (
            f"INSERT INTO {self._table} SELECT :id, :info, {self._body} WHERE EXISTS ({owned})"
            f" ON CONFLICT (id) DO UPDATE SET info = excluded.info, body = excluded.body"
        )
        with self._engine.begin() as db:
            db.execute(sa.text(statement), values)
        return info

    def load_snapshot(self, run_id: str) -> tuple[SnapshotInfo, list[SnapshotFile]] | None:
        """Returns the snapshot with its files; None if there is none, or one without files."""
        with self._engine.connect() as db:
            statement = f"SELECT info, body FROM {self._table} WHERE id = :id"
            row = db.execute(sa.text(statement), {"id": run_id}).first()
        if row is None or row.body is None:
            return None
        files = msgspec.msgpack.decode(zlib.decompress(row.body), type=list[SnapshotFile])
        return msgspec.json.decode(row.info, type=SnapshotInfo), files

    def get_info(self, run_id: str) -> SnapshotInfo | None:
        with self._engine.connect() as db:
            info = db.execute(sa.text(f"SELECT info FROM {self._table} WHERE id = :id"), {"id": run_id}).scalar()
        return None if info is None else msgspec.json.decode(info, type=SnapshotInfo)

    def delete_snapshot(self, run_id: str) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": run_id})
