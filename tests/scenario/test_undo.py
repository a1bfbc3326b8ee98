"""What agents did to files is undone and redone: by tools and by commands, turn by turn, after restarts, and never at
the cost of changes of others."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from outrider import Engine, EventBus, Message, PatchPart, SessionInUseError, TextPart, Tool, ToolCompleted, ToolPart
from outrider.engine.archive import SessionArchive, open_archive
from outrider.engine.frontend import archive_of
from outrider.engine.session_tools import ToolEnvironment
from outrider.engine.session_trace import session_timeline, stored_trace
from outrider.engine.undo_history import SessionOutline
from outrider.events import ErrorEvent, FilesRestoredEvent, ToolApprovalRequestedEvent
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.sessions.records import StoredSession
from outrider.sessions.snapshots.changes import tracked_sessions
from outrider.sessions.sqlite.store import SqliteStore
from outrider.stores import MemoryStore
from outrider.types.messages import MessageTime
from outrider.types.tool_state import EndedTime
from tests.fixtures.process_checks import until_there
from tests.scenario.scripted_runs import agent, call, scripted


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "src").mkdir(parents=True)
    (folder / "notes.txt").write_text("remember the milk\n")
    (folder / "src" / "a.py").write_text("one\ntwo\n")
    return folder


def surroundings(tmp_path: Path, bus: EventBus) -> ToolEnvironment:
    return ToolEnvironment(sandbox=NoSandbox("none is wanted", ""), data=tmp_path / "data", home=tmp_path, bus=bus)


@asynccontextmanager
async def engine(script: Any, tmp_path: Path, *agents: Any, **options: Any) -> AsyncIterator[Engine]:
    bus = EventBus()
    async with (
        SqliteStore(tmp_path / "data" / "sessions.db") as store,
        Engine(
            agents or [agent()],
            [scripted(script)],
            store=store,
            bus=bus,
            surroundings=surroundings(tmp_path, bus),
            **options,
        ) as held,
    ):

        async def approve(event: ToolApprovalRequestedEvent) -> None:
            await held.answer(event.approval_id, allow=True)

        bus.subscribe(ToolApprovalRequestedEvent, approve)
        yield held


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def shell(command: str, **more: Any) -> Any:
    return call("shell", command=command, **more)


async def parts(held: Engine, session_id: str, kind: type) -> list[Any]:
    loaded = await held.store.load(session_id)
    return [part for message in loaded.messages for part in message.get_parts_by_type(kind)]


async def test_a_turn_of_tools_and_commands_is_undone_and_redone_exactly(workspace, tmp_path):
    script = [
        [call("read", file_path="src/a.py")],
        [
            call("edit", file_path="src/a.py", old_string="two", new_string="2"),
            call("write", file_path="new/b.py", content="b\n"),
        ],
        [shell("rm notes.txt; printf x > made.txt")],
        [
            call(
                "apply_patch",
                patch="*** Begin Patch\n*** Add File: c.txt\n+c\n*** Delete File: made.txt\n*** End Patch",
            )
        ],
        "done",
    ]
    before = contents(workspace)
    async with engine(script, tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        assert (await held.prompt(session_id, "go")).output == "done"
        after = contents(workspace)
        patches = await parts(held, session_id, PatchPart)
        assert sorted(path for patch in patches for path in patch.files) == [
            "c.txt", "made.txt", "made.txt", "new/b.py", "notes.txt", "src/a.py",
        ]  # fmt: skip
        changes = held.file_changes(session_id)
        seen = await changes.preview()
        assert {one.path: one.action for one in seen.actions} == {
            "c.txt": "delete", "made.txt": "nothing", "new/b.py": "delete", "notes.txt": "create",
            "src/a.py": "change",
        }  # fmt: skip
        assert "-2\n+two\n" in next(one.diff for one in seen.actions if one.path == "src/a.py")
        assert contents(workspace) == after
        undone = await changes.undo()
        assert undone.changed == ("c.txt", "new/b.py", "notes.txt", "src/a.py")
        assert contents(workspace) == before
        assert (await changes.undo()).off == "there is nothing to undo"
        assert (await changes.redo()).changed == undone.changed
        assert contents(workspace) == after
        assert (await changes.redo()).off == "there is nothing to redo"


async def test_the_patch_is_in_the_message_of_its_call_and_a_command_that_reads_leaves_none(workspace, tmp_path):
    script = [[shell("cat notes.txt"), shell("printf x > made.txt")], "done"]
    async with engine(script, tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        message = (await held.store.load(session_id)).messages[1]
        (patch,) = message.get_parts_by_type(PatchPart)
        assert patch.files == ("made.txt",)
        assert len(message.get_parts_by_type(ToolPart)) == 2


async def test_undo_adds_to_the_transcript_and_the_model_reads_of_it(workspace, tmp_path):
    def last(request: Any) -> str:
        return " | ".join(part.text for part in request.prompt[-1].content)

    async with engine([[call("write", file_path="b.txt", content="b")], "done", last], tmp_path) as held:
        events: list[FilesRestoredEvent] = []
        held.bus.subscribe(FilesRestoredEvent, events.append)
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        before = (await held.store.load(session_id)).messages
        undone = await held.file_changes(session_id).undo()
        after = (await held.store.load(session_id)).messages
        assert [message.id for message in after[:-1]] == [message.id for message in before]
        assert after[-1].id == undone.message_id
        (text,) = after[-1].get_parts_by_type(TextPart)
        assert text.synthetic
        assert "b.txt" in text.text
        assert [(event.direction, event.files, event.session_id) for event in events] == [
            ("undo", ("b.txt",), session_id)
        ]
        await held.resume(session_id)  # no caller waits for an answer to it
        assert len((await held.store.load(session_id)).messages) == len(after)
        output = (await held.prompt(session_id, "and now?")).output
        assert "undone" in output
        assert "and now?" in output


async def test_turns_are_undone_one_after_the_other_and_new_changes_end_what_can_be_redone(workspace, tmp_path):
    script = [
        [shell("printf 1 > notes.txt")], "first",
        [shell("printf 2 > notes.txt; printf 2 > two.txt")], "second",
        [shell("printf 3 > three.txt")], "third",
    ]  # fmt: skip
    async with engine(script, tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        changes = held.file_changes(session_id)
        await held.prompt(session_id, "one")
        await held.prompt(session_id, "two")
        await changes.undo()
        assert (workspace / "notes.txt").read_text() == "1"
        await changes.undo()
        assert (workspace / "notes.txt").read_text() == "remember the milk\n"
        await changes.redo()
        assert (workspace / "notes.txt").read_text() == "1"
        assert not (workspace / "two.txt").exists()
        await changes.redo()
        assert (workspace / "two.txt").read_text() == "2"
        await changes.undo()
        await held.prompt(session_id, "three")
        assert (await changes.redo()).off
        assert not (workspace / "two.txt").exists()


async def test_everything_from_a_message_or_a_call_on_is_undone(workspace, tmp_path):
    script = [
        [shell("printf 1 > f")], "first",
        [call("shell", "the-call", command="printf 2 > f")], [shell("printf 3 > g")], "second",
        [shell("printf 4 > f")], "third",
    ]  # fmt: skip
    async with engine(script, tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        for text in ("one", "two", "three"):
            await held.prompt(session_id, text)
        changes = held.file_changes(session_id)
        second = next(m for m in (await held.store.load(session_id)).messages if m.get_text_content() == "two")
        assert [one.path for one in (await changes.preview(to=second.id)).actions] == ["f", "g"]
        assert (await changes.undo("the-call")).changed == ("f", "g")
        assert (workspace / "f").read_text() == "1"
        await changes.redo()
        assert (workspace / "f").read_text() == "4"
        first = (await held.store.load(session_id)).messages[0]
        await changes.undo(first.id)
        assert not (workspace / "f").exists()
        with pytest.raises(ValueError, match="no message or call"):
            await changes.undo("nowhere")


async def test_a_file_that_another_process_changed_since_is_reported_and_left_alone(workspace, tmp_path):
    async with engine([[shell("printf x > notes.txt; printf y > made.txt")], "done"], tmp_path) as held:
        events: list[FilesRestoredEvent] = []
        held.bus.subscribe(FilesRestoredEvent, events.append)
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        (workspace / "notes.txt").write_text("by hand\n")
        undone = await held.file_changes(session_id).undo()
        assert undone.conflicts == events[0].left_alone == ("notes.txt",)
        assert undone.changed == ("made.txt",)
        assert (workspace / "notes.txt").read_text() == "by hand\n"
        assert "not restored: notes.txt" in (await held.store.load(session_id)).messages[-1].get_text_content()


async def test_another_program_undoes_what_the_first_one_did(workspace, tmp_path):
    before = contents(workspace)
    async with engine([[shell("rm -r src; printf x > notes.txt")], "done"], tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
    async with engine(["fine"], tmp_path) as held:
        changes = held.file_changes(session_id)
        assert (await changes.preview()).changed == ("notes.txt", "src/a.py")
        await changes.undo()
        assert contents(workspace) == before
    async with engine(["fine"], tmp_path) as held:
        await held.file_changes(session_id).redo()
        assert contents(workspace) == {"notes.txt": b"x"}


async def test_what_a_called_agent_changed_belongs_to_the_turn_of_who_called_it(workspace, tmp_path):
    def answers(request: Any) -> Any:
        output = str(request.prompt[0].content[0].text)
        rounds = sum(message.role == "assistant" for message in request.prompt)
        match output, rounds:
            case "go", 0:
                return [call("call_agent", agent_name="helper", message="make it")]
            case "make it", 0:
                return [call("call_agent", agent_name="third", message="deeper"), shell("printf h > helper.txt")]
            case "deeper", 0:
                return [call("write", file_path="third.txt", content="t")]
            case "again", 0:
                return [shell("printf l > later.txt")]
            case _:
                return "done"

    agents = [agent(), agent("helper"), agent("third")]
    async with engine(answers, tmp_path, *agents) as held:
        session_id = await held.create(workspace=workspace)
        assert (await held.prompt(session_id, "go")).output == "done"
        assert (workspace / "third.txt").exists()
        undone = await held.file_changes(session_id).undo()
        assert undone.changed == ("helper.txt", "third.txt")
        assert set(contents(workspace)) == {"notes.txt", "src/a.py"}


async def test_calls_side_by_side_each_have_their_own_changes(workspace, tmp_path):
    together = [
        shell("sleep 0.4; printf s > slow.txt"),
        call("write", "quick", file_path="quick.txt", content="q"),
        shell("sleep 0.1; printf m > middle.txt"),
    ]
    async with engine([together, "done"], tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        patches = await parts(held, session_id, PatchPart)
        assert sorted(patch.files for patch in patches) == [("middle.txt",), ("quick.txt",), ("slow.txt",)]
        await held.file_changes(session_id).undo()
        assert set(contents(workspace)) == {"notes.txt", "src/a.py"}


async def test_ones_own_tools_that_write_can_be_undone_and_read_only_ones_cost_nothing(workspace, tmp_path):
    looks = Tool(lambda: str((workspace / "by_reader.txt").write_text("r")), name="looks", read_only=True)
    writes = Tool(lambda: str((workspace / "by_tool.txt").write_text("w")), name="writes")
    async with engine([[call("writes")], [call("looks")], "done"], tmp_path, tools=[looks, writes]) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        await held.file_changes(session_id).undo()
        assert not (workspace / "by_tool.txt").exists()
        assert (workspace / "by_reader.txt").exists()


async def until(path) -> None:
    """There is something in the file."""
    async with asyncio.timeout(30):
        while not (path.exists() and path.read_text()):
            await asyncio.sleep(0.01)


async def test_a_command_that_was_cut_short_or_failed_is_undone_too(workspace, tmp_path):
    script = [[shell("printf 1 > one.txt; exit 3")], [shell("printf 2 > two.txt; sleep 100")], "never"]
    async with engine(script, tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        prompting = asyncio.ensure_future(held.prompt(session_id, "go"))
        await until(workspace / "two.txt")
        changes = held.file_changes(session_id)
        with pytest.raises(SessionInUseError, match="turn is running"):
            await changes.undo()
        await held.abort(session_id)
        await prompting
        assert (await changes.undo()).changed == ("one.txt", "two.txt")


@pytest.mark.slow
async def test_a_process_in_the_background_is_undone_only_as_far_as_it_is_certain(workspace, tmp_path):
    command = f"printf 1 > early.txt; {until_there(tmp_path / 'go on')}; printf 2 > late.txt"
    async with engine([[shell(command, background=True)], "done"], tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        (tmp_path / "go on").touch()
        await until(workspace / "late.txt")
        (workspace / "notes.txt").write_text("by hand, meanwhile\n")
        changes = held.file_changes(session_id)
        async with asyncio.timeout(30):
            while not (seen := await changes.preview()).doubtful:
                await asyncio.sleep(0.02)
        assert seen.changed == ("early.txt",)
        assert set(seen.doubtful) <= {"late.txt", "notes.txt"}
        assert "late.txt" in seen.doubtful
        await changes.undo()
        assert (workspace / "notes.txt").read_text() == "by hand, meanwhile\n"
        assert (workspace / "late.txt").exists()
        await changes.redo()
        assert "late.txt" in (await changes.undo(doubtful=True)).changed


async def test_what_a_process_did_until_its_session_closed_is_preserved(workspace, tmp_path):
    command = f"{until_there(tmp_path / 'go on')}; printf 2 > late.txt; sleep 100"
    async with engine([[shell(command, background=True)], "done"], tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        (tmp_path / "go on").touch()
        await until(workspace / "late.txt")
    async with engine(["fine"], tmp_path) as held:
        assert (await held.file_changes(session_id).preview()).doubtful == ("late.txt",)
        (patch,) = await parts(held, session_id, PatchPart)
        assert patch.files == ("late.txt",)


async def test_background_mode_runs_unasked_with_an_undo_preserved(workspace, tmp_path):
    script = [[call("write", file_path="notes.txt.new", content="x")], "done"]
    async with engine(script, tmp_path, attended=False) as held:
        session_id = await held.create(workspace=workspace, mode="background")
        await held.prompt(session_id, "go")
        assert (workspace / "notes.txt.new").exists()
        assert (await held.file_changes(session_id).undo()).changed == ("notes.txt.new",)


async def test_a_home_directory_is_not_tracked_its_tools_work_and_undo_reports_why(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    async with engine([[shell("printf x > made.txt")], "done"], tmp_path) as held:
        session_id = await held.create(workspace=home)
        await held.prompt(session_id, "go")
        assert (home / "made.txt").exists()
        for done in (await held.file_changes(session_id).preview(), await held.file_changes(session_id).undo()):
            assert "home directory" in done.off
        assert (home / "made.txt").exists()


async def test_an_engine_without_built_in_tools_reports_that_there_is_no_undo():
    async with Engine([agent()], [scripted(["hi"])]) as held:
        session_id = await held.create()
        assert "records no file changes" in (await held.file_changes(session_id).undo()).off


async def test_a_fork_does_not_undo_what_its_parent_did(workspace, tmp_path):
    async with engine([[shell("printf x > made.txt")], "done"], tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        fork = await held.store.fork(session_id)
        assert (await held.file_changes(fork.id).undo()).off == "there is nothing to undo"


async def test_what_a_deleted_session_had_preserved_goes_with_it(workspace, tmp_path):
    script = [[shell("printf 'of the first session' > made.txt")], "one", [shell("printf 2 > other.txt")], "two"]
    async with engine(script, tmp_path) as held:
        first = await held.create(workspace=workspace)
        await held.prompt(first, "go")
        second = await held.create(workspace=workspace)
        await held.prompt(second, "go")
    (database,) = (tmp_path / "data" / "undo").glob("*/snapshots.db")
    async with open_archive(tmp_path / "data" / "sessions.db") as archive:
        await archive.delete(first)
    assert tracked_sessions(database.parent) == {second}
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT count(*) FROM objects").fetchone() == (1,)
    async with engine(["fine"], tmp_path) as held:
        assert (await held.file_changes(second).undo()).changed == ("other.txt",)
        assert (workspace / "made.txt").exists()


async def test_undo_data_of_a_session_in_another_store_stays_when_all_sessions_are_deleted(workspace, tmp_path):
    async with engine([[shell("printf x > made.txt")], "done"], tmp_path) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
    (undo_data,) = (tmp_path / "data" / "undo").iterdir()
    async with SqliteStore(tmp_path / "other.db") as other:
        await SessionArchive(other, tmp_path / "data").delete_all()
    assert tracked_sessions(undo_data) == {session}


async def test_a_model_that_continues_after_an_undo_has_to_look_at_the_files_again(workspace, tmp_path):
    script = [
        [call("read", file_path="src/a.py")],
        [call("edit", file_path="src/a.py", old_string="two", new_string="2")],
        "done",
        [call("edit", file_path="src/a.py", old_string="2", new_string="3")],
        "hm",
    ]
    async with engine(script, tmp_path) as held:
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        await held.file_changes(session_id).undo()
        await held.prompt(session_id, "more")
        *_, last = await parts(held, session_id, ToolPart)
        assert not isinstance(last.state, ToolCompleted)
        assert (workspace / "src" / "a.py").read_text() == "one\ntwo\n"


async def test_nothing_is_reported_to_fail_when_undo_works(workspace, tmp_path):
    async with engine([[shell("printf x > made.txt")], "done"], tmp_path) as held:
        failures: list[ErrorEvent] = []
        held.bus.subscribe(ErrorEvent, failures.append)
        session_id = await held.create(workspace=workspace)
        await held.prompt(session_id, "go")
        await held.file_changes(session_id).undo()
        assert failures == []


async def test_a_session_deleted_from_an_open_engine_takes_what_was_preserved_for_it_along(workspace, tmp_path):
    script = [call("write", file_path="new.txt", content="x\n"), "done"]
    async with engine(script, tmp_path) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        await held.close(session)
        (folder,) = (tmp_path / "data" / "undo").iterdir()
        assert tracked_sessions(folder) == {session}
        await archive_of(held).delete(session)
    assert not folder.exists() or tracked_sessions(folder) == set()


async def test_long_sessions_are_read_page_by_page():
    """The outline of an undo and the trace have all messages of a session with several pages, in order."""
    store = MemoryStore()
    session = await store.create(StoredSession(title="long"))
    messages: list[Message] = []
    for number in range(450):
        messages.append(Message("user", [TextPart(f"question {number}")], time=MessageTime(number)))
        done = ToolCompleted({}, "x" * 5_000, EndedTime(number, number))
        parts = [TextPart("answer " * 1_000), ToolPart(f"call {number}", "look", done)]
        messages.append(Message("assistant", parts, time=MessageTime(number, number), finish="stop"))
    for message in messages:
        message.join(session.id)
    await store.append(session.id, messages)

    outline = await SessionOutline.read(store, session.id)
    assert list(outline.messages) == [message.id for message in messages]
    assert (outline.turns[-1], outline.calls["call 449"]) == (450, 899)
    assert list(outline.titles.values()) == [f"question {number}" for number in range(450)]
    archive = SessionArchive(store)
    trace = await stored_trace(archive, session.id)
    calls = [span for _, span in trace.root.walk() if span.kind == "tool"]
    assert [span.start for span in calls] == list(range(450))
    entries = await session_timeline(archive, session.id)
    assert [(entry.kind, entry.start) for entry in entries] == [
        (kind, number) for number in range(450) for kind in ("model", "tool")
    ]
