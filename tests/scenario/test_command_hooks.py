"""Hooks from settings: real commands on the events of a session of the standard engine."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.config.settings import read_settings
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError, OutriderError
from outrider.processes.platform import start_time_of
from outrider.project.hooks import EVENTS, HookMatcher, parse_outcome, read_hooks
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.types.events import ErrorEvent
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError
from tests.fixtures.cases import for_each


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("home", "workspace"):
        (tmp_path / name).mkdir()
    (tmp_path / "workspace" / "a.txt").write_text("one\n")
    return tmp_path


def configure(place: Path, script: list[Any], **events: Any) -> None:
    """Hooks as `event=(matcher, command)` or `event=(matcher, command, timeout)`."""
    answers = ", ".join(_toml(answer) for answer in script)
    (place / "home/config.toml").write_text(
        f'model = "s/demo"\n[providers.s]\nkind = "scripted"\nmodel = "demo"\n'
        f"[providers.s.options]\nscript = [{answers}]\n"
    )
    hooks = {event: [{"matcher": given[0], "hooks": [_command(*given[1:])]}] for event, given in events.items()}
    (place / "home/hooks.json").write_text(json.dumps({"hooks": hooks}))


def _command(command: str, timeout: float = 20.0) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": timeout}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[tuple[Engine, str, list[str]]]:
    workspace = place / "workspace"
    environ = {"OUTRIDER_HOME": str(place / "home"), "HOME": str(place / "home"), "PATH": "/usr/bin:/bin"}
    settings = read_settings(cwd=workspace, environ=environ)
    async with standard_engine(settings, workspace=workspace, attended=False) as engine:
        errors: list[str] = []
        engine.bus.subscribe(ErrorEvent, lambda event: errors.append(event.message))
        yield engine, await engine.create(workspace=workspace), errors


def calls(engine: Engine, session_id: str) -> list[ToolPart]:
    messages: list[Message] = engine.live[session_id].session.messages
    return [part for message in messages for part in message.parts if isinstance(part, ToolPart)]


async def test_a_hook_reads_the_call_in_the_format_of_claude_code_and_denies_it(place: Path):
    seen = place / "seen.json"
    command = f"cat > {seen}; echo 'no secrets' >&2; exit 2"
    configure(place, [call("read", path="a.txt"), "Done."], PreToolUse=("Read|Write", command))

    async with opened(place) as (engine, session, _):
        result = await engine.prompt(session, "hi")
        (part,) = calls(engine, session)

    assert result.output == "Done."
    assert isinstance(part.state, ToolError)
    assert "no secrets" in part.state.error
    given = json.loads(seen.read_text())
    assert given["hook_event_name"] == "PreToolUse"
    assert given["tool_name"] == "Read"
    assert given["tool_input"] == {"file_path": str(place / "workspace/a.txt")}
    assert (given["cwd"], given["session_id"]) == (str(place / "workspace"), session)


async def test_a_hook_changes_the_input_and_another_adds_to_the_result(place: Path):
    (place / "workspace/b.txt").write_text("two\n")
    answer = {"hookSpecificOutput": {"updatedInput": {"file_path": "b.txt"}}}
    note = {"hookSpecificOutput": {"additionalContext": "b is old"}}
    configure(
        place,
        [call("read", path="a.txt"), "Done."],
        PreToolUse=("Read", f"echo '{json.dumps(answer)}'"),
        PostToolUse=("read", f"echo '{json.dumps(note)}'"),
    )
    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
        (part,) = calls(engine, session)

    assert isinstance(part.state, ToolCompleted)
    assert part.state.input == {"file_path": "b.txt"}
    assert "two" in part.state.output
    assert "[hook] b is old" in part.state.output


async def test_a_hook_that_asks_needs_an_approval_and_allow_changes_nothing(place: Path):
    ask = {"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "look first"}}
    configure(place, [call("read", path="a.txt"), "Done."], PreToolUse=("*", f"echo '{json.dumps(ask)}'"))
    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
        (part,) = calls(engine, session)
    assert isinstance(part.state, ToolError)
    assert "needs an approval" in part.state.error

    allow = {"hookSpecificOutput": {"permissionDecision": "allow"}}
    configure(
        place, [call("write", path="/etc/x", content="y"), "Done."], PreToolUse=("", f"echo '{json.dumps(allow)}'")
    )
    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
        (part,) = calls(engine, session)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "denied"


@pytest.mark.parametrize(
    ("command", "denied"),
    [
        ("sleep 60", True),
        ("echo '{nonsense'", True),
        ("echo boom >&2; exit 1", False),
        ("echo 'some text'", False),
        ("kill -9 $$", False),
        ("head -c 3000000 /dev/zero", False),
    ],
)
async def test_a_hook_that_hangs_or_fails_breaks_no_turn(place: Path, command: str, *, denied: bool):
    configure(place, [call("read", path="a.txt"), "Done."], PreToolUse=("Read", f"{command} # end", 1.0))
    start = time.monotonic()
    async with opened(place) as (engine, session, errors):
        result = await asyncio.wait_for(engine.prompt(session, "hi"), 30)
        (part,) = calls(engine, session)

    assert result.output == "Done."
    assert isinstance(part.state, ToolError) is denied
    assert time.monotonic() - start < 25
    if denied or "exit 1" in command or "kill" in command:
        assert any("PreToolUse hook" in error for error in errors)


async def test_a_process_that_outlives_its_hook_does_not_delay_the_turn(place: Path):
    stop, ended = place / "stop", place / "ended"
    waiting = f"(while [ ! -e {stop} ]; do sleep 0.05; done; touch {ended}) & echo started"
    configure(place, ["Done."], UserPromptSubmit=("", waiting))
    async with opened(place) as (engine, session, _):
        assert (await asyncio.wait_for(engine.prompt(session, "hi"), 15)).output == "Done."
    stop.touch()
    async with asyncio.timeout(15):
        while not ended.exists():
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)


async def test_input_is_refused_or_completed_before_it_is_stored(place: Path):
    script = 'grep -q password && { echo "no passwords" >&2; exit 2; }; echo "today is Monday"'
    configure(
        place, ["First.", "Second."], UserPromptSubmit=("", script), SessionStart=("startup", "echo 'branch: main'")
    )
    async with opened(place) as (engine, session, _):
        with pytest.raises(OutriderError, match="no passwords"):
            await engine.prompt(session, "the password is x")
        assert engine.live[session].session.messages == []
        await engine.prompt(session, "hello")
        await engine.prompt(session, "again")
        first, second = (m for m in engine.live[session].session.messages if m.role == "user")
        texts = [[part.text for part in message.parts if hasattr(part, "text")] for message in (first, second)]

    assert any("today is Monday" in text for text in texts[0])
    assert any("today is Monday" in text for text in texts[1])
    assert not any("branch: main" in text for text in texts[1])


async def test_a_stop_hook_makes_the_agent_continue_and_cannot_do_so_for_ever(place: Path):
    marker = place / "tested"
    once = f"test -e {marker} || {{ touch {marker}; echo 'run the tests' >&2; exit 2; }}"
    configure(place, ["First.", "Second."], Stop=("", once))
    async with opened(place) as (engine, session, _):
        assert (await engine.prompt(session, "hi")).output == "Second."
        texts = [message.get_text_content() for message in engine.live[session].session.messages]
        assert "run the tests" in texts

    configure(place, ["Again."] * 20, Stop=("", "exit 2"))
    async with opened(place) as (engine, session, _):
        await asyncio.wait_for(engine.prompt(session, "hi"), 60)
        assert 2 <= sum(m.role == "assistant" for m in engine.live[session].session.messages) <= 10


async def test_a_hostile_repository_cannot_add_hooks(place: Path):
    workspace, marker = place / "workspace", place / "hacked"
    configure(place, [call("read", path="a.txt"), "Done."])
    evil = {"hooks": {event: [{"hooks": [{"type": "command", "command": f"touch {marker}"}]}] for event in EVENTS}}
    for name in (".claude/settings.json", ".outrider/hooks.json"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(json.dumps(evil))
    (workspace / "hooks.json").write_text(json.dumps(evil))
    trust = WorkspaceTrust(find_project(workspace, place / "home"), place / "home/trust.json")

    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
    assert not marker.exists()

    shown = trust.list_items()
    assert [item.kind for item in shown] == ["hooks", "hooks"]
    assert f"touch {marker}" in shown[0].content
    trust.trust(shown[:1])  # the second one was not shown
    (workspace / ".outrider/hooks.json").write_text(json.dumps({"hooks": {"Stop": evil["hooks"]["Stop"]}}))
    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
    assert not marker.exists()

    trust.approve(trust.unapproved_items())
    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
    assert marker.exists()


async def test_the_commands_of_every_other_event_get_what_happened(place: Path):
    log = place / "log"
    record = f"cat >> {log}; echo >> {log}"
    script = [call("task", description="Count", prompt="count it"), "Four.", "Done.", "A summary.", "Again."]
    events = ("SessionStart", "SubagentStop", "Stop", "PreCompact", "UserPromptSubmit")
    configure(place, script, **{event: ("", record) for event in events})
    async with opened(place) as (engine, session, errors):
        assert (await engine.prompt(session, "hi " * 2000)).output == "Done."
        await engine.compact(session, "focus on the API")
        await engine.prompt(session, "more")
    async with opened(place) as (engine, _, _):
        await engine.prompt(session, "later")
    assert errors == []

    seen = [json.loads(line) for line in log.read_text().splitlines()]
    names = [entry["hook_event_name"] for entry in seen]
    assert [name for name in names if name != "SessionStart"][:3] == ["UserPromptSubmit", "SubagentStop", "Stop"]
    assert {entry["source"] for entry in seen if entry["hook_event_name"] == "SessionStart"} >= {"startup", "resume"}
    child = next(entry for entry in seen if entry["hook_event_name"] == "SubagentStop")
    assert child["session_id"] != session
    assert child["stop_hook_active"] is False
    (compaction,) = [entry for entry in seen if entry["hook_event_name"] == "PreCompact"]
    assert (compaction["trigger"], compaction["custom_instructions"]) == ("manual", "focus on the API")
    assert all(entry["cwd"] == str(place / "workspace") for entry in seen)


async def test_a_notification_is_sent_when_a_call_waits_for_an_approval(place: Path):
    log = place / "log"
    configure(place, [call("write", path="b.txt", content="x"), "Done."], Notification=("", f"cat > {log}"))
    environ = {"OUTRIDER_HOME": str(place / "home"), "HOME": str(place / "home"), "PATH": "/usr/bin:/bin"}
    workspace = place / "workspace"
    settings = read_settings(cwd=workspace, environ=environ)
    async with standard_engine(settings, workspace=workspace, attended=True) as engine, asyncio.timeout(30):
        session = await engine.create(workspace=workspace)
        turn = asyncio.create_task(engine.prompt(session, "hi"))
        while not (log.exists() and log.read_text()):
            await asyncio.sleep(0.02)
        (waiting,) = await engine.approvals(session)
        await engine.answer(waiting.id, allow=False)
        await turn
    assert json.loads(log.read_text())["message"] == "Outrider needs your permission to use Write"


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        ("head -c 200000000 /dev/zero; sleep 30", "printed more than 32 MB"),
        ("head -c 200000000 /dev/zero >&2; sleep 30", "printed more than 32 MB"),
        ("echo \0", "cannot be started"),
        ("cat /dev/stdin >/dev/null & wait; sleep 20 & sleep 20", "did not end within 2 s"),
    ],
)
async def test_a_hook_that_floods_or_cannot_start_is_stopped_and_reported(place: Path, command: str, failure: str):
    configure(place, [call("read", path="a.txt"), "Done."], PreToolUse=("Read", command, 2.0))
    async with opened(place) as (engine, session, errors):
        result = await asyncio.wait_for(engine.prompt(session, "hi"), 30)
        (part,) = calls(engine, session)
    assert result.output == "Done."
    assert isinstance(part.state, ToolError)
    assert any(failure in error for error in errors)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: processes that left their parent are found by /proc")
async def test_a_hook_that_does_not_end_leaves_no_process(place: Path):
    """Also none that is in a separate session, or that has lost its parent."""
    start = "setsid sh -c 'echo $$ > {}; exec sleep 300' </dev/null"
    own, lost = place / "own", place / "lost"
    command = f"{start.format(own)} & ({start.format(lost)} &); while ! [ -s {own} -a -s {lost} ]; do :; done; sleep 60"
    configure(place, [call("read", path="a.txt"), "Done."], PreToolUse=("Read", command, 3.0))
    async with opened(place) as (engine, session, errors):
        await asyncio.wait_for(engine.prompt(session, "hi"), 60)
    assert any("did not end within 3 s" in error for error in errors)
    pids = [int(file.read_text()) for file in (own, lost)]
    assert [pid for pid in pids if start_time_of(pid) is not None] == []


async def test_a_script_of_a_workspace_runs_only_as_it_was_approved(place: Path):
    workspace, marker = place / "workspace", place / "ran"
    script = workspace / ".claude/hooks/check.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"echo good >> {marker}\n")
    (workspace / "tool.sh").write_text("true\n")
    command = 'sh "$CLAUDE_PROJECT_DIR"/.claude/hooks/check.sh && sh ./tool.sh'
    hooks = {"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": command}]}]}}
    (workspace / ".claude/settings.json").write_text(json.dumps(hooks))
    configure(place, ["Done.", "Done."])
    trust = WorkspaceTrust(find_project(workspace, place / "home"), place / "home/trust.json")
    (item,) = trust.list_items()
    assert "echo good" in item.content, "the script is shown"
    trust.trust([item])
    async with opened(place) as (engine, session, errors):
        await engine.prompt(session, "hi")
        assert marker.read_text() == "good\n"
        (workspace / "tool.sh").write_text(f"echo bad >> {marker}\n")  # as the agent may do
        await engine.prompt(session, "hi again")
    assert marker.read_text() == "good\n"
    assert any("tool.sh has changed since it was approved" in error for error in errors)
    assert [item.kind for item in trust.unapproved_items()] == ["hooks"]
    async with opened(place) as (engine, session, _):
        await engine.prompt(session, "hi")
    assert marker.read_text() == "good\n", "a changed file needs a new approval"


async def test_hooks_get_no_keys(place: Path):
    seen = place / "environment"
    configure(place, ["Done."], UserPromptSubmit=("", f"env > {seen}"))
    workspace = place / "workspace"
    environ = {
        "OUTRIDER_HOME": str(place / "home"),
        "HOME": str(place / "home"),
        "PATH": "/usr/bin:/bin",
        "ANTHROPIC_API_KEY": "sk-ant-secret",
    }
    settings = read_settings(cwd=workspace, environ=environ)
    async with standard_engine(settings, workspace=workspace, attended=False) as engine:
        await engine.prompt(await engine.create(workspace=workspace), "hi")
    assert "sk-ant-secret" not in seen.read_text()
    assert f"CLAUDE_PROJECT_DIR={workspace}" in seen.read_text()


@for_each(
    "content, message",
    [
        ("{", "is not valid JSON"),
        ("[]", "must be an object"),
        ('{"hooks": {"PreToolUse": [{"hooks": [{"command": 5}]}]}}', "Expected `str`, got `int`"),
        ('{"hooks": {"PreToolUse": "x"}}', "Expected `array`"),
        (
            '{"hooks": {"PreToolUse": [{"matcher": "*Edit", "hooks": []}]}}',
            r"hooks.PreToolUse: the matcher '\*Edit' is",
        ),
        ('{"hooks": {"Stop": [{"matcher": "a{9999999999}", "hooks": []}]}}', "not a valid regular expression"),
    ],
)
def test_an_invalid_file_of_the_user_is_an_error(tmp_path_factory, content, message):
    file = tmp_path_factory.mktemp("config") / "hooks.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_hooks(file, None)


def test_an_invalid_matcher_of_a_workspace_is_reported(place: Path):
    workspace, user_file = place / "workspace", place / "home/hooks.json"
    (workspace / ".outrider").mkdir()
    (workspace / ".outrider/hooks.json").write_text(
        '{"hooks": {"PreToolUse": [{"matcher": "*Edit", "hooks": [{"command": "true"}]}]}}'
    )
    trust = WorkspaceTrust(find_project(workspace, place / "home"), place / "home/trust.json")
    trust.trust()
    trust.approve(trust.unapproved_items())
    (notice,) = read_hooks(user_file, trust).notices
    assert notice.startswith(".outrider/hooks.json: hooks.PreToolUse: the matcher '*Edit' is not a valid")
    assert notice.endswith("its hooks are ignored")


def test_unknown_events_and_kinds_are_reported(tmp_path: Path):
    file = tmp_path / "hooks.json"
    file.write_text('{"hooks": {"PreTolUse": [], "Stop": [{"hooks": [{"type": "prompt", "command": ""}]}]}}')
    found = read_hooks(file, None)
    assert any("no hook event 'PreTolUse'" in notice for notice in found.notices)
    assert any("type 'prompt'" in notice for notice in found.notices)


@for_each(
    "matcher, names, matches",
    [
        ("", ("shell", "Bash"), True),
        ("*", ("shell", "Bash"), True),
        ("Bash", ("shell", "Bash"), True),
        ("shell", ("shell", "Bash"), True),
        ("Edit|Write", ("write", "Write"), True),
        ("Edit|Write", ("shell", "Bash"), False),
        ("mcp__.*", ("mcp__git__log", "mcp__git__log"), True),
        ("Ba", ("shell", "Bash"), False),
        ("Bash", (), True),  # Claude Code ignores the matcher of such an event too
    ],
)
def test_matchers_select_tools_by_both_names(matcher, names, matches):
    assert HookMatcher((), matcher).matches(*names) is matches


@for_each(
    "code, text, error, blocks, failed",
    [
        (0, "", "", False, False),
        (2, "", "no", True, False),
        (2, '{"decision": "approve"}', "no", True, False),
        (0, '{"decision": "block", "reason": "no"}', "", True, False),
        (0, '{"continue": false, "stopReason": "no"}', "", True, False),
        (0, '{"continue": true}', "", False, False),
        (0, '["x"]', "", False, False),
        (0, "{", "", False, True),
        (1, "", "no", False, True),
        (-9, "", "", False, True),
    ],
)
def test_exit_codes_and_json_have_the_meaning_of_claude_code(code, text, error, blocks, failed):
    found = parse_outcome(code, text, error)
    assert (found.blocks, bool(found.failure)) == (blocks, failed)
    if blocks:
        assert found.reason == "no"
