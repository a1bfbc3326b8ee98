"""A server ends the turn of a session that another process works on: `outrider run` and the server are real ones."""

import asyncio
from typing import Any

from outrider.remote.engine import RemoteEngine
from tests.e2e.attach.socket_server import SECONDS, Serving, call, ended


async def calls(client: RemoteEngine, session_id: str) -> list[dict[str, Any]]:
    page = await client.client.get(f"/api/sessions/{session_id}/messages")
    return [part["state"] for message in page["messages"] for part in message["parts"] if part["type"] == "tool"]


async def at_work(client: RemoteEngine) -> str:
    """The session in which a call runs."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = (await client.client.get("/api/sessions"))["sessions"]
            if found and any(state["status"] == "running" for state in await calls(client, found[0]["id"])):
                return found[0]["id"]
            await asyncio.sleep(0.05)


async def test_a_turn_of_another_process_is_ended_through_the_server(serving: Serving):
    serving.script(call("shell", command="sleep 600"), "never said")
    await serving.begin()
    running = await serving.start("run", "--allow", "shell(sleep *)", "go")
    async with serving.client() as client:
        session_id = await at_work(client)
        await client.abort(session_id)
        done = await ended(running)
        assert done.code == 130, done.err
        [state] = await calls(client, session_id)
        assert (state["status"], state["reason"]) == ("error", "canceled")
