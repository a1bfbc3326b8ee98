"""Commands run over a copy-on-write view of the workspace, and what they changed is the question."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from outrider import Engine, EventBus, Rules, ToolCompleted, ToolError, ToolPart
from outrider.engine.archive import SessionArchive
from outrider.engine.frontend import send_to_background
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import (
    ProcessStartedEvent,
    ToolApprovalRequestedEvent,
    ToolExecutionCompletedEvent,
    ToolOutputEvent,
)
from outrider.outcomes.pending import remove_old_overlays
from outrider.presentation.approvals import requested_approval_view
from outrider.presentation.tool_calls import call_outcome
from outrider.processes.sandbox.bubblewrap import SCOPES_SINCE, landlock_version
from outrider.processes.sandbox.detect import LandlockSandbox, try_sandbox
from outrider.stores import SqliteStore
from outrider.tools.edit_transaction import WorkspaceLock
from tests.fixtures.sandbox_workspace import scratch_folder
from tests.scenario.scripted_runs import agent, call, scripted

RUNNING = "until grep -qs ^sleep /proc/$!/cmdline; do :; done"  # a shell waits for the program that it has started


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.txt").write_text("remember the milk\n")
    (folder / ".gitignore").write_text("build/\n")
    return folder


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that commands see read-only; /tmp is private to them."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        yield Path(folder)


class Harness:
    def __init__(self, script, tmp_path: Path, sandbox, *, environment=None, **options) -> None:
        self.bus = EventBus()
        folders = environment or {"data": tmp_path / "data", "home": tmp_path}
        around = ToolEnvironment(sandbox=sandbox, bus=self.bus, **folders)
        self.engine = Engine([agent()], [scripted(script)], bus=self.bus, surroundings=around, **options)
        self.asked: list[ToolApprovalRequestedEvent] = []
        self.bus.subscribe(ToolApprovalRequestedEvent, self.asked.append)

    async def calls(self, session: str) -> list[ToolPart]:
        loaded = await self.engine.store.load(session)
        return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]

    async def work(self, workspace: Path, **fields) -> list[ToolPart]:
        session = await self.engine.create(workspace=workspace, **fields)
        await self.engine.prompt(session, "go")
        return await self.calls(session)

    async def question(self, count: int = 1) -> ToolApprovalRequestedEvent:
        async with asyncio.timeout(20):
            while len(self.asked) < count:
                await asyncio.sleep(0.005)
        return self.asked[count - 1]

    async def leave_open(self, workspace: Path) -> str:
        """Close the engine while its question is open; return the session."""
        async with self.engine.store, self.engine:
            session = await self.engine.create(workspace=workspace)
            working = asyncio.ensure_future(self.engine.prompt(session, "go"))
            await self.question()
        await asyncio.wait([working])
        return session

    async def first_ended_call(self, session: str) -> ToolPart:
        async with asyncio.timeout(20):
            while not (parts := await self.calls(session)) or not parts[0].ended:
                await asyncio.sleep(0.01)
        return parts[0]


def shell(*commands: str):
    return [[call("shell", command=command)] for command in commands] + ["done"]


async def test_a_command_without_changes_asks_no_question(workspace, tmp_path, sandbox):
    script = shell("python3 -c 'print(6*7)'", "cat notes.txt", "ls -la > /dev/null; true")
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        calls = await harness.work(workspace)
    assert [type(part.state) for part in calls] == [ToolCompleted] * 3
    assert "42" in calls[0].state.output
    assert not harness.asked


async def test_changes_are_the_question_and_are_committed_when_preserved(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo bread >> notes.txt; echo new > made.txt; echo said"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert (workspace / "notes.txt").read_text() == "remember the milk\n"
        files = {file.path: file for file in question.outcome.files}
        assert files.keys() == {"notes.txt", "made.txt"}
        assert "+bread" in files["notes.txt"].diff
        assert question.outcome.exit_code == 0
        assert question.effects == ()  # its changes are known, so the question contains no prediction
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert part.state.output.strip() == "said"
    assert (workspace / "notes.txt").read_text() == "remember the milk\nbread\n"
    assert (workspace / "made.txt").read_text() == "new\n"


async def test_the_duration_of_a_call_leaves_out_the_wait_for_an_answer(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo new > made.txt"), tmp_path, sandbox)
    ended: list[ToolExecutionCompletedEvent] = []
    harness.bus.subscribe(ToolExecutionCompletedEvent, ended.append)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        await asyncio.sleep(1.5)
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    whole = part.state.time.end - part.state.time.start
    assert part.state.metadata["waited_ms"] >= 1_500
    assert call_outcome(part).milliseconds == ended[0].duration_ms == whole - part.state.metadata["waited_ms"]


async def test_some_files_can_be_preserved(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo 1 > a.txt; mkdir sub; echo 2 > sub/b.txt; rm notes.txt"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        await harness.engine.answer(question.approval_id, allow=True, keep=("sub/b.txt",))
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert "a.txt (created)" in part.state.output
    assert sorted(path.name for path in workspace.iterdir()) == [".gitignore", "notes.txt", "sub"]


async def test_a_dropped_outcome_ends_as_rejected_and_informs_the_model(workspace, tmp_path, sandbox):
    harness = Harness(shell("rm notes.txt; echo goodbye"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        await harness.engine.answer(question.approval_id, allow=False, words="keep my notes")
        (part,) = await working
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "rejected"
    assert "notes.txt (deleted)" in part.state.error
    assert "of this command: keep my notes. It would" in part.state.error
    assert part.state.error.count("goodbye") == 1  # its output
    assert (workspace / "notes.txt").exists()
    assert not list((tmp_path / "data" / "overlays").rglob("upper"))


async def test_in_unattended_mode_nothing_changes(workspace, tmp_path, sandbox):
    outside = tmp_path / "outside.txt"
    harness = Harness(shell(f"rm -rf *; echo x > {outside}; echo y > ~/z"), tmp_path, sandbox, attended=False)
    async with harness.engine:
        (part,) = await harness.work(workspace)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "denied"
    assert (workspace / "notes.txt").exists()
    assert not outside.exists()


async def test_plan_mode_discards_changes_and_reports_them(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo x > made.txt; cat made.txt"), tmp_path, sandbox)
    async with harness.engine:
        (part,) = await harness.work(workspace, mode="plan")
    assert isinstance(part.state, ToolCompleted)
    assert "made.txt (created)" in part.state.output
    assert not (workspace / "made.txt").exists()


@pytest.mark.parametrize("level", ["edits", "auto"])
async def test_higher_levels_commit_at_once_with_undo(level, workspace, tmp_path, sandbox):
    harness = Harness(shell("echo bread >> notes.txt; echo n > new.txt"), tmp_path, sandbox)
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace, approval=level)
        await harness.engine.prompt(session, "go")
        assert (workspace / "notes.txt").read_text() == "remember the milk\nbread\n"
        await harness.engine.file_changes(session).undo()
    assert (workspace / "notes.txt").read_text() == "remember the milk\n"
    assert not (workspace / "new.txt").exists()
    assert not harness.asked


async def test_protected_files_are_asked_about_at_every_level(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo 'run evil' > AGENTS.md"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace, approval="auto"))
        question = await harness.question()
        assert question.outcome.files[0].protected
        await harness.engine.answer(question.approval_id, allow=False)
        await working
    assert not (workspace / "AGENTS.md").exists()


async def test_caches_and_ignored_files_raise_no_question_and_stay_visible(workspace, tmp_path, sandbox):
    commands = ("mkdir -p build __pycache__; echo out > build/app; echo c > __pycache__/m.pyc", "cat build/app")
    harness = Harness(shell(*commands), tmp_path, sandbox)
    async with harness.engine:
        _, second = await harness.work(workspace)
    assert not harness.asked
    assert "out" in second.state.output
    assert not (workspace / "build").exists()


async def test_the_users_changes_during_a_command_are_not_overwritten(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo bread >> notes.txt; echo n > new.txt"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        (workspace / "notes.txt").write_text("mine\n")
        await harness.engine.answer(question.approval_id, allow=True)
        again = await harness.question(2)
        assert {file.path for file in again.outcome.files if file.conflict} == {"notes.txt"}
        await harness.engine.answer(again.approval_id, allow=True)
        (part,) = await working
    assert (workspace / "notes.txt").read_text() == "mine\n"
    assert (workspace / "new.txt").read_text() == "n\n"
    assert isinstance(part.state, ToolCompleted)


async def test_a_rule_of_the_user_runs_unconfined_with_undo(workspace, tmp_path, sandbox):
    harness = Harness(shell("touch made.txt"), tmp_path, sandbox, rules=Rules(allow=("shell(touch *)",)))
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace)
        await harness.engine.prompt(session, "go")
        assert (workspace / "made.txt").exists()
        await harness.engine.file_changes(session).undo()
    assert not (workspace / "made.txt").exists()
    assert not harness.asked


async def test_a_pending_outcome_survives_a_restart(workspace, tmp_path, sandbox):
    store = tmp_path / "sessions.db"
    first = Harness(shell("echo once >> notes.txt; date +%N > stamp"), tmp_path, sandbox, store=SqliteStore(store))
    session = await first.leave_open(workspace)
    second = Harness(["done"], tmp_path, sandbox, store=SqliteStore(store))
    async with second.engine.store, second.engine:
        await second.engine.open(session)
        question = await second.question()
        assert question.outcome is not None
        await second.engine.answer(question.approval_id, allow=True)
        async with asyncio.timeout(20):
            while not (workspace / "stamp").exists():
                await asyncio.sleep(0.01)
        await second.engine.resume(session)
        (part,) = await second.calls(session)
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "notes.txt").read_text() == "remember the milk\nonce\n"


ASKED_BEFORE = {
    "an edit": call("write", file_path="made.txt", content="x"),
    "an outcome": call("shell", command="echo x > made.txt"),
}


@pytest.mark.parametrize("made", ASKED_BEFORE.values(), ids=ASKED_BEFORE.keys())
async def test_a_no_that_was_given_while_the_session_was_closed_is_not_replaced_by_a_rule(
    made, workspace, tmp_path, sandbox
):
    store = tmp_path / "sessions.db"
    first = Harness([[made], "done"], tmp_path, sandbox, store=SqliteStore(store))
    async with first.engine.store, first.engine:
        session = await first.engine.create(workspace=workspace)
        working = asyncio.ensure_future(first.engine.prompt(session, "go"))
        question = await first.question()
    await asyncio.wait([working])
    async with SqliteStore(store) as closed:
        await closed.answer(question.approval_id, "denied", words="not that")
    rules = Rules(allow=("may write /**",))
    second = Harness(["done"], tmp_path, sandbox, store=SqliteStore(store), rules=rules)
    async with second.engine.store, second.engine:
        await second.engine.open(session)
        await second.engine.resume(session)
        (part,) = await second.calls(session)
    assert isinstance(part.state, ToolError)
    assert (part.state.reason, "not that" in part.state.error) == ("rejected", True)
    assert not (workspace / "made.txt").exists()


def git(workspace: Path, *arguments: str) -> str:
    command = ["git", "-C", str(workspace), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def test_a_commit_is_one_entry_of_the_outcome(workspace, tmp_path, sandbox):
    git(workspace, "init", "-q", "-b", "main")
    command = "git add notes.txt && git -c user.name=a -c user.email=a@b commit -qm 'Add notes'"
    harness = Harness(shell(command), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert [file.path for file in question.outcome.files] == [".git"]
        assert "refs/heads/main" in question.outcome.files[0].note
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert git(workspace, "log", "--format=%s") == "Add notes\n"
    assert git(workspace, "status", "--porcelain") == "?? .gitignore\n"


@pytest.mark.parametrize("level", ["ask", "auto"])
@pytest.mark.parametrize(
    "command",
    [
        "git config core.fsmonitor ./evil",
        "echo evil > .git/hooks/post-checkout",
        "mkdir nested && git init -q nested && git -C nested config core.fsmonitor ./evil",
        "rm -rf .git; ln -s /elsewhere .git",
        "mv .git .git2",
    ],
)
async def test_git_configuration_is_never_changed_unasked(level, command, workspace, tmp_path, sandbox):
    git(workspace, "init", "-q", "-b", "main")
    before = sorted((path.relative_to(workspace), path.lstat().st_mtime_ns) for path in workspace.rglob("*"))
    harness = Harness(shell(command), tmp_path, sandbox, attended=False)
    async with harness.engine:
        (part,) = await harness.work(workspace, approval=level)
    assert isinstance(part.state, ToolCompleted | ToolError)
    assert sorted((path.relative_to(workspace), path.lstat().st_mtime_ns) for path in workspace.rglob("*")) == before


class WithoutOverlays:
    """The sandbox of a machine that has no copy-on-write views."""

    name, confines, overlays, accepted, protects_files, filters_hosts = "plain", True, False, False, True, True

    def __init__(self, inner) -> None:
        self._inner, self.limitations, self.wrap = inner, inner.limitations, inner.wrap


async def test_without_overlays_a_command_that_wants_to_write_is_asked_about_and_runs_again(
    workspace, tmp_path, sandbox
):
    script = shell("cat notes.txt", "echo bread >> notes.txt")
    harness = Harness(script, tmp_path, WithoutOverlays(sandbox))
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace)
        working = asyncio.ensure_future(harness.engine.prompt(session, "go"))
        question = await harness.question()
        assert (workspace / "notes.txt").read_text() == "remember the milk\n"
        assert question.tool_input["command"] == "echo bread >> notes.txt"
        await harness.engine.answer(question.approval_id, allow=True)
        await working
        assert (workspace / "notes.txt").read_text() == "remember the milk\nbread\n"
        await harness.engine.file_changes(session).undo()
    assert (workspace / "notes.txt").read_text() == "remember the milk\n"
    assert len(harness.asked) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"mode": "plan"}, False), ({}, False), ({"mode": "background"}, True), ({"approval": "edits"}, True)],
)
async def test_without_overlays_the_mode_and_the_level_decide(fields, expected, workspace, tmp_path, sandbox):
    outside = tmp_path / "outside.txt"
    script = shell(f"echo x > made.txt; echo x > AGENTS.md; echo x > {outside}")
    harness = Harness(script, tmp_path, WithoutOverlays(sandbox), attended=False)
    async with harness.engine:
        (part,) = await harness.work(workspace, **fields)
    assert (workspace / "made.txt").exists() is expected
    assert not (workspace / "AGENTS.md").exists()
    assert not outside.exists()
    if not fields:
        assert isinstance(part.state, ToolError)
        assert part.state.reason == "denied"


async def test_a_process_that_runs_on_is_asked_about_first_and_can_be_undone(workspace, tmp_path, sandbox):
    outside = tmp_path / "outside.txt"
    command = f"echo bread >> notes.txt; echo x > {outside}; sleep 60"
    script = [[call("shell", command=command, background=True)], "done"]
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace)
        working = asyncio.ensure_future(harness.engine.prompt(session, "go"))
        question = await harness.question()
        assert question.outcome is None
        assert (workspace / "notes.txt").read_text() == "remember the milk\n"
        await harness.engine.answer(question.approval_id, allow=True)
        await working
        assert (workspace / "notes.txt").read_text() == "remember the milk\nbread\n"
        await harness.engine.file_changes(session).undo()
    assert (workspace / "notes.txt").read_text() == "remember the milk\n"
    assert not outside.exists()


async def test_a_process_that_seems_to_read_only_cannot_write(workspace, tmp_path, sandbox):
    script = [[call("shell", command="tail -f notes.txt", background=True)], "done"]
    harness = Harness(script, tmp_path, sandbox, attended=False)
    async with harness.engine:
        (part,) = await harness.work(workspace)
    assert isinstance(part.state, ToolCompleted)
    assert "remember the milk" in part.state.output


async def test_a_command_that_an_ask_rule_holds_back_stays_in_the_sandbox(workspace, tmp_path, sandbox):
    outside = tmp_path / "outside.txt"
    command = f"echo x > {outside}; echo y > made.txt"
    harness = Harness(shell(command), tmp_path, sandbox, rules=Rules(ask=("shell(echo *)",)))
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert question.outcome is None
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "made.txt").read_text() == "y\n"
    assert not outside.exists()
    assert len(harness.asked) == 1


async def test_a_workspace_may_contain_the_data_folder(tmp_path, sandbox):
    (tmp_path / "notes.txt").write_text("milk\n")
    harness = Harness(shell("echo bread >> notes.txt"), tmp_path, sandbox)
    async with harness.engine:
        (part,) = await harness.work(tmp_path, approval="edits")
    assert isinstance(part.state, ToolCompleted)
    assert (tmp_path / "notes.txt").read_text() == "milk\nbread\n"


async def test_a_command_that_stays_running_is_asked_about_before_it_starts(workspace, tmp_path, sandbox):
    harness = Harness([[call("shell", command="rm notes.txt", background=True)], "done"], tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert question.outcome is None
        assert "stays running" in question.description
        assert (workspace / "notes.txt").exists()
        await harness.engine.answer(question.approval_id, allow=False)
        (part,) = await working
    assert isinstance(part.state, ToolError)
    assert (workspace / "notes.txt").exists()


async def test_names_that_are_not_text_are_shown_escaped_and_can_be_preserved(workspace, tmp_path, sandbox):
    script = "echo 1 > $'bad\\xff'; echo 2 > $'other\\xfe'; echo 3 > $'new\\nline'; echo 4 > 'bad\\udcff'"
    harness = Harness(shell(script), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert {file.path for file in question.outcome.files} == {
            r"bad\udcff",
            r"bad\\udcff",
            r"other\udcfe",
            r"new\nline",
        }
        await harness.engine.answer(question.approval_id, allow=True, keep=(r"bad\udcff", r"new\nline"))
        (part,) = await asyncio.wait_for(working, 20)
    assert isinstance(part.state, ToolCompleted)
    assert r"other\udcfe (created)" in part.state.output
    assert sorted(path.name for path in workspace.iterdir()) == [".gitignore", "bad\udcff", "new\nline", "notes.txt"]


async def test_a_link_in_the_cache_layer_does_not_lead_out_of_the_sandbox(workspace, tmp_path, sandbox):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "profile").write_text("mine\n")
    (workspace / "__pycache__").mkdir()
    link = f"rm -r __pycache__; ln -s {outside} __pycache__"
    plant = "rm __pycache__; mkdir __pycache__; echo evil > __pycache__/profile; echo evil > __pycache__/new"
    mixed = f"{link}; echo 1 > kept.txt", "rm -f __pycache__; mkdir -p __pycache__; echo 2 > kept.txt"
    harness = Harness(shell(link, plant, *mixed, link, plant), tmp_path, sandbox)
    async with harness.engine:
        await harness.work(workspace, approval="auto")
    assert sorted(path.name for path in outside.iterdir()) == ["profile"]
    assert (outside / "profile").read_text() == "mine\n"


@pytest.mark.parametrize(("choice", "written"), [("hosts", False), ("paths", True), ("keep", True)])
async def test_a_command_runs_again_with_what_the_answer_names(choice, written, workspace, tmp_path, sandbox, outside):
    command = f"touch {outside}/made; echo 'curl: (6) Could not resolve host: example.org'; exit 1"
    harness = Harness(shell(command), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert {access.kind for access in question.outcome.blocked} == {"network", "path"}
        assert not (outside / "made").exists()
        await harness.engine.answer(question.approval_id, allow=True, choice=choice)
        await working
    assert (outside / "made").exists() is written
    assert len(harness.asked) == 1


async def test_a_question_about_a_blocked_command_survives_a_restart(workspace, tmp_path, sandbox, outside):
    store = tmp_path / "sessions.db"
    script = shell(f"touch {outside}/made && echo well")
    first = Harness(script, tmp_path, sandbox, store=SqliteStore(store))
    session = await first.leave_open(workspace)
    second = Harness(["done"], tmp_path, sandbox, store=SqliteStore(store))
    async with second.engine.store, second.engine:
        await second.engine.open(session)
        question = await second.question()
        assert [approval.id for approval in await second.engine.approvals(session)] == [question.approval_id]
        await second.engine.answer(question.approval_id, allow=True, choice="outside")
        part = await second.first_ended_call(session)
    assert isinstance(part.state, ToolCompleted)
    assert (outside / "made").exists()


async def test_a_question_that_has_changed_replaces_the_earlier_one(workspace, tmp_path, sandbox):
    store = tmp_path / "sessions.db"
    first = Harness(shell("echo bread >> notes.txt"), tmp_path, sandbox, store=SqliteStore(store))
    session = await first.leave_open(workspace)
    (workspace / "notes.txt").write_text("mine\n")
    second = Harness(["done"], tmp_path, sandbox, store=SqliteStore(store))
    async with second.engine.store, second.engine:
        await second.engine.open(session)
        question = await second.question()
        assert question.outcome.files[0].conflict
        assert [approval.id for approval in await second.engine.approvals(session)] == [question.approval_id]
        await second.engine.answer(question.approval_id, allow=False)
    assert (workspace / "notes.txt").read_text() == "mine\n"


async def test_a_push_is_asked_about_before_it_starts_and_only_once(workspace, tmp_path, sandbox):
    harness = Harness(shell("touch started; git push https://git.example.org/x.git; true"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert question.outcome.predicted == "`git push` sends commits to git.example.org"
        assert [(access.kind, access.target) for access in question.outcome.blocked] == [("network", "git.example.org")]
        assert not list((tmp_path / "data").rglob("started"))
        view = requested_approval_view(question)
        assert view.choices[0].label == "run it with git.example.org"
        await harness.engine.answer(question.approval_id, **view.answer("hosts"))
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "started").exists()
    assert len(harness.asked) == 1
    assert not part.metadata


@pytest.mark.parametrize("attended", [True, False])
async def test_a_predicted_command_without_a_yes_does_not_start(attended, workspace, tmp_path, sandbox):
    harness = Harness(shell("touch started; pip install nothing"), tmp_path, sandbox, attended=attended)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        if attended:
            question = await harness.question()
            await harness.engine.answer(question.approval_id, allow=False, words="not now")
        (part,) = await working
    assert isinstance(part.state, ToolError)
    assert part.state.reason == ("rejected" if attended else "denied")
    assert "downloads and installs packages" in part.state.error
    assert not (workspace / "started").exists()


async def test_a_question_before_the_start_survives_a_restart(workspace, tmp_path, sandbox):
    store = tmp_path / "sessions.db"
    script = shell("echo ran >> runs.txt; git push https://git.example.org/x.git; true")
    first = Harness(script, tmp_path, sandbox, store=SqliteStore(store))
    session = await first.leave_open(workspace)
    second = Harness(["done"], tmp_path, sandbox, store=SqliteStore(store))
    async with second.engine.store, second.engine:
        await second.engine.open(session)
        question = await second.question()
        assert question.outcome.predicted
        await second.engine.answer(question.approval_id, allow=True, choice="hosts")
        part = await second.first_ended_call(session)
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "runs.txt").read_text() == "ran\n"
    assert len(second.asked) == 1


async def test_a_blocked_network_is_asked_about_without_a_second_run(workspace, tmp_path, sandbox):
    """The command looks harmless, so it has a read-only view; a writable one would not help."""
    (workspace / "notes.txt").write_text("curl: (6) Could not resolve host: git.example.org\n")
    harness = Harness(shell("cat notes.txt missing.txt"), tmp_path, sandbox)
    runs: list[ProcessStartedEvent] = []
    harness.bus.subscribe(ProcessStartedEvent, runs.append)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert [access.target for access in question.outcome.blocked] == ["git.example.org"]
        await harness.engine.answer(question.approval_id, allow=False)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert len(runs) == 1
    assert len(harness.asked) == 1


async def test_processes_that_a_command_leaves_are_part_of_the_outcome(workspace, tmp_path, sandbox):
    harness = Harness(shell(f"(sleep 313 >/dev/null 2>&1 & {RUNNING}); echo x > made.txt"), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert question.outcome.left_running == ("sleep 313",)
        assert "left running, and ended: sleep 313" in requested_approval_view(question).facts
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert "it left processes running, which were ended: sleep 313" in part.state.output


async def test_a_command_at_its_time_limit_is_stopped_and_its_outcome_is_the_question(workspace, tmp_path, sandbox):
    script = [[call("shell", command="echo half > made.txt; sleep 60", timeout=1)], "done"]
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert [file.path for file in question.outcome.files] == ["made.txt"]
        assert "time limit" in question.outcome.output
        assert not (workspace / "made.txt").exists()
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "timeout"
    assert (workspace / "made.txt").read_text() == "half\n"
    assert not list((tmp_path / "data" / "overlays").rglob("upper"))


async def test_a_command_in_an_overlay_does_not_move_to_the_background(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo x > made.txt; sleep 1; echo end"), tmp_path, sandbox)
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace)
        started = asyncio.get_running_loop().create_future()
        harness.bus.subscribe(ProcessStartedEvent, lambda event: started.done() or started.set_result(event))
        working = asyncio.ensure_future(harness.engine.prompt(session, "go"))
        process = (await started).process_id
        assert not send_to_background(harness.engine, session, process)
        question = await harness.question()
        await harness.engine.answer(question.approval_id, allow=True)
        await working
        (part,) = await harness.calls(session)
    assert part.state.output.strip() == "end"
    assert (workspace / "made.txt").exists()


HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("tool", ["shell", "write"])
async def test_changes_wait_for_the_command_of_another_process(tool, workspace, tmp_path, sandbox):
    """The other process is killed while it holds the lock: that releases it."""
    arguments = {"command": "echo x > made.txt"} if tool == "shell" else {"file_path": "made.txt", "content": "x\n"}
    harness = Harness([[call(tool, **arguments)], "done"], tmp_path, sandbox)
    lock = tmp_path / "data" / "locks" / f"{sha256(os.fsencode(workspace.resolve())).hexdigest()[:24]}.lock"
    lock.parent.mkdir(parents=True)
    other = subprocess.Popen([sys.executable, "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    waits = asyncio.Event()
    harness.bus.subscribe(ToolOutputEvent, lambda event: "waiting for another" in event.output and waits.set())
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace, approval="edits"))
        try:
            await asyncio.wait_for(waits.wait(), 20)
            assert not (workspace / "made.txt").exists()
        finally:
            other.kill()
            other.communicate()
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "made.txt").read_text() == "x\n"


async def test_a_call_that_waits_for_the_workspace_can_be_cancelled(workspace, tmp_path):
    lock, other = WorkspaceLock(tmp_path, workspace), WorkspaceLock(tmp_path, workspace)
    async with lock.hold():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), other.hold():
                pytest.fail("two hold the lock")
    async with asyncio.timeout(5), other.hold():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")
async def test_files_of_other_owners_can_be_changed_and_keep_their_owner(workspace, tmp_path, sandbox):
    """The sandbox's user namespace knows one user and one group; the kernel cannot copy other owners' files there."""
    (workspace / "theirs").mkdir()
    for name in ("theirs/a.txt", "theirs/b.txt", "theirs/c.txt"):
        (workspace / name).write_text("old\n")
        os.chown(workspace / name, 12345, 12346)
    os.chown(workspace / "theirs", 12345, 12346)
    command = "set -e; echo new >> theirs/a.txt; rm theirs/b.txt; echo made > theirs/d.txt; echo well"
    harness = Harness(shell(command), tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        changed = {file.path: file.kind for file in question.outcome.files}
        assert changed == {"theirs/a.txt": "modified", "theirs/b.txt": "deleted", "theirs/d.txt": "created"}
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert part.state.output.strip() == "well"
    assert (workspace / "theirs" / "a.txt").read_text() == "old\nnew\n"
    status = (workspace / "theirs" / "a.txt").stat()
    assert (status.st_uid, status.st_gid) == (12345, 12346)
    assert (workspace / "theirs").stat().st_uid == 12345


@pytest.fixture
def landlock(tmp_path) -> LandlockSandbox:
    found = LandlockSandbox(tmp_path / "scratch")
    found.temporary.mkdir()
    if landlock_version() < SCOPES_SINCE or try_sandbox(found):
        pytest.skip("Landlock does not work here")
    return found


PLANT = "ln notes.txt .git/hooks/linked; echo x > .git/hooks/pre-commit; mv notes.txt .git/config; echo x > made.txt"


@pytest.mark.parametrize("fields", [{}, {"approval": "auto"}, {"mode": "background"}, {"mode": "plan"}])
async def test_landlock_never_lets_a_command_change_files_unasked(fields, workspace, tmp_path, landlock):
    git(workspace, "init", "-q")
    before = {path: path.is_file() and path.read_bytes() for path in workspace.rglob("*")}
    harness = Harness(shell(f"{PLANT}; echo ended"), tmp_path, landlock, attended=False)
    async with harness.engine:
        (part,) = await harness.work(workspace, **fields)
    assert {path: path.is_file() and path.read_bytes() for path in workspace.rglob("*")} == before
    assert "ended" in (part.state.output if isinstance(part.state, ToolCompleted) else part.state.error)
    if not isinstance(part.state, ToolCompleted):
        assert part.state.reason == "denied"


async def test_with_landlock_a_yes_to_changes_runs_the_command_outside(workspace, tmp_path, landlock):
    harness = Harness(shell("echo x > made.txt"), tmp_path, landlock)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert "outside the sandbox" in question.description
        assert requested_approval_view(question).choices[0].id == "outside"
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "made.txt").exists()


async def test_caches_in_the_home_folder_are_private_to_the_session(workspace, tmp_path, sandbox):
    for name in (".cache/pip", ".cache/huggingface", ".npm"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".cache" / "pip" / "known").write_text("kept\n")
    (tmp_path / ".cache" / "huggingface" / "token").write_text("secret\n")
    cache, npm = tmp_path / ".cache", tmp_path / ".npm"
    commands = (
        f"cat {cache}/pip/known; echo new > {cache}/pip/made; echo n > {npm}/made; rm {cache}/pip/known; true",
        f"cat {cache}/pip/made {npm}/made > /dev/stdout; ls {cache}/pip; cat {cache}/huggingface/token; : > {cache}/x",
        f"rm -r {cache}/huggingface 2>/dev/null; mv {cache}/huggingface {cache}/h2 2>/dev/null; ls {cache} > {cache}/y",
        f"cat {cache}/y {cache}/h2/token {cache}/huggingface/token 2>/dev/null; : > {cache}/z",
    )
    harness = Harness(shell(*commands), tmp_path, sandbox)
    async with harness.engine:
        parts = await harness.work(workspace)
    assert not harness.asked
    assert parts[0].state.output.strip() == "kept"
    assert parts[1].state.output.split()[:3] == ["new", "n", "made"]
    assert all("secret" not in part.state.output for part in parts)
    assert (tmp_path / ".cache" / "pip" / "known").read_text() == "kept\n"
    assert [path.name for path in (tmp_path / ".cache" / "pip").iterdir()] == ["known"]
    assert not list((tmp_path / ".npm").iterdir())
    assert (tmp_path / ".cache" / "huggingface" / "token").read_text() == "secret\n"


async def test_a_link_in_a_cache_does_not_lead_out_of_the_sandbox(workspace, tmp_path, sandbox, outside):
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("secret\n")
    (outside / "token").write_text("theirs\n")
    cache = tmp_path / ".cache"
    commands = (f"ln -s {outside} {cache}/link; : > {cache}/a", f"echo x > {cache}/link/made; cat {cache}/link/token")
    harness = Harness(shell(*commands), tmp_path, sandbox, attended=False)
    async with harness.engine:
        await harness.work(workspace)
    assert [path.name for path in outside.iterdir()] == ["token"]


async def test_commands_that_read_see_the_caches_of_the_session(workspace, tmp_path, sandbox):
    cache = tmp_path / ".cache"
    (cache / "pip").mkdir(parents=True)
    (cache / "pip" / "known").write_text("kept\n")
    commands = (f"echo new > {cache}/pip/made; rm {cache}/pip/known", f"cat {cache}/pip/made", f"ls {cache}/pip")
    rules = Rules(allow=(f"read(/{cache}/**)",))
    harness = Harness(shell(*commands), tmp_path, sandbox, rules=rules)
    async with harness.engine:
        parts = await harness.work(workspace)
    assert [part.state.output.strip() for part in parts[1:]] == ["new", "made"]
    assert (cache / "pip" / "known").exists()


async def test_files_of_the_sandbox_are_deleted_with_their_session(workspace, tmp_path, sandbox):
    data = tmp_path / "data"
    (tmp_path / ".cache").mkdir()
    command = f"echo 1 > {tmp_path}/.cache/made; echo 2 > /tmp/made; mkdir build; echo 3 > build/made"
    async with SqliteStore(data / "sessions.db") as store:
        harness = Harness(shell(command) * 3, tmp_path, sandbox, store=store)
        async with harness.engine:
            first, second, _ = [await harness.engine.create(workspace=workspace) for _ in range(3)]
            for session in (first, second, _):
                await harness.engine.prompt(session, "go")
        assert len(list((data / "overlays").rglob("made"))) == 9
        archive = SessionArchive(store, data)
        await archive.delete(first)
        assert len(list((data / "overlays").rglob("made"))) == 6
        remove_old_overlays(data, unused_since=0)
        assert len(list((data / "overlays").rglob("made"))) == 6
        await archive.delete_all()
        assert list((data / "overlays").iterdir()) == []


async def test_old_files_of_the_sandbox_are_deleted(workspace, tmp_path, sandbox):
    harness = Harness(shell("echo 2 > /tmp/made"), tmp_path, sandbox)
    async with harness.engine:
        await harness.work(workspace)
    remove_old_overlays(tmp_path / "data", unused_since=time.time() + 60)
    assert list((tmp_path / "data" / "overlays").iterdir()) == []


async def test_a_pipeline_does_not_hide_that_its_network_was_blocked(workspace, tmp_path, sandbox):
    (workspace / "log.txt").write_text("curl: (6) Could not resolve host: docs.example.org\n")
    script = shell("curl -sS https://docs.example.org/x | head -3", "cat log.txt; curl --version | head -1; true")
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        question = await harness.question()
        assert [access.target for access in question.outcome.blocked] == ["docs.example.org"]
        await harness.engine.answer(question.approval_id, allow=False)
        parts = await working
    assert len(harness.asked) == 1  # the second command names no host, so the text is only a text
    assert isinstance(parts[1].state, ToolCompleted)


async def test_a_silent_command_does_not_hide_that_its_network_was_blocked(workspace, tmp_path, sandbox):
    silent = shell(
        "curl -s https://docs.example.org/x | head -3",
        "curl -s https://api.example.org:8443/y",
        "curl -s http://127.0.0.1:9/",  # the loopback device of the sandbox is its own
        "echo https://docs.example.org | grep -q nothing",
    )
    harness = Harness(silent, tmp_path, sandbox)
    targets: list[str] = []
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace))
        for number in (1, 2):
            question = await harness.question(number)
            targets += [access.target for access in question.outcome.blocked]
            await harness.engine.answer(question.approval_id, allow=False)
        parts = await working
    assert targets == ["docs.example.org", "api.example.org:8443"]
    assert len(harness.asked) == 2
    assert isinstance(parts[1].state, ToolCompleted)
    assert "the sandbox blocked its access to api.example.org:8443" in parts[1].state.output
