"""The default store: one SQLite file, shared by all processes of a machine."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Never, Self, TypeVar

from outrider._sync import cancel_tasks
from outrider.errors import ConfigurationError
from outrider.sessions.database_files import file_system_type
from outrider.sessions.records import (
    Approval,
    ApprovalScope,
    Change,
    GivenAnswer,
    Grouping,
    InboxItem,
    Lease,
    ProcessIdentity,
    SearchHit,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    SessionUpdate,
    StoredSession,
    StoredValue,
    UsageRow,
)
from outrider.sessions.rows import search_terms
from outrider.sessions.rows.codec import AppendRequest, rows_size, to_rows
from outrider.sessions.rows.session_rows import SessionListeners
from outrider.sessions.sqlite import reads, search, writes
from outrider.sessions.sqlite.connection import ReaderPool
from outrider.sessions.sqlite.recovery import FileSystemType, open_file
from outrider.sessions.sqlite.search import IdleMaintenance
from outrider.sessions.sqlite.writer import DatabaseWriter
from outrider.types.ids import now_ms
from outrider.types.outcomes import OutcomeChoice
from outrider.types.validate import check_names

POLL_SECONDS = 0.1


class ChangePoller(SessionListeners):
    """Notifies listeners of changes by other processes: polls SQLite's `data_version`, which takes microseconds."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._poll: asyncio.Task[None] | None = None
        self._seqs: dict[str, int | None] = {}  # of the sessions with listeners, at the last poll

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        # A poller that the last listener cancelled may not have ended yet.
        if self._poll is None or self._poll.done() or self._poll.cancelling():
            self._poll = asyncio.create_task(self._poll_data_version())
        try:
            with super().listen(session_id) as event:
                yield event
        finally:
            if not self:
                self._poll.cancel()

    async def close(self) -> None:
        self.notify_all()
        if self._poll is not None:
            await cancel_tasks([self._poll])

    async def _poll_data_version(self) -> None:
        while True:
            with suppress(sqlite3.Error):
                await self._poll_connection()
            self.notify_all()  # their next read finds what was missed, or raises the error
            await asyncio.sleep(POLL_SECONDS)

    async def _poll_connection(self) -> None:
        """Polls until an error. It does not wait for locks, because it runs in the event loop."""
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as db:
            seen = -1
            while True:
                version = db.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    self._notify_changed(db)
                seen = version
                await asyncio.sleep(POLL_SECONDS)

    def _notify_changed(self, db: sqlite3.Connection) -> None:
        """Notifies the listeners whose session has another sequence number than before. The version changes with every
        commit, including commits of this process. Without the comparison, each commit would make every listener
        read."""
        try:
            seqs_by_id = reads.sequence_numbers(db, tuple(self._events))
        except sqlite3.Error:  # a damaged file; the listeners report it
            self.notify_all()
            return
        seqs = {session_id: seqs_by_id.get(session_id) for session_id in self._events}
        for session_id, seq in seqs.items():
            if session_id not in self._seqs or self._seqs[session_id] != seq:
                self.notify_session(session_id)
        self._seqs = seqs


T = TypeVar("T")
# Larger writes go to the writer thread, because an inline write blocks the caller's event loop.
INLINE_ROWS, INLINE_BYTES = 64, 128 * 1024
_ANY_SESSION = SessionFilter()


class SqliteStore:
    """Stores sessions in a SQLite file at `path`, which is created if it is missing.

    `notices` lists what opening did: the backup of a migration, or a damaged file that was renamed.
    """

    prompt = True

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], int] = now_ms,
        file_system: FileSystemType = file_system_type,
        **unknown: Never,
    ) -> None:
        check_names("SqliteStore()", unknown, ("path", "clock"))
        if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f'SqliteStore takes the path of a file, such as "sessions.db"; got {path!r}')
        self.path = Path(path)
        self.notices = open_file(self.path, file_system)
        self._clock = clock
        self._maintenance = IdleMaintenance(clock)
        self._writer = DatabaseWriter(self.path, self._maintenance)
        self._readers = ReaderPool(self.path)
        self._listeners = ChangePoller(self.path)

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._writer.run(lambda db: writes.insert_session(db, session, self._clock()), synced=False)

    async def get(self, session_id: str) -> StoredSession:
        return await self._readers.run(lambda db: reads.get_session(db, session_id))

    async def list(
        self, filter: SessionFilter = _ANY_SESSION, *, limit: int = 50, after: str | None = None
    ) -> SessionPage:
        return await self._readers.run(lambda db: reads.list_sessions(db, filter, limit, after))

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._write_and_notify(
            session_id, lambda db: writes.update_session(db, session_id, update, self._clock()), synced=False
        )

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        await self._write_and_notify(session_id, lambda db: writes.delete_session(db, session_id, token))

    async def clear(self) -> int:
        count = await self._writer.run(writes.delete_unowned_sessions, slow=True)
        self._listeners.notify_all()
        return count

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self._writer.run(
            lambda db: writes.fork_session(db, session_id, at, title, self._clock()), slow=True
        )

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
        request = AppendRequest(session_id, to_rows(session_id, values, split=not draft), token, draft, takes)
        slow = len(request.rows) > INLINE_ROWS or rows_size(request.rows) > INLINE_BYTES
        synced = synced and not draft
        seq = await self._writer.run(
            lambda db: writes.append_rows(db, request, self._clock()), synced=synced, slow=slow
        )
        self._listeners.notify_session(session_id)
        return seq

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> SessionTranscript:
        return await self._readers.run(lambda db: reads.load_transcript(db, session_id, limit, before, after))

    async def load_abridged(self, session_id: str, text_bytes: int) -> tuple[SessionTranscript, bool]:
        """Returns all messages, with the newest large texts up to `text_bytes`; notes replace older ones. The second
        value is true if there are any."""
        return await self._readers.run(lambda db: reads.load_abridged(db, session_id, text_bytes))

    async def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        await self.get(session_id)

        def read(after: int) -> Awaitable[Sequence[Change]]:
            return self._readers.run(lambda db: reads.list_changes(db, session_id, after))

        async with aclosing(self._listeners.iterate_changes(session_id, read, after, follow=follow)) as changes:
            async for change in changes:
                yield change

    async def search(
        self, query: str, *, session_id: str | None = None, limit: int = 20, filter: SessionFilter = _ANY_SESSION
    ) -> Sequence[SearchHit]:
        while await self._writer.run(self._maintenance.index_recent, synced=False):
            pass
        parsed = search_terms.parse_query(query)
        return await self._readers.run(lambda db: search.search_sessions(db, parsed, session_id, limit, filter))

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._readers.run(lambda db: reads.usage_statistics(db, by, since, until, session_id))

    async def acquire(
        self, session_id: str, owner: ProcessIdentity, *, ttl_ms: int = 30_000, take_over: bool = False
    ) -> Lease:
        return await self._writer.run(
            lambda db: writes.acquire_lease(db, session_id, owner, self._clock(), ttl_ms=ttl_ms, take_over=take_over),
            synced=False,
        )

    async def renew(self, lease: Lease) -> Lease:
        return await self._writer.run(lambda db: writes.renew_lease(db, lease), synced=False)

    async def release(self, lease: Lease) -> None:
        await self._writer.run(lambda db: writes.release_lease(db, lease), synced=False)

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._write_and_notify(item.session_id, lambda db: writes.put_inbox_item(db, item, self._clock()))

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        def read(db: sqlite3.Connection) -> list[InboxItem]:
            return writes.list_inbox(db, session_id)

        items = self._writer.read_inline(read)
        return items if items is not None else await self._readers.run(read)

    async def ask(self, approval: Approval) -> Approval:
        return await self._write_and_notify(
            approval.session_id, lambda db: writes.put_approval(db, approval, self._clock())
        )

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
        def respond(stored: Approval, at: int) -> Approval:
            return stored.answered_with(
                answer, scope=scope, by=by, words=words, at=at, keep=keep, choice=choice, width=width
            )

        answered = await self._writer.run(lambda db: writes.answer_approval(db, approval_id, respond, self._clock()))
        self._listeners.notify_session(answered.session_id)
        return answered

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        return await self._readers.run(lambda db: writes.list_approvals(db, session_id, only_open=only_open))

    async def close(self) -> None:
        await self._listeners.close()
        await self._writer.close()
        await self._readers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _write_and_notify(
        self, session_id: str, write: Callable[[sqlite3.Connection], T], *, synced: bool = True
    ) -> T:
        result = await self._writer.run(write, synced=synced)
        self._listeners.notify_session(session_id)
        return result
