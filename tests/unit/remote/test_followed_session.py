"""Each session is followed by one task, also a called agent's session that a user opens."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider.event_bus import EventBus
from outrider.remote.followed_session import RemoteSession, ServerConnection, SessionFollower
from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.types.events import AgentCalledEvent, Event, LLMRequestEvent, LoopCompletedEvent, PartDeltaEvent


class Feed:
    """The event stream of one client."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._chunks.put_nowait(b": still here\n\n")

    async def read(self) -> bytes:
        return await self._chunks.get()

    def send(self, *events: Event) -> None:
        sent = json.dumps([event.to_dict() for event in events])
        self._chunks.put_nowait(f"event: live\ndata: {sent}\n\n".encode())


class Server:
    """A server that sends the same events to all clients that follow a session."""

    def __init__(self) -> None:
        self.feeds: dict[str, list[Feed]] = {}

    @asynccontextmanager
    async def open_response(self, _: str, path: str, **__: Any) -> AsyncIterator[Feed]:
        session_id = path.split("/")[3]
        feed = Feed()
        self.feeds.setdefault(session_id, []).append(feed)
        try:
            yield feed
        finally:
            self.feeds[session_id].remove(feed)

    async def get(self, _: str, __: Any, **___: Any) -> SessionTranscript:
        return SessionTranscript(StoredSession(id="child"), [])

    def send(self, session_id: str, *events: Event) -> None:
        for feed in self.feeds[session_id]:
            feed.send(*events)


class Follower(SessionFollower):
    def __init__(self, server: Server) -> None:
        bus = EventBus()
        self.server = server
        self.events: list[Event] = []
        bus.subscribe_all(self.events.append)
        super().__init__(server, bus, ServerConnection(server))

    async def follow(self, session_id: str) -> RemoteSession:
        remote = RemoteSession(self.server, SessionTranscript(StoredSession(id=session_id), []))
        await self.start_following(remote)
        return remote

    async def call_child(self) -> None:
        await self.follow("parent")
        self.server.send("parent", AgentCalledEvent(session_id="parent", callee="x", child_session_id="child"))
        await until(lambda: self.server.feeds.get("child"))


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    assert not any(server.feeds.values())


async def test_a_called_agents_session_that_is_opened_has_one_feed_and_each_text_once(server: Server):
    follower = Follower(server)
    await follower.call_child()
    remote = await follower.follow("child")
    assert len(server.feeds["child"]) == 1
    server.send("child", LLMRequestEvent(session_id="child", message_count=1))
    server.send("child", PartDeltaEvent(session_id="child", message_id="m", part_id="p", delta="a"))
    server.send("child", LoopCompletedEvent(session_id="child"))
    await until(lambda: any(isinstance(event, LoopCompletedEvent) for event in follower.events))
    assert [event.delta for event in follower.events if isinstance(event, PartDeltaEvent)] == ["a"]
    assert not remote.is_closed
    await follower.close()
    assert remote.is_closed


async def test_a_session_that_is_opened_twice_at_once_is_followed_once(server: Server):
    follower = Follower(server)
    first, second = await asyncio.gather(follower.follow("child"), follower.follow("child"))
    assert (len(server.feeds["child"]), first.is_closed, second.is_closed) == (1, True, False)
    await follower.close()
