"""Everything of one session in memory, and what can be asked of it."""

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec

from outrider.errors import PartValidationError, StoreError
from outrider.sessions.records import (
    Approval,
    Change,
    Lease,
    SearchHit,
    SessionChange,
    SessionFilter,
    StoredSession,
)
from outrider.sessions.rows import statistics, words
from outrider.sessions.rows.codec import MessageRow, PartRow, Row, in_place, read_part
from outrider.sessions.rows.rules import check_token
from outrider.sessions.rows.transcript import (
    StoredPart,
    approval,
    encode_record,
    inbox_item,
    message_change,
    part_change,
    record_change,
)
from outrider.sessions.session import SessionTime


class Shelf:
    """Everything of one session. Rows are (number, value), in the order in which they were first added."""

    def __init__(self, session: StoredSession) -> None:
        self.session = session
        self.changed = 0
        self.messages: dict[str, tuple[int, MessageRow]] = {}
        self.parts: dict[str, dict[str, tuple[int, StoredPart]]] = {}
        self.inbox: dict[str, tuple[int, bytes]] = {}
        self.approvals: dict[str, tuple[int, bytes]] = {}
        self.token = 0
        self.lease: Lease | None = None
        self.expires = 0.0
        self.news = asyncio.Event()

    @property
    def owned(self) -> Lease | None:
        return self.lease if time.monotonic() < self.expires else None

    def hold(self, lease: Lease) -> Lease:
        check_token(self.session.id, lease.token, self.token, None)
        self.lease, self.expires = lease, time.monotonic() + lease.ttl_ms / 1000
        return lease

    def advance(self, count: int, at: int) -> int:
        """The first of `count` new numbers."""
        session, times = self.session, self.session.time or SessionTime(at, at)
        times = msgspec.structs.replace(times, updated=max(times.created, at))
        self.session = msgspec.structs.replace(session, seq=session.seq + count, time=times)
        self.news.set()
        self.news = asyncio.Event()
        return session.seq + 1

    def put(self, rows: Sequence[Row], at: int, *, draft: bool) -> None:
        for seq, row in in_place(rows, self.advance(len(rows), at)):
            if isinstance(row, MessageRow):
                self.messages[row.id] = (seq, row)
                self.parts.setdefault(row.id, {})
            else:
                self.parts[row.message_id][row.id] = (seq, StoredPart(row, draft))

    def copy(self, source: "Shelf", messages: Sequence[str], at: int) -> None:
        """Messages of another session, with their parts."""
        for message_id in messages:
            self.put([source.messages[message_id][1]], at, draft=False)
            for _, part in source.parts[message_id].values():
                self.put([part.row], at, draft=part.draft)

    def take(self, item: str, at: int) -> None:
        taken = msgspec.structs.replace(inbox_item(self.inbox[item][1]), taken=at)
        self.inbox[item] = (self.advance(1, at), encode_record(taken))

    def check(self, rows: Sequence[Row], token: int | None, takes: Sequence[str]) -> None:
        """Whatever forbids the write raises before anything is written."""
        check_token(self.session.id, token, self.token, self.owned)
        if token is None and self.lease is not None:  # an owner that expired must not come back unnoticed
            self.lease, self.token = None, self.token + 1
        new = {row.id for row in rows if isinstance(row, MessageRow)}
        for row in rows:
            if isinstance(row, PartRow) and row.message_id not in self.messages and row.message_id not in new:
                raise PartValidationError(f"there is no message {row.message_id}", field="message_id")
        for item in takes:
            if item not in self.inbox or inbox_item(self.inbox[item][1]).taken is not None:
                raise StoreError(f"inbox item {item} is not there or was taken before")

    def newer(self, after: int) -> list[Change]:
        id = self.session.id
        found: list[Change] = [SessionChange(self.changed, self.session)] if self.changed > after else []
        found += [message_change(id, seq, row) for seq, row in self.messages.values() if seq > after]
        for parts in self.parts.values():
            found += [part_change(id, seq, part) for seq, part in parts.values() if seq > after]
        for kind, records in (("inbox", self.inbox), ("approval", self.approvals)):
            found += [record_change(kind, seq, body) for seq, body in records.values() if seq > after]
        return sorted(found, key=lambda change: change.seq)


def activity(session: StoredSession) -> str:
    return f"{session.time.updated if session.time else 0:016d}.{session.id}"


def passes(filter: SessionFilter, session: StoredSession) -> bool:
    times = session.time or SessionTime(0, 0)
    return (
        filter.workspace_directory in (None, session.workspace_directory)
        and filter.parent_id in (None, session.parent_id)
        and not (filter.roots and session.parent_id)
        and filter.agent in (None, session.agent)
        and filter.mode in (None, session.mode)
        and filter.archived in (None, times.archived is not None)
        and (filter.active_since is None or times.updated >= filter.active_since)
        and (filter.active_before is None or times.updated < filter.active_before)
    )


def title_hits(shelf: Shelf, query: words.Query) -> Iterator[SearchHit]:
    title = shelf.session.title
    if query.matches(title):
        snippet = query.snippet(title)
        yield SearchHit(session_id=shelf.session.id, title=title, kind="title", snippet=snippet)


def part_hits(shelf: Shelf, query: words.Query) -> Iterator[SearchHit]:
    stored = [part for parts in shelf.parts.values() for _, part in parts.values() if not part.draft]
    for one in reversed(stored):
        part, _ = read_part(shelf.session.id, one.row)
        text = words.searchable(part) if part is not None else ""
        if text and query.matches(text):
            yield SearchHit(
                session_id=shelf.session.id,
                title=shelf.session.title,
                kind="tool" if one.row.tool else "text",
                snippet=query.snippet(text),
                message_id=one.row.message_id,
                part_id=one.row.id,
            )


def calls(shelf: Shelf, inside: range) -> Iterator[statistics.CallUsage]:
    for parts in shelf.parts.values():
        for _, part in parts.values():
            row = part.row
            if row.tool and row.outcome and row.start in inside:
                yield statistics.CallUsage(row.tool, row.outcome, row.start or 0, row.end or 0)


def questions(shelf: Shelf) -> list[Approval]:
    return [approval(body) for _, body in shelf.approvals.values()]
