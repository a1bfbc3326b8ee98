"""Hostile commands against the copy-on-write sandbox, in unattended mode: nothing outside changes, and files that steer
tools stay as they are."""

import asyncio
import contextlib
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Rules, ToolCompleted, ToolPart
from tests.fixtures.sandbox_workspace import scratch_folder
from tests.scenario.scripted_runs import call
from tests.scenario.test_outcomes import Harness, git, shell, workspace

__all__ = ["workspace"]  # a fixture


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is visible to commands, on the same file system as the workspace."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        yield Path(folder)


def texts(parts: list[ToolPart]) -> str:
    return "\n".join(getattr(part.state, "output", "") or getattr(part.state, "error", "") for part in parts)


async def test_a_link_in_the_private_tmp_does_not_lead_the_sandbox_setup_outside(tmp_path, sandbox, outside):
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        folder = Path(top, "deeper", "workspace")
        folder.mkdir(parents=True)
        plant = f"mv {top} {top}.moved; ln -s /oldroot{outside} {top}; echo kept > /tmp/kept"
        harness = Harness(shell(plant, "cat /tmp/kept; echo 1 > made.txt", "ls"), tmp_path, sandbox)
        async with harness.engine:
            parts = await harness.work(folder, approval="auto")
        assert (folder / "made.txt").exists()
    assert [type(part.state) for part in parts] == [ToolCompleted] * 3
    assert "kept" in parts[1].state.output
    assert list(outside.iterdir()) == []


async def test_a_link_in_the_cache_layer_does_not_lead_the_sandbox_setup_outside(workspace, tmp_path, sandbox, outside):
    plant = f"ln -s /oldroot{outside} __pycache__; ln -s ../elsewhere .pytest_cache"
    script = [*shell(plant), *shell("cat */.env .*/.env; echo 1 > made.txt")]
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace, approval="auto")
        await harness.engine.prompt(session, "go")
        for name in ("__pycache__", ".pytest_cache"):
            (workspace / name).mkdir()
            (workspace / name / ".env").write_text("KEY=secret-of-the-user\n")
        await harness.engine.prompt(session, "go")
        parts = await harness.calls(session)
    assert "secret-of-the-user" not in texts(parts)
    assert (workspace / "made.txt").exists()
    assert list(outside.iterdir()) == []


LINKS = {
    "a folder of settings": "mkdir c; echo '[build]' > c/config.toml; ln -s c .cargo",
    "a log that git appends to": "mkdir -p .git/logs; ln -sf /elsewhere .git/logs/HEAD",
    "refs that git writes": "rm -rf .git/refs; ln -s ../docs .git/refs",
    "the target of a link": "echo evil > docs/guide.md",
    "a file below the target of a link": "echo evil > rules/new.md",
}


@pytest.mark.parametrize("command", LINKS.values(), ids=LINKS.keys())
async def test_no_link_changes_what_steers_a_tool_unasked(command, workspace, tmp_path, sandbox):
    git(workspace, "init", "-q", "-b", "main")
    for name in ("docs", "rules"):
        (workspace / name).mkdir()
    (workspace / "docs" / "guide.md").write_text("be careful\n")
    (workspace / "AGENTS.md").symlink_to("docs/guide.md")
    (workspace / ".claude").mkdir()
    (workspace / ".claude" / "rules").symlink_to("../rules")
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in workspace.rglob("*"))
    harness = Harness(shell(command), tmp_path, sandbox, attended=False)
    async with harness.engine:
        await harness.work(workspace, approval="auto")
    made = {Path(path).name for path, _ in before} ^ {path.name for path in workspace.rglob("*")}
    assert made <= {"c", "config.toml"}
    assert all(stamp == os.lstat(path).st_mtime_ns for path, stamp in before if path.endswith((".md", "HEAD", "refs")))


async def test_file_tools_ask_before_they_change_the_target_of_a_steering_link(workspace, tmp_path, sandbox):
    (workspace / "docs").mkdir()
    (workspace / "AGENTS.md").symlink_to("docs/guide.md")
    harness = Harness(
        [[call("write", path="docs/guide.md", content="evil")], "done"], tmp_path, sandbox, attended=False
    )
    async with harness.engine:
        await harness.work(workspace, approval="auto")
    assert not (workspace / "docs" / "guide.md").exists()


async def test_a_workspace_that_contains_outriders_own_files_does_not_give_access_to_them(tmp_path, sandbox):
    home = tmp_path / "home"
    config, data = home / ".config" / "outrider", home / ".local" / "share" / "outrider"
    for folder in (config, data):
        folder.mkdir(parents=True)
    (config / "config.toml").write_text("model = 'mine'\n")
    script = [
        *shell("cat .config/outrider/*; echo '[rules]' > .config/outrider/config.toml; echo {} > .config/outrider/new")[
            :-1
        ],
        [call("write", path=".local/share/outrider/trust.json", content="{}")],
        [call("write", path=".config/outrider/skills/x/SKILL.md", content="evil")],
        [call("read", path=".config/outrider/config.toml")],
        [call("write", path="mine.txt", content="fine")],
        "done",
    ]
    harness = Harness(script, home, sandbox, environment={"data": data, "config": config, "home": home})
    async with harness.engine:
        parts = await harness.work(home, approval="auto")
    assert "mine'" not in texts(parts)
    assert (config / "config.toml").read_text() == "model = 'mine'\n"
    assert [path.name for path in config.iterdir()] == ["config.toml"]
    assert not (data / "trust.json").exists()
    assert (home / "mine.txt").exists()


@pytest.mark.parametrize("fields", [{"approval": "auto"}, {"approval": "edits"}, {"mode": "background"}])
async def test_a_process_that_runs_on_leaves_no_protected_files(fields, workspace, tmp_path, sandbox):
    git(workspace, "init", "-q", "-b", "main")
    (workspace / "docs").mkdir()
    (workspace / "docs" / "guide.md").write_text("be careful\n")
    (workspace / "AGENTS.md").symlink_to("docs/guide.md")
    (workspace / "docs" / ".npmrc").write_text("mine\n")
    attack = """echo e > made.txt; echo e > .npmrc; echo e > docs/.npmrc; echo e > docs/guide.md; mkdir -p sub/.vscode
    echo e > sub/.vscode/tasks.json; echo e > sub/AGENTS.md; mkdir c; echo e > c/config.toml; ln -s c sub/.cargo
    git init -q nested; rm AGENTS.md; echo e > AGENTS.md; cp /bin/true program; chmod 4755 program
    python3 -c "import os; os.close(os.open('other', os.O_CREAT | os.O_WRONLY, 0o6755)); os.mknod('third', 0o104755)"
    """
    script = [[call("shell", command=attack, background=True)], [call("shell", command="sleep 1")], "done"]
    harness = Harness(script, tmp_path, sandbox, attended=False)
    async with harness.engine:
        await harness.work(workspace, **fields)
    assert (workspace / "made.txt").exists()
    names = {path.name for path in workspace.rglob("*") if not path.is_relative_to(workspace / ".git")}
    assert names.isdisjoint({".vscode", ".cargo", ".git"})
    assert [str(path.relative_to(workspace)) for path in workspace.rglob(".npmrc")] == ["docs/.npmrc"]
    assert (workspace / "docs" / ".npmrc").read_text() == "mine\n"
    assert (workspace / "AGENTS.md").readlink() == Path("docs/guide.md")
    assert (workspace / "AGENTS.md").read_text() == "be careful\n"
    assert not (workspace / "sub" / "AGENTS.md").exists()
    assert not any(path.lstat().st_mode & 0o6000 for path in workspace.rglob("*") if path.is_file())


async def test_a_process_that_runs_on_leaves_approved_files_alone(workspace, tmp_path, sandbox):
    script = [
        [call("shell", command="sleep 2", background=True)],
        [call("shell", command="echo rules > AGENTS.md")],
        [call("write", path="sub/CLAUDE.md", content="rules")],
        [call("shell", command="sleep 3")],
        "done",
    ]
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace, approval="auto"))
        for number in (1, 2):
            question = await harness.question(number)
            await harness.engine.answer(question.approval_id, allow=True)
        await working
    assert (workspace / "AGENTS.md").exists()
    assert (workspace / "sub" / "CLAUDE.md").exists()


async def test_secrets_deep_in_the_workspace_are_not_visible_to_commands(workspace, tmp_path, sandbox):
    deep = workspace / "services" / "api" / "config" / "local"
    deep.mkdir(parents=True)
    (deep / ".env").write_text("TOKEN=deep-in-the-workspace\n")
    (deep / "server.pem").write_text("TOKEN of a test certificate\n")
    harness = Harness(
        [*shell("grep -rn TOKEN .; cat services/api/config/local/.env", "grep -rn TOKEN . > out.txt; cat out.txt")[:-1],
         [call("grep", pattern="TOKEN")], "done"],
        tmp_path, sandbox,
    )  # fmt: skip
    async with harness.engine:
        parts = await harness.work(workspace, mode="plan")
    assert "deep-in-the-workspace" not in texts(parts)
    assert "test certificate" in parts[0].state.output


NEST = "python3 -c \"import os\nfor _ in range(2500):\n    os.mkdir('d' * 20); os.chdir('d' * 20)\""


async def test_folders_nested_deeper_than_paths_are_discarded_and_deleted(workspace, tmp_path, sandbox):
    harness = Harness(shell(NEST, "echo 1 > made.txt"), tmp_path, sandbox)
    async with harness.engine:
        parts = await harness.work(workspace, approval="auto")
    assert "discarded" in parts[0].state.error
    assert (workspace / "made.txt").exists()
    assert not any(path.is_dir() for path in workspace.iterdir())
    assert not list((tmp_path / "data" / "overlays").rglob("upper"))


async def test_a_sparse_file_takes_no_more_space_after_the_commit(workspace, tmp_path, sandbox):
    command = (
        "truncate -s 200M sparse; printf end >> sparse; printf middle | dd of=sparse bs=1 seek=1000000 conv=notrunc"
    )
    harness = Harness(shell(command), tmp_path, sandbox)
    async with harness.engine:
        await harness.work(workspace, approval="auto")
    status = (workspace / "sparse").stat()
    assert status.st_size == (200 << 20) + 3
    assert status.st_blocks * 512 < 1 << 20
    with (workspace / "sparse").open("rb") as file:
        file.seek(1_000_000)
        assert file.read(7) == b"middle\0"
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"


async def test_undo_stores_no_secrets_that_were_not_named(workspace, tmp_path, sandbox):
    (workspace / ".env").write_text("KEY=secret-of-the-user\n")
    (workspace / "old.txt").write_text("before")
    script = shell("echo after > old.txt", "echo after > .env")
    harness = Harness(script, tmp_path, sandbox, rules=Rules(allow=("shell(echo *)", "shell")))
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace)
        await harness.engine.prompt(session, "go")
        undone = await harness.engine.file_changes(session).undo()
    assert (workspace / "old.txt").read_text() == "before"
    assert ".env" in undone.uncovered
    stored = [path for path in (tmp_path / "data").rglob("*") if path.is_file() and "undo" in path.parts]
    assert stored
    assert not any(path.stat().st_mode & 0o077 for path in stored)
    assert not any(path.parent.stat().st_mode & 0o077 for path in stored)
    assert not any(b"secret-of-the-user" in content for path in stored for content in inflate(path.read_bytes()))


def inflate(content: bytes) -> Iterator[bytes]:
    """The content of a database file, and everything in it that zlib can decompress."""
    yield content
    for start in (match.start() for match in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", content)):
        with contextlib.suppress(zlib.error):
            yield zlib.decompressobj().decompress(content[start:])
