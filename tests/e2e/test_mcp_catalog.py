"""Many MCP tools: they are found by a search, called by name, and the prefix of the prompt stays the same."""

import json
from pathlib import Path

import msgspec
import pytest

from outrider.event_bus import EventBus
from outrider.events import SessionUpdatedEvent
from outrider.presentation.items import event_notice
from outrider.providers.scripted import call
from tests.e2e.mcp_servers.tool_calls import until
from tests.e2e.test_mcp_engine import calls, entry, have, settled
from tests.fixtures.standard_engine import Place

SYSTEMS = ("billing", "tracker", "forge", "wiki", "mail", "cloud", "people", "shop", "fleet", "lab")
ALLOWED = {"allow": ("mcp__*",)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def mcp_bytes(place: Place, request=None) -> int:
    """What the servers add to a request: definitions and announcements."""
    request = request or place.requests[-1]
    definitions = sum(len(msgspec.json.encode(tool)) for tool in request.tools if "mcp" in tool.name)
    texts = [part.text for message in request.prompt for part in message.content if hasattr(part, "text")]
    return definitions + sum(len(text.encode()) for text in texts if "MCP servers" in text)


def announcements(request) -> list[str]:
    texts = [part.text for message in request.prompt for part in message.content if hasattr(part, "text")]
    return [text for text in texts if "MCP servers" in text]


def prefix(request) -> list[bytes]:
    return [msgspec.json.encode(request.tools), request.system.encode(), *map(msgspec.json.encode, request.prompt)]


async def test_any_of_300_tools_of_10_servers_is_found_and_called_in_two_steps(place):
    have(place, **{name: entry("large_catalog.py", name, "30") for name in SYSTEMS})
    wanted = [("forge", "delete_branch"), ("lab", "assign_deployment"), ("billing", "list_invoice")]
    script = []
    for server, tool in wanted:
        verb, noun = tool.split("_")
        script += [
            [call("find_mcp_tools", query=f"{verb} a {noun} in {server}")],
            [call("call_mcp_tool", tool=f"mcp__{server}__{tool}", arguments={"id": "7"})],
        ]
    async with place.engine([*script, "done"], **ALLOWED) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        found = await calls(engine, session)
    assert mcp_bytes(place) <= 8_192
    for at, (server, tool) in enumerate(wanted):
        search, done = found[2 * at : 2 * at + 2]
        first = search.state.output.splitlines()[0]
        assert first.startswith(f"mcp__{server}__{tool}: ")
        assert '"required":["id"]' in search.state.output
        assert (done.tool, done.state.input) == (f"mcp__{server}__{tool}", {"id": "7"})
        assert done.state.output == f'{server} {tool} {{"id": "7"}}'
    last = place.requests[-1].prompt
    sent = [part for message in last for part in message.content if getattr(part, "tool_name", "") == "call_mcp_tool"]
    assert sent[0].tool_input == {"tool": "mcp__forge__delete_branch", "arguments": {"id": "7"}}  # as it was called


async def test_rules_and_approvals_see_the_tool_that_runs(place):
    have(place, **{name: entry("large_catalog.py", name, "30") for name in ("billing", "tracker")})
    forward = call("call_mcp_tool", tool="mcp__billing__create_ticket", arguments={"id": "1"})
    for flags, reason in (({}, "denied"), ({**ALLOWED, "deny": ("mcp__billing__create_ticket",)}, "denied")):
        async with place.engine([[forward], "done"], **flags) as engine:
            await settled(engine)
            session = await engine.create(workspace=place.workspace)
            await engine.prompt(session, "go")
            (part,) = await calls(engine, session)
        assert (part.tool, part.state.reason) == ("mcp__billing__create_ticket", reason)


async def test_a_wrong_name_is_answered_with_what_there_is(place):
    have(place, **{name: entry("large_catalog.py", name, "30") for name in ("billing", "tracker")})
    wrong = call("call_mcp_tool", tool="billing create ticket", arguments={})
    again = call("call_mcp_tool", tool="mcp__billing__create_ticket", arguments=json.dumps({"id": "1"}))
    async with place.engine([[wrong], [again], "done"], **ALLOWED) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        first, second = await calls(engine, session)
    assert "mcp__billing__create_ticket: " in first.state.error
    assert second.state.input == {"id": "1"}


@pytest.mark.slow
async def test_a_server_that_is_ready_late_joins_the_next_turn_after_the_prompt(place, tmp_path):
    gate = tmp_path / "gate"
    have(place, one=entry("raw_server.py"), late=entry("large_catalog.py", "late", "3", str(gate)))
    bus = EventBus()
    updates: list[SessionUpdatedEvent] = []
    bus.subscribe(SessionUpdatedEvent, updates.append)
    forward = call("call_mcp_tool", tool="mcp__late__create_ticket", arguments={"id": "1"})
    # The first turn waits for servers: CONNECT_WAIT_SECONDS with a user, longer without one.
    async with place.engine(["one", [forward], "two", "three"], attended=True, bus=bus, **ALLOWED) as engine:
        session = await engine.create(workspace=place.workspace)
        await until(lambda: engine.runtime.mcp_servers.connection_status()["one"].state == "ready")
        await engine.prompt(session, "go")
        first = prefix(place.requests[-1])
        gate.touch()
        await settled(engine)
        await engine.prompt(session, "and on")
        second = prefix(place.requests[-1])
        await engine.prompt(session, "and on")
        last = prefix(place.requests[-1])
        await bus.settled()
        (part,) = await calls(engine, session)
    assert part.state.output == 'late create_ticket {"id": "1"}'
    assert second[: len(first)] == first
    assert last[: len(second)] == second
    assert "late: still connecting" in announcements(place.requests[0])[0]
    assert "late: 3 tools: mcp__late__create_ticket" in announcements(place.requests[-1])[-1]
    assert len(announcements(place.requests[-1])) == 2
    states = [{s["name"]: s["state"] for s in u.changes["mcp_servers"]} for u in updates if "mcp_servers" in u.changes]
    assert states == [{"late": "connecting", "one": "ready"}, {"late": "ready", "one": "ready"}]


async def test_the_prefix_is_the_same_in_another_process_and_when_tools_change(place, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    have(place, one=entry("large_catalog.py", "one", "5", str(gate)))
    async with place.engine(["one"], **ALLOWED) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
    before = prefix(place.requests[-1])
    for command, answer in (("", "two"), ("change", "three"), ("rename", "four")):
        gate.write_text(command)
        script = [[call("mcp__one__list_ticket", id="1")], answer]
        async with place.engine(script, **ALLOWED) as engine:
            await settled(engine)
            await engine.open(session)
            await engine.prompt(session, "and on")
            part = (await calls(engine, session))[-1]
        after = prefix(place.requests[-1])
        assert after[: len(before)] == before
        before = after
        match command:
            case "change":
                assert part.state.reason == "denied"  # it has changed since its last approval
            case "rename":
                assert "is not available now" in part.state.error
            case _:
                assert part.state.status == "completed"
    assert "mcp__one__renamed_list_ticket" in announcements(place.requests[-1])[-1]


async def test_a_server_that_cannot_start_is_named_without_its_output(place):
    have(place, absent={"command": "/no/such/program", "args": []}, one=entry("raw_server.py"))
    bus = EventBus()
    updates: list[SessionUpdatedEvent] = []
    bus.subscribe(SessionUpdatedEvent, updates.append)
    async with place.engine(["done"], bus=bus) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        await bus.settled()
    (text,) = announcements(place.requests[-1])
    assert "absent: not available" in text
    assert "/no/such/program" not in text
    (shown,) = [u.changes["mcp_servers"] for u in updates if "mcp_servers" in u.changes]
    assert "cannot be started" in shown[0]["error"]


async def test_the_user_is_informed_about_tools_that_are_renamed_during_the_work(place, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    have(place, one=entry("large_catalog.py", "one", "5", str(gate)))
    bus = EventBus()
    notices: list[str] = []
    bus.subscribe(SessionUpdatedEvent, lambda event: notices.extend(one.text for one in [event_notice(event)] if one))
    script = ["zero", [call("mcp__one__close_ticket", id="1")], "one", "two", "three"]
    async with place.engine(script, bus=bus, **ALLOWED) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        gate.write_text("rename")
        await engine.prompt(session, "close it")  # the server announces its new list
        servers = engine.runtime.mcp_servers
        await engine.prompt(session, "and on")  # it waits for the new list
        await engine.prompt(session, "and on")
        await bus.settled()
        text = servers.describe_servers()[0].text
    (notice,) = notices
    assert notice.startswith(
        "MCP: one has other tools than before; removed: close_ticket, create_ticket, delete_ticket"
    )
    assert "; new: renamed_close_ticket" in notice
    assert "ready, 5 tools, removed: close_ticket" in text
