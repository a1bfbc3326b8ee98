"""Git in an overlay: what it records is plain data and is described; everything else in a git folder is protected."""

import subprocess
from functools import partial
from pathlib import Path

import pytest

from outrider.outcomes.describe import describe_outcome, list_changes
from outrider.outcomes.git_operations import read_operations
from outrider.outcomes.pending import PendingOutcome
from outrider.outcomes.repository import (
    OutsideRepository,
    OverlayView,
    find_index_dangers,
    find_outside_repository,
    list_protected,
    sort_changes,
    sort_recorded,
)
from outrider.processes.git import GitRunner
from outrider.processes.sandbox.overlay import OverlayChange
from outrider.processes.sandbox.sandbox import SandboxPolicy
from tests.unit.background.repositories import run_git
from tests.unit.outcomes.overlays import OverlayRun

AUTHOR = "export GIT_AUTHOR_NAME=Ann GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=Ann GIT_COMMITTER_EMAIL=a@b HOME=/tmp; "

DIVERGE = (
    "git checkout -q old; echo b > a.txt; git commit -qam b; git checkout -q main; echo c > a.txt; git commit -qam c;"
)


@pytest.fixture
def overlay(sandbox, tmp_path: Path) -> OverlayRun:
    run = OverlayRun(sandbox, tmp_path)
    git = partial(run_git, run.workspace)
    git("init", "-q", "-b", "main")
    (run.workspace / "a.txt").write_text("one\n")
    (run.workspace / "b.txt").write_text("one\n")
    git("add", "--all")
    git("commit", "-qm", "first")
    git("branch", "old")
    return run


def protected_by(overlay: OverlayRun, script: str) -> set[str]:
    return list_protected(overlay.workspace, overlay.upper, overlay.run(AUTHOR + script))


def operations_of(overlay: OverlayRun, sandbox, script: str) -> list[str]:
    changes = overlay.run(AUTHOR + script)
    policy = SandboxPolicy(workspace=overlay.workspace, layers=(overlay.upper,))
    run = partial(GitRunner(sandbox).run_in_view, policy)
    view = OverlayView(overlay.workspace, overlay.upper)
    return [operation.description for operation in read_operations(view, ".git", changes, run)]


@pytest.mark.parametrize(
    "script",
    [
        "echo two > a.txt; git add . && git commit -qm second && git log -1 && git tag v1 && git branch feature",
        "git checkout -q -b topic; echo x > c; git add c; git commit -qm c; git checkout -q main; git merge -q topic",
        "echo two > a.txt; git stash -q; git stash pop -q; git stash -q; git stash drop -q",
        "git branch -D old; git tag -a -m x v2; git commit -q --amend -m better; git reset -q --hard HEAD",
        "git pack-refs --all; git notes add -m note",
        f"{DIVERGE} git merge old || true",
        f"{DIVERGE} git rebase old || true",
        f"{DIVERGE} git cherry-pick old || true",
        "git bisect start; git bisect bad; git mv a.txt z.txt; git rm -q b.txt",
        "git commit -q --allow-empty -m x; git reset -q --soft HEAD~1; git update-index --index-version 4",
    ],
)
def test_what_git_records_is_data_and_one_entry(overlay: OverlayRun, script: str):
    changes = overlay.run(AUTHOR + script)
    assert list_protected(overlay.workspace, overlay.upper, changes) == set()
    data = sort_changes(OverlayView(overlay.workspace, overlay.upper), changes).data
    assert set(data.values()) == {".git"}
    assert {change.path for change in changes if change.path.startswith(".git/")} == data.keys()
    assert list_changes(changes).count(".git") == 1


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("git config core.fsmonitor ./x", ".git/config"),
        ("git config user.name me", ".git/config"),
        ("git config extensions.worktreeConfig true", ".git/config"),
        ("printf '[core]' > .git/config.worktree", ".git/config.worktree"),
        ("printf x > .git/hooks/pre-commit", ".git/hooks/pre-commit"),
        ("rm -r .git/hooks; mkdir evil; ln -s ../evil .git/hooks", ".git/hooks"),
        ("echo '* filter=x' > .git/info/attributes", ".git/info/attributes"),
        ("echo secret > .git/info/exclude", ".git/info/exclude"),
        ("echo x > .git/info/grafts", ".git/info/grafts"),
        ("echo /tmp > .git/objects/info/alternates", ".git/objects/info/alternates"),
        ("git rev-parse HEAD > .git/shallow", ".git/shallow"),
        ("echo x > .git/commondir", ".git/commondir"),
        ("echo x > .git/gitdir", ".git/gitdir"),
        ("git replace HEAD $(git commit-tree -m x HEAD^{tree})", ".git/refs/replace/"),
        ("git replace HEAD $(git commit-tree -m x HEAD^{tree}); git pack-refs --all", ".git/packed-refs"),
        ("mkdir -p .git/modules/m/hooks; echo x > .git/modules/m/HEAD; echo x > .git/modules/m/hooks/post-checkout",
         ".git/modules/m/hooks/post-checkout"),
        ("mkdir -p .git/modules/m; echo x > .git/modules/m/HEAD; echo x > .git/modules/m/config",
         ".git/modules/m/config"),
        ("git worktree add -q wt", ".git/worktrees/wt/gitdir"),
        ("rm .git/HEAD; ln -s refs/heads/main .git/HEAD", ".git/HEAD"),
        ("echo 'ref: ../../elsewhere' > .git/HEAD", ".git/HEAD"),
        ("mv .git/objects .git/o; ln -s o .git/objects", ".git/objects"),
        ("f=$(find .git/objects -type f | head -1); chmod +w $f; echo x > $f", ".git/objects/"),
        ("git gc -q --prune=now", ".git/objects/"),
        ("mkdir .git/rebase-merge; echo 'exec touch pwned' > .git/rebase-merge/git-rebase-todo",
         ".git/rebase-merge/git-rebase-todo"),
        ("mkdir .git/sequencer; printf 'pick a\\nx touch pwned\\n' > .git/sequencer/todo", ".git/sequencer/todo"),
        ("echo x > .git/index.lock", ".git/index.lock"),
        ("echo x > .git/index", ".git/index"),
        ("git init -q inner", "inner/.git/config"),
        ("git init -q inner", "inner/.git/HEAD"),
        ("git init -q --bare bare", "bare/config"),
        ("mkdir -p fake/objects fake/refs; echo 'ref: refs/heads/x' > fake/HEAD", "fake/HEAD"),
        ("mkdir -p deep/fake/objects deep/fake/refs; echo 'ref: refs/heads/x' > deep/fake/HEAD; "
         "echo x > deep/fake/config", "deep/fake/config"),
        ("mkdir fake; echo 'ref: refs/heads/x' > fake/HEAD; echo ../.git > fake/commondir", "fake/commondir"),
        ("mkdir objects refs; echo 'ref: refs/heads/x' > HEAD; echo x > config", "config"),
        ("mkdir sub; echo 'gitdir: ../evil' > sub/.git", "sub/.git"),
        ("mv .git moved; echo 'gitdir: moved' > .git", ".git"),
        ("git init -q in; git -C in commit -q --allow-empty -m x; git add in 2>/dev/null", ".git/index"),
        ("git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),inner", ".git/index"),
        ("git update-index --split-index", ".git/index"),
        ("git update-index --index-version 4; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),in",
         ".git/index"),
        ("echo '*.txt diff=evil filter=evil' > .gitattributes", ".gitattributes"),
        ("mkdir sub; echo '* filter=evil' > sub/.gitattributes", "sub/.gitattributes"),
        ("printf '[submodule \"a\"]\\n\\tpath=a\\n\\turl=ext::sh -c x\\n' > .gitmodules", ".gitmodules"),
    ],
)  # fmt: skip
def test_what_can_steer_git_is_protected(overlay: OverlayRun, script: str, found: str):
    protected = protected_by(overlay, script)
    assert any(path == found or (found.endswith("/") and path.startswith(found)) for path in protected), protected


def test_existing_nested_and_bare_repositories_and_submodules_record_data(overlay: OverlayRun):
    for folder in ("inner", "lib/deep"):
        run_git(overlay.workspace, "init", "-q", folder)
        run_git(overlay.workspace / folder, "commit", "-q", "--allow-empty", "-m", "x")
    (overlay.workspace / ".git" / "modules").mkdir()
    (overlay.workspace / "lib" / "deep" / ".git").rename(overlay.workspace / ".git" / "modules" / "lib")
    (overlay.workspace / "lib" / "deep" / ".git").write_text("gitdir: ../../.git/modules/lib\n")
    run_git(overlay.workspace, "clone", "-q", "--bare", ".", "bare")
    changes = overlay.run(
        f"{AUTHOR}for d in inner lib/deep; do git -C $d commit -q --allow-empty -m y; done; "
        "git --git-dir=bare update-ref refs/heads/new $(git rev-parse HEAD)"
    )
    assert list_protected(overlay.workspace, overlay.upper, changes) == set()
    found = sort_changes(OverlayView(overlay.workspace, overlay.upper), changes)
    assert set(found.data.values()) == {"inner/.git", ".git/modules/lib", "bare"}


def test_an_ordinary_folder_with_such_names_is_no_repository(overlay: OverlayRun):
    script = "mkdir -p src/objects src/hooks; echo x > src/config; echo x > src/objects/a; echo x > src/hooks/use.js"
    assert protected_by(overlay, script) == set()


@pytest.mark.parametrize(
    "script", ["rm -rf .git", "mv .git moved; echo 'gitdir: moved' > .git", "rm .git/HEAD .git/index"]
)
def test_nothing_of_a_repository_that_ends_is_data(overlay: OverlayRun, script: str):
    changes = overlay.run(script)
    found = sort_changes(OverlayView(overlay.workspace, overlay.upper), changes)
    assert not {path for path in found.data if path.startswith(".git")}
    assert ".git/index" in found.steering
    pending = PendingOutcome(
        session_id="s", call_id="c", workspace=str(overlay.workspace), changes=tuple(changes), content=""
    )
    shown = [file.path for file in describe_outcome(pending, overlay.upper).files if file.path.startswith(".git")]
    assert shown == ([".git/HEAD", ".git/index"] if "index" in script else [".git"])


def test_files_behind_protected_links_and_configured_hooks_are_protected(overlay: OverlayRun):
    (overlay.workspace / "docs").mkdir()
    (overlay.workspace / "docs" / "rules.txt").write_text("x")
    (overlay.workspace / "AGENTS.md").symlink_to("docs/rules.txt")
    run_git(overlay.workspace, "config", "core.hooksPath", "scripts/hooks")
    script = "echo evil > docs/rules.txt; mkdir -p scripts/hooks; echo evil > scripts/hooks/pre-commit; echo y > b.txt"
    assert protected_by(overlay, script) == {"docs/rules.txt", "scripts/hooks", "scripts/hooks/pre-commit"}


@pytest.mark.parametrize("target", ["CLAUDE.md", "docs/rules.txt"])
def test_a_replaced_link_is_protected(overlay: OverlayRun, target: str):
    (overlay.workspace / "docs").mkdir()
    (overlay.workspace / target).write_text("x")
    (overlay.workspace / "AGENTS.md").symlink_to(target)
    assert protected_by(overlay, "rm AGENTS.md; echo evil > AGENTS.md") == {"AGENTS.md"}


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", ".git/hooks/x", ".GIT/config", "sub/.git/config", "a//b", "git~1/x"]
)
def test_an_index_with_a_path_out_of_the_work_tree_is_dangerous(overlay: OverlayRun, name: str):
    index = overlay.workspace / ".git" / "index"
    before = index.read_bytes()
    assert find_index_dangers(before, before) == ""
    long = name.ljust(len(name) + (-(62 + len(name)) % 8 or 8), "\0")
    entry = bytearray(before[12:74])
    entry[60:62] = len(name).to_bytes(2, "big")
    forged = before[:8] + (1).to_bytes(4, "big") + bytes(entry) + long.encode()
    assert find_index_dangers(before, forged + bytes(20)) == f"it contains the path {name}"


def test_operations_are_described_as_a_person_would(overlay: OverlayRun, sandbox):
    operations = operations_of(
        overlay,
        sandbox,
        "echo two > a.txt; echo n > new.txt; git add .; git commit -qm 'Say two'; git tag v1; git branch -D old; "
        "git checkout -q -b feature; echo three > a.txt; git stash -q; echo s > staged.txt; git add staged.txt",
    )
    assert [line.partition(" ")[0] for line in operations] == [
        "commit",
        "new",
        "branch",
        "branch",
        "new",
        "new",
        "HEAD:",
        "staged:",
    ]
    assert operations[0].endswith('"Say two" by Ann <a@b>: a.txt (modified), new.txt (added)')
    assert operations[1].startswith("new branch feature at ")
    assert operations[2].startswith("branch main: ")
    assert operations[3].startswith("branch old deleted, it was ")
    assert operations[4].startswith('new stash "WIP on feature: ')
    assert operations[5].startswith("new tag v1 at ")
    assert operations[6:] == ["HEAD: main -> feature", "staged: staged.txt (added)"]


def test_commits_that_a_branch_loses_are_counted(overlay: OverlayRun, sandbox):
    run_git(overlay.workspace, "commit", "-q", "--allow-empty", "-m", "second")
    operations = operations_of(overlay, sandbox, "git reset -q --hard HEAD~1")
    assert operations[0].endswith(", which drops 1 commit from it")
    assert len(operations) == 1


def test_packing_refs_is_no_operation_and_hostile_texts_stay_in_their_line(overlay: OverlayRun, sandbox):
    assert operations_of(overlay, sandbox, "git pack-refs --all") == []
    operations = operations_of(
        overlay, sandbox, r"git commit -q --allow-empty -m $'a\x1b[31mb\x00\x1d\u202ec' --author $'E\x1b <e@f>'"
    )
    assert len(operations) == 2
    assert operations[0].isprintable()


def test_reading_a_hostile_repository_executes_nothing(overlay: OverlayRun, sandbox, tmp_path: Path):
    for key in ("core.fsmonitor", "diff.external", "core.pager", "log.showSignature", "gpg.program", "diff.x.textconv"):
        run_git(
            overlay.workspace, "config", key, "true" if key.startswith("log") else f"touch {overlay.workspace}/ran; :"
        )
    operations = operations_of(overlay, sandbox, "echo 2 > a.txt; git commit -qam two; ls ran 2>/dev/null || true")
    assert operations[0].startswith("commit ")
    assert not (overlay.upper / "ran").exists()


def test_without_git_the_refs_are_described(overlay: OverlayRun):
    changes = overlay.run(f"{AUTHOR}git commit -q --allow-empty -m second")
    found = read_operations(OverlayView(overlay.workspace, overlay.upper), ".git", changes, None)
    assert [operation.kind for operation in found] == ["branch"]
    pending = PendingOutcome(
        session_id="s", call_id="c", workspace=str(overlay.workspace), changes=tuple(changes), content=""
    )
    (entry,) = describe_outcome(pending, overlay.upper).files
    assert (entry.path, entry.file, entry.protected, len(entry.operations)) == (".git", "folder", False, 1)


def test_hooks_that_did_not_run_are_named(overlay: OverlayRun, sandbox):
    for name in (".git/hooks/pre-commit", "hooks/commit-msg"):
        hook = overlay.workspace / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
    run_git(overlay.workspace, "config", "core.hooksPath", "hooks")
    changes = overlay.run(f"{AUTHOR}git commit -q --allow-empty -m second")
    policy = SandboxPolicy(workspace=overlay.workspace, layers=(overlay.upper,))
    pending = PendingOutcome(
        session_id="s", call_id="c", workspace=str(overlay.workspace), changes=tuple(changes), content=""
    )
    run = partial(GitRunner(sandbox).run_in_view, policy)
    (entry,) = describe_outcome(pending, overlay.upper, None, run).files
    assert entry.note.endswith("; its hooks did not run: commit-msg, pre-commit")


def test_the_git_folder_of_a_worktree_a_submodule_and_a_folder_above_is_found(tmp_path: Path):
    repo = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    run_git(repo, "commit", "-q", "--allow-empty", "-m", "x")
    (repo / "sub").mkdir()
    assert find_outside_repository(repo) is None
    assert find_outside_repository(repo / "sub") == OutsideRepository(str(repo / ".git"))
    run_git(repo, "worktree", "add", "-q", str(tmp_path / "linked"))
    linked = OutsideRepository(str(repo / ".git"), own="worktrees/linked/")
    assert find_outside_repository(tmp_path / "linked") == linked
    run_git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo), "module")
    assert find_outside_repository(repo / "module") == OutsideRepository(str(repo / ".git" / "modules" / "module"))


@pytest.mark.parametrize(
    "marker", ["gitdir: {repo}/.git", "gitdir: {repo}/.git/worktrees/linked", "gitdir: /", "nonsense"]
)
def test_a_git_file_that_points_to_another_repository_gives_no_access(tmp_path: Path, marker: str):
    repo, hostile = tmp_path / "repo", tmp_path / "hostile"
    hostile.mkdir()
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    run_git(repo, "commit", "-q", "--allow-empty", "-m", "x")
    run_git(repo, "worktree", "add", "-q", str(tmp_path / "linked"))
    (hostile / ".git").write_text(marker.format(repo=repo) + "\n")
    assert find_outside_repository(hostile) is None


def test_a_worktree_of_a_run_may_write_its_own_branch_only(tmp_path: Path):
    repository = OutsideRepository(str(tmp_path), own="worktrees/w/", branch="outrider/1/x")
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "index").touch()
    paths = {
        "objects/ab/cd": True, "worktrees/w/logs/HEAD": True, "refs/heads/outrider/1/x": True,
        "logs/refs/heads/outrider/1/x": True, "refs/heads/main": False, "refs/heads/outrider/2/x": False,
        "packed-refs": False, "refs/stash": False, "worktrees/other/logs/HEAD": False, "config": False,
        "worktrees/w/commondir": False, "worktrees/w/gitdir": False, "refs/tags/v1": False,
    }  # fmt: skip
    for path in paths:
        (tmp_path / "upper" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "upper" / path).touch()
    changes = [OverlayChange(path, "created", "file") for path in paths]
    found = sort_recorded(OverlayView(tmp_path, tmp_path / "upper"), changes, repository)
    assert {path: path in found.data for path in paths} == paths
    assert found.steering == {path for path, allowed in paths.items() if not allowed}
