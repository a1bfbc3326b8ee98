"""Clients of public packages complete a turn with an approval: AG-UI and A2A."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider import Tool
from outrider.providers.scripted import call
from tests.architecture.repository import ROOT
from tests.e2e.server.http_server import TOKEN, Client, served


@Tool(policy="ask")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


PAYING = [["I will pay.", call("pay", amount=5)], "It is paid."]
NODE_CLIENT = """
import { HttpAgent } from "@ag-ui/client";

const [url, token] = process.argv.slice(2);
const agent = new HttpAgent({ url, threadId: "thread-1", headers: { Authorization: `Bearer ${token}` } });
agent.addMessage({ id: "m1", role: "user", content: "Pay 5." });
const events = [];
const subscriber = { onEvent: ({ event }) => { events.push(event.type); } };
let asked;
await agent.runAgent({}, { ...subscriber, onRunFinishedEvent: ({ event }) => { asked = event.outcome; } });
const [interrupt] = asked.interrupts;
const resume = [{ interruptId: interrupt.id, status: "resolved", payload: { approved: true } }];
await agent.runAgent({ resume }, { ...subscriber, onRunFinishedEvent: ({ event }) => { asked = event.outcome; } });
console.log(JSON.stringify({ interrupt, events, outcome: asked.type, messages: agent.messages }));
"""


async def run(client: Client, **fields: Any) -> list[dict[str, Any]]:
    """The events of a run, each checked by the models of the public package."""
    core = pytest.importorskip("ag_ui.core", reason="the package ag-ui-protocol is not installed")
    from pydantic import TypeAdapter

    body = {"threadId": "t1", "runId": "r1", "messages": [], "state": {}, "tools": [], "context": [], **fields}
    status, raw = await client.ask("POST", "/agui/writer", body)
    assert status == 200, raw
    events = [msgspec.json.decode(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
    for event in events:
        TypeAdapter(core.Event).validate_python(event)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def user(text: str) -> dict[str, Any]:
    return {"id": "m1", "role": "user", "content": text}


async def test_a_run_of_ag_ui_stops_at_an_approval_and_continues_with_the_answer(tmp_path: Path):
    async with served(tmp_path, PAYING, [pay]) as client:
        asked = await run(client, messages=[user("Pay 5.")])
        assert kinds(asked) == [
            "RUN_STARTED",
            "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
            "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
            "RUN_FINISHED",
        ]  # fmt: skip
        (interrupt,) = asked[-1]["outcome"]["interrupts"]
        assert interrupt["metadata"]["tool"] == "pay"
        assert interrupt["toolCallId"] == asked[4]["toolCallId"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        done = await run(client, runId="r2", resume=resume)
        assert kinds(done) == [
            "RUN_STARTED",
            "TOOL_CALL_RESULT",
            "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]  # fmt: skip
        assert (done[1]["content"], done[-1]["result"]) == ("paid 5", "It is paid.")


async def test_a_thread_of_ag_ui_is_one_session_and_a_no_has_a_reason(tmp_path: Path):
    async with served(tmp_path, ["Hello.", call("pay", amount=5), "Then not."], [pay]) as client:
        await run(client, messages=[user("Hi.")])
        messages = [user("Hi."), {"id": "m2", "role": "assistant", "content": "Hello."}, user("Pay 5.")]
        asked = await run(client, runId="r2", messages=messages)
        payload = {"approved": False, "reason": "Too much."}
        entry = {"interruptId": asked[-1]["outcome"]["interrupts"][0]["id"], "status": "resolved", "payload": payload}
        done = await run(client, runId="r3", resume=[entry])
        assert done[-1]["result"] == "Then not."
        (session,) = await client.engine.list()
        stored = (await client.engine.store.load(session.id)).messages
        assert [one.get_text_content() for one in stored if one.role == "user"] == ["Hi.", "Pay 5."]
        assert "Too much." in str(stored)


async def test_runs_of_ag_ui_that_begin_a_thread_at_the_same_time_have_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with served(tmp_path, ["Hello.", "Hello again."]) as client:
        searches, searched_twice = 0, asyncio.Event()
        list_sessions, create = client.engine.list, client.engine.create

        async def count_searches(*arguments: Any, **options: Any) -> Any:
            nonlocal searches
            found = await list_sessions(*arguments, **options)
            searches += 1
            if searches == 2:
                searched_twice.set()
            return found

        async def create_late(**options: Any) -> str:
            with suppress(TimeoutError):
                await asyncio.wait_for(searched_twice.wait(), 1)
            return await create(**options)

        monkeypatch.setattr(client.engine, "list", count_searches)
        monkeypatch.setattr(client.engine, "create", create_late)
        await asyncio.gather(*(run(client, runId=name, messages=[user(name)]) for name in ("r1", "r2")))
        assert len(await list_sessions()) == 1


async def test_a_wrong_run_of_ag_ui_is_rejected(tmp_path: Path):
    async with served(tmp_path, ["Hello."]) as client:
        body = {"threadId": "t", "runId": "r", "messages": []}
        assert (await client.ask("POST", "/agui/writer", body))[0] == 400
        assert (await client.ask("POST", "/agui/nobody", {**body, "messages": [user("Hi.")]}))[0] == 404
        resume = [{"interruptId": "unknown", "status": "resolved"}]
        assert (await client.ask("POST", "/agui/writer", {**body, "resume": resume}))[0] == 404


def install_node_client() -> Path:
    """The folder of the public client for AG-UI, installed once. Skips without npm or a registry."""
    folder = ROOT / ".cache" / "ag-ui"
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    if not (folder / "node_modules" / "@ag-ui" / "client").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"type": "module"}')
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "@ag-ui/client@1"]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip("@ag-ui/client cannot be installed")
    return folder


@pytest.mark.slow
async def test_the_public_client_of_ag_ui_completes_a_turn_with_an_approval(tmp_path: Path):
    folder = await asyncio.to_thread(install_node_client)
    program = folder / f"client-{os.getpid()}.mjs"
    program.write_text(NODE_CLIENT)
    try:
        async with served(tmp_path, PAYING, [pay]) as client:
            url = f"{client.address.url}/agui/writer"
            node = await asyncio.create_subprocess_exec(
                "node", str(program), url, TOKEN, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            printed, problems = await asyncio.wait_for(node.communicate(), 60)
            assert node.returncode == 0, problems.decode()
    finally:
        program.unlink()
    found = json.loads(printed)
    assert (found["interrupt"]["metadata"]["tool"], found["outcome"]) == ("pay", "success")
    assert [message.get("content") for message in found["messages"]] == [
        "Pay 5.", "I will pay.", None, "paid 5", "It is paid.",
    ]  # fmt: skip


@asynccontextmanager
async def a2a_client(tmp_path: Path, script: Any, *, streaming: bool) -> AsyncIterator[tuple[Any, Client]]:
    pytest.importorskip("a2a.client", reason="the package a2a-sdk is not installed")
    import httpx
    from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

    async with (
        served(tmp_path, script, [pay]) as client,
        httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as http,
    ):
        card = await A2ACardResolver(http, client.address.url).get_agent_card()
        assert card.name == "writer"
        factory = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming))
        yield factory.create(card), client


def message(text: str, **fields: Any) -> Any:
    from a2a.types import Message, Part, Role, SendMessageRequest

    sent = Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(text=text)], **fields)
    return SendMessageRequest(message=sent)


def state(task: Any) -> str:
    from a2a.types import TaskState

    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_")


async def updates(agent: Any, request: Any) -> list[Any]:
    return [one async for one in agent.send_message(request)]


def texts(task: Any) -> list[str]:
    return ["".join(part.text for part in artifact.parts) for artifact in task.artifacts]


async def test_a_task_of_a2a_waits_for_an_approval_and_completes(tmp_path: Path):
    async with a2a_client(tmp_path, PAYING, streaming=False) as (agent, _):
        from a2a.types import CancelTaskRequest, GetTaskRequest

        (asked,) = [one.task for one in await updates(agent, message("Pay 5."))]
        assert state(asked) == "INPUT_REQUIRED"
        assert state(await agent.get_task(GetTaskRequest(id=asked.id))) == "INPUT_REQUIRED"
        facts = asked.status.message.parts[1].data.struct_value
        assert facts["tool"] == "pay"
        reply = message("allow", task_id=asked.id, context_id=asked.context_id)
        (done,) = [one.task for one in await updates(agent, reply)]
        assert (state(done), texts(done)) == ("COMPLETED", ["It is paid."])
        found = await agent.get_task(GetTaskRequest(id=done.id))
        assert (state(found), texts(found)) == ("COMPLETED", ["It is paid."])
        with pytest.raises(Exception, match="has ended"):
            await agent.cancel_task(CancelTaskRequest(id=done.id))


async def test_a_streamed_task_of_a2a_has_updates_and_a_context_continues(tmp_path: Path):
    async with a2a_client(tmp_path, [*PAYING, "And again."], streaming=True) as (agent, client):
        events = await updates(agent, message("Pay 5."))
        task = events[0].task
        assert [one.WhichOneof("payload") for one in events] == ["task", "artifact_update", "status_update"]
        assert state(events[-1].status_update) == "INPUT_REQUIRED"
        done = await updates(agent, message("Too much.", task_id=task.id, context_id=task.context_id))
        assert state(done[-1].status_update) == "COMPLETED"
        assert done[1].artifact_update.artifact.parts[0].text == "It is paid."
        again = await updates(agent, message("Again.", context_id=task.context_id))
        assert again[0].task.context_id == task.context_id
        stored = (await client.engine.store.load(task.context_id)).messages
        assert "Too much." in str(stored)
        assert [one.get_text_content() for one in stored if one.role == "user"] == ["Pay 5.", "Again."]


async def test_a_task_of_a2a_can_be_canceled_followed_and_is_unknown(tmp_path: Path):
    async with a2a_client(tmp_path, PAYING, streaming=True) as (agent, _):
        from a2a.types import CancelTaskRequest, GetTaskRequest, SubscribeToTaskRequest

        asked = (await updates(agent, message("Pay 5.")))[0].task
        followed = [one async for one in agent.subscribe(SubscribeToTaskRequest(id=asked.id))]
        assert state(followed[0].task) == "INPUT_REQUIRED"
        assert state(await agent.cancel_task(CancelTaskRequest(id=asked.id))) == "CANCELED"
        with pytest.raises(Exception, match="no such task"):
            await agent.get_task(GetTaskRequest(id="unknown"))


async def test_a_wrong_call_of_a2a_is_an_error_of_json_rpc(tmp_path: Path):
    async with served(tmp_path, ["Hello."]) as client:
        for method, params, code in [
            ("Nothing", {}, -32601),
            ("SendMessage", {"message": {"parts": 3}}, -32602),
            ("SendMessage", {"message": {"parts": []}}, -32602),
            ("GetTask", {"id": 3}, -32001),
        ]:
            call = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            status, answer = await client.ask("POST", "/a2a/writer", call)
            assert (status, answer["id"], answer["error"]["code"]) == (200, 7, code)
