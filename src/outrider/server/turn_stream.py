"""Turns for clients of other protocols (OpenAI, AG-UI, A2A): starts them, follows them, and pauses at approvals.

A client gets text, calls and the end of a turn as items. Where its protocol can ask, the stream ends at an open
approval while the turn waits on the server; the next request of the client brings the answer and follows the turn."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from outrider.engine.archive import Approval, TurnEnd, TurnOutcome
from outrider.engine.engine import Engine
from outrider.engine.frontend import add_history
from outrider.errors import OutriderError, SessionInUseError
from outrider.presentation.turn_updates import CallReporter, CallUpdate, missing_text
from outrider.server.event_stream import is_descendant
from outrider.types.events import (
    ActivityEvent,
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    CallProgressEvent,
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
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    is_standard_event,
)
from outrider.types.messages import Message
from outrider.types.parts import (
    FilePart,
    Part,
    ReasoningPart,
    RecordPart,
    TextPart,
    Tokens,
    ToolPart,
    is_standard_part,
    is_withdrawn,
)

KEEPALIVE_SECONDS = 15.0
GATHER_SECONDS = 0.05  # calls of one answer ask at the same time; a client gets their approvals together
MAX_REMEMBERED_TURNS = 1000


_UnsentEvent = (  # these protocols have no item for them; the end of the turn has its error
    ActivityEvent
    | CallProgressEvent
    | LoopCompletedEvent
    | LLMResponseEvent
    | MessageAddedEvent
    | PartDeltaEvent
    | PartUpdatedEvent
    | RetryScheduledEvent
    | ContextCompactionEvent
    | BudgetExceededEvent
    | ErrorEvent
    | AgentCalledEvent
    | AgentReturnedEvent
    | SessionUpdatedEvent
    | FilesRestoredEvent
    | DeltasDroppedEvent
    | ToolApprovalRequestedEvent  # `_turn_items` reads the open approvals
    | ToolApprovalResultEvent
)

_UnsentPart = FilePart | RecordPart  # answers of these protocols are text and calls; the stored session has the files


class TextChunk(msgspec.Struct, frozen=True):
    """A chunk of text or reasoning; `part_id` changes with each part."""

    part_id: str
    text: str
    is_reasoning: bool = False


class ApprovalsNeeded(msgspec.Struct, frozen=True):
    """The last item of a stream that pauses: the turn waits for answers."""

    approvals: tuple[Approval, ...]


class TurnFinished(msgspec.Struct, frozen=True):
    """The last item of a turn."""

    reason: str
    output: str
    error: OutriderError | None = None
    tokens: Tokens = Tokens()


class StillRunning(msgspec.Struct, frozen=True):
    """Sent while nothing happens, so that the connection stays open."""


TurnItem = TextChunk | CallUpdate | ApprovalsNeeded | TurnFinished | StillRunning


class TurnInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a turn: the messages of the conversation before it, and the parts of the last one."""

    history: Sequence[Message] = ()
    content: Sequence[Any]
    instructions: str = ""


class ApprovalReply(msgspec.Struct, frozen=True):
    """A client's answer to an approval."""

    approval_id: str
    allow: bool
    words: str = ""


class ProtocolTurns:
    """The turns that clients of other protocols started, by session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turns: dict[str, asyncio.Future[Any]] = {}  # the latest turn of a session, oldest first
        self._closing: set[asyncio.Task[None]] = set()
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by conversation

    def opening_lock(self, conversation: str) -> asyncio.Lock:
        """Returns the lock to hold while the session of a conversation is looked up, and created if it is new."""
        return self._opening.setdefault(conversation, asyncio.Lock())

    async def start(self, session_id: str, turn_input: TurnInput, *, sender: str, input_id: str | None = None) -> None:
        if turn_input.history:
            await add_history(self._engine, session_id, turn_input.history)
        end = await self._engine.enqueue(
            session_id, list(turn_input.content), sender=sender, instructions=turn_input.instructions, input_id=input_id
        )
        self._turns.pop(session_id, None)
        self._turns[session_id] = end
        while len(self._turns) > MAX_REMEMBERED_TURNS:
            self._turns.pop(next(iter(self._turns)))

    async def answer(self, session_id: str, replies: Sequence[ApprovalReply], *, sender: str) -> None:
        """Answers approvals of the session and of the agents that it called; the caller has checked the access. An
        approval that already has an answer is not changed."""
        still_open = {approval.id for approval in await self.open_approvals(session_id)}
        for reply in replies:
            if reply.approval_id in still_open:
                await self._engine.answer(reply.approval_id, allow=reply.allow, by=sender, words=reply.words)
        if session_id not in self._engine.live:
            with suppress(SessionInUseError):  # then the other process continues the turn
                await self._engine.open(session_id)

    async def open_approvals(self, session_id: str) -> tuple[Approval, ...]:
        return tuple(
            [
                approval
                for approval in await self._engine.approvals()
                if await is_descendant(self._engine, approval.session_id, session_id)
            ]
        )

    async def follow(
        self, session_id: str, begin: Callable[[], Awaitable[object]], *, pauses: bool = True, aborts: bool = True
    ) -> AsyncGenerator[TurnItem, None]:
        """Calls `begin`, which starts or continues the turn, and yields its items. With `pauses` the stream ends at an
        approval; otherwise it waits until a user answers it. With `aborts` the turn is aborted if the client
        disconnects."""
        last_item: TurnItem | None = None
        try:
            async with aclosing(self._turn_items(session_id, begin, pauses=pauses)) as items:
                async for item in items:
                    last_item = item
                    yield item
        finally:
            if aborts and not isinstance(last_item, ApprovalsNeeded | TurnFinished):
                # The server cancels a disconnected request repeatedly; the separate task still aborts the turn.
                closing = asyncio.create_task(self._engine.abort(session_id))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                await asyncio.shield(closing)

    async def _turn_items(
        self, session_id: str, begin: Callable[[], Awaitable[object]], *, pauses: bool
    ) -> AsyncGenerator[TurnItem, None]:
        follower = TurnFollower(session_id)
        async with self._engine.bus.stream(follower.accepts_event) as events:
            await begin()
            end = self._turns.get(session_id)
            if end is not None:
                end.add_done_callback(lambda _: events.close())
            approvals = await self._pause(session_id, events) if pauses else ()
            while (event := await _next_event(events)) is not None:
                for item in follower.event_items(event):
                    yield item
                if pauses and not approvals and isinstance(event, ToolApprovalRequestedEvent):
                    await asyncio.sleep(GATHER_SECONDS)
                    approvals = await self.open_approvals(session_id)
                if approvals:
                    events.close()
                if end is None and follower.completed is not None:
                    break
        result = end.result() if end is not None and not approvals else None
        for item in [ApprovalsNeeded(approvals)] if approvals else follower.finish(result):
            yield item

    async def _pause(self, session_id: str, events: Any) -> tuple[Approval, ...]:
        """Returns the open approvals, and closes the stream if there are any; events that it already has are read."""
        approvals = await self.open_approvals(session_id)
        if approvals:
            events.close()
        return approvals


async def _next_event(events: Any) -> Event | StillRunning | None:
    try:
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            return await anext(events)
    except TimeoutError:
        return StillRunning()
    except StopAsyncIteration:
        return None


class TurnFollower:
    """Converts the events of a turn into items."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._user_messages: set[str] = set()
        self._sent: dict[str, str] = {}  # text by part
        self._step_texts: list[str] = []  # parts of the current step
        self._calls = CallReporter("running")
        self.completed: TurnEnd | None = None

    def accepts_event(self, event: Event) -> bool:
        return event.session_id == self._session_id or isinstance(event, ToolApprovalRequestedEvent)

    def event_items(self, event: Event | StillRunning) -> Iterator[TurnItem]:
        if isinstance(event, StillRunning):
            yield event
        elif is_standard_event(event):
            yield from self._standard_items(event)

    def _standard_items(self, event: StandardEvent) -> Iterator[TurnItem]:
        match event:
            case MessageAddedEvent(role="user"):
                self._user_messages.add(event.message_id)
            case LLMRequestEvent():
                self._step_texts = []
            case PartDeltaEvent(field="text" | "reasoning"):
                yield from self._add_text(event.part_id, event.delta, is_reasoning=event.field == "reasoning")
            case PartUpdatedEvent(part=part) if is_standard_part(part):
                yield from self._part_items(part)
            case LoopCompletedEvent() if event.session_id == self._session_id:
                self.completed = TurnEnd(cast("Any", event.termination_reason), event.output)
            case _:
                _ignored: _UnsentEvent = event

    def _part_items(self, part: Part) -> Iterator[TurnItem]:
        match part:
            case TextPart() | ReasoningPart():
                yield from self._complete_text(part)
            case ToolPart():
                yield from self._calls.call_updates(part)
            case _:
                _ignored: _UnsentPart = part

    def finish(self, end: TurnOutcome | None) -> Iterator[TurnItem]:
        """Yields the output if it was not sent as text, and the end."""
        outcome = end or self.completed or TurnEnd("aborted")
        sent_text = "".join(self._sent[part_id] for part_id in self._step_texts)
        if outcome.output and outcome.output.strip() not in sent_text:
            yield TextChunk("output", outcome.output)
        tokens = getattr(getattr(end, "usage", None), "tokens", Tokens())
        yield TurnFinished(outcome.reason, outcome.output, outcome.error, tokens)

    def _add_text(self, part_id: str, text: str, *, is_reasoning: bool) -> Iterator[TurnItem]:
        if part_id not in self._sent and not is_reasoning:
            self._step_texts.append(part_id)
        self._sent[part_id] = self._sent.get(part_id, "") + text
        yield TextChunk(part_id, text, is_reasoning)

    def _complete_text(self, part: TextPart | ReasoningPart) -> Iterator[TurnItem]:
        """Yields the end of a model's text that its deltas did not contain."""
        if part.message_id in self._user_messages or is_withdrawn(part) or getattr(part, "synthetic", False):
            return
        if unsent := missing_text(self._sent.get(part.id, ""), part.text):
            yield from self._add_text(part.id, unsent, is_reasoning=isinstance(part, ReasoningPart))
