"""An agent that gets the same request twice, because no response arrived, works once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec

from outrider import Agent, HookDecision, Hooks, Tool, async_run
from outrider.providers.scripted import call
from outrider.server.auth import ListenAddress
from outrider.types.ids import new_id
from tests.e2e.server.peers import asking, peer, peer_of
from tests.e2e.server.test_peers import MAIN, here

AWAY = Agent("away", "", "", "away", role="lives elsewhere")


class Gate:
    """A tool that sets `started` when it runs, and waits until it may end."""

    def __init__(self) -> None:
        self.runs = 0
        self.started, self.open = asyncio.Event(), asyncio.Event()

    @property
    def tool(self) -> Tool:
        async def wait() -> str:
            """Wait at the gate."""
            self.runs += 1
            self.started.set()
            await self.open.wait()
            return "the gate is open"

        return Tool(wait, read_only=True)


@asynccontextmanager
async def asked(
    address: ListenAddress, body: dict[str, Any], status: int = 200
) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"Authorization": f"Bearer {peer_of(address).api_key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession() as http:
        url = f"{address.url}/api/peer"
        async with http.post(url, data=msgspec.json.encode(body), headers=headers) as answer:
            assert answer.status == status, await answer.text()
            yield answer


def text_of(raw: bytes) -> str:
    """The text of the answer: parts before it have started again as reasoning."""
    texts: dict[int, str] = {}
    for frame in raw.split(b"\n\n"):
        name, _, data = frame.partition(b"\ndata: ")
        if name == b"event: PartStart":
            texts.pop(msgspec.json.decode(data)["index"], None)
        elif name == b"event: TextDelta":
            delta = msgspec.json.decode(data)
            texts[delta["index"]] = texts.get(delta["index"], "") + delta["text"]
    assert b"event: Failed" not in raw, raw
    return "".join(texts.values())


def order() -> dict[str, Any]:
    return {"id": new_id(), "parts": [{"type": "text", "text": "go"}]}


async def roles(engine: Any) -> list[str]:
    [session] = (await engine.store.list(limit=9)).sessions
    return [message.role for message in (await engine.store.load(session.id)).messages]


async def test_a_repeated_request_receives_the_running_turn(tmp_path):
    gate, wanted = Gate(), order()
    script = [[call("wait")], "through"]
    async with peer(tmp_path, "helper", script, tools=[gate.tool]) as (engine, address):
        async with asked(address, wanted):
            await gate.started.wait()
            async with asked(address, wanted) as again:
                await again.content.readuntil(b"\n\n")
                gate.open.set()
                assert text_of(await again.read()) == "through"
        assert gate.runs == 1
        assert await roles(engine) == ["user", "assistant", "assistant"]
        await _until(lambda: not engine.live)


async def test_a_turn_that_ended_with_its_listener_continues_for_a_repeated_request(tmp_path):
    gate, wanted = Gate(), order()
    script = [[call("wait")], "I went on"]
    async with peer(tmp_path, "helper", script, tools=[gate.tool]) as (engine, address):
        async with asked(address, wanted):
            await gate.started.wait()
        await _until(lambda: not engine.live)
        async with asked(address, wanted) as again:
            assert text_of(await again.read()) == "I went on"
        assert gate.runs == 1
        assert await roles(engine) == ["user", "assistant", "assistant"]


async def test_parts_that_cannot_be_stored_are_rejected_before_the_stream(tmp_path):
    async with peer(tmp_path, "helper", []) as (_, address):
        body = {"id": new_id(), "parts": [{"type": "text", "text": "go", "id": "no id"}]}
        async with asked(address, body, status=400) as answer:
            assert b"`id` must be a UUID" in await answer.read()


async def test_an_input_that_is_refused_ends_the_stream_with_its_reason(tmp_path):
    hooks = Hooks(on_prompt=lambda _: HookDecision("deny", "not today"))
    async with peer(tmp_path, "helper", [], hooks=hooks) as (_, address), asked(address, order()) as answer:
        assert b"event: Failed" in (raw := await answer.read())
        assert b"not today" in raw


async def test_a_turn_that_is_over_is_reported_again_and_another_request_is_another_turn(tmp_path):
    wanted = order()
    async with peer(tmp_path, "helper", ["the first", "the second"]) as (engine, address):
        for _ in range(2):
            async with asked(address, wanted) as answer:
                assert text_of(await answer.read()) == "the first"
        assert await roles(engine) == ["user", "assistant"]
        async with asked(address, order()) as other:
            assert text_of(await other.read()) == "the second"


async def test_an_answer_that_was_lost_on_the_way_is_asked_for_again_and_started_once(tmp_path):
    gate, lost = Gate(), 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards requests, and drops the response to the first."""
        nonlocal lost
        there = await asyncio.open_connection("127.0.0.1", address.port)
        carrying = asyncio.create_task(_carry(reader, there[1]))
        try:
            if not lost:
                lost += 1
                await gate.started.wait()
            else:
                gate.open.set()
                await _carry(there[0], writer)
        finally:
            carrying.cancel()
            there[1].close()
            writer.close()

    async with peer(tmp_path, "helper", [[call("wait")], "it is done"], tools=[gate.tool]) as (engine, address):
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as between:
            port = between.sockets[0].getsockname()[1]
            far = msgspec.structs.replace(peer_of(address), base_url=f"http://127.0.0.1:{port}")
            far = msgspec.structs.replace(far, headers={"host": f"127.0.0.1:{address.port}"})
            result = await async_run(MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), far])
        assert (result.output, lost, gate.runs) == ("I was told: it is done", 1, 1)
        assert await roles(engine) == ["user", "assistant", "assistant"]


async def test_an_answer_that_breaks_off_is_continued_and_counted_once(tmp_path):
    """The first connection ends after the agent has run a call and has sent a text."""
    gate, lost = Gate(), 0
    gate.open.set()
    script = [["I will wait. ", call("wait")], ["nearly", asyncio.Event()], "it is done"]

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal lost
        there = await asyncio.open_connection("127.0.0.1", address.port)
        carrying = asyncio.create_task(_carry(reader, there[1]))
        try:
            if lost:
                return await _carry(there[0], writer)
            received = b""
            while b"nearly" not in received:
                received += (piece := await there[0].read(65536))
                writer.write(piece)
            await writer.drain()
            lost += 1
        finally:
            carrying.cancel()
            there[1].close()
            writer.close()

    async with peer(tmp_path, "helper", script, tools=[gate.tool]) as (engine, address):
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as between:
            port = between.sockets[0].getsockname()[1]
            far = msgspec.structs.replace(peer_of(address), base_url=f"http://127.0.0.1:{port}")
            far = msgspec.structs.replace(far, headers={"host": f"127.0.0.1:{address.port}"})
            result = await async_run(MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), far])
        assert (result.output, lost, gate.runs) == ("I was told: it is done", 1, 1)
        [session] = (await engine.store.list(limit=9)).sessions
        stored = await engine.store.load(session.id)
        assert [message.role for message in stored.messages if message.get_text_content() == "go"] == []
        used = sum(message.tokens.total for message in stored.messages if message.tokens)
        own = [message for message in result.session.messages if message.role == "assistant"]
        assert result.usage.tokens.total == used + sum(message.tokens.total for message in own)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()


async def _until(true: Any) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)
