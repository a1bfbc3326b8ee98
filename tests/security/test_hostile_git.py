"""Repositories that try to make git run something, and commands that plant such a repository, through the real engine.

Each trap is sprung once by a careless git, on a copy, to prove that it is set. Its program writes a mark outside and a
file in the workspace: neither may appear, and without a file there is no question either."""

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import ToolCompleted, ToolError
from outrider.processes.git import GitRunner
from outrider.processes.launch import GIT_OVERRIDES, GIT_VARIABLES
from tests.fixtures.sandbox_workspace import scratch_folder
from tests.scenario.test_outcomes import Harness, shell
from tests.unit.background.repositories import repository, run_git

SOURCE = Path(__file__).parents[2] / "src" / "outrider"


class HostileRepository:
    """A workspace with a repository, and a program `evil` in it that betrays that it ran."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        self.workspace = repository(folder / "workspace")
        self.evil = self.workspace / "evil"
        self.evil.write_text(f"#!/bin/sh\ntouch {self.mark} ran 2>/dev/null\nexec timeout 3 cat\n")
        self.evil.chmod(0o755)
        run_git(self.workspace, "add", "--all")
        run_git(self.workspace, "commit", "-qm", "evil")
        (self.workspace / "src" / "tea.txt").write_text("black\n")

    def configure(self, text: str, folder: str = ".git") -> None:
        with (self.workspace / folder / "config").open("a", newline="") as file:
            file.write(text.replace("EVIL", str(self.evil)))

    def nest(self, name: str) -> None:
        run_git(self.workspace, "init", "-q", name)
        (self.workspace / name / "file").write_text("x")
        run_git(self.workspace / name, "add", "--all")
        run_git(self.workspace / name, "commit", "-qm", "x")
        run_git(self.workspace, "-c", "advice.addEmbeddedRepo=false", "add", name)
        (self.workspace / name / "file").write_text("y")
        self.watch_files(f"{name}/.git")

    def watch_files(self, folder: str = ".git") -> None:
        """Sets the program that most commands of git start."""
        self.configure(FSMONITOR, folder)


FSMONITOR = "[core]\n\tfsmonitor = EVIL\n"
COMMIT = "git -c user.name=a -c user.email=a@b commit"
# Settings of the repository, and the command that runs into them.
SETTINGS = {
    "fsmonitor": (FSMONITOR, "git status"),
    "a value that goes on in the next line": (
        "[user]\n\tname = a\\\n\n[core]\n\tfsmonitor = /./\\\nEVIL\n",
        "git status",
    ),
    "unusual line separators": (f"[user]\n\tname = a\u2028\x0b\x0c\x1c\x85[user]\n{FSMONITOR}", "git status"),
    "settings beyond the first megabyte": ("#" * 1_000_100 + f"\n{FSMONITOR}", "git status"),
    "a folder option behind the subcommand": (FSMONITOR, "git diff -C src"),
    "an editor": (
        "[core]\n\teditor = EVIL\n[sequence]\n\teditor = EVIL\n",
        f"{COMMIT} --allow-empty < /dev/null; true",
    ),
    "programs of signatures": (
        "[gpg]\n\tprogram = EVIL\n[commit]\n\tgpgSign = true\n",
        f"{COMMIT} -q --allow-empty -m x; git reset -q HEAD~1; true",
    ),
    "an ssh command": ("[core]\n\tsshCommand = EVIL\n", "git ls-remote ssh://example.invalid/x; true"),
    "a credential helper": (
        "[credential]\n\thelper = !EVIL\n",
        "printf 'protocol=https\\nhost=example.invalid\\n\\n' | git credential fill; true",
    ),
}


def set_up(name: str) -> "Trap":
    def build(ground: HostileRepository) -> str:
        settings, command = SETTINGS[name]
        ground.configure(settings)
        return command

    return build


Trap = Callable[[HostileRepository], str]
TRAPS: dict[str, Trap] = {name: set_up(name) for name in SETTINGS}


def trap(build: Trap) -> Trap:
    """Registers a trap: it prepares a repository and returns the command that runs into it."""
    TRAPS[build.__name__] = build
    return build


@trap
def an_empty_git_folder(ground: HostileRepository) -> str:
    ground.watch_files()
    (ground.workspace / "src" / ".git").mkdir()
    return "cd src && git status"


@trap
def files_that_look_like_a_bare_repository_and_are_none(ground: HostileRepository) -> str:
    ground.watch_files()
    for name in ("HEAD", "objects", "refs"):
        (ground.workspace / "src" / name).write_text("nothing")
    return "cd src && git status"


@trap
def a_bare_repository_in_the_tree(ground: HostileRepository) -> str:
    fake = ground.workspace / "fixtures" / "deep"
    for name in ("objects", "refs"):
        (fake / name).mkdir(parents=True)
        (fake / name / "keep").touch()
    (fake / "HEAD").write_text("ref: refs/heads/main\n")
    (fake / "config").write_text(
        f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = {ground.evil}\n"
    )
    return "cd fixtures/deep && git status"


@trap
def a_nested_repository_in_the_index(ground: HostileRepository) -> str:
    ground.nest("inner")
    return "git status"


@trap
def a_nested_repository_in_a_split_index(ground: HostileRepository) -> str:
    ground.nest("inner")
    run_git(ground.workspace, "update-index", "--split-index")
    return "git diff"


@trap
def an_included_file(ground: HostileRepository) -> str:
    (ground.workspace / "settings").write_text(f"[core]\n\tfsmonitor = {ground.evil}\n")
    ground.configure('[include]\n\tpath = ../settings\n[includeIf "onbranch:main"]\n\tpath = ../settings\n')
    return "git status"


@trap
def settings_of_the_worktree(ground: HostileRepository) -> str:
    ground.configure("[extensions]\n\tworktreeConfig = true\n")
    (ground.workspace / ".git" / "config.worktree").write_text(f"[core]\n\tfsmonitor = {ground.evil}\n")
    return "git status"


@trap
def a_work_tree_in_another_folder(ground: HostileRepository) -> str:
    ground.configure(f"[core]\n\tworktree = {ground.workspace}/src\n\tfsmonitor = {ground.evil}\n")
    return "git status"


@trap
def a_git_file_that_names_a_planted_repository(ground: HostileRepository) -> str:
    (ground.workspace / ".git").rename(ground.workspace / "planted")
    (ground.workspace / ".git").write_text("gitdir: planted\n")
    ground.watch_files("planted")
    return "git status"


@trap
def hooks_behind_a_link(ground: HostileRepository) -> str:
    shutil.rmtree(ground.workspace / ".git" / "hooks")
    (ground.workspace / "hooks").mkdir()
    shutil.copy2(ground.evil, ground.workspace / "hooks" / "post-index-change")
    (ground.workspace / ".git" / "hooks").symlink_to("../hooks")
    os.utime(ground.evil, (1, 1))  # the index is written only if it has an old state of an unchanged file
    return "git update-index --refresh; true"


@trap
def hooks_of_a_commit(ground: HostileRepository) -> str:
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction"):
        shutil.copy2(ground.evil, ground.workspace / ".git" / "hooks" / name)
    return f"{COMMIT} -q --allow-empty -m x; git reset -q HEAD~1"


@trap
def a_submodule_with_a_command_as_its_address(ground: HostileRepository) -> str:
    address = f"ext::{ground.evil}"
    (ground.workspace / ".gitmodules").write_text(f'[submodule "m"]\n\tpath = m\n\turl = {address}\n')
    ground.configure(f'[submodule "m"]\n\turl = {address}\n[protocol "ext"]\n\tallow = always\n')
    return f"git ls-remote {address}; true"


def spring(ground: HostileRepository, command: str, tmp_path: Path) -> None:
    """A careless program runs into the trap."""
    quarantine = tmp_path / "kept"
    shutil.copytree(ground.workspace, quarantine, symlinks=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    bash = ["bash", "-c", command]
    subprocess.run(bash, cwd=ground.workspace, env=environ, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert ground.mark.exists(), f"it is no trap: {command}"
    ground.mark.unlink()
    shutil.rmtree(ground.workspace)
    quarantine.rename(ground.workspace)


@pytest.mark.parametrize("name", TRAPS)
async def test_a_hostile_repository_runs_nothing(name: str, tmp_path: Path, sandbox):
    ground = HostileRepository(tmp_path)
    command = TRAPS[name](ground)
    spring(ground, command, tmp_path)
    view = f"({command}); find . -name ran | grep . && echo IT RAN; true"
    for mode in ("plan", "agent"):
        harness = Harness(shell(view), tmp_path, sandbox, attended=False)
        async with harness.engine:
            (part,) = await harness.work(ground.workspace, mode=mode)
        text = part.state.output if isinstance(part.state, ToolCompleted) else part.state.error
        assert "IT RAN" not in text
        assert not ground.mark.exists()
        assert not (ground.workspace / "ran").exists()


def drivers_of_the_repository(ground: HostileRepository, names: str) -> None:
    (ground.workspace / ".gitattributes").write_text(f"*.txt {names}\n")
    for key in ("filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv", "diff.external", "merge.evil.driver"):
        run_git(ground.workspace, "config", key, str(ground.evil))


async def test_drivers_with_custom_names_run_inside_the_sandbox_only(tmp_path: Path, sandbox):
    ground = HostileRepository(tmp_path)
    drivers_of_the_repository(ground, "filter=evil diff=evil merge=evil")
    run_git(ground.workspace, "config", "alias.st", f"!{ground.evil}")
    for command in ("git diff", "git add src/tea.txt", "git st < /dev/null", "git log -p"):
        harness = Harness(shell(command), tmp_path, sandbox, attended=False)
        async with harness.engine:
            await harness.work(ground.workspace)
        assert not ground.mark.exists()
        assert not (ground.workspace / "ran").exists()


@pytest.mark.parametrize(
    ("keys", "filters"),
    [
        ({}, "filter=evil diff=evil"),
        ({"lfs.extension.x.clean": "{evil}", "lfs.extension.x.smudge": "{evil}"}, "filter=lfs"),
    ],
)
def test_git_commands_of_the_engine_run_no_driver_of_the_repository(
    keys: dict[str, str], filters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ground = HostileRepository(tmp_path)
    drivers_of_the_repository(ground, filters)
    home = tmp_path / "home"
    home.mkdir()
    # The filter represents git-lfs, which runs the programs of `lfs.extension` from its clean and smudge filters.
    (home / ".gitconfig").write_text(
        f'[filter "lfs"]\n\tclean = {ground.evil}\n\tsmudge = {ground.evil}\n\trequired = true\n'
    )
    monkeypatch.setenv("HOME", str(home))
    for key, value in keys.items():
        run_git(ground.workspace, "config", key, value.format(evil=ground.evil))
    git = GitRunner()
    assert "tea.txt" in git.run(ground.workspace, "status", "--porcelain", writable=())
    git.run(ground.workspace, "add", "src/tea.txt")
    git.run(ground.workspace, "diff", "--cached", "--no-ext-diff", "--no-textconv")
    git.run(ground.workspace, "checkout", "--force", "--", "src/tea.txt")
    assert not ground.mark.exists()
    assert not (ground.workspace / "ran").exists()


def test_a_filter_of_the_user_runs_in_the_sandbox(tmp_path: Path, sandbox, monkeypatch: pytest.MonkeyPatch):
    ground = HostileRepository(tmp_path)
    (ground.workspace / ".gitattributes").write_text("*.txt filter=mine\n")
    git = GitRunner(sandbox)
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as home:  # the sandbox has another /tmp
        Path(home, ".gitconfig").write_text('[filter "mine"]\n\tclean = "touch ../mark; tr a-z A-Z"\n')
        monkeypatch.setenv("HOME", home)
        git.run(ground.workspace, "add", "src/tea.txt", writable=(ground.workspace / ".git",))
    assert git.run(ground.workspace, "show", ":src/tea.txt") == "BLACK\n"
    assert not ground.mark.exists()


def test_only_one_module_runs_git_and_all_overrides_reach_it(tmp_path: Path):
    callers = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"""[\[(]\s*["'](?:/usr/bin/)?git["'],\s""", path.read_text()) and "permissions" not in path.parts
    ]
    assert callers == ["processes/git.py"]
    repo = repository(tmp_path / "repo")
    run_git(repo, "config", "core.fsmonitor", "evil")
    listed = GitRunner().run(repo, "config", "--list", "--show-scope")
    for key, value in GIT_OVERRIDES.items():
        assert f"command\t{key}={value}".lower() in listed.lower().split("\n")
    assert GIT_VARIABLES["GIT_TERMINAL_PROMPT"] == GIT_VARIABLES["GIT_OPTIONAL_LOCKS"] == "0"


PLANTED = (
    "git init -q inner && git -C inner -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && "
    "git -C inner config core.fsmonitor 'touch ../../mark' && git add inner 2>/dev/null"
)


async def test_a_planted_nested_repository_is_asked_about_at_every_level(tmp_path: Path, sandbox):
    workspace = repository(tmp_path / "workspace")
    harness = Harness(shell(PLANTED), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace, approval="auto"))
        question = await harness.question()
        protected = {file.path for file in question.outcome.files if file.protected}
        assert {"inner/.git/config", "inner/.git/HEAD", ".git/index"} <= protected
        await harness.engine.answer(question.approval_id, allow=False)
        await working
    run_git(workspace, "status")
    assert not (tmp_path / "mark").exists()


async def test_a_background_run_cannot_plant_a_repository_for_the_next_git_status(tmp_path: Path, sandbox):
    workspace = repository(tmp_path / "workspace")
    planted = (
        PLANTED,
        "mv .git moved; git init -q --separate-git-dir planted . ; git config core.fsmonitor 'touch ../mark'",
        "rm -rf .git/hooks; mkdir hooks; printf '#!/bin/sh\ntouch ../mark' > hooks/post-index-change; "
        "chmod +x hooks/post-index-change; ln -s ../hooks .git/hooks; git config core.hooksPath hooks",
    )
    harness = Harness(shell(*planted), tmp_path, sandbox)
    async with harness.engine:
        parts = await harness.work(workspace, mode="background")
    assert "were not applied" in parts[0].state.output
    run_git(workspace, "status")
    run_git(workspace, "update-index", "--refresh")
    assert not (tmp_path / "mark").exists()


SCRIPT = (
    "echo black > tea.txt && git add . && git -c user.name=Ann -c user.email=a@b commit -qm 'Brew' && git log -1 "
    "--format=%s && git tag v1"
)


@pytest.mark.parametrize("level", ["ask", "auto"])
async def test_a_script_sees_its_own_commits_and_they_are_shown_and_preserved(level: str, tmp_path: Path, sandbox):
    workspace = repository(tmp_path / "workspace")
    harness = Harness(shell(SCRIPT), tmp_path, sandbox)
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace, approval=level)
        working = asyncio.ensure_future(harness.engine.prompt(session, "go"))
        if level == "ask":
            question = await harness.question()
            entry = next(file for file in question.outcome.files if file.path == ".git")
            kinds = [(operation.kind, operation.subject) for operation in entry.operations]
            assert kinds == [("commit", "Brew"), ("branch", ""), ("tag", "")]
            await harness.engine.answer(question.approval_id, allow=True)
        await working
        (part,) = await harness.calls(session)
        assert part.state.output.strip() == "Brew"
        assert run_git(workspace, "log", "-1", "--format=%s%d").strip() == "Brew (HEAD -> main, tag: v1)"
        assert run_git(workspace, "--no-optional-locks", "status", "--porcelain") == ""
        await harness.engine.file_changes(session).undo()
    assert run_git(workspace, "log", "--format=%s").split() == ["begin"]
    assert run_git(workspace, "status", "--porcelain") == ""


@pytest.mark.parametrize("place", ["linked", "repo/src", "repo/module"])
async def test_commits_work_where_the_git_folder_is_outside_the_workspace(place: str, tmp_path: Path, sandbox):
    repo = repository(tmp_path / "repo")
    run_git(repo, "worktree", "add", "-q", str(tmp_path / "linked"))
    run_git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo), "module")
    workspace = tmp_path / place
    commands = (SCRIPT, "git config core.fsmonitor evil", "git log -1 --format=%s")
    harness = Harness(shell(*commands), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        first = await harness.question()
        entry = next(file for file in first.outcome.files if file.operations)
        assert entry.path.startswith(str(repo / ".git"))
        assert ("commit", "Brew") in [(operation.kind, operation.subject) for operation in entry.operations]
        assert "Brew" not in run_git(workspace, "log", "-1", "--format=%s")
        await harness.engine.answer(first.approval_id, allow=True)
        second = await harness.question(2)
        assert [file.protected for file in second.outcome.files] == [True]
        assert second.outcome.files[0].path.endswith("/config")
        await harness.engine.answer(second.approval_id, allow=False)
        done, refused, last = await working
    assert isinstance(done.state, ToolCompleted)
    assert isinstance(refused.state, ToolError)
    assert last.state.output.strip() == "Brew"
    assert run_git(workspace, "log", "-1", "--format=%s").strip() == "Brew"
    assert "fsmonitor" not in run_git(workspace, "config", "--list")


async def test_a_commit_is_not_mixed_with_one_that_the_user_made_meanwhile(tmp_path: Path, sandbox):
    workspace = repository(tmp_path / "workspace")
    harness = Harness(shell(SCRIPT), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        run_git(workspace, "commit", "-q", "--allow-empty", "-m", "mine")
        await harness.engine.answer(question.approval_id, allow=True)
        again = await harness.question(2)
        assert [file.path for file in again.outcome.files if file.conflict] == [".git"]
        await harness.engine.answer(again.approval_id, allow=True)
        (part,) = await working
    assert "not applied: .git/ (modified)" in part.state.output
    assert run_git(workspace, "log", "-1", "--format=%s%d").strip() == "mine (HEAD -> main)"
    assert (workspace / "tea.txt").read_text() == "black\n"
    run_git(workspace, "fsck")
