"""Backups are taken while other connections write, and are restored completely or not at all."""

import asyncio
import json
import tarfile
import threading
from pathlib import Path

import pytest

from outrider import Agent, Engine, Provider
from outrider.cli.main import main
from outrider.config.paths import AppFolders
from outrider.engine.backup import create_backup, restore_backup
from outrider.errors import ConfigurationError, StoreDamagedError, StoreError, StoreVersionError
from outrider.stores import SqliteStore
from outrider.types.messages import Message


def folders_at(path: Path) -> AppFolders:
    return AppFolders(path, path, path)


async def store_sessions(data: Path, count: int) -> None:
    provider = Provider("scripted", "scripted", options={"script": lambda _: "an answer"})
    async with (
        SqliteStore(data / "sessions.db") as store,
        Engine([Agent("writer", "", "m", "scripted")], [provider], store=store) as engine,
    ):
        for number in range(count):
            await engine.prompt(await engine.create(title=f"title {number}"), "a question")


async def read_messages(data: Path) -> list[list[Message]]:
    async with SqliteStore(data / "sessions.db") as store:
        page = await store.list(limit=1000)
        return [list((await store.load(one.id)).messages) for one in page.sessions]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    asyncio.run(store_sessions(data, 3))
    (data / "outputs").mkdir()
    (data / "outputs" / "output.txt").write_text("a long output")
    return data


def test_a_restored_backup_has_the_same_content(data: Path, tmp_path: Path):
    manifest = create_backup(folders_at(data), tmp_path / "backup.tar.gz")
    assert (manifest.sessions, sorted(manifest.files)) == (3, ["outputs/output.txt", "sessions.db"])
    assert (tmp_path / "backup.tar.gz").stat().st_mode & 0o077 == 0
    restored, aside = restore_backup(folders_at(tmp_path / "other"), tmp_path / "backup.tar.gz")
    assert (restored, aside) == (manifest, None)
    assert asyncio.run(read_messages(tmp_path / "other")) == asyncio.run(read_messages(data))
    assert (tmp_path / "other" / "outputs" / "output.txt").read_text() == "a long output"
    assert not list(tmp_path.glob(".outrider-backup*"))
    assert not list((tmp_path / "other").glob(".outrider-backup*"))


def test_existing_data_are_replaced_only_with_yes_and_moved_aside(data: Path, tmp_path: Path):
    archive = tmp_path / "backup.tar.gz"
    create_backup(folders_at(data), archive)
    asyncio.run(store_sessions(data, 1))
    with pytest.raises(ConfigurationError, match="has data"):
        restore_backup(folders_at(data), archive)
    with pytest.raises(ConfigurationError, match="exists"):
        create_backup(folders_at(data), archive)
    _, aside = restore_backup(folders_at(data), archive, replace=True)
    assert aside is not None
    assert len(asyncio.run(read_messages(data))) == 3
    assert len(list(aside.glob("outputs/*"))) == 1
    (aside / "sessions.db").rename(tmp_path / "sessions.db")

    async def count_sessions() -> int:
        async with SqliteStore(tmp_path / "sessions.db") as store:
            return len((await store.list()).sessions)

    assert asyncio.run(count_sessions()) == 4


def test_a_backup_during_writes_is_consistent(data: Path, tmp_path: Path):
    stop = threading.Event()

    def write_sessions() -> None:
        while not stop.is_set():
            asyncio.run(store_sessions(data, 2))

    writer = threading.Thread(target=write_sessions)
    writer.start()
    try:
        for number in range(5):
            create_backup(folders_at(data), tmp_path / f"{number}.tar.gz")
    finally:
        stop.set()
        writer.join()
    for number in range(5):
        manifest, _ = restore_backup(folders_at(tmp_path / f"restored{number}"), tmp_path / f"{number}.tar.gz")
        messages = asyncio.run(read_messages(tmp_path / f"restored{number}"))
        assert manifest.sessions >= 3
        assert sum(len(found) < 2 for found in messages) <= 1  # the session that the writer was changing


def test_a_damaged_archive_changes_nothing(data: Path, tmp_path: Path):
    archive = tmp_path / "backup.tar.gz"
    create_backup(folders_at(data), archive)
    before, content = asyncio.run(read_messages(data)), archive.read_bytes()
    middle = len(content) // 2
    for damaged in (
        b"",
        b"no archive",
        content[:middle],
        content[:-6],
        content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :],
    ):
        archive.write_bytes(damaged)
        with pytest.raises(StoreError):
            restore_backup(folders_at(data), archive, replace=True)
    assert asyncio.run(read_messages(data)) == before
    assert not list(data.glob("before-restore*"))


def test_members_outside_the_data_folder_and_newer_formats_are_refused(tmp_path: Path):
    archive = tmp_path / "backup.tar.gz"
    for name, format, error in (
        ("../evil", 1, StoreError),
        ("config.toml", 1, StoreError),
        ("outputs/a", 2, StoreVersionError),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({"format": format, "files": {name: 4}}))
        (tmp_path / "member").write_text("evil")
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(tmp_path / "manifest.json", "manifest.json")
            tar.add(tmp_path / "member", name)
        with pytest.raises(error):
            restore_backup(folders_at(tmp_path / "data"), archive)
        assert not (tmp_path / "evil").exists()
        assert not list((tmp_path / "data").iterdir())


def test_a_damaged_store_is_not_backed_up(data: Path, tmp_path: Path):
    content = bytearray((data / "sessions.db").read_bytes())
    content[4096:12288] = bytes(8192)
    (data / "sessions.db").write_bytes(content)
    with pytest.raises(StoreDamagedError, match="doctor --repair"):
        create_backup(folders_at(data), tmp_path / "backup.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


async def test_a_session_in_use_prevents_a_restore(data: Path, tmp_path: Path):
    await asyncio.to_thread(create_backup, folders_at(data), tmp_path / "backup.tar.gz")
    provider = Provider("scripted", "scripted", options={"script": lambda _: "an answer"})
    async with (
        SqliteStore(data / "sessions.db") as store,
        Engine([Agent("writer", "", "m", "scripted")], [provider], store=store) as engine,
    ):
        used = await engine.create()
        with pytest.raises(StoreError, match=f"{used} is in use"):
            restore_backup(folders_at(data), tmp_path / "backup.tar.gz", replace=True)
        # A backup contains this lease; a restore on any machine ends it.
        await asyncio.to_thread(create_backup, folders_at(data), tmp_path / "open.tar.gz")
    restore_backup(folders_at(tmp_path / "other"), tmp_path / "open.tar.gz")
    async with (
        SqliteStore(tmp_path / "other" / "sessions.db") as store,
        Engine([Agent("writer", "", "m", "scripted")], [provider], store=store) as engine,
    ):
        await engine.open(used)


def test_the_commands_report_what_they_did(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("OUTRIDER_HOME", str(data))
    archive = str(tmp_path / "backup.tar.gz")
    assert main(["backup", archive]) == 0
    assert "3 sessions, 2 files" in capfd.readouterr().err
    assert main(["backup", archive]) == 2
    assert main(["restore", archive]) == 2
    assert "--yes" in capfd.readouterr().err
    assert main(["restore", "--yes", archive]) == 0
    assert "The previous files are in" in capfd.readouterr().err
    assert main(["restore", "--yes", str(tmp_path / "missing")]) == 1
    assert "No such file" in capfd.readouterr().err
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "empty"))
    assert main(["backup", str(tmp_path / "other.tar.gz")]) == 2
    assert "nothing to back up" in capfd.readouterr().err
