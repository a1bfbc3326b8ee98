"""A run continues on another machine with its uncommitted files: they are stored while it works, within limits."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.records import JobSpec
from outrider.background.workspace_snapshots import SnapshotFile, SnapshotTable, capture_files, restore_files
from outrider.background.worktrees import SNAPSHOT_SECONDS, RunWorkspace, WorktreeManager, stored_worktree
from outrider.config.file import BackgroundTable
from outrider.sessions.memory_store import MemoryStore
from tests.unit.background.repositories import folders_in, repository, run_git

pytestmark = pytest.mark.slow  # dozens of git commands for each test

JOB = JobSpec(prompt="write", queue="runs")


class Machines:
    """A run of the worker "w", and machines with their own data folders that share a database and a repository."""

    def __init__(self, folder: Path, database: RunDatabase, jobs: JobClient, run_id: str) -> None:
        self._folder = folder
        self.database = database
        self.jobs = jobs
        self.run_id = run_id
        self.time = 0.0

    def workspace(self, name: str, **limits: int) -> RunWorkspace:
        worktrees = WorktreeManager(folders_in(self._folder / name))
        workspace = RunWorkspace(self.jobs.store, worktrees, clock=lambda: self.time)
        workspace.store_snapshots(SnapshotTable(self.database, "w"), BackgroundTable(**limits))
        return workspace

    def assign(self, worker: str) -> None:
        with self.database.engine.begin() as db:
            db.execute(sa.text("UPDATE outrider_entries SET state = 'assigned', worker = :worker"), {"worker": worker})

    async def lose_worktree(self) -> None:
        """The machine is gone, and its branch with it."""
        tree = stored_worktree(await self.jobs.store.get(self.run_id))
        assert tree is not None
        shutil.rmtree(tree.path)
        run_git(Path(tree.repository), "worktree", "prune")
        run_git(Path(tree.repository), "branch", "-D", tree.branch)

    async def notices(self) -> str:
        return "\n".join(item.message.get_text_content() for item in await self.jobs.store.inbox(self.run_id))


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Machines]:
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    workspace = repository(tmp_path / "repo")
    (workspace / "old.txt").write_text("old\n")
    (workspace / ".gitignore").write_text("*.log\n")
    run_git(workspace, "add", "--all")
    run_git(workspace, "commit", "--quiet", "--message", "more")
    async with open_job_client(database, MemoryStore()) as jobs:
        run = await jobs.submit_run("write", workspace=str(workspace))
        there = Machines(tmp_path, database, jobs, run.id)
        there.assign("w")
        yield there
    database.close()


def work_in(folder: Path) -> None:
    (folder / "src" / "tea.txt").write_text("black\n")
    (folder / "new").mkdir()
    (folder / "new" / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "new" / "tool.sh").chmod(0o755)
    (folder / "link").symlink_to("src/tea.txt")
    (folder / "old.txt").unlink()
    (folder / "trace.log").write_text("ignored\n")


async def test_a_run_continues_on_another_machine_with_its_uncommitted_files(machines: Machines):
    first = machines.workspace("a")
    folder = Path(await first.prepare_workspace(machines.run_id, JOB))
    (folder / "committed.txt").write_text("yes\n")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "by the run")
    work_in(folder)
    await first.save_snapshot(machines.run_id, force=True)
    info = await machines.jobs.get_snapshot(machines.run_id)
    assert info is not None
    assert (info.files, info.omitted) == (5, "")
    await machines.lose_worktree()

    other = Path(await machines.workspace("b").prepare_workspace(machines.run_id, JOB))
    assert other != folder
    assert (other / "src" / "tea.txt").read_text() == "black\n"
    assert os.access(other / "new" / "tool.sh", os.X_OK)
    assert (other / "link").readlink() == Path("src/tea.txt")
    assert (other / "committed.txt").read_text() == "yes\n"
    assert not (other / "old.txt").exists()
    assert not (other / "trace.log").exists()
    assert "Its changed files (5) were restored" in await machines.notices()


async def test_ignored_files_are_included_on_request(machines: Machines):
    first = machines.workspace("a", snapshot_ignored=True)
    work_in(Path(await first.prepare_workspace(machines.run_id, JOB)))
    await first.save_snapshot(machines.run_id, force=True)
    await machines.lose_worktree()
    other = Path(await machines.workspace("b").prepare_workspace(machines.run_id, JOB))
    assert (other / "trace.log").read_text() == "ignored\n"


async def test_files_above_the_limit_are_not_stored_and_the_run_states_it(machines: Machines):
    first = machines.workspace("a", snapshot_megabytes=1)
    folder = Path(await first.prepare_workspace(machines.run_id, JOB))
    (folder / "large.bin").write_bytes(b"x" * (1 << 20) + b"x")
    await first.save_snapshot(machines.run_id, force=True)
    info = await machines.jobs.get_snapshot(machines.run_id)
    assert info is not None
    assert info.omitted == "the changed files are larger than 1.0 MB"
    await machines.lose_worktree()
    other = Path(await machines.workspace("b").prepare_workspace(machines.run_id, JOB))
    assert not (other / "large.bin").exists()
    assert "Changes that were not committed are not in it" in await machines.notices()


async def test_a_worker_that_has_lost_the_run_stores_no_files(machines: Machines):
    first = machines.workspace("a")
    work_in(Path(await first.prepare_workspace(machines.run_id, JOB)))
    machines.assign("other")
    await first.save_snapshot(machines.run_id, force=True)
    assert await machines.jobs.get_snapshot(machines.run_id) is None


async def test_a_run_that_ends_needs_no_snapshot(machines: Machines):
    async def owned() -> bool:
        return True

    first = machines.workspace("a")
    work_in(Path(await first.prepare_workspace(machines.run_id, JOB)))
    await first.save_snapshot(machines.run_id, force=True)
    assert await first.finish_workspace(machines.run_id, JOB, owned) is not None
    assert await machines.jobs.get_snapshot(machines.run_id) is None


async def test_files_are_stored_after_progress_and_not_too_often(machines: Machines):
    first = machines.workspace("a")
    work_in(Path(await first.prepare_workspace(machines.run_id, JOB)))
    await first.save_snapshot(machines.run_id, (1, 0))
    await first.save_snapshot(machines.run_id, (1, 1))
    assert await machines.jobs.get_snapshot(machines.run_id) is None, "too soon"
    machines.time += SNAPSHOT_SECONDS
    await first.save_snapshot(machines.run_id, (1, 0))
    assert await machines.jobs.get_snapshot(machines.run_id) is None, "nothing has happened"
    await first.save_snapshot(machines.run_id, (1, 1))
    assert await machines.jobs.get_snapshot(machines.run_id) is not None


def test_neither_reading_nor_writing_leaves_the_folder(tmp_path: Path):
    (root := tmp_path / "root").mkdir()
    (outside := tmp_path / "outside").mkdir()
    (outside / "secret").write_text("secret")
    (root / "inside").symlink_to(outside)
    captured = capture_files(root, ["inside/secret", "../outside/secret"], 100)
    assert captured is not None
    assert {file.kind for file in captured} == {"deleted"}
    restore_files(
        root, [SnapshotFile(path=path, data=b"x") for path in ("inside/secret", "../outside/a", ".git/hooks/x")]
    )
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert not (root / ".git").exists()


def test_a_link_in_the_place_of_the_worktree_is_not_followed(tmp_path: Path):
    (outside := tmp_path / "outside").mkdir()
    (outside / "secret").write_text("secret")
    (root := tmp_path / "root").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        capture_files(root, ["secret"], 100)
    restore_files(root, [SnapshotFile(path="secret", kind="deleted"), SnapshotFile(path="new", data=b"x")])
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_worktree_below_a_linked_folder_is_read_and_written(tmp_path: Path):
    (tmp_path / "data" / "root").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    root = tmp_path / "link" / "root"
    restore_files(root, [SnapshotFile(path="a/b", data=b"x")])
    assert capture_files(root, ["a/b"], 100) == [SnapshotFile(path="a/b", data=b"x")]


def test_a_deletion_removes_empty_folders_inside_only(tmp_path: Path):
    (tmp_path / "outside" / "empty").mkdir(parents=True)
    (root := tmp_path / "root").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").touch()
    restore_files(root, [SnapshotFile(path=path, kind="deleted") for path in ("a/b/file", "link/empty/file")])
    assert [path.name for path in root.iterdir()] == ["link"]
    assert (tmp_path / "outside" / "empty").is_dir()


def test_a_file_may_become_a_folder_and_a_folder_a_file(tmp_path: Path):
    (tmp_path / "a").write_text("file")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_text("in a folder")
    files = [
        SnapshotFile(path="a/inner", data=b"1"),
        SnapshotFile(path="b", data=b"2"),
        SnapshotFile(path="a", kind="deleted"),
        SnapshotFile(path="b/c", kind="deleted"),
    ]
    restore_files(tmp_path, files)
    assert (tmp_path / "a" / "inner").read_text() == "1"
    assert (tmp_path / "b").read_text() == "2"
