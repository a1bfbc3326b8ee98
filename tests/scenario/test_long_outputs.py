"""An output that is too long for a prompt: the model sees its ends, and finds the whole where its tools can read it."""

import os
import re
from pathlib import Path

from outrider import Engine, Tool, ToolPart
from outrider.engine.archive import SessionArchive, delete_unused_outputs
from outrider.engine.session_tools import ToolEnvironment
from outrider.event_bus import EventBus
from outrider.events import ToolApprovalRequestedEvent
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.stores import SqliteStore
from outrider.types.ids import new_id
from tests.scenario.scripted_runs import agent, call, scripted

LINES = [f"line {number} of many" for number in range(20_000)]


def dump() -> str:
    """Everything."""
    return "\n".join(LINES)


def asks_for_the_middle(request):
    (path,) = re.findall(r"the whole output is in (\S+);", str(request.prompt[-1]))
    return [call("grep", pattern=f"^{LINES[10_000]}$", path=path)]


async def test_the_model_searches_the_whole_of_what_a_function_gave_back(tmp_path: Path):
    bus, workspace = EventBus(), tmp_path / "work"
    workspace.mkdir()
    around = ToolEnvironment(sandbox=NoSandbox("none is wanted", ""), data=tmp_path / "data", home=tmp_path, bus=bus)
    script = scripted([[call("dump")], asks_for_the_middle, "found"])
    async with Engine([agent()], [script], [Tool(dump)], surroundings=around, bus=bus, workspace=workspace) as engine:

        async def approve(event: ToolApprovalRequestedEvent) -> None:
            await engine.answer(event.approval_id, allow=True)

        bus.subscribe(ToolApprovalRequestedEvent, approve)  # it lies beyond the workspace
        session = await engine.create()
        assert (await engine.prompt(session, "go")).output == "found"
        calls = [part for m in (await engine.open(session)).messages for part in m.get_parts_by_type(ToolPart)]
        dumped, searched = [part.state for part in calls]
        assert LINES[10_000] not in dumped.output
        assert LINES[10_000] in searched.output
        stored = Path(dumped.metadata["truncated"]["path"])
        assert stored.read_text() == "\n".join(LINES)


async def test_where_no_tool_could_read_a_file_it_is_reported_that_the_rest_is_not_preserved():
    async with Engine([agent()], [scripted([[call("dump")], "seen"])], [Tool(dump)]) as engine:
        session = await engine.create()
        await engine.prompt(session, "go")
        calls = [part for m in (await engine.open(session)).messages for part in m.get_parts_by_type(ToolPart)]
        assert "the rest could not be stored" in calls[0].state.output


async def test_outputs_are_deleted_with_their_session(tmp_path: Path):
    data, outputs = tmp_path / "data", tmp_path / "data" / "outputs"
    async with SqliteStore(data / "sessions.db") as store:
        around = ToolEnvironment(sandbox=NoSandbox("none is wanted", ""), data=data, home=tmp_path, bus=EventBus())
        providers = [scripted([[call("dump")], "done"] * 3)]
        async with Engine([agent()], providers, [Tool(dump)], surroundings=around, store=store) as engine:
            first, second, third = [await engine.create(title=title, workspace=tmp_path) for title in ("1", "2", "3")]
            for session in (first, second, third):
                await engine.prompt(session, "go")
        assert sorted(path.name for path in outputs.iterdir()) == sorted((first, second, third))
        (outputs / "output.7.txt").write_text("a file of version 0.1")
        other_folder = outputs / new_id()  # of a session in another store
        other_folder.mkdir()
        archive = SessionArchive(store, data)
        await archive.delete(first)
        expected = {second, third, other_folder.name, "output.7.txt"}
        assert {path.name for path in outputs.iterdir()} == expected
        await archive.delete_all()
        assert [path.name for path in outputs.iterdir()] == [other_folder.name]
    assert await delete_unused_outputs(data / "sessions.db") == 0
    os.utime(other_folder, (0, 0))
    assert await delete_unused_outputs(data / "sessions.db") == 1
    assert not list(outputs.iterdir())
