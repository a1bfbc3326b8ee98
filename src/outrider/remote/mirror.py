"""A local copy of a session on a server: follows the server's event stream with reconnects, applies its changes and
converts them into the events of a local session."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from types import MappingProxyType
from typing import Any, assert_never

import msgspec

from outrider.errors import NetworkError, ServerAwayError
from outrider.http.transport import HttpResponse, ServerEventReader
from outrider.presentation.items import damage_notice
from outrider.presentation.turn_updates import missing_text
from outrider.remote.client import ServerClient
from outrider.sessions.journal import session_from_stored
from outrider.sessions.records import (
    Approval,
    ApprovalChange,
    Change,
    DamagedChange,
    DeletedChange,
    InboxChange,
    InboxItem,
    MessageChange,
    PartChange,
    SessionChange,
    SessionTranscript,
    StoredSession,
    decode_change,
)
from outrider.types.codec import AnyPart
from outrider.types.events import (
    EVENT_TYPES,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    event_from_dict,
)
from outrider.types.messages import Message
from outrider.types.parts import ReasoningPart, StepFinishPart, TextPart

SILENCE_TIMEOUT = 60.0  # seconds; the server sends a keepalive four times as often
RECONNECT_DELAYS = (0.1, 0.2, 0.4, 0.8, 1.5)  # seconds between reconnection attempts


class FeedConnected(msgspec.Struct, frozen=True):
    """The stream is connected; nothing is missed from here on. With `is_reconnect` there was a gap, in which transient
    events may have been lost."""

    is_reconnect: bool = False


class FeedDisconnected(msgspec.Struct, frozen=True):
    """The connection broke; the feed retries."""


class StoredChange(msgspec.Struct, frozen=True):
    """A stored change of the session; `change` is None for a kind that only newer servers have."""

    seq: int
    change: Change | None


class TransientEvents(msgspec.Struct, frozen=True):
    """Events of one batch that the server does not store."""

    events: list[dict[str, Any]]


FeedItem = FeedConnected | FeedDisconnected | StoredChange | TransientEvents


class SessionFeed:
    """Delivers each stored change exactly once, for as long as the caller iterates."""

    def __init__(self, client: ServerClient, session_id: str, after: int, *, is_reconnect: bool = False) -> None:
        self._client = client
        self._path = f"/api/sessions/{session_id}/events"
        self._after = after
        self._connected, self._is_reconnect = False, is_reconnect
        self._failed_attempts = 0

    async def stream_items(self) -> AsyncGenerator[FeedItem, None]:
        """Yields feed items and reconnects with backoff. Raises the server's error responses."""
        while True:
            async with aclosing(self._read_connection()) as connection:
                async for item in connection:
                    yield item
            if self._connected:
                self._connected = False
                yield FeedDisconnected()
            await asyncio.sleep(RECONNECT_DELAYS[min(self._failed_attempts, len(RECONNECT_DELAYS) - 1)])
            self._failed_attempts += 1

    async def _read_connection(self) -> AsyncGenerator[FeedItem, None]:
        reader = ServerEventReader()
        async with aclosing(self._receive_chunks()) as chunks:
            async for chunk in chunks:
                for item in self._decode_chunk(reader, chunk):
                    yield item

    async def _receive_chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of one connection until it ends for any reason."""
        with suppress(ServerAwayError):
            async with self._client.open_response(
                "GET", self._path, headers={"last-event-id": str(self._after)}
            ) as answer:
                while chunk := await _receive_chunk(answer):
                    yield chunk

    def _decode_chunk(self, reader: ServerEventReader, chunk: bytes) -> Iterator[FeedItem]:
        if not self._connected:
            yield FeedConnected(self._is_reconnect)
            self._connected, self._is_reconnect, self._failed_attempts = True, True, 0
        for name, raw in reader.feed(chunk):
            if name == "live":
                yield TransientEvents(msgspec.json.decode(raw))
            elif name == "change" and (change := _decode_change(raw)).seq > self._after:
                self._after = change.seq
                yield change


def _decode_change(raw: bytes) -> StoredChange:
    change = msgspec.json.decode(raw)
    return StoredChange(change["seq"], decode_change(change))


async def _receive_chunk(response: HttpResponse) -> bytes:
    try:
        async with asyncio.timeout(SILENCE_TIMEOUT):
            return await response.read()
    except TimeoutError:
        raise ServerAwayError("the server sent nothing within the timeout") from None
    except NetworkError as error:
        raise ServerAwayError(error.message) from error


class TextDeltaTracker:
    """Decides which text deltas to publish. For text that was already streaming when the feed connected, it cannot
    know which deltas the stored draft already contains, so such a text grows by its stored drafts only. After the start
    of an answer was seen, all its deltas apply."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._shown: dict[str, str] = {}
        self._stored_only: set[str] = set()
        self._saw_answer_start = False

    def start_answer(self) -> None:
        self._saw_answer_start = True

    def mark_reconnected(self) -> None:
        """Handles a gap, in which deltas may be lost: the open texts grow by their stored drafts only."""
        self._stored_only |= self._shown.keys()
        self._saw_answer_start = False

    def track_stored_text(self, part: TextPart | ReasoningPart) -> None:
        """Records a text part that is known up to its stored draft."""
        self._shown[part.id] = part.text
        self._stored_only.add(part.id)

    def accept_delta(self, event: PartDeltaEvent) -> list[Event]:
        if event.part_id not in self._shown and not self._saw_answer_start:
            self._shown[event.part_id] = ""
            self._stored_only.add(event.part_id)
        if event.part_id in self._stored_only:
            return []
        self._shown[event.part_id] = self._shown.get(event.part_id, "") + event.delta
        return [event]

    def accept_draft(self, part: TextPart | ReasoningPart) -> list[Event] | None:
        """Returns the text that the draft adds; None if the draft does not extend what was published and must replace
        it."""
        published = self._shown.get(part.id, "")
        if published.startswith(part.text):
            return []
        self.track_stored_text(part)
        return self._missing_text(part, published)

    def finish_text(self, part: TextPart | ReasoningPart) -> list[Event]:
        """Returns the missing text of a complete part; nothing for a part that was never streamed."""
        published = self._shown.pop(part.id, None)
        self._stored_only.discard(part.id)
        return [] if published is None else self._missing_text(part, published) or []

    def _missing_text(self, part: TextPart | ReasoningPart, published: str) -> list[Event] | None:
        new_text = missing_text(published, part.text)
        if not new_text:
            return None if new_text is None else []
        field = "reasoning" if isinstance(part, ReasoningPart) else "text"
        return [
            PartDeltaEvent(
                session_id=self._session_id,
                message_id=part.message_id,
                part_id=part.id,
                delta=new_text,
                field=field,
            )
        ]


NewMessagesFetcher = Callable[[], Awaitable[Sequence[Message]]]
_MESSAGE_FIELDS = tuple(name for name in Message.__struct_fields__ if name != "parts")
_SESSION_FIELDS = ("title", "mode", "agent")
_INPUT_CHANGES = {"queued", "taken"}  # published from the stored change instead
_NO_SEQUENCES: Mapping[str, int] = MappingProxyType({})


class SessionMirror:
    """A session and its messages, updated from the feed. `fetch_new_messages` requests the messages after the last
    known one: a message change has no parts, and a user message must be published complete, before any event of its
    answer."""

    def __init__(self, transcript: SessionTranscript, fetch_new_messages: NewMessagesFetcher) -> None:
        self.session = session_from_stored(transcript.session, transcript.messages)
        self.seq = transcript.session.seq
        self._oldest_id = "" if transcript.first or not transcript.messages else transcript.messages[0].id
        self.in_turn = False
        self.taken_inputs: set[str] = set()  # ids of input that a turn has taken
        self._queued_inputs: set[str] = set()  # ids of input that waits in the queue
        self._fetch_new_messages = fetch_new_messages
        self._texts = TextDeltaTracker(self.session.id)
        self._held_step_finishes: dict[str, PartUpdatedEvent] = {}
        for message in transcript.messages:
            for part in message.parts:
                if isinstance(part, TextPart | ReasoningPart) and part.id in transcript.drafts:
                    self._texts.track_stored_text(part)

    def mark_reconnected(self) -> None:
        self._texts.mark_reconnected()

    async def apply_change(self, stored: StoredChange) -> list[Event]:
        """Applies a stored change and returns the events for what it adds."""
        events = await self._change_events(stored.change)
        self.seq = stored.seq
        return events

    async def _change_events(self, change: Change | None) -> list[Event]:
        match change:
            case SessionChange(session=session):
                return self.update_session(session)
            case MessageChange(message=message, seq=seq):
                return await self._apply_message(message, seq)
            case PartChange(part=part, seq=seq, draft=draft):
                return await self._apply_part(part, seq, draft=draft)
            case InboxChange(item=item):
                return self._apply_input(item)
            case ApprovalChange(approval=approval):
                return [self._approval_event(approval)]
            case DamagedChange(row=row):
                text = damage_notice(row.kind, row.error).text
                return [ErrorEvent(session_id=self.session.id, error_type="DamagedRow", message=text)]
            case DeletedChange():
                text = "the session was deleted on the server"
                return [ErrorEvent(session_id=self.session.id, error_type="SessionNotFoundError", message=text)]
            case None:
                return []
            case _:
                assert_never(change)

    async def apply_events(self, transient: TransientEvents) -> list[Event]:
        """Applies transient events. Ignores event types of newer servers."""
        events: list[Event] = []
        for raw in transient.events:
            # The server also forwards questions of child sessions, for clients that follow one session only.
            if raw.get("type") in EVENT_TYPES and raw.get("session_id") == self.session.id:
                events += await self._apply_event(event_from_dict(raw))
        return events

    async def _apply_event(self, event: Event) -> list[Event]:
        new_events: list[Event] = []
        match event:
            case PartDeltaEvent():
                return self._texts.accept_delta(event)
            case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
                return []  # published from the stored change instead
            case SessionUpdatedEvent() if event.changes.keys() & _INPUT_CHANGES:
                return []
            case LoopStartedEvent():
                self.in_turn, new_events = True, await self._add_user_messages()
            case LLMRequestEvent():
                self._texts.start_answer()
                new_events = await self._add_user_messages() if self._queued_inputs else []
            case LoopCompletedEvent():
                self.in_turn = False
            case _:
                pass
        return [*new_events, event]

    def update_session(self, stored: StoredSession) -> list[Event]:
        current = {name: getattr(stored, name) for name in _SESSION_FIELDS}
        if all(getattr(self.session, name) == value for name, value in current.items()):
            return []
        for name, value in current.items():
            setattr(self.session, name, value)
        return [SessionUpdatedEvent(session_id=self.session.id, changes=current, seq=stored.seq)]

    async def _apply_message(self, message: Message, seq: int) -> list[Event]:
        existing = self.find_message(message.id)
        if existing is None and await self._is_older(message.id):
            return []
        if existing is None and message.role == "user":
            return await self._add_user_messages({message.id: seq})
        if existing is None:
            return self._add_message(message, seq)
        for name in _MESSAGE_FIELDS:
            setattr(existing, name, getattr(message, name))
        end = self._held_step_finishes.pop(message.id, None) if _is_completed(existing) else None
        return [] if end is None else [end]

    async def _apply_part(self, part: AnyPart, seq: int, *, draft: bool) -> list[Event]:
        if await self._is_older(part.message_id):
            return []
        message, events = await self._ensure_message(part.message_id)
        before = _put_part(message, part)
        if message.role == "user" and before is not None:
            return events
        event = PartUpdatedEvent(part=part, seq=seq, session_id=self.session.id)
        match part:
            case TextPart() | ReasoningPart() if draft:
                growth = self._texts.accept_draft(part)
                return [*events, event] if growth is None else [*events, *growth]
            case TextPart() | ReasoningPart():
                return [*events, *self._texts.finish_text(part), event]
            case StepFinishPart() if not _is_completed(message):
                # Held back until the message is complete, because listeners read its end.
                self._held_step_finishes[message.id] = event
                return events
            case _:
                return events if draft and before is not None else [*events, event]

    async def _ensure_message(self, message_id: str) -> tuple[Message, list[Event]]:
        """Returns the message, and the events of messages that were added to find it."""
        events = [] if self.find_message(message_id) else await self._add_user_messages()
        message = self.find_message(message_id)
        if message is None:
            message = Message("assistant", id=message_id)
            events += self._add_message(message)
        return message, events

    async def _add_user_messages(self, numbers: Mapping[str, int] = _NO_SEQUENCES) -> list[Event]:
        """Adds the user messages that are not known yet. The parts of assistant messages arrive as separate changes."""
        new = [
            message
            for message in await self._fetch_new_messages()
            if message.role == "user" and not self.find_message(message.id)
        ]
        return [event for message in new for event in self._add_message(message, numbers.get(message.id))]

    def _add_message(self, message: Message, seq: int | None = None) -> list[Event]:
        message.join(self.session.id)
        self.session.messages.append(message)
        count, message_id = len(message.parts), message.id
        event = MessageAddedEvent(
            session_id=self.session.id, role=message.role, part_count=count, message_id=message_id, seq=seq
        )
        return [event]

    def _apply_input(self, item: InboxItem) -> list[Event]:
        if item.taken is None:
            self._queued_inputs.add(item.id)
        else:
            self._queued_inputs.discard(item.id)
            self.taken_inputs.add(item.id)
        changes = {"queued" if item.taken is None else "taken": item.id}
        return [SessionUpdatedEvent(session_id=self.session.id, changes=changes)]

    def _approval_event(self, approval: Approval) -> Event:
        if approval.answer == "open":
            return approval.requested_event(self.session.agent)
        return approval.result_event()

    async def _is_older(self, message_id: str) -> bool:
        """Returns whether the message is older than the loaded page. Ids are ordered by time, except for imported
        messages, so it also checks the newer messages."""
        if message_id >= self._oldest_id or self.find_message(message_id):
            return False
        return all(message.id != message_id for message in await self._fetch_new_messages())

    def find_message(self, message_id: str) -> Message | None:
        return next((message for message in reversed(self.session.messages) if message.id == message_id), None)


def _put_part(message: Message, part: AnyPart) -> AnyPart | None:
    """Adds or replaces the part, and returns its previous value."""
    for index, existing in enumerate(message.parts):
        if existing.id == part.id:
            message.parts[index] = part
            return existing
    message.parts.append(part)
    return None


def _is_completed(message: Message) -> bool:
    return message.time is not None and message.time.completed is not None
