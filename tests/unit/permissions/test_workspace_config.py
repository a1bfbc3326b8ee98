"""Workspace files that configure a program are found before the program runs."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider.permissions.shell.programs.workspace_config import find_git_folder, find_risky_key
from tests.fixtures.shell_analysis import judge as decide


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path / "ws")], check=True)
    (tmp_path / "ws" / "src").mkdir()
    return tmp_path / "ws"


def judged(workspace: Path, command: str, **more: Any) -> str:
    return decide("shell", {"command": command}, mode="agent", workspace=workspace, **more).effect


@pytest.mark.parametrize(
    ("hooks", "configuration"),
    [
        (".git/hooks", ""),
        ("mine", "[core]\n\thooksPath = mine\n"),
        ("mine", "[CORE] HOOKSPATH=mine # here\n"),
        ("mine", '[core]\n\thooksPath = mi"ne"\n'),
        ("mine", "[core]\n\thooksPath = mi\\\nne\n"),
    ],
)
def test_a_hook_that_reading_would_start_asks(hooks: str, configuration: str, workspace: Path):
    with (workspace / ".git" / "config").open("a") as file:
        file.write(configuration)
    folder = workspace / hooks
    folder.mkdir(exist_ok=True)
    (folder / "pre-commit").write_text("#!/bin/sh\n")
    unusual = '"' in configuration or "\\" in configuration
    assert judged(workspace, "git diff") == ("ask" if unusual else "allow")
    (folder / "post-index-change").write_text("#!/bin/sh\n")
    for command in ("git diff", "git describe --dirty", "cd src && git diff --stat"):
        assert judged(workspace, command) == "ask"


@pytest.mark.parametrize(
    "configuration",
    [
        "[core]\n\tfsmonitor = ./x",
        "[core]\n fsmonitor=./x",
        "[CORE]\n\tFsMonitor = ./x",
        '[diff "a"]\n\ttextconv = x',
        '[diff "a"]\n\tcommand = x',
        "[diff]\n\texternal = x",
        "[include]\n\tpath = ../x",
        '[includeIf "gitdir:/"]\n\tpath = x',
        '[filter "a"]\n\tclean = x',
        '[filter "a"]\n\tprocess = x',
        "[log]\n\tshowSignature = true",
        "[format]\n\tpretty = %GG",
        '[remote "o"]\n\tpromisor = true',
        "[core] fsmonitor = ./x",
        "[core]\n\tgitProxy = x",
        "[core]\n\talternateRefsCommand = x",
        "[core]\n\tworktree = /",
        "[pretty]\n\ta = %GG",
        "[extensions]\n\tpartialClone = o",
        "nonsense",
    ],
)
def test_a_repository_that_steers_git_asks_before_reading(configuration: str, workspace: Path):
    assert judged(workspace, "git status") == "allow"
    with (workspace / ".git" / "config").open("a") as file:
        file.write(configuration + "\n")
    for command in ("git status", "cd src && git log", "git -C src diff", "git diff -- *.py", "bash -c 'git log'"):
        assert judged(workspace, command) == "ask"


@pytest.mark.parametrize(
    "configuration",
    [
        "[user]\n\tname = x",
        '[remote "o"]\n\turl = x\n\tfetch = y',
        '[branch "m"]\n\tmerge = x',
        "[core]\n\thooksPath = .husky",
        "[alias]\n\tst = status",
        "# comment\n; other\n[core]\n\tautocrlf = input",
        '[submodule "a"]\n\turl = x',
        "[core]\n\tpager = less",
    ],
)
def test_ordinary_configuration_does_not_prevent_reading(configuration: str, workspace: Path):
    with (workspace / ".git" / "config").open("a") as file:
        file.write(configuration + "\n")
    assert judged(workspace, "git status") == "allow"


def test_hooks_and_aliases_count_once_a_rule_lets_git_write(workspace: Path):
    allow = ["shell(git commit *)", "shell(git st)"]
    assert judged(workspace, "git commit -m x", allow=allow) == "allow"
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\n")
    assert judged(workspace, "git commit -m x", allow=allow) == "ask"
    assert judged(workspace, "git status") == "allow"
    approved = {hashlib.sha256(hook.read_bytes()).hexdigest()}
    assert judged(workspace, "git commit -m x", allow=allow, approved=approved) == "allow"
    hook.write_text("#!/bin/sh\nevil\n")
    assert judged(workspace, "git commit -m x", allow=allow, approved=approved) == "ask"


@pytest.mark.parametrize(
    ("file", "text", "command", "rule"),
    [
        (".npmrc", "script-shell=./x", "npm test", "npm test"),
        (".npmrc", "registry=http://x", "npm install", "npm *"),
        (".yarnrc.yml", "yarnPath: ./x", "yarn test", "yarn *"),
        ("conftest.py", "x", "pytest -q", "pytest *"),
        ("tests/conftest.py", "x", "python3 -m pytest", "python3 -m pytest *"),
        (".cargo/config.toml", "x", "cargo test", "cargo test"),
        ("rust-toolchain.toml", "x", "cd src && cargo test", "cargo test"),
    ],
)
def test_a_file_that_steers_a_program_is_asked_about_in_spite_of_a_rule(
    file: str, text: str, command: str, rule: str, workspace: Path
):
    allow = [f"shell({rule})"]
    assert judged(workspace, command, allow=allow) == "allow"
    path = workspace / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert judged(workspace, command, allow=allow) == "ask"
    assert judged(workspace, command, allow=allow, approved=[hashlib.sha256(text.encode()).hexdigest()]) == "allow"


def test_harmless_settings_of_npm_steer_nothing(workspace: Path):
    (workspace / ".npmrc").write_text("# comment\n; other\nsave-exact=true\nfund = false\n\n")
    assert judged(workspace, "npm test", allow=["shell(npm test)"]) == "allow"


def test_the_repository_is_found_as_git_finds_it(workspace: Path, tmp_path: Path):
    assert find_git_folder(workspace / "src") == workspace / ".git"
    bare = workspace / "bare"
    for name in ("objects", "refs"):
        (bare / name).mkdir(parents=True)
    (bare / "HEAD").write_text("x")
    (bare / "config").write_text("[core]\n\tfsmonitor = x\n")
    assert find_git_folder(bare) == bare
    assert judged(workspace, "cd bare && git status") == "ask"
    linked = workspace / "linked"
    linked.mkdir()
    (linked / ".git").write_text(f"gitdir: {bare}\n")
    assert find_git_folder(linked) == bare
    assert judged(workspace, "git -C linked log") == "ask"
    (linked / ".git").write_text("nonsense")
    assert find_git_folder(linked) == linked / ".git"
    assert find_git_folder(Path(tmp_path.anchor)) is None


def test_configurations_of_worktrees_and_submodules_count(workspace: Path):
    module = workspace / ".git" / "modules" / "m"
    module.mkdir(parents=True)
    (module / "config").write_text("[core]\n\tfsmonitor = x\n")
    assert judged(workspace, "git status") == "ask"
    (module / "config").write_text("[core]\n\tbare = false\n")
    assert judged(workspace, "git status") == "allow"
    (workspace / ".git" / "config.worktree").write_text("[core]\n\tfsmonitor = x\n")
    assert judged(workspace, "git status") == "ask"


def test_an_unreadable_configuration_is_treated_as_steering(tmp_path: Path):
    assert find_risky_key(tmp_path / "missing", reads_only=True) == "unreadable.unreadable"


def test_a_repository_inside_the_repository_is_included_once_the_index_names_it(workspace: Path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for number in range(3):
        (workspace / f"file{number}").write_text("x")
    subprocess.run([*git, "add", "-A"], cwd=workspace, check=True, capture_output=True)
    subprocess.run([*git, "init", "-q", "inner"], cwd=workspace, check=True)
    subprocess.run([*git, "commit", "-qm", "x", "--allow-empty"], cwd=workspace / "inner", check=True)
    with (workspace / "inner" / ".git" / "config").open("a") as file:
        file.write("[core]\n\tfsmonitor = ./x\n")
    assert judged(workspace, "git status") == "allow"
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], cwd=workspace / "inner", check=True, capture_output=True, text=True
    )
    link = ["update-index", "--add", "--cacheinfo", f"160000,{head.stdout.strip()},inner"]
    subprocess.run([*git, *link], cwd=workspace, check=True)
    assert judged(workspace, "git status") == "ask"
    (workspace / "inner" / ".git" / "config").write_text("[core]\n\tbare = false\n")
    assert judged(workspace, "git status") == "allow"
    index = workspace / ".git" / "index"
    index.write_bytes(index.read_bytes()[:4] + (4).to_bytes(4, "big") + index.read_bytes()[8:])
    assert judged(workspace, "git status") == "ask"
