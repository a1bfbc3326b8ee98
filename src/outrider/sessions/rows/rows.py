"""Sessions as rows of any database: their columns, which of them a filter wants, and pages of them."""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import msgspec

from outrider.errors import LeaseLostError, SessionInUseError, SessionNotFoundError, StoreError
from outrider.sessions.records import (
    Approval,
    ApprovalChange,
    Change,
    Damaged,
    DamagedChange,
    InboxChange,
    InboxItem,
    Lease,
    MessageChange,
    PartChange,
    SessionFilter,
    SessionPage,
    StoredSession,
    Transcript,
    fingerprint,
)
from outrider.sessions.rows.codec import MessageRow, PartRow, read_message, read_part, writable
from outrider.sessions.session import ForkPoint, SessionTime
from outrider.types.codec import plain
from outrider.types.ids import new_id
from outrider.types.messages import Message


class SessionRow(Protocol):
    """As a database gives it: values by the names of their columns."""

    def __getitem__(self, column: str, /) -> Any: ...


class _Rest(msgspec.Struct):
    """What of a session has no column of its own."""

    forked_from: ForkPoint | None = None
    compacting: int | None = None
    metadata: dict[str, Any] = {}


_rest = msgspec.json.Decoder(_Rest)


def columns_of(session: StoredSession) -> dict[str, Any]:
    times = session.time or SessionTime(0, 0)
    return {
        "id": session.id,
        "seq": session.seq,
        "changed": session.seq,
        "active": times.updated,
        "created": times.created,
        "title": session.title,
        "workspace": session.workspace_directory,
        "mode": session.mode,
        "agent": session.agent,
        "parent": session.parent_id,
        "archived": times.archived,
        "body": msgspec.json.encode(_Rest(session.forked_from, times.compacting, session.metadata)),
    }


def read_session(row: SessionRow) -> StoredSession:
    try:
        rest = _rest.decode(row["body"])
    except msgspec.DecodeError as error:
        rest = _Rest(metadata={"damaged": str(error)})
    return StoredSession(
        id=row["id"],
        title=row["title"],
        workspace_directory=row["workspace"],
        mode=row["mode"],
        agent=row["agent"],
        parent_id=row["parent"],
        forked_from=rest.forked_from,
        time=SessionTime(row["created"], row["active"], rest.compacting, row["archived"]),
        metadata=rest.metadata,
        seq=row["seq"],
    )


def conditions(filter: SessionFilter, mark: str) -> tuple[list[str], list[Any]]:
    """What a filter asks for, with the database's own mark for a value."""
    wanted, values = list[str](), list[Any]()
    for column, value in (
        ("workspace =", filter.workspace_directory),
        ("parent =", filter.parent_id),
        ("agent =", filter.agent),
        ("mode =", filter.mode),
        ("active >=", filter.active_since),
        ("active <", filter.active_before),
    ):
        if value is not None:
            wanted.append(f"{column} {mark}")
            values.append(value)
    if filter.roots:
        wanted.append("parent IS NULL")
    if filter.archived is not None:
        wanted.append("archived IS NOT NULL" if filter.archived else "archived IS NULL")
    return wanted, values


def after_mark(after: str) -> list[Any]:
    """Where a page ended: when the last session on it was active, and its id."""
    active, _, id = after.partition(".")
    return [int(active), id]


def page_of(rows: Sequence[SessionRow], limit: int) -> SessionPage:
    """Of one row more than fit, if there are more."""
    more = f"{rows[limit - 1]['active']}.{rows[limit - 1]['id']}" if len(rows) > limit else None
    return SessionPage(tuple(map(read_session, rows[:limit])), more)


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


def check_token(session_id: str, token: int | None, current: int, owned: Lease | None) -> None:
    if token is None and owned is not None:
        raise in_use(owned)
    if token is not None and token != current:
        raise LeaseLostError(f"session {session_id} was taken over; this owner may no longer write")


def in_use(lease: Lease) -> SessionInUseError:
    owner = lease.owner
    return SessionInUseError(
        f"session {lease.session_id} is in use by process {owner.pid} on {owner.host}",
        session_id=lease.session_id,
        host=owner.host,
        pid=owner.pid,
        since=lease.since,
    )


def bound(approval: Approval, at: int) -> Approval:
    """A question with the fingerprint of what it asks about; that of the call as it runs, where its input is kept with
    secrets hidden."""
    given = approval.fingerprint or fingerprint(approval.tool, approval.input)
    return msgspec.structs.replace(approval, fingerprint=given, created=approval.created or at)


def forked(source: StoredSession, at: str, title: str | None, now: int) -> StoredSession:
    return msgspec.structs.replace(
        source,
        id=new_id(),
        title=source.title if title is None else title,
        parent_id=None,
        forked_from=ForkPoint(source.id, at),
        time=SessionTime(created=now, updated=now),
        seq=0,
    )


def no_message(message_id: str) -> NoReturn:
    raise StoreError(f"there is no message {message_id} in this session")


def no_session(session_id: str) -> NoReturn:
    raise SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)


class Followers:
    """May be told from any thread."""

    def __init__(self) -> None:
        self._ears: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        """An event that is set whenever the session may have changed."""
        ear = asyncio.Event()
        self._ears.setdefault(session_id, {})[ear] = asyncio.get_running_loop()
        try:
            yield ear
        finally:
            del self._ears[session_id][ear]
            if not self._ears[session_id]:
                del self._ears[session_id]

    def __bool__(self) -> bool:
        return bool(self._ears)

    def tell(self, session_id: str) -> None:
        for ear, loop in tuple(self._ears.get(session_id, {}).items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(ear.set)

    def tell_all(self) -> None:
        for session_id in tuple(self._ears):
            self.tell(session_id)
