"""Listeners that fail or block, and many sessions at once, do not delay other listeners or sessions."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from outrider import Engine, ListenerOverflow, Tool
from outrider.events import Event, LoopCompletedEvent
from outrider.providers.scripted import call
from tests.scenario.scripted_runs import agent, scripted

Record = Callable[[str, object], None]


async def test_sf_068_a_listener_that_raises_or_blocks_hurts_neither_the_turn_nor_the_others(caplog):
    """Plain handlers are called at once and should be quick; a slower handler is async, or reads a stream."""
    release, received = asyncio.Event(), []

    async def blocks(event: Event) -> None:
        await release.wait()

    def raises(event: Event) -> None:
        raise RuntimeError("a broken listener")

    async def fails_later(event: Event) -> None:
        raise RuntimeError("a broken listener")

    script = [[call("look", "c1")], "all is well"]
    async with Engine([agent()], [scripted(script)], [Tool(lambda: "x", name="look")]) as held:
        for broken in (raises, blocks, fails_later):
            held.bus.subscribe_all(broken)
        held.bus.subscribe_all(received.append)
        session_id = await held.create()
        assert (await asyncio.wait_for(held.prompt(session_id, "go"), 30)).output == "all is well"
        assert any(isinstance(event, LoopCompletedEvent) for event in received)
        release.set()
    assert "a broken listener" in caplog.text


@pytest.mark.slow
async def test_sf_066_fifty_streams_among_five_hundred_sessions_are_received_in_time(record_property: Record):
    late: list[float] = []
    text = "a sentence that arrives piece by piece; " * 20

    def receive(event: Event) -> None:
        late.append(time.time() * 1000 - event.timestamp)

    async def listen(held: Engine) -> None:
        async for event in held.events():
            receive(event)

    async with Engine([agent()], [scripted(lambda _: text, chunk=8, delay=0.01)]) as held:
        sessions = [await held.create() for _ in range(500)]
        idle = held.events()  # it is never read
        listening = asyncio.create_task(listen(held))
        start = time.monotonic()
        ends = await asyncio.gather(*(held.prompt(session_id, "go") for session_id in sessions[:50]))
        took = (time.monotonic() - start) * 1000
        await held.bus.settled()
        await asyncio.sleep(0.1)
        listening.cancel()
        assert {end.output.strip() for end in ends} == {text.strip()}
        waiting = await left(idle)
    late.sort()
    record_property(
        "figures",
        f"50 streams among 500 sessions: {len(late):,} events, p50 {late[len(late) // 2]:.0f} ms,"
        f" p99 {late[len(late) * 99 // 100]:.0f} ms late; a listener that never read held {waiting:,} events",
    )
    assert late[len(late) * 99 // 100] < took / 2  # while it is published, not afterwards, however slow the machine is
    assert waiting < len(late) / 2  # it lost deltas, and was not buffered without bound


async def left(stream: Any) -> int:
    """How many events an unread stream has buffered, until it is empty or reports that it was closed."""
    count = 0
    try:
        while True:
            await asyncio.wait_for(anext(stream), 0.05)
            count += 1
    except (TimeoutError, StopAsyncIteration, ListenerOverflow):
        await stream.aclose()
    return count
