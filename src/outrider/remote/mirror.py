"""A session of a server as it is known here: what the feed brings, applied, and told as the events that it was."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from outrider.remote.feed import Kept, Shown
from outrider.sessions.journal import session_from
from outrider.sessions.records import Approval, InboxItem, StoredSession, Transcript
from outrider.types.codec import AnyPart, load_part
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


class Texts:
    """A text that was under way when somebody joined grows by what is kept of it, a few times a second: whether a piece
    that comes is part of that already, nobody could say. Who has heard an answer begin misses nothing of it."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._shown: dict[str, str] = {}
        self._by_kept: set[str] = set()
        self._from_the_beginning = False

    def answer_begins(self) -> None:
        self._from_the_beginning = True

    def join_again(self) -> None:
        """There was a break: pieces may have been missed."""
        self._by_kept |= self._shown.keys()
        self._from_the_beginning = False

    def joined_within(self, part: TextPart | ReasoningPart) -> None:
        """It was shown as far as it was kept."""
        self._shown[part.id] = part.text
        self._by_kept.add(part.id)

    def piece(self, event: PartDeltaEvent) -> list[Event]:
        if event.part_id not in self._shown and not self._from_the_beginning:
            self._shown[event.part_id] = ""
            self._by_kept.add(event.part_id)
        if event.part_id in self._by_kept:
            return []
        self._shown[event.part_id] = self._shown.get(event.part_id, "") + event.delta
        return [event]

    def draft(self, part: TextPart | ReasoningPart) -> list[Event] | None:
        """What it adds to what is shown; None if that was otherwise, and the value has to take its place."""
        shown = self._shown.get(part.id, "")
        if shown.startswith(part.text):
            return []
        self.joined_within(part)
        return self._growth(part, shown)

    def whole(self, part: TextPart | ReasoningPart) -> list[Event]:
        """The end of it. One that was never shown in pieces is told as a whole."""
        shown = self._shown.pop(part.id, None)
        self._by_kept.discard(part.id)
        return [] if shown is None else self._growth(part, shown) or []

    def _growth(self, part: TextPart | ReasoningPart, shown: str) -> list[Event] | None:
        if not part.text.startswith(shown):
            return None
        if part.text == shown:
            return []
        field = "reasoning" if isinstance(part, ReasoningPart) else "text"
        return [
            PartDeltaEvent(
                session_id=self._session_id,
                message_id=part.message_id,
                part_id=part.id,
                delta=part.text[len(shown) :],
                field=field,
            )
        ]


NewMessages = Callable[[], Awaitable[Sequence[Message]]]
_OF_A_MESSAGE = tuple(name for name in Message.__struct_fields__ if name != "parts")
_OF_A_SESSION = ("title", "mode", "agent")
_INPUT = {"queued", "taken"}  # told of what is kept of it
_UNKNOWN: Mapping[str, int] = MappingProxyType({})


class Mirror:
    """`newer` asks the server for the messages after the last one that is known: a change brings a message without its
    parts, and what a user said is told as a whole, before anything is told of the answer to it."""

    def __init__(self, transcript: Transcript, newer: NewMessages) -> None:
        self.session = session_from(transcript.session, transcript.messages)
        self.seq = transcript.session.seq
        self._oldest = "" if transcript.first or not transcript.messages else transcript.messages[0].id
        self.in_turn = False
        self.taken: set[str] = set()  # input that a turn has taken
        self._waiting: set[str] = set()  # input that none has taken
        self._newer = newer
        self._texts = Texts(self.session.id)
        self._ends: dict[str, PartUpdatedEvent] = {}
        for message in transcript.messages:
            for part in message.parts:
                if isinstance(part, TextPart | ReasoningPart) and part.id in transcript.drafts:
                    self._texts.joined_within(part)

    def join_again(self) -> None:
        self._texts.join_again()

    async def keep(self, kept: Kept) -> list[Event]:
        """What a change says that was not known."""
        told = await self._changed(kept.change, kept.seq)
        self.seq = kept.seq
        return told

    async def _changed(self, change: dict[str, Any], seq: int) -> list[Event]:
        match change["type"]:
            case "session":
                return self.adopt(msgspec.convert(change["session"], StoredSession))
            case "message":
                return await self._message(msgspec.convert(change["message"], Message), seq)
            case "part":
                return await self._part(load_part(change["part"]), seq, draft=change["draft"])
            case "inbox":
                return self._input(msgspec.convert(change["item"], InboxItem))
            case "approval":
                return [self._approval(msgspec.convert(change["approval"], Approval))]
            case "deleted":
                gone = "the session was deleted on the server"
                return [ErrorEvent(session_id=self.session.id, error_type="SessionNotFoundError", message=gone)]
            case _:
                return []

    async def show(self, shown: Shown) -> list[Event]:
        """Kinds of events that a newer server has are not known here, and not missed."""
        told: list[Event] = []
        for raw in shown.events:
            # What called agents ask comes along for clients that follow this session only.
            if raw.get("type") in EVENT_TYPES and raw.get("session_id") == self.session.id:
                told += await self._happened(event_from_dict(raw))
        return told

    async def _happened(self, event: Event) -> list[Event]:
        said: list[Event] = []
        match event:
            case PartDeltaEvent():
                return self._texts.piece(event)
            case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
                return []  # told of what is kept of it
            case SessionUpdatedEvent() if event.changes.keys() & _INPUT:
                return []
            case LoopStartedEvent():
                self.in_turn, said = True, await self._said()
            case LLMRequestEvent():
                self._texts.answer_begins()
                said = await self._said() if self._waiting else []
            case LoopCompletedEvent():
                self.in_turn = False
            case _:
                pass
        return [*said, event]

    def adopt(self, stored: StoredSession) -> list[Event]:
        now = {name: getattr(stored, name) for name in _OF_A_SESSION}
        if all(getattr(self.session, name) == value for name, value in now.items()):
            return []
        for name, value in now.items():
            setattr(self.session, name, value)
        return [SessionUpdatedEvent(session_id=self.session.id, changes=now, seq=stored.seq)]

    async def _message(self, message: Message, seq: int) -> list[Event]:
        known = self.message(message.id)
        if known is None and await self._is_older(message.id):
            return []
        if known is None and message.role == "user":
            return await self._said({message.id: seq})
        if known is None:
            return self._added(message, seq)
        for name in _OF_A_MESSAGE:
            setattr(known, name, getattr(message, name))
        end = self._ends.pop(message.id, None) if _is_over(known) else None
        return [] if end is None else [end]

    async def _part(self, part: AnyPart, seq: int, *, draft: bool) -> list[Event]:
        if await self._is_older(part.message_id):
            return []
        message, told = await self._found(part.message_id)
        before = _put(message, part)
        if message.role == "user" and before is not None:
            return told
        event = PartUpdatedEvent(part=part, seq=seq, session_id=self.session.id)
        match part:
            case TextPart() | ReasoningPart() if draft:
                growth = self._texts.draft(part)
                return [*told, event] if growth is None else [*told, *growth]
            case TextPart() | ReasoningPart():
                return [*told, *self._texts.whole(part), event]
            case StepFinishPart() if not _is_over(message):
                self._ends[message.id] = event  # whoever hears of it looks at how the message ended
                return told
            case _:
                return told if draft and before is not None else [*told, event]

    async def _found(self, message_id: str) -> tuple[Message, list[Event]]:
        """A message, and what there is to tell of those that were not known."""
        told = [] if self.message(message_id) else await self._said()
        known = self.message(message_id)
        if known is None:
            known = Message("assistant", id=message_id)
            told += self._added(known)
        return known, told

    async def _said(self, numbers: Mapping[str, int] = _UNKNOWN) -> list[Event]:
        """What users said, and is not known yet. The parts of answers come on their own."""
        new = [message for message in await self._newer() if message.role == "user" and not self.message(message.id)]
        return [event for message in new for event in self._added(message, numbers.get(message.id))]

    def _added(self, message: Message, seq: int | None = None) -> list[Event]:
        message.join(self.session.id)
        self.session.messages.append(message)
        count, own = len(message.parts), message.id
        said = MessageAddedEvent(
            session_id=self.session.id, role=message.role, part_count=count, message_id=own, seq=seq
        )
        return [said]

    def _input(self, item: InboxItem) -> list[Event]:
        if item.taken is None:
            self._waiting.add(item.id)
        else:
            self._waiting.discard(item.id)
            self.taken.add(item.id)
        changes = {"queued" if item.taken is None else "taken": item.id}
        return [SessionUpdatedEvent(session_id=self.session.id, changes=changes)]

    def _approval(self, asked: Approval) -> Event:
        about: dict[str, Any] = {"session_id": asked.session_id, "call_id": asked.call_id, "tool_name": asked.tool}
        if asked.answer == "open":
            return ToolApprovalRequestedEvent(
                **about,
                agent_name=self.session.agent,
                description=asked.description,
                approval_id=asked.id,
                tool_input=asked.input,
                offers=asked.offers,
                can_last=asked.can_last,
            )
        return ToolApprovalResultEvent(
            **about,
            approved=asked.answer == "allowed",
            approval_id=asked.id,
            scope=asked.scope,
            answered_by=asked.answered_by,
        )

    async def _is_older(self, message_id: str) -> bool:
        """Than all that is held here. Ids have the order of time, except for those that came from elsewhere."""
        if message_id >= self._oldest or self.message(message_id):
            return False
        return all(message.id != message_id for message in await self._newer())

    def message(self, message_id: str) -> Message | None:
        return next((found for found in reversed(self.session.messages) if found.id == message_id), None)


def _put(message: Message, part: AnyPart) -> AnyPart | None:
    """The value that the part had before, if it had one."""
    for place, known in enumerate(message.parts):
        if known.id == part.id:
            message.parts[place] = part
            return known
    message.parts.append(part)
    return None


def _is_over(message: Message) -> bool:
    return message.time is not None and message.time.completed is not None
