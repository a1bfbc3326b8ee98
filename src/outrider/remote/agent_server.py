"""Runs turns for agents of other processes (peers) and streams the answers as deltas."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import TurnOutcome
from outrider.engine.child_sessions import DelegatedLimits
from outrider.engine.engine import Engine
from outrider.engine.frontend import was_cut_off
from outrider.engine.results import RunResult
from outrider.errors import OutriderError
from outrider.event_bus import EventStream
from outrider.permissions.modes import stricter_mode
from outrider.presentation.turn_updates import missing_text
from outrider.types.events import (
    ActivityEvent,
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    FilesRestoredEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
    is_standard_event,
)
from outrider.types.ids import new_id
from outrider.types.modes import Mode
from outrider.types.parts import (
    FilePart,
    Part,
    ReasoningPart,
    RecordPart,
    TextPart,
    ToolPart,
    is_standard_part,
    is_withdrawn,
)
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    PartEnd,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    TextDelta,
)

_FINISH_REASONS: dict[str, FinishReason] = {"completed": "stop", "refusal": "refusal", "length": "length"}


_UnsentEvent = (  # the turn of the caller has its own; the end of the answer has the error and the usage
    ActivityEvent
    | ToolInputDeltaEvent
    | ProcessStartedEvent
    | ProcessOutputEvent
    | ProcessExitedEvent
    | LoopCompletedEvent
    | LLMRequestEvent
    | LLMResponseEvent
    | MessageAddedEvent
    | PartDeltaEvent
    | PartUpdatedEvent
    | RetryScheduledEvent
    | ContextCompactionEvent
    | BudgetExceededEvent
    | ErrorEvent
    | SessionUpdatedEvent
    | FilesRestoredEvent
    | DeltasDroppedEvent
)


class _StreamedPart:
    """A part of the answer and the text that was sent for it so far."""

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.text = ""

    def append_text(self, text: str) -> Delta:
        self.text += text
        return TextDelta(self.index, text) if self.kind == "text" else ReasoningDelta(self.index, text)


class AnswerDeltaBuilder:
    """Converts events of a turn into deltas of one answer. The text of the last step is the answer; text of earlier
    steps is sent again as reasoning; files of all steps are part of the answer."""

    def __init__(self, session_id: str, agent: str) -> None:
        self._session_id = session_id
        self._agent = agent
        self._session_ids = {session_id}
        self._user_messages: set[str] = set()  # ids of user messages
        self._parts: dict[str, _StreamedPart] = {}  # parts of the current step, by part id
        self._files: list[FilePart] = []  # files of the model in the current step
        self._count = 0

    def accepts_event(self, event: Event) -> bool:
        """Returns whether the event belongs to the session or to one of its child sessions."""
        if event.session_id not in self._session_ids:
            return False
        if isinstance(event, AgentCalledEvent):
            self._session_ids.add(event.child_session_id)
        return True

    def start_answer(self) -> Iterator[Delta]:
        """Yields the first deltas. An empty reasoning part carries the session id, so that the caller can store it
        before any text arrives."""
        yield AnswerStart(self._session_id, self._agent)
        streamed = self._add_part("", "reasoning")
        yield PartStart(streamed.index, "reasoning")
        yield self._end_part(self._parts.pop(""))

    def event_deltas(self, event: Event) -> Iterator[Delta]:
        """Yields the deltas of one event; the caller knows no event class of this program."""
        if is_standard_event(event):
            yield from self._standard_deltas(event)

    def _standard_deltas(self, event: StandardEvent) -> Iterator[Delta]:
        is_own = event.session_id == self._session_id
        match event:
            case MessageAddedEvent(role="user") if is_own:
                self._user_messages.add(event.message_id)
            case PartDeltaEvent() if is_own:
                yield from self._append_text(event.part_id, event.field, event.delta)
            case PartUpdatedEvent(part=part) if is_own and is_standard_part(part):
                yield from self._part_deltas(event, part)
            case LLMRequestEvent() | RetryScheduledEvent() if is_own:
                yield from self._end_step(withdraws=isinstance(event, RetryScheduledEvent))
            case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
                yield RemoteEvent(_without_session(event))
            case SessionUpdatedEvent(changes={"question": _} | {"settled": _}):
                yield RemoteEvent(_without_session(event))
            case PartDeltaEvent() | LoopCompletedEvent() if not is_own:
                yield RemoteEvent(event)
            case PartUpdatedEvent(part=ToolPart()):
                yield RemoteEvent(event)
            case (
                ToolExecutionStartedEvent()
                | ToolExecutionCompletedEvent()
                | ToolOutputEvent()
                | AgentCalledEvent()
                | AgentReturnedEvent()
            ):
                yield RemoteEvent(_without_session(event) if is_own else event)
            case _:
                _ignored: _UnsentEvent = event

    def finish_answer(self, end: TurnOutcome) -> Iterator[Delta]:
        """Closes the open parts, sends the final output if it was not streamed, and yields Finish unless the turn
        failed."""
        if end.reason not in _FINISH_REASONS:
            yield from map(self._end_part, self._parts.values())
            return
        if end.output != "".join(streamed.text for streamed in self._parts.values() if streamed.kind == "text"):
            yield from self._close_as_reasoning()
            yield from self._append_text("answer", "text", end.output)
        yield from map(self._end_part, self._parts.values())
        yield from self._send_files()
        yield Finish(_FINISH_REASONS[end.reason], end.reason)

    def _part_deltas(self, event: PartUpdatedEvent, part: Part) -> Iterator[Delta]:
        match part:
            case TextPart() | ReasoningPart():
                yield from self._complete_text(part)
            case ToolPart():
                yield RemoteEvent(_without_session(event))
            case FilePart():
                if part.message_id not in self._user_messages and not is_withdrawn(part):
                    self._files.append(part)
            case _:
                _ignored: RecordPart = part  # the events above report what the caller needs

    def _end_step(self, *, withdraws: bool) -> Iterator[Delta]:
        yield from self._close_as_reasoning()
        if withdraws:
            self._files.clear()
        yield from self._send_files()

    def _send_files(self) -> Iterator[Delta]:
        """Sends the files of a step that has ended, because no delta can withdraw one."""
        files, self._files = self._files, []
        for file in files:
            yield PartStart(self._count, "file")
            yield PartEnd(self._count, mime=file.mime, url=file.url)
            self._count += 1

    def _append_text(self, part_id: str, kind: str, text: str) -> Iterator[Delta]:
        if part_id not in self._parts:
            streamed = self._add_part(part_id, kind)
            yield PartStart(streamed.index, "text" if kind == "text" else "reasoning")
        yield self._parts[part_id].append_text(text)

    def _complete_text(self, part: TextPart | ReasoningPart) -> Iterator[Delta]:
        """Yields the end of a model's text that its deltas did not contain."""
        if part.message_id in self._user_messages or is_withdrawn(part):
            return
        streamed = self._parts.get(part.id)
        new_text = missing_text(streamed.text if streamed else "", part.text)
        if new_text:
            yield from self._append_text(part.id, part.part_type, new_text)
        elif new_text is None and streamed:
            yield from self._restart_part(streamed, part.part_type, part.text)

    def _close_as_reasoning(self) -> Iterator[Delta]:
        """Ends the parts of a step that another step follows: its text becomes reasoning."""
        parts, self._parts = self._parts, {}
        for streamed in parts.values():
            if streamed.kind == "text":
                yield from self._restart_part(streamed, "reasoning", streamed.text)
            yield self._end_part(streamed)

    def _restart_part(self, streamed: _StreamedPart, kind: str, text: str) -> Iterable[Delta]:
        streamed.kind, streamed.text = kind, ""
        return PartStart(streamed.index, "text" if kind == "text" else "reasoning"), streamed.append_text(text)

    def _add_part(self, part_id: str, kind: str) -> _StreamedPart:
        streamed = self._parts[part_id] = _StreamedPart(self._count, kind)
        self._count += 1
        return streamed

    def _end_part(self, streamed: _StreamedPart) -> PartEnd:
        return PartEnd(streamed.index, {"session_id": self._session_id})


def _without_session(event: Event) -> Event:
    """Removes the session and agent from the event. The receiver assigns it to its own session, which waits for this
    turn."""
    return replace(event, session_id="", agent_name="", parent_call_id="")


PEER_SENDER = "peer"
MAX_REMEMBERED_REQUESTS = 1000  # clients repeat a request within a minute
KEEPALIVE_SECONDS = 15.0  # interval of usage deltas that keep the connection alive


class FailedTurn(msgspec.Struct, frozen=True):
    """The last item of a turn that returned no answer."""

    reason: str
    message: str = ""


class PeerTurn(msgspec.Struct, frozen=True, eq=False):
    """One listener of a turn; `is_repeat` is set if the same request id was received before."""

    session_id: str
    request_id: str
    is_repeat: bool


class PeerTurnRegistry:
    """Starts each request id once. A client that repeats a request because it received no response joins the running
    turn, continues it if it was interrupted, or receives its result."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Tasks that open sessions, by request id, oldest first.
        self._sessions: dict[str, asyncio.Task[str]] = {}
        self._limits: dict[str, DelegatedLimits] = {}  # with the usage, by request id
        self._listeners: dict[str, PeerTurn] = {}  # the latest listener, by session id
        self._closing: dict[str, asyncio.Task[None]] = {}

    async def start_turn(
        self, request_id: str, session_id: str, agent: str, mode: Mode, *, resume: bool = False
    ) -> PeerTurn:
        """Opens the given session, or a new session of the named agent. With `resume` the session has received the
        request before, perhaps from another process of this server."""
        request_id = request_id or new_id()
        again = request_id in self._sessions or (resume and bool(session_id))
        if request_id not in self._sessions:
            self._remember_request(
                request_id, asyncio.create_task(_open_session(self._engine, session_id, agent, mode))
            )
        session_id = await asyncio.shield(self._sessions[request_id])
        turn = self._listeners[session_id] = PeerTurn(session_id, request_id, again)
        if (closing := self._closing.get(session_id)) is not None:
            await asyncio.wait([closing])
        await self._engine.open(session_id)
        return turn

    async def stream_answer(
        self, turn: PeerTurn, content: list[Any], limits: DelegatedLimits
    ) -> AsyncGenerator[Delta | FailedTurn, None]:
        """Streams the answer. When the listener disconnects, the turn is aborted unless another listener has joined
        it."""
        try:
            async with aclosing(self._answer_deltas(turn, content, limits)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            if self._listeners.get(turn.session_id) is turn:
                del self._listeners[turn.session_id]
                # The server cancels a disconnected request repeatedly; the shielded task still aborts the turn.
                closing = self._closing[turn.session_id] = asyncio.create_task(self._close_session(turn.session_id))
                await asyncio.shield(closing)

    async def _answer_deltas(
        self, turn: PeerTurn, content: list[Any], limits: DelegatedLimits
    ) -> AsyncGenerator[Delta | FailedTurn, None]:
        engine, session_id = self._engine, turn.session_id
        # What the turn has used before a repeated request is part of its usage, also if the session was closed.
        limits = self._limits.setdefault(turn.request_id, limits)
        engine.runtime.delegated_limits[session_id] = limits
        builder = AnswerDeltaBuilder(session_id, engine.live[session_id].agent.name)
        async with engine.bus.stream(builder.accepts_event) as events:
            try:
                end = await self._start_or_join_turn(turn, content)
            except OutriderError as error:  # the input was not stored; the response has started
                yield FailedTurn("error", error.message)
                return
            end.add_done_callback(lambda _: events.close())
            for delta in builder.start_answer():
                yield delta
            async for delta in _follow_events(events, builder, limits):
                yield delta
        yield limits.report_usage()
        for delta in builder.finish_answer(end.result()):
            yield delta
        if failed := _failed_turn(end.result()):
            yield failed

    async def _start_or_join_turn(self, turn: PeerTurn, content: list[Any]) -> asyncio.Future[RunResult[str]]:
        engine, live = self._engine, self._engine.live[turn.session_id]
        if turn.is_repeat and not live.in_turn and was_cut_off(live.session.messages):
            return asyncio.ensure_future(engine.resume(turn.session_id))
        return await engine.enqueue(turn.session_id, content, input_id=turn.request_id, sender=PEER_SENDER)

    async def _close_session(self, session_id: str) -> None:
        try:
            if (live := self._engine.live.get(session_id)) is not None:
                await live.abort()
            await self._engine.close(session_id)
        finally:
            del self._closing[session_id]

    def _remember_request(self, request_id: str, opening: "asyncio.Task[str]") -> None:
        """Stores the task that opens the session. A request whose session could not be opened may be repeated."""

        def forget(task: "asyncio.Task[str]") -> None:
            if task.cancelled() or task.exception() is not None:
                self._sessions.pop(request_id, None)

        self._sessions[request_id] = opening
        opening.add_done_callback(forget)
        while len(self._sessions) > MAX_REMEMBERED_REQUESTS:
            oldest = next(iter(self._sessions))
            del self._sessions[oldest]
            self._limits.pop(oldest, None)


async def _open_session(engine: Engine, session_id: str, agent: str, mode: Mode) -> str:
    """Opens the session in the stricter of the caller's and the agent's mode, and returns its id."""
    if not session_id:
        chosen = engine.runtime.find_agent(agent)
        return await engine.create(agent=chosen.name, mode=stricter_mode(mode, chosen.mode))
    session = await engine.open(session_id)
    allowed_mode = stricter_mode(mode, engine.runtime.find_agent(session.agent).mode)
    if session.mode != allowed_mode:
        await engine.set_mode(session_id, allowed_mode)
    return session_id


async def _follow_events(
    events: EventStream, builder: AnswerDeltaBuilder, limits: DelegatedLimits
) -> AsyncGenerator[Delta, None]:
    while True:
        event: Event | None = None
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                event = await anext(events)
        except TimeoutError:
            yield limits.report_usage()
        except StopAsyncIteration:
            return
        if event is not None:
            for delta in builder.event_deltas(event):
                yield delta


def _failed_turn(end: TurnOutcome) -> FailedTurn | None:
    if end.reason in ("completed", "length", "refusal"):
        return None
    return FailedTurn(end.reason, end.error.message if end.error else end.output)
