"""A named pipe in place of a file that the program reads does not block it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.permissions.paths.containment import read_regular_file
from outrider.tools import search

GROUPS = {
    "instructions": "AGENTS.md CLAUDE.md .agents/skills/x/SKILL.md .claude/skills/x/SKILL.md",
    "configuration": ".outrider/config.toml .mcp.json .env .npmrc .tool-versions rust-toolchain.toml .cargo/config",
    "ignore files": ".gitignore .ignore .rgignore .gitmodules .gitattributes",
    "projects": "package.json pyproject.toml Makefile Cargo.toml go.mod setup.cfg tox.ini notes.txt",
    "repository": ".git",
    "head": ".git/HEAD",
    "settings of git": ".git/config .git/config.worktree .git/commondir .git/info/exclude",
    "index": ".git/index",
}

STORY = """
import asyncio, sys
from pathlib import Path
from outrider.engine.session_tools import ToolEnvironment
from outrider import Engine, EventBus
from outrider.config.paths import find_app_folders
from outrider.config.settings import read_settings
from outrider.processes.sandbox.detect import find_sandbox
from outrider.project.extensions import UserPaths, WorkspaceExtensions
from outrider.project.trust import WorkspaceTrust, find_project
from tests.scenario.scripted_runs import agent, call, scripted

async def main(workspace, folder):
    folders = find_app_folders({"OUTRIDER_HOME": str(folder / "home"), "HOME": str(folder)})
    trust = WorkspaceTrust(find_project(workspace, folder), folders.trust_file)
    trust.trust(trust.list_items())
    user = UserPaths(folder, folders.instructions_file, folders.skills_folder, folders.trust_file)
    bus = EventBus()
    around = ToolEnvironment(
        sandbox=find_sandbox(folder / "scratch"), data=folder / "data", home=folder, bus=bus,
        extensions=WorkspaceExtensions(user, {}, {}, None),
    )
    commands = "git status; git log", "npm ls; make -n; cargo tree; go version; rustc --version", "ls > made.txt"
    steps = [[call("shell", command=command, timeout=3)] for command in commands]
    steps += [[call("grep", pattern="x")], [call("glob", pattern="**/*")], [call("list", path=".")]]
    steps += [[call("read", path=sys.argv[3])], [call("write", path="b.txt", content="b")]]
    engine = Engine([agent()], [scripted([*steps, "done"])], bus=bus, surroundings=around, attended=False)
    async with engine:
        session = await engine.create(workspace=workspace, approval="edits")
        await engine.prompt(session, "go")
        await engine.file_changes(session).undo()

asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
print("ended well")
"""


def make_pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS.keys())
def test_a_pipe_in_place_of_a_file_stops_nothing(names: str, tmp_path: Path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("x\n")
    if names != ".git":
        subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    for name in names.split():
        make_pipe(workspace / name)
    story = [sys.executable, "-W", "error", "-c", STORY, str(workspace), str(tmp_path), names.split(maxsplit=1)[0]]
    done = subprocess.run(story, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("ended well\n"), done.stderr[-2000:]


def test_a_pipe_and_a_device_are_refused(tmp_path: Path):
    make_pipe(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular_file(path, 10)


async def test_a_pipe_deep_in_the_workspace_does_not_stop_a_search(tmp_path: Path):
    make_pipe(tmp_path / "sub" / ".gitignore")
    (tmp_path / "sub" / "notes.txt").write_text("milk\n")
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        request = search.SearchRequest("milk", mode="content")
        scope = search.SearchScope(folder, str(tmp_path), ".", lambda _: True)
        found = await search.search_files(request, scope, ripgrep_seconds=1.0)
        assert [match.path for match in found] == ["sub/notes.txt"]
        assert await search.list_files(folder, str(tmp_path), ripgrep_seconds=1.0) == ["sub/notes.txt"]
    finally:
        os.close(folder)
