"""Hostile workspaces, opened, left idle, planned in and run headless: nothing of them runs, is sent or is obeyed.

Each has real marks: a program that leaves a trace, a listener that would be hit, words that must not reach the system
prompt. Where a careless program would spring the trap, it does so once, on a copy, to prove that the trap is set."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider.engine.frontend import workspace_files
from outrider.sessions.records import SessionTranscript
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.parts import ToolPart
from tests.security import hostile_config_files, hostile_git_metadata, hostile_program_files
from tests.security.hostile_workspace import INJECTED_TEXT, SECRET, TRAPS, Ground, Trap, as_toml

LISTED = (hostile_config_files, hostile_git_metadata, hostile_program_files)  # each lists its traps when it is loaded
GIT_COMMANDS = (
    "git log --oneline -3", "git log -p", "git show", "git branch -a", "git ls-files", "git blame file.txt",
    "git grep x",
)  # fmt: skip
READ_COMMANDS = (
    "git status",
    "git diff",
    "ls -la",
    "head -3 *",
    "wc -l *",
    "file *",
    "rg x",
    "grep -rn x .",
)  # the longest output last
FEW_COMMANDS = ("git status", "git diff", "head -3 *", "grep -rn x .")
IDLE_SECONDS = 0.05


@pytest.fixture
async def hits() -> AsyncIterator[tuple[str, list[str]]]:
    """A listener on loopback, and the requests that it received."""
    received: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            received.append((await reader.read(10_000)).decode("utf-8", "replace"))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received


def calls_for(ground: Ground, trap: Trap, *groups: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The tool calls of a model that explores an unknown workspace, as a script of the scripted provider. One call runs
    all commands of a group, unless some of them do not end."""
    names = sorted(path.name for path in ground.workspace.iterdir())
    files = [os.fsencode(name).decode("utf-8", "replace") for name in names][:20]
    reading = [("read", {"file_path": name}) for name in (*files, "AGENTS.md", ".outrider/config.toml")]
    searching = [("list", {"path": "."}), ("glob", {"pattern": "**/*"}), ("grep", {"pattern": "x|hunter"})]
    commands = ["; ".join(group) for group in groups if group]
    if trap.timeout < Trap.timeout:
        commands = [command for group in groups for command in group]
    shells = [("shell", {"command": command, "timeout": trap.timeout}) for command in commands]
    return [[{"tool": tool, "input": given} for tool, given in calls] for calls in (searching, reading, shells)]


async def plan(ground: Ground, trap: Trap) -> list[ToolPart]:
    """Plan mode runs every command; the other modes use the same sandbox for those they allow."""
    git_commands = GIT_COMMANDS if is_git_trap(trap) else ()
    script = calls_for(ground, trap, READ_COMMANDS, git_commands, trap.commands)
    async with ground.engine(script, mode="plan") as engine:
        session = await engine.create(workspace=ground.workspace)
        await workspace_files(ground.workspace)  # as a screen does that offers their names
        await asyncio.sleep(IDLE_SECONDS)
        await engine.prompt(session, "Look around.")
        return _calls(await engine.store.load(session))


async def headless(ground: Ground, trap: Trap) -> list[ToolPart]:
    """Runs the program in a separate process, started in the workspace, in the mode that allows most without a user."""
    commands = [(command,) for command in (*FEW_COMMANDS, *trap.commands)]  # each is allowed or refused
    script = json.dumps([*calls_for(ground, trap, *commands), "done"])
    (ground.own / "config.toml").write_text(
        f"[providers.demo]\nkind = 'scripted'\noptions = {{ script = {as_toml(script)} }}"
    )
    arguments = ("run", "--model", "demo/m", "--mode", "background", "Look around.")
    environ = {**os.environ, **ground.environ, "PYTHONSAFEPATH": "1"}  # an installed program has no folder in its path
    # What Python itself might load needs a new interpreter; a forked program starts in a tenth of the time.
    own_interpreter = ground.extra or any(ground.workspace.rglob("*.py*"))
    program = ("-m", "outrider") if not own_interpreter else ("-c", "from outrider.cli.main import main; exit(main())")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *arguments, cwd=ground.workspace, env=environ, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode in (0, 3), errors.decode()
    async with SqliteStore(ground.own / "sessions.db") as store:
        newest = (await store.list(limit=1)).sessions[0]
        return _calls(await store.load(newest.id))


def is_git_trap(trap: Trap) -> bool:
    return trap.build.__module__ == hostile_git_metadata.__name__


def _calls(loaded: SessionTranscript) -> list[ToolPart]:
    return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


def spring(trap: Trap, ground: Ground) -> None:
    """The trap works: a program that takes no care runs into it."""
    path = f"{ground.canary.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    if shutil.which(trap.control[0], path=path) is None:
        return
    copy = ground.workspace.with_name("copy")
    environ = {**os.environ, **ground.extra, "PATH": f"{ground.environ['PATH']}:{path}"}
    shutil.copytree(ground.workspace, copy, symlinks=True)
    subprocess.run(trap.control, cwd=copy, env=environ, capture_output=True, timeout=60, check=False)
    assert ground.mark.exists(), f"{trap.name} is no trap: {trap.control} runs into nothing"
    ground.mark.unlink()
    shutil.rmtree(copy)


def assert_unharmed(ground: Ground, received: list[str], stage: str) -> None:
    assert not ground.mark.exists(), f"{stage}: something ran: {ground.mark.read_text()}"
    assert not received, f"{stage}: something was sent: {received}"
    for request in ground.requests:
        text = f"{request.system} {[tool.description for tool in request.tools]}"
        assert INJECTED_TEXT not in text, f"{stage}: an order was passed on: {text}"
        assert SECRET not in text, f"{stage}: a secret was passed on"


def assert_nothing_applies(ground: Ground) -> None:
    """The settings are those of an empty folder."""
    empty = ground.outside / "empty"
    empty.mkdir()
    plain, found = ground.settings(empty), ground.settings()
    for field in plain.__struct_fields__:
        if field not in ("workspace", "notices"):
            assert getattr(found, field) == getattr(plain, field), field


def test_there_are_enough_of_them():
    assert len(TRAPS) >= 40
    assert len({trap.name for trap in TRAPS}) == len(TRAPS)


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
async def test_a_hostile_workspace_does_nothing_before_trust(trap: Trap, tmp_path: Path, hits, monkeypatch):
    url, received = hits
    ground = Ground(tmp_path, url, name=trap.folder)
    trap.build(ground)
    ground.extra = trap.environ(ground)
    if trap.control:
        spring(trap, ground)
    for name, value in ground.extra.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ground.workspace)
    assert_nothing_applies(ground)
    assert_unharmed(ground, received, "settings")
    for stage, work in (("plan", plan), ("headless", headless)):
        parts = await work(ground, trap)
        assert_unharmed(ground, received, stage)
        text = [part for part in parts if SECRET in msgspec.json.encode(part.to_dict()).decode()]
        assert not text, f"{stage}: a secret was read: {text}"
        assert len(parts) >= 7, "the model was not curious"
