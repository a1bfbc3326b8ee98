"""Sessions kept in memory: the contract without a disk, for tests and for programs that want nothing kept."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from outrider.errors import PartValidationError, StoreError
from outrider.sessions.records import (
    Approval,
    ApprovalAnswer,
    ApprovalScope,
    Change,
    DeletedChange,
    Grouping,
    InboxItem,
    Kept,
    Lease,
    Owner,
    SearchHit,
    SessionChange,
    SessionFilter,
    SessionPage,
    SessionUpdate,
    StoredSession,
    Transcript,
    UsageRow,
)
from outrider.sessions.rows import search_terms as words
from outrider.sessions.rows import statistics
from outrider.sessions.rows.codec import MessageRow, PartRow, Row, in_place, read_part, to_rows
from outrider.sessions.rows.rows import (
    StoredPart,
    approval,
    assemble,
    bound,
    check_token,
    encode_record,
    forked,
    in_use,
    inbox_item,
    message_change,
    no_message,
    no_session,
    part_change,
    record_change,
)
from outrider.sessions.session import SessionTime
from outrider.types.ids import now_ms


class MemorySession:
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

    def copy(self, source: "MemorySession", messages: Sequence[str], at: int) -> None:
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


def title_hits(shelf: MemorySession, query: words.Query) -> Iterator[SearchHit]:
    title = shelf.session.title
    if query.matches(title):
        snippet = query.snippet(title)
        yield SearchHit(session_id=shelf.session.id, title=title, kind="title", snippet=snippet)


def part_hits(shelf: MemorySession, query: words.Query) -> Iterator[SearchHit]:
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


def calls(shelf: MemorySession, inside: range) -> Iterator[statistics.CallUsage]:
    for parts in shelf.parts.values():
        for _, part in parts.values():
            row = part.row
            if row.tool and row.outcome and row.start in inside:
                yield statistics.CallUsage(row.tool, row.outcome, row.start or 0, row.end or 0)


def questions(shelf: MemorySession) -> list[Approval]:
    return [approval(body) for _, body in shelf.approvals.values()]


_ANY = SessionFilter()


class MemoryStore:
    prompt = True

    def __init__(self, *, clock: Callable[[], int] = now_ms) -> None:
        self._shelves: dict[str, MemorySession] = {}
        self._clock = clock

    async def create(self, session: StoredSession) -> StoredSession:
        if session.id in self._shelves:
            raise StoreError(f"session {session.id} exists already")
        now = self._clock()
        times = session.time or SessionTime(created=now, updated=now)
        shelf = MemorySession(msgspec.structs.replace(session, seq=1, time=times))
        shelf.changed = 1
        self._shelves[session.id] = shelf
        return shelf.session

    async def get(self, session_id: str) -> StoredSession:
        return self._shelf(session_id).session

    async def list(self, filter: SessionFilter = _ANY, *, limit: int = 50, after: str | None = None) -> SessionPage:
        found = sorted(
            ((activity(shelf.session), shelf.session) for shelf in self._shelves.values()),
            key=lambda entry: entry[0],
            reverse=True,
        )
        matching = [(key, one) for key, one in found if passes(filter, one) and (not after or key < after)]
        page = matching[:limit]
        return SessionPage(tuple(one for _, one in page), page[-1][0] if len(matching) > limit else None)

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        shelf = self._shelf(session_id)
        shelf.changed = shelf.advance(1, self._clock())
        shelf.session = update.apply(shelf.session)
        return shelf.session

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        shelf = self._shelf(session_id)
        if shelf.owned and token != shelf.token:
            raise in_use(shelf.owned)
        for child in [one.session.id for one in self._shelves.values() if one.session.parent_id == session_id]:
            await self.delete(child, token=self._shelves[child].token)
        del self._shelves[session_id]
        shelf.news.set()

    async def clear(self) -> int:
        free = [id for id, shelf in self._shelves.items() if not shelf.owned]
        for id in free:
            self._shelves.pop(id).news.set()
        return len(free)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        source = self._shelf(session_id)
        wanted = list(source.messages)
        if at is not None:
            wanted = wanted[: wanted.index(at) + 1] if at in wanted else no_message(at)
        made = await self.create(forked(source.session, wanted[-1] if wanted else "", title, self._clock()))
        target = self._shelves[made.id]
        target.copy(source, wanted, self._clock())
        return target.session

    async def append(
        self,
        session_id: str,
        values: Sequence[Kept],
        *,
        token: int | None = None,
        draft: bool = False,
        synced: bool = True,
        takes: Sequence[str] = (),
    ) -> int:
        shelf, rows, now = self._shelf(session_id), to_rows(session_id, values), self._clock()
        shelf.check(rows, token, takes)
        shelf.put(rows, now, draft=draft)
        for item in takes:
            shelf.take(item, now)
        return shelf.session.seq

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> Transcript:
        shelf = self._shelf(session_id)
        ids = list(shelf.messages)
        start, end = 0, len(ids)
        if after is not None:
            start = ids.index(after) + 1 if after in ids else no_message(after)
            end = end if limit is None else min(end, start + limit)
        else:
            if before is not None:
                end = ids.index(before) if before in ids else no_message(before)
            start = 0 if limit is None else max(0, end - limit)
        rows = [shelf.messages[id][1] for id in ids[start:end]]
        parts = [part for row in rows for _, part in shelf.parts[row.id].values()]
        return assemble(shelf.session, rows, parts, first=start == 0, last=end == len(ids))

    async def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        shelf = self._shelf(session_id)
        while True:
            news = shelf.news
            for change in shelf.newer(after):
                yield change
                after = change.seq
            if self._shelves.get(session_id) is not shelf:
                yield DeletedChange(after + 1)
                return
            if not follow:
                return
            await news.wait()

    async def search(self, query: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        parsed = words.parse(query)
        if not parsed.terms:
            return []
        shelves = [self._shelf(session_id)] if session_id else list(self._shelves.values())
        hits = [hit for shelf in shelves for hit in title_hits(shelf, parsed)]
        hits += [hit for shelf in reversed(shelves) for hit in part_hits(shelf, parsed)]
        return hits[:limit]

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        shelves = [self._shelf(session_id)] if session_id else list(self._shelves.values())
        inside = range(since or 0, until if until is not None else 2**62)
        if by == "tool":
            return statistics.by_tool(call for shelf in shelves for call in calls(shelf, inside))
        rows = (row for shelf in shelves for _, row in shelf.messages.values() if row.created in inside)
        answers = (statistics.read_answer(row.body) for row in rows)
        return statistics.by_answer((answer for answer in answers if answer), by)

    async def acquire(self, session_id: str, owner: Owner, *, ttl_ms: int = 30_000, take_over: bool = False) -> Lease:
        shelf = self._shelf(session_id)
        if shelf.owned and shelf.owned.owner != owner and not take_over:
            raise in_use(shelf.owned)
        shelf.token += 1
        return shelf.hold(Lease(session_id, shelf.token, owner, self._clock(), ttl_ms))

    async def renew(self, lease: Lease) -> Lease:
        return self._shelf(lease.session_id).hold(lease)

    async def release(self, lease: Lease) -> None:
        shelf = self._shelves.get(lease.session_id)
        if shelf and shelf.token == lease.token:
            shelf.expires = 0.0

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        shelf = self._shelf(item.session_id)
        if item.id not in shelf.inbox:
            item.message.join(item.session_id)
            item = msgspec.structs.replace(item, created=item.created or self._clock())
            shelf.inbox[item.id] = (shelf.advance(1, self._clock()), encode_record(item))
        return inbox_item(shelf.inbox[item.id][1])

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        items = [inbox_item(body) for _, body in self._shelf(session_id).inbox.values()]
        return [item for item in items if item.taken is None]

    async def ask(self, approval: Approval) -> Approval:
        shelf = self._shelf(approval.session_id)
        approval = bound(approval, self._clock())
        for earlier in questions(shelf):
            if (earlier.call_id, earlier.fingerprint) == (approval.call_id, approval.fingerprint):
                return earlier
        shelf.approvals[approval.id] = (shelf.advance(1, self._clock()), encode_record(approval))
        return approval

    async def answer(
        self, approval_id: str, answer: ApprovalAnswer, *, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        for shelf in self._shelves.values():
            if approval_id in shelf.approvals:
                asked = approval(shelf.approvals[approval_id][1])
                now = self._clock()
                answered = asked.answered_with(answer, scope=scope, by=by, words=words, at=now)
                if answered is not asked:
                    shelf.approvals[approval_id] = (shelf.advance(1, now), encode_record(answered))
                return answered
        raise StoreError(f"there is no approval {approval_id}")

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        shelves = [self._shelf(session_id)] if session_id else list(self._shelves.values())
        found = [one for shelf in shelves for one in questions(shelf)]
        return [one for one in found if not only_open or one.answer == "open"]

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _shelf(self, session_id: str) -> MemorySession:
        try:
            return self._shelves[session_id]
        except KeyError:
            no_session(session_id)
