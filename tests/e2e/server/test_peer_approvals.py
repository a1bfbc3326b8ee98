"""Approvals of agents on other servers are requested from the waiting user and on the other server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Engine, Tool, async_run
from outrider.engine.approval_gate import ApprovalRequest
from outrider.errors import OutriderError
from outrider.providers.scripted import call
from outrider.remote.client import ServerClient as RemoteClient
from outrider.remote.client import resolve_server
from outrider.sessions.records import Approval
from outrider.types.events import Event, ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.parts import ToolPart
from tests.e2e.attach.socket_server import SECONDS
from tests.e2e.server.peers import asking, peer, peer_of
from tests.e2e.server.test_peers import CONFIG, KNOWS, program


@Tool(policy="ask")
def push(branch: str) -> str:
    """Push a branch."""
    return f"pushed {branch}"


PUSHING = [[call("push", branch="main")], "it is pushed"]


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[Engine, Engine, str]]:
    """Yields the server of the agent, the server that calls it, and the address of the first."""
    async with (
        peer(tmp_path, "helper", PUSHING, tools=[push]) as (there, address),
        peer(tmp_path, "front", asking("helper"), knows={"helper": address}) as (here, _),
    ):
        yield there, here, address.url


async def next_event(engine: Engine, wanted: type[Event]) -> Any:
    async with asyncio.timeout(SECONDS), engine.events() as events:
        return await anext(event async for event in events if isinstance(event, wanted))


async def open_at(engine: Engine) -> Approval:
    async with asyncio.timeout(SECONDS):
        while not (found := await engine.approvals()):
            await asyncio.sleep(0.02)
    return found[0]


async def test_who_waits_for_the_agent_sees_the_question_and_answers_it(tmp_path):
    async with two(tmp_path) as (there, here, address):
        session_id = await here.create()
        asked = asyncio.create_task(next_event(here, ToolApprovalRequestedEvent))
        turn = asyncio.create_task(here.prompt(session_id, "push it"))
        event = await asked
        assert (event.tool_name, event.tool_input, event.server) == ("push", {"branch": "main"}, address)
        assert event.description.startswith(f"at {address}: ")
        [waiting] = await here.approvals()
        assert (waiting.id, waiting.tool, waiting.session_id) == (event.approval_id, "push", event.session_id)
        settled = asyncio.create_task(next_event(here, ToolApprovalResultEvent))
        given = await here.answer(event.approval_id, allow=True)
        assert (given.answer, given.session_id) == ("allowed", event.session_id)
        assert (await settled).approved
        assert (await turn).output == "I was told: it is pushed"
        assert not await here.approvals()
        assert not await there.approvals()


async def test_a_denial_reaches_the_calling_agent_with_its_text(tmp_path):
    async with two(tmp_path) as (there, here, _):
        session_id = await here.create()
        turn = asyncio.create_task(here.prompt(session_id, "push it"))
        await here.answer((await open_at(here)).id, allow=False, words="not on a friday")
        await turn
        [stored] = (await there.store.list()).sessions
        [refused] = (await there.store.load(stored.id)).messages[1].get_parts_by_type(ToolPart)
        assert (refused.state.reason, refused.state.error) == ("rejected", "The user denied this call: not on a friday")


async def test_an_answer_on_the_other_side_takes_the_question_from_this_one(tmp_path):
    async with two(tmp_path) as (there, here, _):
        session_id = await here.create()
        turn = asyncio.create_task(here.prompt(session_id, "push it"))
        asked = await open_at(here)
        settled = asyncio.create_task(next_event(here, ToolApprovalResultEvent))
        await asyncio.sleep(0)
        await there.answer(asked.id, allow=True, by="somebody there")
        assert (await settled).answered_by == "somebody there"
        assert (await turn).output == "I was told: it is pushed"
        with pytest.raises(OutriderError):
            await here.answer(asked.id, allow=False)


async def test_of_two_answers_the_first_one_applies_on_both_sides(tmp_path):
    async with two(tmp_path) as (there, here, _):
        session_id = await here.create()
        turn = asyncio.create_task(here.prompt(session_id, "push it"))
        asked = await open_at(here)
        async with asyncio.TaskGroup() as tasks:
            yes = tasks.create_task(here.answer(asked.id, allow=True))
            no = tasks.create_task(there.answer(asked.id, allow=False))
        assert yes.result().answer == no.result().answer
        await turn


async def test_a_turn_that_ends_takes_the_question_back_on_both_sides(tmp_path):
    async with two(tmp_path) as (there, here, _):
        session_id = await here.create()
        turn = asyncio.create_task(here.prompt(session_id, "push it"))
        asked = await open_at(here)
        settled = asyncio.create_task(next_event(here, ToolApprovalResultEvent))
        await asyncio.sleep(0)
        await here.abort(session_id)
        assert (await turn).reason == "aborted"
        assert (await settled).approval_id == asked.id
        assert not await here.approvals()
        async with asyncio.timeout(SECONDS):
            while await there.approvals():
                await asyncio.sleep(0.02)


async def test_a_question_goes_through_as_many_servers_as_there_are_between(tmp_path):
    async with (
        peer(tmp_path, "third", PUSHING, tools=[push]) as (_, deep),
        peer(tmp_path, "second", asking("third"), knows={"third": deep}) as (_, address),
        peer(tmp_path, "first", asking("second"), knows={"second": address}) as (here, _),
    ):
        session_id = await here.create()
        turn = asyncio.create_task(here.prompt(session_id, "push it"))
        asked = await open_at(here)
        assert asked.description.startswith(f"at {address.url}: at {deep.url}: ")
        await here.answer(asked.id, allow=True)
        assert (await turn).output == "I was told: I was told: it is pushed"


@pytest.mark.parametrize(
    ("answer", "expected", "stored_answer"),
    [
        (True, "pushed main", ("allowed", "once", "")),
        ("once", "pushed main", ("allowed", "once", "")),
        ("session", "pushed main", ("allowed", "session", "")),
        ("always", "pushed main", ("allowed", "always", "")),
        ("not on a friday", "The user denied this call: not on a friday", ("denied", "once", "not on a friday")),
    ],
)
async def test_the_function_that_approves_a_program_s_calls_is_asked_about_calls_on_another_server(
    answer, expected, stored_answer, tmp_path
):
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> bool | str:
        asked.append(request)
        return answer

    async with peer(tmp_path, "helper", PUSHING, tools=[push]) as (there, address):
        away = Agent("away", "", "", "away")
        result = await async_run(away, "push it", [away], [], [peer_of(address)], approve=approve)
        assert result.output == "it is pushed"
        [request] = asked
        assert (request.tool, request.input, request.agent) == ("push", {"branch": "main"}, "away")
        [stored] = (await there.store.list()).sessions
        [done] = (await there.store.load(stored.id)).messages[1].get_parts_by_type(ToolPart)
        assert expected in (getattr(done.state, "output", ""), getattr(done.state, "error", ""))
        [approval] = await there.store.approvals()
        assert (approval.answer, approval.scope, approval.words) == stored_answer


async def test_two_programs_ask_where_a_user_waits(tmp_path):
    asks = '{tool = "call_agent", input = {agent_name = "helper", message = "push it"}}'
    runs = '{tool = "shell", input = {command = "touch pushed"}}'
    with (
        program(tmp_path / "b", CONFIG.format(more="", script=f'[[{runs}], "it is pushed"]')) as (url, token),
        program(
            tmp_path / "a", CONFIG.format(more=KNOWS.format(url=url), script=f'[[{asks}], "done"]'), AWAY_TOKEN=token
        ) as (front, key),
    ):
        client = RemoteClient(resolve_server(front, token=key, environ={}))
        session = await client.post("/api/sessions", {"agent": "main"})
        prompt = {"text": "go", "wait": True}
        turn = asyncio.create_task(client.post(f"/api/sessions/{session['id']}/prompt", prompt, unlimited=True))
        async with asyncio.timeout(SECONDS):
            while not (found := await client.get("/api/approvals", session_id=session["id"])):
                await asyncio.sleep(0.05)
        assert (found[0]["tool"], found[0]["input"]) == ("shell", {"command": "touch pushed"})
        assert not (tmp_path / "b" / "pushed").exists()
        given = await client.post(f"/api/approvals/{found[0]['id']}", {"allow": True})
        assert given["answer"] == "allowed"
        assert (await turn)["end"]["output"] == "done"
        assert (tmp_path / "b" / "pushed").exists()
