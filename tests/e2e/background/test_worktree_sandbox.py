"""Commands in a run's worktree can commit to its branch, and change nothing else of the repository."""

from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.worktrees import WorktreeManager
from outrider.processes.sandbox.detect import find_sandbox
from outrider.providers.scripted import call
from outrider.types.ids import new_id
from outrider.types.parts import ToolPart
from tests.fixtures.standard_engine import Place
from tests.unit.background.repositories import repository, run_git

COMMIT = "echo new > new.txt && git add --all && git -c user.name=a -c user.email=a@b commit -qm within && echo yes"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    if not find_sandbox(tmp_path / "scratch").confines:
        pytest.skip("needs a sandbox that works on this machine")
    return Place(tmp_path)


async def test_a_command_commits_to_the_branch_of_its_run_and_to_no_other(place: Place):
    repo = repository(place.workspace / "repo")
    worktrees = WorktreeManager(place.settings().folders)
    tree = worktrees.create_worktree(new_id(), "commit", str(repo))
    assert tree is not None
    forbidden = [
        f"git branch -f main HEAD~1; git branch other; echo x > {repo}/src/tea.txt",
        f"git config core.hooksPath /tmp; echo x > {tree.own}/commondir; echo x > {tree.path}/.git",
        f"rm -f {tree.path}/.git; mv {tree.own} {tree.own}2; touch {repo}/.git/hooks/pre-commit; "
        f"touch {place.own}/worktrees/planted",
    ]
    before = _state(repo)
    calls = [call("shell", f"call_{at}", command=command) for at, command in enumerate([COMMIT, *forbidden])]
    async with place.engine([[one] for one in calls], cwd=tree.folder, mode="background") as engine:
        session = await engine.create(workspace=tree.folder)
        await engine.prompt(session, "go")
        loaded = await engine.store.load(session)
    parts = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
    assert len(parts) == 1 + len(forbidden)
    assert "yes" in str(parts[0].state)
    assert run_git(repo, "log", "-1", "--format=%s", tree.branch).strip() == "within"
    assert worktrees.read_changes(tree).commits == 1
    assert _state(repo) == before
    assert not (place.own / "worktrees" / "planted").exists()


def _state(repo: Path) -> list[str]:
    """All that a run must leave alone."""
    return [
        run_git(repo, "for-each-ref", "refs/heads/main", "refs/heads/other"),
        (repo / ".git" / "config").read_text(),
        *sorted(path.name for path in (repo / ".git" / "hooks").iterdir()),
        *sorted(path.name for path in (repo / ".git" / "worktrees").iterdir()),
        run_git(repo, "status", "--porcelain"),
    ]
