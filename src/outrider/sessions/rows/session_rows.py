"""Row conversion that all stores share: sessions, pages, transcripts, changes, inbox and approval records.

Also lease token checks and the listeners that wait for changes of a session.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from outrider._sync import call_in_loop
from outrider.errors import LeaseLostError, SessionInUseError, SessionNotFoundError, StoreError
from outrider.sessions.records import (
    Approval,
    ApprovalChange,
    Change,
    DamagedChange,
    DamagedRow,
    DeletedChange,
    Grouping,
    InboxChange,
    InboxItem,
    Lease,
    MessageChange,
    PartChange,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    StoredSession,
    UsageRow,
    check_filter,
    fingerprint_call,
)
from outrider.sessions.rows.codec import MessageRow, PartRow, encode_json, read_message, read_part
from outrider.sessions.session import ForkPoint, SessionTime
from outrider.types.codec import encode_plain
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.modes import APPROVAL_LEVELS, MODES, ApprovalLevel
from outrider.types.parts import ModelRef, Tokens

R = TypeVar("R")

CHANGES_LIMIT = 500


class SessionRow(Protocol):
    """A row of the sessions table: values by column name."""

    def __getitem__(self, column: str, /) -> Any: ...


class _SessionExtras(msgspec.Struct):
    """The session fields without a column; stored as JSON in the `body` column."""

    forked_from: ForkPoint | None = None
    compacting: int | None = None
    metadata: dict[str, Any] = {}
    approval: str = "ask"

    @property
    def level(self) -> ApprovalLevel:
        """The approval level; an unknown one, from a later version, asks."""
        for level in APPROVAL_LEVELS:
            if level == self.approval:
                return level
        return "ask"


_extras_decoder = msgspec.json.Decoder(_SessionExtras)


def session_columns(session: StoredSession) -> dict[str, Any]:
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
        "owner": session.owner,
        "metadata": msgspec.json.encode(session.metadata).decode(),
        "body": msgspec.json.encode(
            _SessionExtras(session.forked_from, times.compacting, session.metadata, session.approval)
        ),
    }


def decode_session(row: SessionRow) -> StoredSession:
    try:
        extras = _extras_decoder.decode(row["body"])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        extras = _SessionExtras(metadata={"damaged": str(error)})
    return StoredSession(
        id=row["id"],
        title=row["title"],
        workspace_directory=row["workspace"],
        mode=row["mode"] if row["mode"] in MODES else "plan",  # a damaged row gives no rights
        agent=row["agent"],
        parent_id=row["parent"],
        forked_from=extras.forked_from,
        time=SessionTime(row["created"], row["active"], extras.compacting, row["archived"]),
        metadata=extras.metadata,
        seq=row["seq"],
        approval=extras.level,
        owner=row["owner"],
    )


MetadataCondition = Callable[[str, object], tuple[str, list[Any]]]
"""Returns the SQL condition, with its values, that a session's metadata has a name with this value."""


def filter_conditions(
    filter: SessionFilter, mark: str, metadata_condition: MetadataCondition
) -> tuple[list[str], list[Any]]:
    """Returns SQL conditions and values for a filter; `mark` is the placeholder of the database."""
    check_filter(filter)
    conditions, values = list[str](), list[Any]()
    for column, value in (
        ("workspace =", filter.workspace_directory),
        ("parent =", filter.parent_id),
        ("agent =", filter.agent),
        ("mode =", filter.mode),
        ("active >=", filter.active_since),
        ("active <", filter.active_before),
        ("owner =", filter.owner),
    ):
        if value is not None:
            conditions.append(f"{column} {mark}")
            values.append(value)
    if filter.owner:
        conditions.append("owner <> ''")  # says that the partial index has these rows
    for name, value in filter.metadata.items():
        condition, condition_values = metadata_condition(name, value)
        conditions.append(condition)
        values += condition_values
    if filter.roots:
        conditions.append("parent IS NULL")
    if filter.archived is not None:
        conditions.append("archived IS NOT NULL" if filter.archived else "archived IS NULL")
    return conditions, values


def parse_cursor(after: str) -> list[Any]:
    """Parses a page cursor: the activity time and the id of the last session on the page."""
    active, _, id = after.partition(".")
    return [int(active), id]


def build_page(rows: Sequence[SessionRow], limit: int) -> SessionPage:
    """Builds a page from up to `limit + 1` rows; the extra row shows that another page follows."""
    next_cursor = f"{rows[limit - 1]['active']}.{rows[limit - 1]['id']}" if len(rows) > limit else None
    return SessionPage(tuple(map(decode_session, rows[:limit])), next_cursor)


class StoredPart(msgspec.Struct, frozen=True):
    row: PartRow
    draft: bool = False


def build_transcript(
    session: StoredSession,
    messages: Iterable[MessageRow],
    parts: Iterable[StoredPart],
    *,
    first: bool = True,
    last: bool = True,
) -> SessionTranscript:
    """Decodes rows into a transcript; `parts` are the parts of `messages`, in insertion order."""
    read: dict[str, Message] = {}
    damaged: list[DamagedRow] = []
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
    return SessionTranscript(session, list(read.values()), tuple(damaged), first, last, frozenset(drafts))


def message_change(session_id: str, seq: int, row: MessageRow) -> Change:
    message, problem = read_message(session_id, row)
    return DamagedChange(seq, problem) if problem else MessageChange(seq, message)


def part_change(session_id: str, seq: int, stored: StoredPart) -> Change:
    part, problem = read_part(session_id, stored.row)
    if part is not None:
        return PartChange(seq, part, stored.draft)
    assert problem is not None  # a row without a part always has an error
    return DamagedChange(seq, problem)


def encode_record(value: InboxItem | Approval) -> bytes:
    return encode_json(value, encode_plain)


def decode_inbox_item(body: bytes) -> InboxItem:
    return _inbox_decoder.decode(body)


def decode_approval(body: bytes) -> Approval:
    return _approval_decoder.decode(body)


def decode_inbox(bodies: Iterable[bytes]) -> list[InboxItem]:
    """Decodes inbox rows. A damaged row is reported once and left out; it stays in the store."""
    return [item for body in bodies if (item := _decode_or_report(decode_inbox_item, body, "input")) is not None]


def decode_approvals(bodies: Iterable[bytes]) -> list[Approval]:
    """Decodes approval rows. A damaged row is reported once and left out; it stays in the store."""
    return [item for body in bodies if (item := _decode_or_report(decode_approval, body, "approval")) is not None]


def _decode_or_report(decode: Callable[[bytes], R], body: bytes, kind: str) -> R | None:
    try:
        return decode(body)
    except Exception as error:  # noqa: BLE001  whatever a damaged row raises must not hide the others
        if body not in _reported:
            _reported.add(body)
            _log.error("a stored %s is damaged and was left out: %s", kind, error)
        return None


def decode_record_change(kind: str, seq: int, body: bytes) -> Change:
    try:
        if kind == "inbox":
            return InboxChange(seq, decode_inbox_item(body))
        return ApprovalChange(seq, decode_approval(body))
    except Exception as error:  # noqa: BLE001  as above
        return DamagedChange(seq, DamagedRow("input" if kind == "inbox" else "approval", "", "", str(error), body))


_log = logging.getLogger("outrider.sessions")
_reported: set[bytes] = set()
_inbox_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(InboxItem)
_approval_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Approval)


def check_token(session_id: str, token: int | None, current: int, owned: Lease | None) -> None:
    """Raises SessionInUseError for a write without a token to a leased session, LeaseLostError for an old token."""
    if token is None and owned is not None:
        raise session_in_use_error(owned)
    if token is not None and token != current:
        raise lease_lost_error(session_id)


def lease_lost_error(session_id: str) -> LeaseLostError:
    text = f"another process took session {session_id} over"
    return LeaseLostError(text, session_id=session_id)


def session_in_use_error(lease: Lease) -> SessionInUseError:
    owner = lease.owner
    return SessionInUseError(
        f"session {lease.session_id} is in use by process {owner.pid} on {owner.host}",
        session_id=lease.session_id,
        host=owner.host,
        pid=owner.pid,
        since=lease.since,
    )


def with_fingerprint(approval: Approval, now: int) -> Approval:
    """Returns the approval with a fingerprint and a creation time.

    An existing fingerprint stays: it was computed from the input before secrets were redacted.
    """
    digest = approval.fingerprint or fingerprint_call(approval.tool, approval.input)
    return msgspec.structs.replace(approval, fingerprint=digest, created=approval.created or now)


def forked_session(source: StoredSession, message_id: str, title: str | None, now: int) -> StoredSession:
    return msgspec.structs.replace(
        source,
        id=new_id(),
        title=source.title if title is None else title,
        parent_id=None,
        forked_from=ForkPoint(source.id, message_id),
        time=SessionTime(created=now, updated=now),
        seq=0,
    )


def raise_no_message(message_id: str) -> NoReturn:
    raise StoreError(f"there is no message {message_id} in this session")


def raise_no_session(session_id: str) -> NoReturn:
    raise SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)


class SessionListeners:
    """asyncio events that are set when a session changes. `notify_session` may be called from any thread."""

    def __init__(self) -> None:
        self._events: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        """Yields an event that is set whenever the session may have changed."""
        event = asyncio.Event()
        self._events.setdefault(session_id, {})[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._events[session_id][event]
            if not self._events[session_id]:
                del self._events[session_id]

    def __bool__(self) -> bool:
        return bool(self._events)

    async def iterate_changes(
        self, session_id: str, read: Callable[[int], Awaitable[Sequence[Change]]], after: int, *, follow: bool
    ) -> AsyncGenerator[Change, None]:
        """Yields the changes after `after`, which `read` returns, at most CHANGES_LIMIT at once; with `follow`, waits
        for more. It reads again only after a notification: a session that streams changes several times a second."""
        with self.listen(session_id) as changed:
            while True:
                changed.clear()
                try:
                    changes = await read(after)
                except SessionNotFoundError:
                    yield DeletedChange(after + 1)
                    return
                for change in changes:
                    yield change
                    after = change.seq
                if len(changes) == CHANGES_LIMIT:
                    continue
                if not follow:
                    return
                await changed.wait()

    def notify_session(self, session_id: str) -> None:
        for event, loop in tuple(self._events.get(session_id, {}).items()):
            if not loop.is_closed():
                call_in_loop(loop, event.set)

    def notify_all(self) -> None:
        for session_id in tuple(self._events):
            self.notify_session(session_id)


class AnswerUsage(msgspec.Struct, frozen=True):
    """The fields of a message row that statistics need; the JSON decoder skips all others."""

    role: str = "assistant"
    agent: str = ""
    model: ModelRef | None = None
    cost: Decimal | None = None
    tokens: Tokens = Tokens()
    time: MessageTime | None = None


class CallUsage(msgspec.Struct, frozen=True):
    tool: str
    outcome: str
    start: int
    end: int


USAGE_MARKER = b'"tokens"'  # occurs in the JSON of every message with token usage
_decoder = msgspec.json.Decoder(AnswerUsage)


def decode_answer_usage(body: bytes) -> AnswerUsage | None:
    """Decodes the usage of a message row. Returns None for a damaged row and for user input without usage."""
    try:
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answer if answer.role == "assistant" or answer.tokens.total else None


def usage_by_tool(calls: Iterable[CallUsage]) -> list[UsageRow]:
    rows: dict[str, UsageRow] = {}
    for call in calls:
        row = rows.get(call.tool) or UsageRow(key=call.tool)
        rows[call.tool] = msgspec.structs.replace(
            row,
            calls=row.calls + 1,
            errors=row.errors + (call.outcome != "completed"),
            duration_ms=row.duration_ms + max(0, call.end - call.start),
        )
    return sorted(rows.values(), key=lambda row: (-row.calls, row.key))


def usage_by_answer(answers: Iterable[AnswerUsage], by: Grouping) -> list[UsageRow]:
    rows: dict[str, UsageRow] = {}
    for answer in answers:
        key = _group_key(answer, by)
        row = rows.get(key) or UsageRow(key=key)
        rows[key] = msgspec.structs.replace(
            row,
            messages=row.messages + 1,
            tokens=row.tokens + answer.tokens,
            cost=row.cost + (answer.cost or 0),
            unpriced=row.unpriced + (answer.cost is None and answer.tokens.total > 0),
        )
    return sorted(rows.values(), key=lambda row: row.key)


def _group_key(answer: AnswerUsage, by: Grouping) -> str:
    if by == "day":
        return utc_day(answer.time.created if answer.time else 0)
    if by == "model":
        return str(answer.model) if answer.model else ""
    return answer.agent


def utc_day(time: int) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%d")
