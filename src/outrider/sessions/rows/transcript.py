"""Rows put together again: messages with their parts in order, and changes in the order of their numbers."""

from collections.abc import Iterable
from typing import Any

import msgspec

from outrider.sessions.records import (
    Approval,
    ApprovalChange,
    Change,
    Damaged,
    DamagedChange,
    InboxChange,
    InboxItem,
    MessageChange,
    PartChange,
    StoredSession,
    Transcript,
)
from outrider.sessions.rows.codec import MessageRow, PartRow, read_message, read_part, writable
from outrider.types.codec import plain
from outrider.types.messages import Message


class StoredPart(msgspec.Struct, frozen=True):
    row: PartRow
    draft: bool = False


def assemble(
    session: StoredSession,
    messages: Iterable[MessageRow],
    parts: Iterable[StoredPart],
    *,
    first: bool = True,
    last: bool = True,
) -> Transcript:
    """`parts` are those of `messages`, in the order in which they were added."""
    read: dict[str, Message] = {}
    damaged: list[Damaged] = []
    drafts: set[str] = set()
    for row in messages:
        read[row.id], problem = read_message(session.id, row)
        damaged += [problem] if problem else []
    for stored in parts:
        part, problem = read_part(session.id, stored.row)
        damaged += [problem] if problem else []
        if part is not None:
            read[stored.row.message_id].parts.append(part)
        if stored.draft:
            drafts.add(stored.row.id)
    return Transcript(session, list(read.values()), tuple(damaged), first, last, frozenset(drafts))


def message_change(session_id: str, seq: int, row: MessageRow) -> Change:
    message, problem = read_message(session_id, row)
    return DamagedChange(seq, problem) if problem else MessageChange(seq, message)


def part_change(session_id: str, seq: int, stored: StoredPart) -> Change:
    part, problem = read_part(session_id, stored.row)
    if part is None and problem is not None:
        return DamagedChange(seq, problem)
    return PartChange(seq, part, stored.draft)  # type: ignore[arg-type]  a row without a part has a problem


def encode_record(value: InboxItem | Approval) -> bytes:
    return writable(plain(value), msgspec.json.encode)


def inbox_item(body: bytes) -> InboxItem:
    return _inbox.decode(body)


def approval(body: bytes) -> Approval:
    return _approvals.decode(body)


def record_change(kind: str, seq: int, body: bytes) -> Change:
    return InboxChange(seq, inbox_item(body)) if kind == "inbox" else ApprovalChange(seq, approval(body))


_inbox: msgspec.json.Decoder[Any] = msgspec.json.Decoder(InboxItem)
_approvals: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Approval)
