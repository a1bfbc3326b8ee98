"""Follows open remote sessions and their child sessions, and publishes their events on the local bus."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from itertools import chain, repeat
from time import monotonic
from typing import Any

import msgspec

from outrider.agents.turn_state import TerminationReason, TurnEnd
from outrider.engine.questions import AskedQuestion
from outrider.errors import OutriderError, ServerAwayError, SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.remote.client import ServerClient, error_by_name
from outrider.remote.mirror import (
    FeedConnected,
    FeedDisconnected,
    FeedItem,
    SessionFeed,
    SessionMirror,
    StoredChange,
    TransientEvents,
)
from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.sessions.session import Session
from outrider.types.agents import Agent
from outrider.types.events import AgentCalledEvent, ErrorEvent, Event, LoopCompletedEvent, SessionUpdatedEvent
from outrider.types.messages import Message
from outrider.types.modes import ReasoningEffort
from outrider.types.parts import ModelRef

PAGE_MESSAGES = 500  # messages per request
RECENT_MESSAGES = 100  # messages loaded when a session is opened
MAX_NEW_MESSAGES = 50  # messages per request for new messages


class RemoteSessionStatus(msgspec.Struct, frozen=True):
    """The state of a session on the server."""

    busy: bool = False
    broke_off: bool = False
    model: str = ""
    effort: ReasoningEffort | None = None
    context_limit: int | None = None


class RemoteSession:
    """A followed session, with the interface of an open local session."""

    def __init__(
        self,
        client: ServerClient,
        transcript: SessionTranscript,
        agent: Callable[[str], Agent] = lambda name: Agent(name, "", "", ""),
    ) -> None:
        self._client = client
        self._agent = agent
        self.mirror = SessionMirror(transcript, self._fetch_new_messages)
        self.status = RemoteSessionStatus()
        self.has_all_messages = transcript.first
        self.is_connected = False
        self.is_closed = False  # the follower task has ended
        self._changed = asyncio.Event()

    @property
    def session(self) -> Session:
        return self.mirror.session

    @property
    def in_turn(self) -> bool:
        return self.mirror.in_turn

    @property
    def agent(self) -> Agent:
        """The agent of the session, with the model and the effort that it uses on the server."""
        agent = self._agent(self.session.agent)
        if self.status.effort is not None:
            agent = msgspec.structs.replace(agent, reasoning_effort=self.status.effort)
        provider, _, model = self.status.model.partition("/")
        return msgspec.structs.replace(agent, provider=provider, model=model) if model else agent

    async def use_model(self, model: ModelRef | None) -> None:
        name = str(model) if model else ""
        self.status = await self._client.post(
            f"{session_path(self.session.id)}/model", {"model": name}, RemoteSessionStatus
        )

    async def use_effort(self, effort: ReasoningEffort | None) -> None:
        self.status = await self._client.post(
            f"{session_path(self.session.id)}/effort", {"effort": effort}, RemoteSessionStatus
        )

    async def refresh_status(self) -> RemoteSessionStatus:
        """Opens the session on the server if needed, and returns its current status."""
        path = f"{session_path(self.session.id)}/open"
        self.status = await self._client.post(path, {"take_over": False}, RemoteSessionStatus)
        return self.status

    def mark_closed(self) -> None:
        """Ends the waits for a session that is no longer followed."""
        self.is_closed = True
        self.notify_waiters()

    def notify_waiters(self) -> None:
        """Wakes the tasks that wait in `wait_until`."""
        self._changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds or the session is closed."""
        while not (condition() or self.is_closed):
            self._changed.clear()
            await self._changed.wait()

    async def _fetch_new_messages(self) -> Sequence[Message]:
        last_id = self.session.messages[-1].id if self.session.messages else None
        return (await fetch_messages(self._client, self.session.id, MAX_NEW_MESSAGES, after=last_id)).messages


async def fetch_messages(client: ServerClient, session_id: str, limit: int, **position: Any) -> SessionTranscript:
    """Returns the last messages, the last ones before a message, or the first ones after a message."""
    return await client.get(f"{session_path(session_id)}/messages", SessionTranscript, limit=limit, **position)


async def fetch_recent(client: ServerClient, session_id: str) -> SessionTranscript:
    return await fetch_messages(client, session_id, RECENT_MESSAGES)


async def fetch_transcript(client: ServerClient, session_id: str) -> SessionTranscript:
    """Reads all pages from the newest to the oldest. Changes during the read have higher sequence numbers than the
    result, and arrive with the feed."""
    newest = page = await fetch_messages(client, session_id, PAGE_MESSAGES)
    messages, drafts, damaged = list(page.messages), set(page.drafts), [*page.damaged]
    while not page.first and messages:
        page = await fetch_messages(client, session_id, PAGE_MESSAGES, before=messages[0].id)
        if not page.messages:
            break
        messages[:0] = page.messages
        drafts |= page.drafts
        damaged[:0] = page.damaged
    return SessionTranscript(newest.session, messages, tuple(damaged), first=True, drafts=frozenset(drafts))


async def fetch_session(client: ServerClient, session_id: str) -> StoredSession:
    return await client.get(session_path(session_id), StoredSession)


def session_path(session_id: str) -> str:
    return f"/api/sessions/{session_id}"


class RemoteQuestions:
    """Tracks which model questions are open, per followed session, to publish what was missed during a disconnect."""

    def __init__(self, client: ServerClient, bus: EventBus) -> None:
        self._client = client
        self._bus = bus
        self._known: dict[str, dict[str, str]] = {}

    def observe_event(self, followed: str, event: Event) -> None:
        """Records a question or its answer in a followed session or in one of its child sessions."""
        if not isinstance(event, SessionUpdatedEvent):
            return
        questions = self._known.setdefault(followed, {})
        if question := event.changes.get("question"):
            questions[question["id"]] = event.session_id
        elif settled := event.changes.get("settled"):
            questions.pop(settled, None)

    def forget_session(self, followed: str) -> None:
        self._known.pop(followed, None)

    async def publish_missed(self, followed: str) -> None:
        """Publishes the events of questions that were asked or settled while the feed was disconnected."""
        path = "/api/questions"
        open_questions: list[AskedQuestion] = await self._client.get(path, list[AskedQuestion], session_id=followed)
        questions = self._known.get(followed, {})
        settled = questions.keys() - {question.id for question in open_questions}
        events = [
            SessionUpdatedEvent(session_id=questions[question_id], changes={"settled": question_id})
            for question_id in settled
        ]
        for question in open_questions:
            if question.id not in questions:
                changes = {"question": msgspec.to_builtins(question)}
                events.append(
                    SessionUpdatedEvent(session_id=question.session_id, agent_name=question.agent, changes=changes)
                )
        for event in events:
            self.observe_event(followed, event)
            self._bus.publish(event)


POLL_SECONDS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0)  # between the attempts to reach a server; the last one repeats


class ServerConnection:
    """Tracks whether the server answers. After a failed request the server is polled until it does. `next_attempt` is
    the time (monotonic) of the next request while it is away; `on_change` is called when one of them changes."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._polling: asyncio.Task[None] | None = None
        self.is_away = False
        self.next_attempt = 0.0
        self.on_change: Callable[[], object] = lambda: None

    async def wait_until_reachable(self) -> None:
        """Returns as soon as the server answers. All callers share one task, which polls. Raises the error if the
        server answers with one, e.g. because it has another token now."""
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll_server())
        await asyncio.shield(self._polling)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def _poll_server(self) -> None:
        delays: Iterator[float] = chain(POLL_SECONDS, repeat(POLL_SECONDS[-1]))
        try:
            while not await self._answers():
                delay = next(delays)
                self.is_away, self.next_attempt = True, monotonic() + delay
                self.on_change()
                await asyncio.sleep(delay)
        finally:
            self.is_away, self._polling = False, None
            self.on_change()

    async def _answers(self) -> bool:
        try:
            await self._client.get("/api/health")
        except ServerAwayError:
            return False
        return True


MAX_CHILD_ATTEMPTS = 50  # attempts to find the session of a call that just started
RETRY_SECONDS = 0.1  # seconds between attempts
DISCONNECTED = "Disconnected"


class SessionFollower:
    """Runs one task per followed session; `close` cancels all of them."""

    def __init__(self, client: ServerClient, bus: EventBus, connection: ServerConnection) -> None:
        self._client = client
        self._bus = bus
        self._connection = connection
        self._questions = RemoteQuestions(client, bus)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start_following(self, remote: RemoteSession) -> None:
        """Returns once the feed is connected, so that no later event is missed. Replaces the task that follows the
        session already, such as that of a called agent."""
        await self._cancel_task(remote.session.id)
        task = self._tasks[remote.session.id] = asyncio.create_task(self._follow_until_error(remote))
        task.add_done_callback(lambda _: remote.mark_closed())  # it is also called for a task that was never started
        await remote.wait_until(lambda: remote.is_connected)

    async def stop_following(self, session_id: str) -> None:
        self._questions.forget_session(session_id)
        await self._cancel_task(session_id)

    async def _cancel_task(self, session_id: str) -> None:
        while (task := self._tasks.pop(session_id, None)) is not None:  # another one may start during the wait
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        for session_id in list(self._tasks):
            await self.stop_following(session_id)

    async def _follow_until_error(self, remote: RemoteSession) -> None:
        try:
            while True:
                await self._follow_feed(remote)
        except OutriderError as error:
            self._publish_error(remote.session.id, type(error).__name__, error.message)
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            text = f"the server sent data that this version cannot read: {error}"
            self._publish_error(remote.session.id, type(error).__name__, text)

    async def _follow_feed(self, remote: RemoteSession) -> None:
        """Follows the feed until the server becomes unreachable during a request; the next feed resumes at the same
        sequence number."""
        with suppress(ServerAwayError):
            async with aclosing(self._open_feed(remote)) as feed:
                async for item in feed:
                    await self._handle_item(remote, item)
                    remote.notify_waiters()
        await asyncio.sleep(RETRY_SECONDS)

    def _open_feed(self, remote: RemoteSession) -> AsyncGenerator[FeedItem, None]:
        return SessionFeed(
            self._client, remote.session.id, remote.mirror.seq, is_reconnect=remote.is_connected
        ).stream_items()

    async def _follow_child(self, remote: RemoteSession) -> None:
        """Follows the session of a called agent. Retries while it does not exist, because the call is announced before
        the session is created."""
        for _ in range(MAX_CHILD_ATTEMPTS):
            try:
                await self._follow_turn(remote)
            except SessionNotFoundError:
                await asyncio.sleep(RETRY_SECONDS)
            except OutriderError:
                return  # the parent session is followed too and reports the error
            else:
                return

    async def _follow_turn(self, remote: RemoteSession) -> None:
        """Follows a child session until its turn ends; a child session has one turn."""
        async with aclosing(self._open_feed(remote)) as feed:
            async for item in feed:
                if any(isinstance(event, LoopCompletedEvent) for event in await self._publish_item(remote, item)):
                    return

    async def _handle_item(self, remote: RemoteSession, item: FeedItem) -> None:
        match item:
            case FeedConnected(is_reconnect=False):
                remote.is_connected = True
            case FeedConnected():
                remote.mirror.mark_reconnected()
                await self._resync_session(remote)
            case FeedDisconnected():
                message = f"{self._client.server.url} closed the connection; reconnecting"
                self._publish_error(remote.session.id, DISCONNECTED, message)
                await self._connection.wait_until_reachable()
            case StoredChange() | TransientEvents():
                await self._publish_item(remote, item)

    async def _publish_item(self, remote: RemoteSession, item: FeedItem) -> list[Event]:
        events: list[Event] = []
        match item:
            case StoredChange():
                events = await remote.mirror.apply_change(item)
            case TransientEvents():
                events = await remote.mirror.apply_events(item)
            case FeedConnected():
                remote.is_connected = True
                remote.mirror.mark_reconnected()
            case FeedDisconnected():
                pass
        for event in events:
            self._questions.observe_event(remote.session.id, event)
            self._bus.publish(event)
            if isinstance(event, AgentCalledEvent):
                self._start_child(event)
        return events

    def _start_child(self, called: AgentCalledEvent) -> None:
        child = called.child_session_id
        if child and child not in self._tasks:
            transcript = SessionTranscript(StoredSession(id=child, agent=called.callee), [])
            remote = RemoteSession(self._client, transcript, lambda name: Agent(name, "", "", ""))
            task = self._tasks[child] = asyncio.create_task(self._follow_child(remote))
            task.add_done_callback(lambda _: self._tasks.pop(child) if self._tasks.get(child) is task else None)

    async def _resync_session(self, remote: RemoteSession) -> None:
        """Refreshes the status after a reconnect. The end of a turn is a transient event that may be lost, so a turn
        that no longer runs is published as ended. A restarted server asks its open questions again."""
        try:
            status = await remote.refresh_status()
            await self._questions.publish_missed(remote.session.id)
        except ServerAwayError:
            return  # the feed detects it too and reconnects
        has_ended = remote.in_turn and not status.busy
        remote.mirror.in_turn = status.busy
        if has_ended:
            self._bus.publish(LoopCompletedEvent(session_id=remote.session.id, termination_reason="aborted"))

    def _publish_error(self, session_id: str, name: str, message: str) -> None:
        self._bus.publish(ErrorEvent(session_id=session_id, error_type=name, message=message))


FEED_CATCH_UP_SECONDS = 10.0  # timeout for the feed to deliver the changes before a turn's end


class RemoteTurnEnd(msgspec.Struct, frozen=True):
    """How a turn ended, as the server encodes it."""

    reason: TerminationReason
    output: str = ""
    error: str = ""
    error_type: str = ""

    def to_turn_end(self) -> TurnEnd:
        error = error_by_name(self.error_type, self.error) if self.error_type or self.error else None
        return TurnEnd(self.reason, self.output, error)


class PromptResult(msgspec.Struct, frozen=True):
    id: str
    end: RemoteTurnEnd


class RemoteTurns:
    """Starts turns on the server and waits for their ends. `reconnect_seconds` is how long the server may be
    unreachable before the waiting caller gets the error; None is forever."""

    def __init__(self, client: ServerClient, connection: ServerConnection, reconnect_seconds: float | None) -> None:
        self._client = client
        self._connection = connection
        self._reconnect_seconds = reconnect_seconds

    async def prompt_session(self, remote: RemoteSession, prompt: dict[str, Any]) -> TurnEnd:
        """Queues input and waits for the end of its turn. If the server was restarted in between, it continues the
        turn."""
        was_interrupted = False
        while True:
            try:
                if was_interrupted and await self._is_unfinished(remote, prompt["id"]):
                    return await self.request_turn(remote, "continue", None)
                return await self._send_prompt(remote, prompt)
            except ServerAwayError as error:
                await self._wait_for_server(error)
                was_interrupted = True

    async def request_turn(self, remote: RemoteSession, action: str, body: Any) -> TurnEnd:
        """Sends a request that runs a turn, and returns its end once the feed has delivered all changes before it."""
        turn_end = await self._client.post(
            f"{session_path(remote.session.id)}/{action}", body, RemoteTurnEnd, unlimited=True
        )
        return await self._wait_for_feed(remote, turn_end)

    async def _send_prompt(self, remote: RemoteSession, prompt: dict[str, Any]) -> TurnEnd:
        receipt = await self._client.post(
            f"{session_path(remote.session.id)}/prompt", prompt, PromptResult, unlimited=True
        )
        return await self._wait_for_feed(remote, receipt.end)

    async def _wait_for_feed(self, remote: RemoteSession, turn_end: RemoteTurnEnd) -> TurnEnd:
        last_seq = (await fetch_session(self._client, remote.session.id)).seq
        with suppress(TimeoutError):
            async with asyncio.timeout(FEED_CATCH_UP_SECONDS):
                await remote.wait_until(lambda: remote.mirror.seq >= last_seq and not remote.in_turn)
        return turn_end.to_turn_end()

    async def _is_unfinished(self, remote: RemoteSession, input_id: str) -> bool:
        """Returns whether a turn took the input and has not ended."""
        status = await remote.refresh_status()
        last_seq = (await fetch_session(self._client, remote.session.id)).seq
        with suppress(TimeoutError):
            async with asyncio.timeout(FEED_CATCH_UP_SECONDS):
                await remote.wait_until(lambda: remote.mirror.seq >= last_seq)
        return input_id in remote.mirror.taken_inputs and (status.busy or status.broke_off)

    async def _wait_for_server(self, error: ServerAwayError) -> None:
        """Waits until the server answers. Raises the error after `reconnect_seconds`."""
        try:
            async with asyncio.timeout(self._reconnect_seconds):
                await self._connection.wait_until_reachable()
                await asyncio.sleep(RETRY_SECONDS)  # a server that is being stopped still answers some requests
        except TimeoutError:
            raise error from None
