"""A store in memory, for tests and for programs that persist nothing."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from outrider.errors import PartValidationError, StoreError
from outrider.sessions.records import (
    Approval,
    ApprovalScope,
    Change,
    DeletedChange,
    GivenAnswer,
    Grouping,
    InboxItem,
    Lease,
    ProcessIdentity,
    SearchHit,
    SessionChange,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    SessionUpdate,
    StoredSession,
    StoredValue,
    UsageRow,
    check_filter,
)
from outrider.sessions.rows import search_terms, session_rows
from outrider.sessions.rows.codec import MessageRow, PartRow, Row, number_rows, read_part, to_rows
from outrider.sessions.rows.session_rows import (
    StoredPart,
    build_transcript,
    check_token,
    decode_approval,
    decode_inbox_item,
    decode_record_change,
    encode_record,
    forked_session,
    message_change,
    part_change,
    raise_no_message,
    raise_no_session,
    session_in_use_error,
    with_fingerprint,
)
from outrider.sessions.session import SessionTime
from outrider.types.ids import now_ms
from outrider.types.outcomes import OutcomeChoice


class MemorySession:
    """All data of one session. Rows are tuples (sequence number, value), in insertion order."""

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
        self.changed_event = asyncio.Event()

    @property
    def current_lease(self) -> Lease | None:
        return self.lease if time.monotonic() < self.expires else None

    def set_lease(self, lease: Lease) -> Lease:
        check_token(self.session.id, lease.token, self.token, None)
        self.lease, self.expires = lease, time.monotonic() + lease.ttl_ms / 1000
        return lease

    def advance_sequence(self, count: int, now: int) -> int:
        """Reserves `count` sequence numbers, wakes the listeners, and returns the first number."""
        session, times = self.session, self.session.time or SessionTime(now, now)
        times = msgspec.structs.replace(times, updated=max(times.created, now))
        self.session = msgspec.structs.replace(session, seq=session.seq + count, time=times)
        self.changed_event.set()
        self.changed_event = asyncio.Event()
        return session.seq + 1

    def put_rows(self, rows: Sequence[Row], now: int, *, draft: bool) -> None:
        for seq, row in number_rows(rows, self.advance_sequence(len(rows), now)):
            if isinstance(row, MessageRow):
                self.messages[row.id] = (seq, row)
                self.parts.setdefault(row.id, {})
            else:
                self.parts[row.message_id][row.id] = (seq, StoredPart(row, draft))

    def copy_messages(self, source: "MemorySession", messages: Sequence[str], now: int) -> None:
        """Copies messages of another session with their parts."""
        for message_id in messages:
            self.put_rows([source.messages[message_id][1]], now, draft=False)
            for _, part in source.parts[message_id].values():
                self.put_rows([part.row], now, draft=part.draft)

    def take_inbox_item(self, item: str, now: int) -> None:
        taken_item = msgspec.structs.replace(decode_inbox_item(self.inbox[item][1]), taken=now)
        self.inbox[item] = (self.advance_sequence(1, now), encode_record(taken_item))

    def check_write(self, rows: Sequence[Row], token: int | None, takes: Sequence[str]) -> None:
        """Raises if the write is not allowed, before anything changes."""
        check_token(self.session.id, token, self.token, self.current_lease)
        if token is None and self.lease is not None:  # an expired owner must not write after another owner has
            self.lease, self.token = None, self.token + 1
        new = {row.id for row in rows if isinstance(row, MessageRow)}
        for row in rows:
            if isinstance(row, PartRow) and row.message_id not in self.messages and row.message_id not in new:
                raise PartValidationError(f"there is no message {row.message_id}", field="message_id")
        for item in takes:
            if item not in self.inbox or decode_inbox_item(self.inbox[item][1]).taken is not None:
                raise StoreError(f"inbox item {item} is not there or was taken before")

    def changes_after(self, after: int) -> list[Change]:
        id = self.session.id
        changes: list[Change] = [SessionChange(self.changed, self.session)] if self.changed > after else []
        changes += [message_change(id, seq, row) for seq, row in self.messages.values() if seq > after]
        for parts in self.parts.values():
            changes += [part_change(id, seq, part) for seq, part in parts.values() if seq > after]
        for kind, records in (("inbox", self.inbox), ("approval", self.approvals)):
            changes += [decode_record_change(kind, seq, body) for seq, body in records.values() if seq > after]
        return sorted(changes, key=lambda change: change.seq)


def activity_key(session: StoredSession) -> str:
    return f"{session.time.updated if session.time else 0:016d}.{session.id}"


def matches_filter(filter: SessionFilter, session: StoredSession) -> bool:
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
        and filter.owner in (None, session.owner)
        and all(_is_same_value(session.metadata, name, value) for name, value in filter.metadata.items())
    )


def _is_same_value(metadata: dict[str, Any], name: str, value: object) -> bool:
    """Returns whether the metadata has this value. As in JSON, true is not equal to 1."""
    return name in metadata and metadata[name] == value and isinstance(metadata[name], bool) == isinstance(value, bool)


def title_hits(entry: MemorySession, query: search_terms.TextQuery) -> Iterator[SearchHit]:
    title = entry.session.title
    if query.matches(title):
        snippet = query.make_snippet(title)
        yield SearchHit(session_id=entry.session.id, title=title, kind="title", snippet=snippet)


def part_hits(entry: MemorySession, query: search_terms.TextQuery) -> Iterator[SearchHit]:
    stored = [part for parts in entry.parts.values() for _, part in parts.values() if not part.draft]
    for item in reversed(stored):
        part, _ = read_part(entry.session.id, item.row)
        text = search_terms.searchable_text(part) if part is not None else ""
        if text and query.matches(text):
            yield SearchHit(
                session_id=entry.session.id,
                title=entry.session.title,
                kind="tool" if item.row.tool else "text",
                snippet=query.make_snippet(text),
                message_id=item.row.message_id,
                part_id=item.row.id,
            )


def call_usage(entry: MemorySession, inside: range) -> Iterator[session_rows.CallUsage]:
    for parts in entry.parts.values():
        for _, part in parts.values():
            row = part.row
            if row.tool and row.outcome and row.start in inside:
                yield session_rows.CallUsage(row.tool, row.outcome, row.start or 0, row.end or 0)


def list_approvals(entry: MemorySession) -> list[Approval]:
    return [decode_approval(body) for _, body in entry.approvals.values()]


_ANY_SESSION = SessionFilter()


class MemoryStore:
    """A `Store` in memory. It encodes values like the other stores, so that it accepts and rejects the same values."""

    prompt = True

    def __init__(self, *, clock: Callable[[], int] = now_ms) -> None:
        self._sessions: dict[str, MemorySession] = {}
        self._clock = clock

    async def create(self, session: StoredSession) -> StoredSession:
        if session.id in self._sessions:
            raise StoreError(f"session {session.id} exists already")
        now = self._clock()
        times = session.time or SessionTime(created=now, updated=now)
        entry = MemorySession(msgspec.structs.replace(session, seq=1, time=times))
        entry.changed = 1
        self._sessions[session.id] = entry
        return entry.session

    async def get(self, session_id: str) -> StoredSession:
        return self._get_session(session_id).session

    async def list(
        self, filter: SessionFilter = _ANY_SESSION, *, limit: int = 50, after: str | None = None
    ) -> SessionPage:
        check_filter(filter)
        ordered = sorted(
            ((activity_key(entry.session), entry.session) for entry in self._sessions.values()),
            key=lambda entry: entry[0],
            reverse=True,
        )
        matching = [(key, item) for key, item in ordered if matches_filter(filter, item) and (not after or key < after)]
        page = matching[:limit]
        return SessionPage(tuple(item for _, item in page), page[-1][0] if len(matching) > limit else None)

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        entry = self._get_session(session_id)
        entry.changed = entry.advance_sequence(1, self._clock())
        entry.session = update.apply(entry.session)
        return entry.session

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        entry = self._get_session(session_id)
        if entry.current_lease and token != entry.token:
            raise session_in_use_error(entry.current_lease)
        for child in [item.session.id for item in self._sessions.values() if item.session.parent_id == session_id]:
            await self.delete(child, token=self._sessions[child].token)
        del self._sessions[session_id]
        entry.changed_event.set()

    async def clear(self) -> int:
        free = [id for id, entry in self._sessions.items() if not entry.current_lease]
        for id in free:
            self._sessions.pop(id).changed_event.set()
        return len(free)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        source = self._get_session(session_id)
        message_ids = list(source.messages)
        if at is not None:
            message_ids = message_ids[: message_ids.index(at) + 1] if at in message_ids else raise_no_message(at)
        created = await self.create(
            forked_session(source.session, message_ids[-1] if message_ids else "", title, self._clock())
        )
        target = self._sessions[created.id]
        target.copy_messages(source, message_ids, self._clock())
        return target.session

    async def append(
        self,
        session_id: str,
        values: Sequence[StoredValue],
        *,
        token: int | None = None,
        draft: bool = False,
        synced: bool = True,
        takes: Sequence[str] = (),
    ) -> int:
        entry, rows, now = self._get_session(session_id), to_rows(session_id, values), self._clock()
        entry.check_write(rows, token, takes)
        entry.put_rows(rows, now, draft=draft)
        for item in takes:
            entry.take_inbox_item(item, now)
        return entry.session.seq

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> SessionTranscript:
        entry = self._get_session(session_id)
        ids = list(entry.messages)
        start, end = 0, len(ids)
        if after is not None:
            start = ids.index(after) + 1 if after in ids else raise_no_message(after) if after else 0
            end = end if limit is None else min(end, start + limit)
        else:
            if before is not None:
                end = ids.index(before) if before in ids else raise_no_message(before)
            start = 0 if limit is None else max(0, end - limit)
        rows = [entry.messages[id][1] for id in ids[start:end]]
        parts = [part for row in rows for _, part in entry.parts[row.id].values()]
        return build_transcript(entry.session, rows, parts, first=start == 0, last=end == len(ids))

    async def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        entry = self._get_session(session_id)
        while True:
            changed_event = entry.changed_event
            for change in entry.changes_after(after):
                yield change
                after = change.seq
            if self._sessions.get(session_id) is not entry:
                yield DeletedChange(after + 1)
                return
            if not follow:
                return
            await changed_event.wait()

    async def search(
        self,
        query: str,
        *,
        session_id: str | None = None,
        limit: int = 20,
        filter: SessionFilter = _ANY_SESSION,
    ) -> Sequence[SearchHit]:
        check_filter(filter)
        parsed = search_terms.parse_query(query)
        if not parsed.terms:
            return []
        chosen = [self._get_session(session_id)] if session_id else list(self._sessions.values())
        chosen = [entry for entry in chosen if matches_filter(filter, entry.session)]
        hits = [hit for entry in chosen for hit in title_hits(entry, parsed)]
        hits += [hit for entry in reversed(chosen) for hit in part_hits(entry, parsed)]
        return hits[:limit]

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        chosen = [self._get_session(session_id)] if session_id else list(self._sessions.values())
        inside = range(since or 0, until if until is not None else 2**62)
        if by == "tool":
            return session_rows.usage_by_tool(call for entry in chosen for call in call_usage(entry, inside))
        rows = (row for entry in chosen for _, row in entry.messages.values() if row.created in inside)
        answers = (session_rows.decode_answer_usage(row.body) for row in rows)
        return session_rows.usage_by_answer((answer for answer in answers if answer), by)

    async def acquire(
        self, session_id: str, owner: ProcessIdentity, *, ttl_ms: int = 30_000, take_over: bool = False
    ) -> Lease:
        entry = self._get_session(session_id)
        if entry.current_lease and entry.current_lease.owner != owner and not take_over:
            raise session_in_use_error(entry.current_lease)
        entry.token += 1
        return entry.set_lease(Lease(session_id, entry.token, owner, self._clock(), ttl_ms))

    async def renew(self, lease: Lease) -> Lease:
        return self._get_session(lease.session_id).set_lease(lease)

    async def release(self, lease: Lease) -> None:
        entry = self._sessions.get(lease.session_id)
        if entry and entry.token == lease.token:
            entry.expires = 0.0

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        entry = self._get_session(item.session_id)
        if item.id not in entry.inbox:
            item.message.join(item.session_id)
            item = msgspec.structs.replace(item, created=item.created or self._clock())
            entry.inbox[item.id] = (entry.advance_sequence(1, self._clock()), encode_record(item))
        return decode_inbox_item(entry.inbox[item.id][1])

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        items = [decode_inbox_item(body) for _, body in self._get_session(session_id).inbox.values()]
        return [item for item in items if item.taken is None]

    async def ask(self, approval: Approval) -> Approval:
        entry = self._get_session(approval.session_id)
        approval = with_fingerprint(approval, self._clock())
        for earlier in list_approvals(entry):
            if (earlier.call_id, earlier.fingerprint) == (approval.call_id, approval.fingerprint):
                return earlier
        entry.approvals[approval.id] = (entry.advance_sequence(1, self._clock()), encode_record(approval))
        return approval

    async def answer(
        self,
        approval_id: str,
        answer: GivenAnswer,
        *,
        scope: ApprovalScope = "once",
        by: str = "",
        words: str = "",
        keep: tuple[str, ...] | None = None,
        choice: OutcomeChoice = "keep",
        width: str = "",
    ) -> Approval:
        for entry in self._sessions.values():
            if approval_id in entry.approvals:
                stored = decode_approval(entry.approvals[approval_id][1])
                now = self._clock()
                answered = stored.answered_with(
                    answer, scope=scope, by=by, words=words, keep=keep, choice=choice, width=width, at=now
                )
                if answered is not stored:
                    entry.approvals[approval_id] = (entry.advance_sequence(1, now), encode_record(answered))
                return answered
        raise StoreError(f"there is no approval {approval_id}")

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        chosen = [self._get_session(session_id)] if session_id else list(self._sessions.values())
        stored = [item for entry in chosen for item in list_approvals(entry)]
        return [item for item in stored if not only_open or item.answer == "open"]

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _get_session(self, session_id: str) -> MemorySession:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise_no_session(session_id)
