"""Backs up the data folder into one archive while other processes use it, and restores such an archive."""

import os
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

import msgspec

from outrider.config.paths import AppFolders, make_private_folder
from outrider.errors import ConfigurationError, StorageFullError, StoreDamagedError, StoreError, StoreVersionError
from outrider.sessions import snapshots
from outrider.sessions.database_files import create_private_file, store_file_paths, to_store_error, translate_errors
from outrider.sessions.sqlite.connection import MIGRATIONS, schema_version
from outrider.sessions.sqlite.writes import current_lease
from outrider.types.ids import now_ms

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
# The runs come first: a run is stored after its session, so every run of the backup has its session.
_DATABASES = ("runs.sqlite", "sessions.db")
_FOLDERS = ("outputs", "undo")


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first member of an archive.

    - `format`: the version of the format.
    - `outrider`: the version of Outrider that wrote the archive.
    - `created`: the time in milliseconds.
    - `files`: the size of every other member, by name.
    - `sessions`: the number of stored sessions.
    """

    format: int = FORMAT_VERSION
    outrider: str = ""
    created: int = 0
    files: dict[str, int] = {}
    sessions: int = 0


def create_backup(folders: AppFolders, target: Path, *, version: str = "", replace: bool = False) -> BackupManifest:
    """Writes databases, stored outputs and undo data to the archive `target`, and returns its manifest.

    Databases are copied with SQLite's backup API, so other processes may write to them. Every copy must pass an
    integrity check. The archive appears under its name only when it is complete. Raises StoreError.
    """
    if target.exists() and not replace:
        raise ConfigurationError(f"{target} exists; choose another name, or replace it with --yes")
    if not folders.store_file.exists():
        raise ConfigurationError(f"there is nothing to back up: {folders.store_file} does not exist")
    with _translate_file_errors(target), _scratch_folder(target.absolute().parent) as scratch:
        for name in _list_data_files(folders.data):
            _copy_data_file(folders.data / name, scratch / name)
        manifest = BackupManifest(
            outrider=version,
            created=now_ms(),
            files={name: (scratch / name).stat().st_size for name in _list_data_files(scratch)},
            sessions=_count_sessions(scratch / folders.store_file.name),
        )
        (scratch / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        archive = scratch / "archive"
        _write_archive(archive, scratch, [_MANIFEST, *manifest.files])
        archive.replace(target)
    return manifest


def restore_backup(folders: AppFolders, archive: Path, *, replace: bool = False) -> tuple[BackupManifest, Path | None]:
    """Replaces the data of the folder with the data of an archive. Returns the manifest, and the folder with the
    previous files if there were any. Nothing is changed unless the whole archive is readable and its databases are
    intact.

    Raises ConfigurationError without `replace` if there is data, and StoreError if the archive is damaged, has a newer
    format, or a session is in use.
    """
    existing = [name for name in (*_DATABASES, *_FOLDERS) if (folders.data / name).exists()]
    if existing and not replace:
        names = ", ".join(existing)
        raise ConfigurationError(f"{folders.data} has data ({names}); with --yes it is moved aside and replaced")
    _check_unused(folders.store_file)
    data = make_private_folder(folders.data)
    with _translate_file_errors(archive), _scratch_folder(data) as scratch:
        manifest = _extract_archive(archive, scratch)
        for name in manifest.files:
            if _is_database(name):
                _check_database(scratch / name)
        _end_leases(scratch / folders.store_file.name)
        aside = _move_data_aside(data, existing) if existing else None
        for path in sorted(scratch.iterdir()):
            path.rename(data / path.name)
    return manifest, aside


def _list_data_files(data: Path) -> Iterator[str]:
    """Yields the relative paths of the files to back up, without SQLite's additional files and locks."""
    for name in _DATABASES:
        if (data / name).exists():
            yield name
    for folder in _FOLDERS:
        for path in sorted((data / folder).rglob("*")):
            if (
                path.is_file()
                and not path.is_symlink()
                and (folder == "outputs" or path.name == snapshots.DATABASE_NAME)
            ):
                yield path.relative_to(data).as_posix()


def _is_database(name: str) -> bool:
    return name in _DATABASES or name.endswith(f"/{snapshots.DATABASE_NAME}")


def _copy_data_file(source: Path, target: Path) -> None:
    make_private_folder(target.parent)
    create_private_file(target)
    if not (source.name in _DATABASES or source.name == snapshots.DATABASE_NAME):
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:  # a session was deleted in the meantime
            target.unlink()
        return
    with (
        translate_errors(source),
        closing(sqlite3.connect(source, timeout=30)) as db,
        closing(sqlite3.connect(target)) as copy,
    ):
        db.backup(copy)
        copy.execute("PRAGMA journal_mode = delete")  # the copy needs no additional files
    _check_database(target, named=source)


def _check_database(path: Path, *, named: Path | None = None) -> None:
    with translate_errors(named or path), closing(sqlite3.connect(path)) as db:
        report = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if report != "ok":
            raise StoreDamagedError(f"{named or path.name} is damaged: {report}; `outrider doctor --repair` repairs it")
        if path.name == "sessions.db" and schema_version(db) > len(MIGRATIONS):
            raise StoreVersionError("the backup was made by a newer version of Outrider; update Outrider")


def _count_sessions(path: Path) -> int:
    with translate_errors(path), closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT count(*) FROM sessions").fetchone()[0]


def _write_archive(archive: Path, folder: Path, names: list[str]) -> None:
    create_private_file(archive)
    with archive.open("r+b") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name in names:
                tar.add(folder / name, name, recursive=False)
        file.flush()
        os.fsync(file.fileno())


def _extract_archive(archive: Path, folder: Path) -> BackupManifest:
    """Extracts the members that the manifest lists. Raises StoreError if one is missing or has another size."""
    not_a_backup = f"{archive} is not a complete backup"
    try:
        with tarfile.open(archive, "r:gz") as tar:
            manifest = _extract_members(tar, folder)
    except (tarfile.TarError, EOFError, msgspec.MsgspecError, UnicodeDecodeError, zlib.error) as error:
        raise StoreError(f"{not_a_backup}: {error}") from error
    for name, size in manifest.files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise StoreError(f"{not_a_backup}: {name} is missing or incomplete")
    return manifest


def _extract_members(tar: tarfile.TarFile, folder: Path) -> BackupManifest:
    tar.extraction_filter = tarfile.data_filter
    first = tar.next()
    content = tar.extractfile(first) if first and first.name == _MANIFEST else None
    if content is None:
        raise tarfile.ReadError("it has no manifest")
    manifest = msgspec.json.decode(content.read(), type=BackupManifest)
    if manifest.format > FORMAT_VERSION:
        raise StoreVersionError(f"the backup has a newer format ({manifest.format}); update Outrider")
    for member in tar:
        if member.isreg() and member.name in manifest.files and _is_data_name(member.name):
            tar.extract(member, folder)
    while tar.fileobj.read(1 << 20):  # gzip checks its sum at the end
        pass
    return manifest


def _is_data_name(name: str) -> bool:
    return name in _DATABASES or PurePosixPath(name).parts[0] in _FOLDERS


def _check_unused(path: Path) -> None:
    """Raises StoreError if a process has a session open. A damaged store is unused, so that it can be restored."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, timeout=30)) as db:
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT lease, expires FROM sessions WHERE lease IS NOT NULL").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return
    for lease in filter(None, map(current_lease, rows)):
        owner = f"process {lease.owner.pid} on {lease.owner.host}"
        raise StoreError(f"session {lease.session_id} is in use by {owner}; stop it before a restore")


def _end_leases(path: Path) -> None:
    """Ends the leases of the processes that were running during the backup, perhaps on another machine."""
    with translate_errors(path), closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE sessions SET lease = NULL, expires = 0, token = token + 1 WHERE lease IS NOT NULL")


def _move_data_aside(data: Path, names: list[str]) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = Path(mkdtemp(prefix=f"before-restore-{stamp}-", dir=data))
    for name in names:
        for path in store_file_paths(data / name):
            if path.exists():
                path.rename(aside / path.name)
    return aside


@contextmanager
def _scratch_folder(parent: Path) -> Generator[Path]:
    scratch = Path(mkdtemp(prefix=".outrider-backup-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _translate_file_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        translated = to_store_error(error, path)
        if isinstance(translated, StorageFullError):
            raise translated from error
        raise StoreError(f"{error.filename or path}: {error.strerror or error}") from error
