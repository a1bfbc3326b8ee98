"""Each run has a separate worktree, which affects no other files, and its changes are preserved."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from msgspec.structs import replace

from outrider.background.worktrees import WorktreeChanges, WorktreeManager, count_uncommitted, git_runner
from outrider.errors import ProcessError
from outrider.project.sandbox import find_worktree
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.types.ids import new_id
from tests.unit.background.repositories import folders_in, repository, run_git

pytestmark = pytest.mark.slow  # dozens of git commands for each test


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


@pytest.fixture
def worktrees(tmp_path: Path) -> WorktreeManager:
    return WorktreeManager(folders_in(tmp_path))


def test_a_worktree_holds_the_last_commit_and_describes_what_was_not_committed(
    repo: Path, tmp_path: Path, worktrees: WorktreeManager
):
    (repo / "src" / "tea.txt").write_text("black\n")
    (repo / "new.txt").write_text("new\n")
    tree = worktrees.create_worktree(new_id(), "Mend the parser!", str(repo / "src"))
    assert tree is not None
    assert (tree.folder / "tea.txt").read_text() == "green\n"
    assert tree.folder == Path(tree.path) / "src"
    assert not (Path(tree.path) / "new.txt").exists()
    assert tree.uncommitted == count_uncommitted(str(repo), git_runner(folders_in(tmp_path))) == 2
    assert tree.branch.endswith("/mend-the-parser")
    assert run_git(repo, "branch", "--show-current").strip() == "main"
    assert worktrees.exists_here(tree)


def test_what_a_run_left_lying_about_is_committed_to_its_branch(repo: Path, tmp_path: Path, worktrees: WorktreeManager):
    tree = worktrees.create_worktree(new_id(), "write", str(repo))
    assert tree is not None
    (tree.folder / "new.txt").write_text("new\n")
    before = worktrees.read_changes(tree)
    assert ("+new" in before.diff, before.commits) == (True, 0)
    after = worktrees.commit_changes(tree, "write")
    assert (after.diff, after.commits) == (before.diff, 1)
    assert "1 file changed" in after.stat
    run_git(repo, "merge", "--quiet", tree.branch)
    assert (repo / "new.txt").read_text() == "new\n"
    assert not count_uncommitted(str(repo), git_runner(folders_in(tmp_path)))
    worktrees.remove_worktree(tree)
    assert not worktrees.exists_here(tree)
    assert tree.branch in run_git(repo, "branch", "--list", "--format=%(refname:short)", tree.branch)


def test_a_worktree_that_was_lost_is_made_anew_from_its_branch_or_else_from_where_it_began(
    repo: Path, worktrees: WorktreeManager
):
    run_id = new_id()
    tree = worktrees.create_worktree(run_id, "write", str(repo))
    assert tree is not None
    (tree.folder / "kept.txt").write_text("kept\n")
    worktrees.commit_changes(tree, "write")
    run_git(repo, "commit", "--quiet", "--allow-empty", "--message", "later")
    shutil.rmtree(tree.path)
    assert not worktrees.exists_here(tree)
    again = worktrees.recreate_worktree(run_id, tree)
    assert (again.folder / "kept.txt").read_text() == "kept\n"
    worktrees.remove_worktree(again, branch=True)
    anew = worktrees.recreate_worktree(run_id, replace(again, host="another machine"))
    assert worktrees.exists_here(anew)
    assert run_git(Path(anew.path), "rev-parse", "HEAD").strip() == tree.base
    assert not (anew.folder / "kept.txt").exists()


def test_a_folder_without_a_repository_or_without_a_commit_has_no_worktree(tmp_path: Path, worktrees: WorktreeManager):
    plain = tmp_path / "plain"
    plain.mkdir()
    assert worktrees.create_worktree(new_id(), "x", str(plain)) is None
    run_git(plain, "init", "--quiet")
    assert worktrees.create_worktree(new_id(), "x", str(plain)) is None
    assert worktrees.create_worktree(new_id(), "x", str(tmp_path / "missing")) is None


def test_nothing_of_the_repository_runs_when_a_worktree_is_made_and_committed_to(
    repo: Path, tmp_path: Path, worktrees: WorktreeManager
):
    canary = tmp_path / "canary"
    for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        hook = repo / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
        hook.chmod(0o755)
    run_git(repo, "config", "core.fsmonitor", f"touch {canary}")
    run_git(repo, "config", "diff.evil.textconv", f"touch {canary}; cat")
    (tmp_path / "more").write_text(f'[filter "evil"]\n\tsmudge = touch {canary}; cat\n\tclean = touch {canary}; cat\n')
    (repo / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    run_git(repo, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "add", "--all")
    run_git(repo, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "commit", "--quiet", "-m", "evil")
    run_git(repo, "config", "include.path", str(tmp_path / "more"))
    run_git(repo, "config", "filter.evil.required", "true")
    tree = worktrees.create_worktree(new_id(), "x", str(repo))
    assert tree is not None
    (tree.folder / "src" / "tea.txt").write_text("black\n")
    assert worktrees.commit_changes(tree, "x").commits == 1
    worktrees.remove_worktree(tree, branch=True)
    assert not canary.exists()


def test_a_checkout_of_a_trusted_project_is_trusted_until_it_is_removed(
    repo: Path, tmp_path: Path, worktrees: WorktreeManager
):
    def trusts(folder: Path) -> bool:
        return WorkspaceTrust(find_project(folder, tmp_path), folders_in(tmp_path).trust_file).trusted

    tree = worktrees.create_worktree(new_id(), "x", str(repo))
    assert tree is not None
    assert not trusts(tree.folder)
    WorkspaceTrust(find_project(repo, tmp_path), folders_in(tmp_path).trust_file).trust()
    second = worktrees.create_worktree(new_id(), "y", str(repo))
    assert second is not None
    assert trusts(second.folder)
    worktrees.remove_worktree(second)
    assert not trusts(Path(second.path))


def test_what_is_known_of_a_worktree_is_not_read_from_the_worktree(
    repo: Path, tmp_path: Path, worktrees: WorktreeManager
):
    tree = worktrees.create_worktree(new_id(), "x", str(repo))
    assert tree is not None
    (Path(tree.path) / ".git").write_text(f"gitdir: {tmp_path}\n")
    assert find_worktree(tree.folder / "src", tmp_path / "own") == tree
    assert find_worktree(repo, tmp_path / "own") is None
    assert find_worktree(tmp_path / "own" / "worktrees" / "another", tmp_path / "own") is None


def test_a_lock_file_of_a_killed_git_does_not_prevent_commits(repo: Path, tmp_path: Path):
    worktrees = WorktreeManager(folders_in(tmp_path), lock_timeout=0)
    tree = worktrees.create_worktree(new_id(), "write", str(repo))
    assert tree is not None
    (tree.folder / "new.txt").write_text("new\n")
    branch = Path(tree.common, "refs", "heads", tree.branch)
    for lock in (Path(tree.own, "index.lock"), Path(tree.own, "HEAD.lock"), branch.with_name(f"{branch.name}.lock")):
        lock.touch()
    assert worktrees.commit_changes(tree, "write").commits == 1


def test_a_worktree_whose_worker_was_killed_starts_where_its_branch_does(repo: Path, worktrees: WorktreeManager):
    run_id = new_id()
    half = worktrees.create_worktree(run_id, "write", str(repo))
    assert half is not None
    run_git(repo, "commit", "--quiet", "--allow-empty", "--message", "meanwhile")
    tree = worktrees.create_worktree(run_id, "write", str(repo))
    assert tree == half
    assert worktrees.read_changes(tree) == WorktreeChanges()


def test_runs_of_several_workers_create_and_remove_worktrees_of_one_repository_at_the_same_time(
    repo: Path, tmp_path: Path
):
    """Git removes the folder of all worktrees with the last one, also while another run is about to use it."""
    managers = [WorktreeManager(folders_in(tmp_path / name)) for name in ("a", "b", "c")]

    def use_worktrees(manager: WorktreeManager) -> None:
        for _ in range(3):
            tree = manager.create_worktree(new_id(), "work", str(repo))
            assert tree is not None
            assert manager.exists_here(tree)
            manager.remove_worktree(tree, branch=True)

    with ThreadPoolExecutor(len(managers)) as threads:
        for done in [threads.submit(use_worktrees, manager) for manager in managers]:
            done.result()
    assert run_git(repo, "worktree", "list").count("\n") == 1


def test_a_run_of_a_user_gets_no_worktree_of_a_repository_of_another_user(tmp_path: Path, worktrees: WorktreeManager):
    folder = tmp_path / "ana"
    foreign = repository(tmp_path / "ben")
    own = repository(folder / "own")
    (folder / "link").symlink_to(foreign)
    (folder / "file").mkdir()
    (folder / "file" / ".git").write_text(f"gitdir: {foreign}/.git\n")
    for place in (folder / "link", folder / "file"):
        with pytest.raises(ProcessError, match="is in another folder"):
            worktrees.create_worktree(new_id(), "write", str(place), str(folder))
    assert worktrees.create_worktree(new_id(), "write", str(own), str(folder)) is not None
    assert worktrees.create_worktree(new_id(), "write", str(own / "src"), str(own / "src")) is not None
