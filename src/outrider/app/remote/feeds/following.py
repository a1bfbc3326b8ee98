"""Follows the sessions that are open here, and those that their agents open, and tells what happens in them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from outrider.app.remote.client import Client
from outrider.app.remote.feeds.asked import OpenThere
from outrider.app.remote.feeds.feed import Feed, Heard, Joined, Kept, Lost, Shown
from outrider.app.remote.feeds.held import HeldSession
from outrider.bus import EventBus
from outrider.errors import OutriderError, ServerAwayError, SessionNotFoundError
from outrider.sessions.records import StoredSession, Transcript
from outrider.types.agents import Agent
from outrider.types.events import AgentCalledEvent, ErrorEvent, Event, LoopCompletedEvent

LOOKS = 50  # for the session of an agent that was just called
PAUSE = 0.1  # seconds between them
LOST = "Disconnected"


class Following:
    """Every task that it starts ends with `close`."""

    def __init__(self, client: Client, bus: EventBus) -> None:
        self._client = client
        self._bus = bus
        self._asked = OpenThere(client, bus)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, held: HeldSession) -> None:
        """Returns when nothing that happens from now on is missed."""
        self._tasks[held.session.id] = asyncio.create_task(self._follow(held))
        await held.until(lambda: held.joined)

    async def end(self, session_id: str) -> None:
        task = self._tasks.pop(session_id, None)
        self._asked.forget(session_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        for session_id in list(self._tasks):
            await self.end(session_id)

    async def _follow(self, held: HeldSession) -> None:
        try:
            while True:
                await self._follow_feed(held)
        except OutriderError as error:
            self._fail(held.session.id, type(error).__name__, error.message)
        finally:
            held.over = True
            held.heard()

    async def _follow_feed(self, held: HeldSession) -> None:
        """Returns where the server went away while it was asked for more; the feed then goes on where it was."""
        with suppress(ServerAwayError):
            async with aclosing(self._feed(held)) as feed:
                async for heard in feed:
                    await self._hear(held, heard)
                    held.heard()
        await asyncio.sleep(PAUSE)

    def _feed(self, held: HeldSession) -> AsyncGenerator[Heard, None]:
        return Feed(self._client, held.session.id, held.mirror.seq, again=held.joined).follow()

    async def _follow_child(self, held: HeldSession) -> None:
        """It may be told of before it is there to be followed."""
        for _ in range(LOOKS):
            try:
                await self._follow_turn(held)
            except SessionNotFoundError:
                await asyncio.sleep(PAUSE)
            except OutriderError:
                return  # its caller's session is followed too, and says what is wrong
            else:
                return

    async def _follow_turn(self, held: HeldSession) -> None:
        """To its end: agents that are called have one turn."""
        async with aclosing(self._feed(held)) as feed:
            async for heard in feed:
                if any(isinstance(event, LoopCompletedEvent) for event in await self._told(held, heard)):
                    return

    async def _hear(self, held: HeldSession, heard: Heard) -> None:
        match heard:
            case Joined(again=False):
                held.joined = True
            case Joined():
                held.mirror.join_again()
                await self._come_back(held)
            case Lost():
                words = f"{self._client.place.url} hung up; it is tried again until it answers"
                self._fail(held.session.id, LOST, words)
            case Kept() | Shown():
                await self._told(held, heard)

    async def _told(self, held: HeldSession, heard: Heard) -> list[Event]:
        told: list[Event] = []
        match heard:
            case Kept():
                told = await held.mirror.keep(heard)
            case Shown():
                told = await held.mirror.show(heard)
            case Joined():
                held.joined = True
                held.mirror.join_again()
            case _:
                pass
        for event in told:
            self._asked.hear(held.session.id, event)
            self._bus.publish(event)
            if isinstance(event, AgentCalledEvent):
                self._begin_child(event)
        return told

    def _begin_child(self, called: AgentCalledEvent) -> None:
        child = called.child_session_id
        if child and child not in self._tasks:
            transcript = Transcript(StoredSession(id=child, agent=called.callee), [])
            held = HeldSession(self._client, transcript, lambda name: Agent(name, "", "", ""))
            self._tasks[child] = asyncio.create_task(self._follow_child(held))
            self._tasks[child].add_done_callback(lambda _: self._tasks.pop(child, None))

    async def _come_back(self, held: HeldSession) -> None:
        """The end of a turn is only shown, and may have been missed: one that is not under way any more has ended. So
        are questions: those of a server that went away are asked again by the next one."""
        try:
            there = await held.look()
            await self._asked.catch_up(held.session.id)
        except ServerAwayError:
            return  # the feed notices too, and comes back once more
        ended = held.in_turn and not there.busy
        held.mirror.in_turn = there.busy
        if ended:
            self._bus.publish(LoopCompletedEvent(session_id=held.session.id, termination_reason="aborted"))

    def _fail(self, session_id: str, name: str, words: str) -> None:
        self._bus.publish(ErrorEvent(session_id=session_id, error_type=name, message=words))
