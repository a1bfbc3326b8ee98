"""A rule that denies to read a path holds for every tool and for every command in the sandbox."""

from pathlib import Path

import pytest

from outrider import Engine, EventBus, Rules, ToolCompleted, ToolError, ToolPart
from outrider.engine.frontend import attach_file
from outrider.engine.session_tools import ToolEnvironment
from outrider.permissions.rules import DeniedReads
from outrider.sessions.records import SessionFilter
from tests.scenario.scripted_runs import agent, call, scripted

SECRET = "the treasure is under the oak"
DENY = ("read(private/**)", "read(*.secret)")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "private" / "deep").mkdir(parents=True)
    (folder / "notes").mkdir()
    for name in ("private/plan.txt", "private/deep/map.txt", "notes/a.secret"):
        (folder / name).write_text(SECRET + "\n")
    (folder / "open.txt").write_text("nothing about the oak tree\n")
    return folder


async def run_calls(calls, workspace: Path, tmp_path: Path, sandbox, *, permissions=None, **options) -> list[ToolPart]:
    bus = EventBus()
    around = ToolEnvironment(sandbox=sandbox, data=tmp_path / "data", home=tmp_path, bus=bus)
    script = [[made] for made in calls] + ["done"]
    held = Engine(
        [agent(permissions=permissions or {})],
        [scripted(script)],
        bus=bus,
        surroundings=around,
        attended=False,
        **options,
    )
    async with held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        loaded = await held.store.load(session)
        return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


def result_text(part: ToolPart) -> str:
    state = part.state
    assert isinstance(state, ToolCompleted | ToolError)
    return state.output if isinstance(state, ToolCompleted) else state.error


@pytest.mark.parametrize(
    "made",
    [
        call("read", file_path="private/plan.txt"),
        call("read", file_path="notes/../notes/a.secret"),
        call("grep", pattern="treasure"),
        call("grep", pattern="treasure", path="private"),
        call("grep", pattern="treasure", path="private/plan.txt"),
        call("grep", pattern="treasure", path="notes"),
        call("edit", file_path="private/plan.txt", old_string="oak", new_string="elm"),
        call("edit", file_path="private/plan.txt", old_string="guess", new_string="elm"),
        call("apply_patch", patch="*** Begin Patch\n*** Update File: private/plan.txt\n@@\n-x\n+y\n*** End Patch"),
        call("shell", command="cat private/plan.txt"),
        call("shell", command="cd private && cat plan.txt"),
        call("shell", command="cat < private/plan.txt"),
        call("shell", command="grep -r treasure ."),
        call("shell", command="cat pri*/pl* */*.sec*"),
        call("shell", command="python3 -c 'import glob; [print(open(f).read()) for f in glob.glob(\"p*/pl*\")]'"),
        call("shell", command="cp -r . /tmp/copy; cat /tmp/copy/*/*"),
        call("shell", command="echo x > made.txt; cat $(echo private)/deep/map.txt"),
    ],
)
async def test_no_tool_shows_what_a_rule_hides(made, workspace, tmp_path, sandbox):
    (part,) = await run_calls([made], workspace, tmp_path, sandbox, rules=Rules(deny=DENY))
    assert "treasure" not in result_text(part)
    assert (workspace / "private/plan.txt").read_text() == SECRET + "\n"


SEARCHES = [
    call("grep", pattern="treasure"),
    call("glob", pattern="**/*"),
    call("list", path="."),
    call("shell", command="grep -r treasure .; ls -R"),
    call("shell", command="echo x > made.txt; cat $(echo private)/deep/map.txt */*.secret"),
]


async def test_the_rules_of_an_agent_hide_paths_from_searches_of_parent_folders(workspace, tmp_path, sandbox):
    parts = await run_calls(SEARCHES, workspace, tmp_path, sandbox, permissions={"deny": DENY})
    for part in parts:
        assert "treasure is" not in result_text(part)
        assert "plan.txt" not in result_text(part)


async def test_the_rules_of_an_agent_do_not_hold_for_its_caller(workspace, tmp_path, sandbox):
    bus = EventBus()
    around = ToolEnvironment(sandbox=sandbox, data=tmp_path / "data", home=tmp_path, bus=bus)
    search = [call("grep", pattern="treasure")]
    ask = call("call_agent", agent_name="limited", message="look")
    script = [[ask], search, "nothing", search, "done"]
    limited = agent("limited", permissions={"deny": DENY})
    async with Engine([agent(), limited], [scripted(script)], bus=bus, surroundings=around, attended=False) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        sessions = [
            session,
            *(child.id for child in (await held.store.list(SessionFilter(parent_id=session))).sessions),
        ]
        loaded = [await held.store.load(name) for name in sessions]
    found = [
        result_text(part)
        for transcript in loaded
        for message in transcript.messages
        for part in message.get_parts_by_type(ToolPart)
        if part.tool == "grep"
    ]
    assert ["treasure is" in text for text in found] == [True, False]


async def test_names_are_left_out_of_lists(workspace, tmp_path, sandbox):
    calls = [call("glob", pattern="**/*"), call("list", path=".", depth=3), call("glob", pattern="private/*")]
    parts = await run_calls(calls, workspace, tmp_path, sandbox, rules=Rules(deny=DENY))
    for part in parts:
        assert "plan.txt" not in result_text(part)
        assert "a.secret" not in result_text(part)
    assert "open.txt" in result_text(parts[0])
    assert "open.txt" in result_text(parts[1])


async def test_everything_else_can_be_read(workspace, tmp_path, sandbox):
    calls = [call("read", file_path="open.txt"), call("shell", command="cat open.txt; ls notes")]
    parts = await run_calls(calls, workspace, tmp_path, sandbox, rules=Rules(deny=DENY))
    assert all("oak tree" in result_text(part) for part in parts)


def test_a_denied_file_cannot_be_attached(workspace):
    with pytest.raises(ValueError, match="forbids"):
        attach_file(workspace / "notes/a.secret", DENY, workspace)
    assert attach_file(workspace / "open.txt", DENY, workspace).filename == "open.txt"


def test_the_paths_to_hide_are_found_within_a_bound(workspace):
    found = DeniedReads(DENY, workspace).find_paths()
    assert {str(path.relative_to(workspace)) for path in found} == {"private", "notes/a.secret"}
    assert DeniedReads(("read", "shell(rm)", "edit(x)"), workspace).find_paths() == ()
    assert not DeniedReads(("read",), workspace)


def test_a_denied_path_outside_is_found(tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "a.key").write_text("x")
    denied = DeniedReads((f"read(/{tmp_path}/keys/**)",), tmp_path / "workspace")
    assert denied.find_paths() == (tmp_path / "keys",)
    assert denied.includes(str(tmp_path / "keys" / "a.key"))
