"""The folder of a run is chosen before it starts, chosen again on another machine, and restored at the end."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.records import JobSpec
from outrider.background.worktrees import RunWorkspace, WorktreeChanges, WorktreeManager, stored_worktree
from outrider.project.sandbox import RunWorktree
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import StoredSession
from tests.unit.background.repositories import folders_in, repository, run_git

pytestmark = pytest.mark.slow  # dozens of git commands for each test

JOB = JobSpec(prompt="write", queue="runs")


async def owned() -> bool:
    return True


@pytest.fixture
async def store(tmp_path: Path) -> MemoryStore:
    store = MemoryStore()
    workspace = str(repository(tmp_path / "repo"))
    await store.create(StoredSession(id="run-1", mode="background", workspace_directory=workspace))
    return store


async def test_a_run_that_continues_on_another_machine_gets_a_new_worktree_and_is_reported(
    store: MemoryStore, tmp_path: Path
):
    await RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "a"))).prepare_workspace("run-1", JOB)
    first = stored_worktree(await store.get("run-1"))
    assert first is not None
    Path(first.path, "lost.txt").write_text("lost\n")
    shutil.rmtree(first.path)
    ground = RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "b")))
    await ground.prepare_workspace("run-1", JOB)
    session = await store.get("run-1")
    second = stored_worktree(session)
    assert second is not None
    assert (second.base, second.branch) == (first.base, first.branch)
    assert session.workspace_directory == second.path != first.path
    (item,) = await store.inbox("run-1")
    assert second.path in item.message.get_text_content()
    assert item.delivery == "steer"
    await ground.prepare_workspace("run-1", JOB)
    assert len(await store.inbox("run-1")) == 1


async def test_a_run_that_continues_with_a_worker_whose_folders_are_others_takes_its_branch_along(
    store: MemoryStore, tmp_path: Path
):
    await RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "a"))).prepare_workspace("run-1", JOB)
    first = stored_worktree(await store.get("run-1"))
    ground = RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "b")))
    await ground.prepare_workspace("run-1", JOB)
    second = stored_worktree(await store.get("run-1"))
    assert first is not None
    assert second is not None
    assert (second.branch, second.path != first.path) == (first.branch, True)
    assert not Path(first.path).exists(), "a branch is checked out in one place"
    assert await ground.finish_workspace("run-1", JOB, owned) == WorktreeChanges()
    listed = run_git(tmp_path / "repo", "worktree", "list", "--porcelain")
    assert listed.count("worktree ") == 1


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
async def test_a_run_whose_data_folder_was_moved_keeps_its_worktree(how: Any, store: MemoryStore, tmp_path: Path):
    await RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "a"))).prepare_workspace("run-1", JOB)
    first = stored_worktree(await store.get("run-1"))
    assert first is not None
    Path(first.path, "begun.txt").write_text("begun\n")
    how(tmp_path / "a", tmp_path / "b")
    ground = RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "b")))
    folder = await ground.prepare_workspace("run-1", JOB)
    second = stored_worktree(await store.get("run-1"))
    assert second is not None
    assert folder == second.path == first.path.replace(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (second.own, second.branch) == (first.own, first.branch)
    (item,) = await store.inbox("run-1")
    assert item.message.get_text_content() == f"The worktree of this run was moved, with its files, to {folder}."
    assert await ground.prepare_workspace("run-1", JOB) == folder
    changes = await ground.finish_workspace("run-1", JOB, owned)
    assert changes is not None
    assert "begun.txt" in changes.stat


async def test_a_folder_of_another_run_is_not_adopted(store: MemoryStore, tmp_path: Path):
    await RunWorkspace(store, WorktreeManager(folders_in(tmp_path / "a"))).prepare_workspace("run-1", JOB)
    first = stored_worktree(await store.get("run-1"))
    assert first is not None
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    others = WorktreeManager(folders_in(tmp_path / "b"))
    assert others.adopt_worktree("run-1", replace(first, branch="outrider/other/branch")) is None
    assert others.adopt_worktree("run-1", replace(first, own=str(tmp_path / "elsewhere"))) is None
    moved = others.adopt_worktree("run-1", first)
    assert moved is not None
    Path(moved.path, ".git").write_text(f"gitdir: {tmp_path / 'repo' / '.git'}\n")
    assert others.adopt_worktree("run-1", moved) is None


async def test_a_run_without_changes_leaves_no_worktree(store: MemoryStore, tmp_path: Path):
    before = await store.get("run-1")
    ground = RunWorkspace(store, WorktreeManager(folders_in(tmp_path)))
    await ground.prepare_workspace("run-1", JOB)
    tree = stored_worktree(await store.get("run-1"))
    assert tree is not None
    changes = await ground.finish_workspace("run-1", JOB, owned)
    assert changes is not None
    assert not changes.diff
    after = await store.get("run-1")
    assert (after.workspace_directory, after.metadata) == (before.workspace_directory, before.metadata)
    assert not Path(tree.path).exists()


class KilledError(Exception):
    """An exception that no code handles, as if the process were killed."""


class KilledAfterwards(WorktreeManager):
    def remove_worktree(self, tree: RunWorktree, *, branch: bool = False) -> None:
        super().remove_worktree(tree, branch=branch)
        raise KilledError


async def test_a_worker_killed_while_it_removes_a_worktree_leaves_a_complete_run(store: MemoryStore, tmp_path: Path):
    ground = RunWorkspace(store, KilledAfterwards(folders_in(tmp_path)))
    await ground.prepare_workspace("run-1", JOB)
    with pytest.raises(KilledError):
        await ground.finish_workspace("run-1", JOB, owned)
    again = RunWorkspace(store, WorktreeManager(folders_in(tmp_path)))
    await again.prepare_workspace("run-1", JOB)
    assert await store.inbox("run-1") == [], "nothing was lost, so the model need not look again"
    changes = await again.finish_workspace("run-1", JOB, owned)
    assert changes == WorktreeChanges()
    assert stored_worktree(await store.get("run-1")) is None


async def test_a_worker_that_has_lost_the_run_does_not_commit_its_worktree(store: MemoryStore, tmp_path: Path):
    async def lost() -> bool:
        return False

    ground = RunWorkspace(store, WorktreeManager(folders_in(tmp_path)))
    folder = await ground.prepare_workspace("run-1", JOB)
    Path(folder, "new.txt").write_text("new\n")
    assert await ground.finish_workspace("run-1", JOB, lost) is None
    assert run_git(Path(folder), "status", "--porcelain").strip() == "?? new.txt"


async def test_who_wants_no_worktree_works_in_the_folder_itself(store: MemoryStore, tmp_path: Path):
    before = await store.get("run-1")
    await RunWorkspace(store, WorktreeManager(folders_in(tmp_path))).prepare_workspace(
        "run-1", JobSpec(prompt="x", queue="runs", worktree=False)
    )
    await RunWorkspace(store).prepare_workspace("run-1", JOB)
    assert (await store.get("run-1")).workspace_directory == before.workspace_directory
