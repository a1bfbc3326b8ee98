"""MCP servers in the standard engine: which ones are started, what their tools may do, and what they cannot hurt."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from outrider.errors import OutriderError
from outrider.event_bus import EventBus
from outrider.events import ToolApprovalRequestedEvent
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.providers.scripted import call
from outrider.types.parts import ToolPart
from tests.e2e.mcp_servers.tool_calls import until
from tests.fixtures.standard_engine import Place

SCRIPTS = Path(__file__).with_name("mcp_servers")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def entry(script: str, *args: str) -> dict[str, object]:
    flags = ["-S"] if script == "raw_server.py" else []
    return {"command": sys.executable, "args": [*flags, str(SCRIPTS / script), *args]}


def bring(place: Place, **servers: object) -> None:
    (place.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def have(place: Place, **servers: dict[str, object]) -> None:
    """Servers of the user's own."""
    tables = [
        f"[mcp.{name}]\ncommand = {json.dumps(e['command'])}\nargs = {json.dumps(e['args'])}"
        for name, e in servers.items()
    ]
    (place.own / "config.toml").write_text("\n".join(tables))


def trust(place: Place) -> WorkspaceTrust:
    return WorkspaceTrust(find_project(place.workspace, place.home), place.own / "trust.json")


async def calls(engine, session: str) -> list[ToolPart]:
    loaded = await engine.store.load(session)
    return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


async def worked(place: Place, script, **options) -> list[ToolPart]:
    async with place.engine(script, **options) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        return await calls(engine, session)


async def settled(engine) -> None:
    """A loaded machine takes its time to start a server."""
    if engine.runtime.mcp_servers is not None:
        await engine.runtime.mcp_servers.wait_until_settled()


def offered(place: Place) -> set[str]:
    return {tool.name for tool in place.requests[-1].tools if "mcp" in tool.name}


async def test_a_server_of_the_user_serves_and_its_tools_are_asked_about(place):
    have(place, friendly=entry("sdk_server.py", "stdio"))
    script = [[call("mcp__friendly__add", a=2, b=3)], "done"]
    (refused,) = await worked(place, script)
    assert {"mcp__friendly__add", "list_mcp_resources", "read_mcp_resource"} <= offered(place)
    assert refused.state.reason == "denied"
    (done,) = await worked(place, script, allow=("mcp__friendly__*",))
    assert "5" in done.state.output
    (forbidden,) = await worked(place, script, allow=("mcp__friendly__*",), deny=("mcp__friendly__add",))
    assert forbidden.state.reason == "denied"


async def test_a_workspace_s_server_is_started_once_trusted_and_approved_as_it_is(place, tmp_path):
    mark = tmp_path / "started"
    script = tmp_path / "marking.py"
    script.write_text(
        f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n" + (SCRIPTS / "raw_server.py").read_text()
    )
    bring(place, one={"command": sys.executable, "args": ["-S", str(script)]})
    await worked(place, ["done"])
    trust(place).trust()
    await worked(place, ["done"])
    assert not mark.exists()
    trust(place).approve(trust(place).unapproved_items())
    await worked(place, ["done"])
    assert mark.exists()
    assert "mcp__one__echo" in offered(place)
    mark.unlink()
    bring(place, one={"command": sys.executable, "args": ["-S", str(script), "normal"]})
    await worked(place, ["done"])
    assert not mark.exists()


async def test_a_workspace_s_server_does_not_see_the_keys_for_models(place):
    bring(place, one={**entry("raw_server.py"), "env": {"STOLEN": "${ANTHROPIC_API_KEY:-none}", "PLAIN": "${HOME}"}})
    trust(place).trust(trust(place).list_items())
    (part,) = await worked(place, [[call("mcp__one__environment", text="")], "done"], allow=("mcp__one__*",))
    seen = json.loads(part.state.output)
    assert (seen["STOLEN"], seen["PLAIN"]) == ("none", str(place.home))
    assert "sk-ant-of-the-user" not in part.state.output


async def test_a_server_of_the_user_goes_before_one_of_the_workspace(place):
    have(place, one=entry("raw_server.py"))
    bring(place, one=entry("sdk_server.py", "stdio"))
    trust(place).trust(trust(place).list_items())
    await worked(place, ["done"])
    assert "mcp__one__echo" in offered(place)
    assert "mcp__one__add" not in offered(place)


async def test_a_tool_that_has_changed_asks_again_even_if_a_rule_allows_it(place):
    have(place, one=entry("raw_server.py"))
    allowed = {"allow": ("mcp__one__*",)}
    (done,) = await worked(place, [[call("mcp__one__echo", text="a")], "done"], **allowed)
    assert done.state.status == "completed"
    ledger = place.own / "mcp_tools.json"
    stored = json.loads(ledger.read_text())
    ledger.write_text(
        json.dumps({name: "another" if name.endswith("/echo") else mark for name, mark in stored.items()})
    )
    echo, pid = await worked(
        place, [[call("mcp__one__echo", text="b"), call("mcp__one__pid", text="")], "done"], **allowed
    )
    assert (echo.state.reason, pid.state.status) == ("denied", "completed")
    bus = EventBus()
    asked: list[ToolApprovalRequestedEvent] = []
    bus.subscribe(ToolApprovalRequestedEvent, asked.append)
    script = [[call("mcp__one__echo", text="c")], [call("mcp__one__echo", text="d")], "done"]
    async with place.engine(script, attended=True, bus=bus, **allowed) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        turn = asyncio.create_task(engine.prompt(session, "go"))
        while not asked:
            await asyncio.sleep(0.01)
        assert "has changed since its last approval" in asked[0].description
        await engine.answer(asked[0].approval_id, allow=True)
        await turn
        assert [part.state.output for part in await calls(engine, session)] == ["c", "d"]
    assert len(asked) == 1


async def test_an_approval_that_is_needed_anyway_names_the_change_too(place):
    have(place, one=entry("raw_server.py"))
    bus = EventBus()
    asked: list[ToolApprovalRequestedEvent] = []
    bus.subscribe(ToolApprovalRequestedEvent, asked.append)
    script = [[call("mcp__one__change", text="")], "changed", [call("mcp__one__echo", text="c")], "done"]
    async with place.engine(script, attended=True, bus=bus) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        for number in (1, 2):
            turn = asyncio.create_task(engine.prompt(session, "go"))
            while len(asked) < number:
                await asyncio.sleep(0.01)
            await engine.answer(asked[-1].approval_id, allow=True)
            await turn
            if number == 1:
                await until(lambda: any(one.changed for one in engine.runtime.mcp_servers.describe_servers()))
    assert [("has changed since its last approval" in one.description) for one in asked] == [False, True]
    assert "the effects of mcp__one__echo are not known" in asked[1].description


@pytest.mark.slow
async def test_servers_that_hang_die_or_do_not_exist_hold_up_neither_start_nor_turn_for_long(place):
    have(
        place,
        silent=entry("raw_server.py", "silent"),
        absent={"command": "/no/such/program", "args": []},
        one=entry("raw_server.py"),
    )
    async with place.engine(["one", "two"], attended=True) as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        await engine.prompt(session, "and on")
        states = {name: status.state for name, status in engine.runtime.mcp_servers.connection_status().items()}
    assert "mcp__one__echo" in offered(place)
    assert states == {"silent": "connecting", "absent": "failed", "one": "ready"}  # no call waited for the first


async def test_a_server_that_dies_in_a_call_costs_that_call_only(place):
    have(place, one=entry("raw_server.py"))
    script = [[call("mcp__one__die", text="")], [call("mcp__one__echo", text="back")], "done"]
    died, back = await worked(place, script, allow=("mcp__one__*",))
    assert "was lost during the call" in died.state.error
    assert back.state.output == "back"


async def test_resources_and_prompts_are_within_reach(place):
    have(place, friendly=entry("sdk_server.py", "stdio"))
    script = [[call("read_mcp_resource", server="friendly", uri="notes://today")], "done"]
    async with place.engine(script, allow=("read_mcp_resource",)) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        (part,) = await calls(engine, session)
        assert "buy milk" in part.state.output
        offers = await engine.runtime.mcp_servers.list_offers()
        assert [(prompt.server, prompt.name) for prompt in offers.prompts] == [("friendly", "greet")]
        assert "notes://today" in {resource.uri for resource in offers.resources}


async def test_servers_complete_inputs_unless_they_are_switched_off(place):
    have(place, friendly=entry("sdk_server.py", "stdio"))
    async with place.engine([]) as engine:
        await settled(engine)
        manager = engine.runtime.mcp_servers

        async def completed(text: str) -> list[tuple[int, str]]:
            found = await manager.complete_input(text, place.workspace)
            return [(found.start, choice.text) for choice in found.choices]

        assert await completed("/friendly:greet name=G") == [(16, "name=Grace")]
        assert await completed("see @friendly:notes://tu") == [(4, "@friendly:notes://tuesday")]
        assert (
            await completed("/friendly:none x") == await completed("@nobody:notes://") == await completed("a b") == []
        )
        manager.switch_server("friendly", on=False)
        assert await completed("/friendly:greet name=G") == []


async def test_an_input_names_prompts_and_resources(place):
    have(place, friendly=entry("sdk_server.py", "stdio"))
    async with place.engine(["hello", "milk"]) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "/friendly:greet 'Ada Lovelace'")
        sent = [part.text for part in place.requests[-1].prompt[0].content]
        assert sent[0] == "/friendly:greet 'Ada Lovelace'"
        assert "Prompt of the MCP server friendly:\nSay hello to Ada Lovelace." in sent
        await engine.prompt(session, "what is in @friendly:notes://today, and @nobody:x?")
        sent = [part for part in place.requests[-1].prompt[-1].content]
        assert sent[-1].text == "Resource notes://today of the MCP server friendly:\nbuy milk"
        assert [str(origin.kind) for origin in sent[-1].origins] == ["mcp"]
        for text, why in (("/friendly:greet", "needs name"), ("/friendly:grete x", "it has: /friendly:greet")):
            with pytest.raises(OutriderError, match=why):
                await engine.prompt(session, text)
        with pytest.raises(OutriderError):
            await engine.prompt(session, "@friendly:other://none")
    assert len(place.requests) == 2


async def test_in_plan_mode_foreign_tools_are_not_offered(place):
    have(place, one=entry("raw_server.py"))
    await worked(place, ["done"], mode="plan")
    assert not {name for name in offered(place) if name.startswith("mcp__")}


async def test_a_workspace_s_servers_serve_no_session_of_another_workspace(place, tmp_path):
    have(place, mine=entry("raw_server.py"))
    bring(place, one=entry("raw_server.py"))
    trust(place).trust(trust(place).list_items())
    (place.workspace / "inner").mkdir()
    (tmp_path / "other").mkdir()
    for folder, served in ((place.workspace / "inner", True), (tmp_path / "other", False)):
        async with place.engine(["done"]) as engine:
            await settled(engine)
            await engine.prompt(await engine.create(workspace=folder), "go")
        assert "mcp__mine__echo" in offered(place)
        assert ("mcp__one__echo" in offered(place)) is served
