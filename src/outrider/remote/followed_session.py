"""Follows the sessions that are open here, and those that their agents open, and tells what happens in them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any

import msgspec

from outrider.agents.turn_state import TerminationReason, TurnEnd
from outrider.engine.questions import AskedQuestion
from outrider.errors import OutriderError, ServerAwayError, SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.remote.client import Client, named_error
from outrider.remote.feed import Feed, Heard, Joined, Kept, Lost, Shown
from outrider.remote.mirror import Mirror
from outrider.sessions.records import StoredSession, Transcript
from outrider.sessions.session import Session
from outrider.types.agents import Agent
from outrider.types.events import AgentCalledEvent, ErrorEvent, Event, LoopCompletedEvent, SessionUpdatedEvent
from outrider.types.messages import Message
from outrider.types.parts import ModelRef

PAGE = 500  # messages of one request
RECENT = 100  # messages that a session is opened with; a screen shows fewer
NEWER = 50  # messages, at most, that nobody has heard of


class Standing(msgspec.Struct, frozen=True):
    """How a session stands on the server."""

    busy: bool = False
    broke_off: bool = False
    model: str = ""
    context_limit: int | None = None


class HeldSession:
    """The same face as an open session of this process."""

    def __init__(
        self,
        client: Client,
        transcript: Transcript,
        agent: Callable[[str], Agent] = lambda name: Agent(name, "", "", ""),
    ) -> None:
        self._client = client
        self._agent = agent
        self.mirror = Mirror(transcript, self._newer)
        self.standing = Standing()
        self.whole = transcript.first
        self.joined = False
        self.over = False  # nobody follows any more
        self._news = asyncio.Event()

    @property
    def session(self) -> Session:
        return self.mirror.session

    @property
    def in_turn(self) -> bool:
        return self.mirror.in_turn

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model that it has there."""
        agent = self._agent(self.session.agent)
        provider, _, model = self.standing.model.partition("/")
        return msgspec.structs.replace(agent, provider=provider, model=model) if model else agent

    async def use_model(self, model: ModelRef | None) -> None:
        name = f"{model.provider}/{model.model}" if model else ""
        self.standing = await self._client.post(f"{path_of(self.session.id)}/model", {"model": name}, Standing)

    async def look(self, *, take_over: bool = False) -> Standing:
        """How it stands there now; from then on it is open there."""
        wanted = {"take_over": take_over}
        self.standing = await self._client.post(f"{path_of(self.session.id)}/open", wanted, Standing)
        return self.standing

    def heard(self) -> None:
        """Whoever waits for something to come looks again."""
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns also where nothing more will come."""
        while not (condition() or self.over):
            self._news.clear()
            await self._news.wait()

    async def _newer(self) -> Sequence[Message]:
        known = self.session.messages[-1].id if self.session.messages else None
        return (await messages(self._client, self.session.id, NEWER, after=known)).messages


async def messages(client: Client, session_id: str, limit: int, **place: Any) -> Transcript:
    """The last of them, or the last ones before a message, or the first after one."""
    return await client.get(f"{path_of(session_id)}/messages", Transcript, limit=limit, **place)


async def recent(client: Client, session_id: str) -> Transcript:
    return await messages(client, session_id, RECENT)


async def whole_transcript(client: Client, session_id: str) -> Transcript:
    """From the end to the beginning: what changes meanwhile is newer than its number, and comes with the feed."""
    newest = page = await messages(client, session_id, PAGE)
    found, drafts = list(page.messages), set(page.drafts)
    while not page.first and found:
        page = await messages(client, session_id, PAGE, before=found[0].id)
        if not page.messages:
            break
        found[:0] = page.messages
        drafts |= page.drafts
    return Transcript(newest.session, found, first=True, drafts=frozenset(drafts))


async def stored(client: Client, session_id: str) -> StoredSession:
    return await client.get(path_of(session_id), StoredSession)


def path_of(session_id: str) -> str:
    return f"/api/sessions/{session_id}"


class OpenThere:
    """The questions that wait, as far as was heard; by the session that is followed."""

    def __init__(self, client: Client, bus: EventBus) -> None:
        self._client = client
        self._bus = bus
        self._known: dict[str, dict[str, str]] = {}

    def hear(self, followed: str, event: Event) -> None:
        """Of a session that is followed, or of one below it."""
        if not isinstance(event, SessionUpdatedEvent):
            return
        known = self._known.setdefault(followed, {})
        if question := event.changes.get("question"):
            known[question["id"]] = event.session_id
        elif settled := event.changes.get("settled"):
            known.pop(settled, None)

    def forget(self, followed: str) -> None:
        self._known.pop(followed, None)

    async def catch_up(self, followed: str) -> None:
        """Tell of what was asked and settled meanwhile, as when it happened."""
        path = "/api/questions"
        there: list[AskedQuestion] = await self._client.get(path, list[AskedQuestion], session_id=followed)
        known = self._known.get(followed, {})
        settled = known.keys() - {question.id for question in there}
        events = [SessionUpdatedEvent(session_id=known[gone], changes={"settled": gone}) for gone in settled]
        for question in there:
            if question.id not in known:
                changes = {"question": msgspec.to_builtins(question)}
                events.append(
                    SessionUpdatedEvent(session_id=question.session_id, agent_name=question.agent, changes=changes)
                )
        for event in events:
            self.hear(followed, event)
            self._bus.publish(event)


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


PAUSE_TURNS = 0.25  # seconds between two looks for a server that went away
LAST_WORDS = 10.0  # seconds in which what happened until the end has to be heard


class Ended(msgspec.Struct, frozen=True):
    """How a turn ended, as the server writes it."""

    reason: TerminationReason
    output: str = ""
    error: str = ""
    error_type: str = ""

    def turn_end(self) -> TurnEnd:
        error = named_error(self.error_type, self.error) if self.error_type or self.error else None
        return TurnEnd(self.reason, self.output, error)


class Prompted(msgspec.Struct, frozen=True):
    id: str
    end: Ended


class Turns:
    """`patience` is how many seconds a server may be away before somebody who waits gives up; None is for ever."""

    def __init__(self, client: Client, patience: float | None) -> None:
        self._client = client
        self._patience = patience

    async def prompt(self, held: HeldSession, prompt: dict[str, Any]) -> TurnEnd:
        """Put input into a session and wait for the end of its turn. If the server broke off, the turn goes on."""
        broke = False
        while True:
            try:
                if broke and await self._is_open(held, prompt["id"]):
                    return await self.waited(held, "continue", None)
                return await self._put(held, prompt)
            except ServerAwayError as error:
                await self._returned(error)
                broke = True

    async def waited(self, held: HeldSession, what: str, body: Any) -> TurnEnd:
        """The end of what is asked for, once all that led to it has been heard."""
        ended = await self._client.post(f"{path_of(held.session.id)}/{what}", body, Ended, patient=True)
        return await self._heard(held, ended)

    async def _put(self, held: HeldSession, prompt: dict[str, Any]) -> TurnEnd:
        put = await self._client.post(f"{path_of(held.session.id)}/prompt", prompt, Prompted, patient=True)
        return await self._heard(held, put.end)

    async def _heard(self, held: HeldSession, ended: Ended) -> TurnEnd:
        last = (await stored(self._client, held.session.id)).seq
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await held.until(lambda: held.mirror.seq >= last and not held.in_turn)
        return ended.turn_end()

    async def _is_open(self, held: HeldSession, input_id: str) -> bool:
        """Whether a turn took the input and has not come to its end."""
        there = await held.look()
        last = (await stored(self._client, held.session.id)).seq
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await held.until(lambda: held.mirror.seq >= last)
        return input_id in held.mirror.taken and (there.busy or there.broke_off)

    async def _returned(self, error: ServerAwayError) -> None:
        """Raises the error if the server stays away for too long."""
        since = monotonic()
        while self._patience is None or monotonic() - since < self._patience:
            with suppress(ServerAwayError):
                await self._client.get("/api/health")
                return
            await asyncio.sleep(PAUSE_TURNS)
        raise error
