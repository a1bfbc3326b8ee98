"""A damaged database of background runs: every command states the damage and its remedy, and doctor moves it aside."""

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.factory import standard_jobs
from outrider.cli.main import main
from outrider.config.paths import AppFolders, find_app_folders
from tests.fixtures.soak import examples

PAGE = 4096
FILES = examples(6)  # seed 106 damages the data of one run


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact")
    asyncio.run(submit_runs(AppFolders(folder, folder, folder)))
    path = folder / "runs.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return path


async def submit_runs(folders: AppFolders) -> None:
    async with standard_jobs(folders) as jobs:
        for number in range(5):
            await jobs.submit_run(f"count the files {number}")
        await jobs.add_schedule("0 7 * * *", "look", timezone="UTC")


@pytest.fixture
def runs_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return find_app_folders({"OUTRIDER_HOME": str(tmp_path)}).runs_file


def damage_file(content: bytes, kind: str) -> bytes:
    match kind:
        case "garbage":
            return b"this is not a database " * 500
        case "truncated":
            return content[: PAGE * 9 + 100]
        case _:
            return content[:PAGE] + bytes(0xA5 for _ in range(20 * PAGE)) + content[21 * PAGE :]


@pytest.mark.parametrize("kind", ["garbage", "truncated", "overwritten"])
def test_damage_is_reported_with_a_remedy_and_doctor_moves_the_file_aside(
    kind: str, intact: Path, runs_file: Path, capfd: pytest.CaptureFixture[str]
):
    runs_file.write_bytes(damage_file(intact.read_bytes(), kind))
    for command in (["jobs", "list"], ["jobs", "schedules"], ["jobs", "submit", "--no-worker", "look"]):
        assert main(command) == 1
        error = capfd.readouterr().err
        assert error.startswith(f"outrider: the runs database {runs_file} is damaged"), error
        assert "outrider doctor --repair" in error
        assert "Traceback" not in error
    assert main(["doctor"]) == 1
    assert f"✗ runs: {runs_file} is damaged" in capfd.readouterr().out
    main(["doctor", "--repair"])
    assert "· runs: the runs database was damaged" in capfd.readouterr().out
    (moved,) = runs_file.parent.glob("runs.sqlite.damaged-*[0-9]")
    assert moved.read_bytes() == damage_file(intact.read_bytes(), kind)
    assert main(["jobs", "list"]) == 0


def test_doctor_reports_a_healthy_and_an_empty_runs_database(
    intact: Path, runs_file: Path, capfd: pytest.CaptureFixture[str]
):
    runs_file.write_bytes(intact.read_bytes())
    main(["doctor", "--repair"])
    assert f"✓ runs: {runs_file}: " in capfd.readouterr().out
    assert main(["jobs", "list"]) == 0
    assert "count the files 4" in capfd.readouterr().out
    for path in runs_file.parent.glob("runs.sqlite*"):
        path.unlink()
    runs_file.touch()
    main(["doctor"])
    assert f"· runs: {runs_file} is empty" in capfd.readouterr().out


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FILES))
def test_no_command_ends_with_a_traceback_after_bit_flips(
    seed: int, intact: Path, runs_file: Path, capfd: pytest.CaptureFixture[str]
):
    content, rng = bytearray(intact.read_bytes()), random.Random(seed)
    for _ in range(rng.choice((1, 5, 20, 100, 500))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    runs_file.write_bytes(content)
    for command in (["jobs", "list"], ["jobs", "schedules"], ["doctor"], ["doctor", "--repair"], ["jobs", "list"]):
        code = main(command)  # an exception fails the test
        error = capfd.readouterr().err
        assert "Traceback" not in error, command
        assert code == 0 or error or command[0] == "doctor", command
