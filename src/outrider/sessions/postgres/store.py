"""A store in a Postgres database, shared by many machines."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Never, Self, TypeVar

from outrider.errors import ConfigurationError
from outrider.sessions.postgres import reads, writes
from outrider.sessions.postgres.connection import MAX_CONNECTIONS, NotificationListener, TransactionPool
from outrider.sessions.postgres.schema import Connection, is_current_schema, migrate_schema
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
from outrider.sessions.rows.codec import AppendRequest, to_rows
from outrider.sessions.rows.session_rows import decode_session, forked_session
from outrider.types.ids import now_ms
from outrider.types.outcomes import OutcomeChoice
from outrider.types.validate import check_names

T = TypeVar("T")
_ANY_SESSION = SessionFilter()


class PostgresStore:
    """Stores sessions in a Postgres database. `async with` connects and creates or migrates the tables in `schema`.

    While the server cannot be reached, a request waits up to `outage_seconds` and then raises StoreUnavailableError;
    without waiting, it is repeated for about a second. Besides its pool of up to `max_connections` it opens one more
    connection to follow changes."""

    prompt = False

    def __init__(
        self,
        url: str,
        *,
        schema: str = "outrider",
        clock: Callable[[], int] = now_ms,
        outage_seconds: float = 0.0,
        max_connections: int = MAX_CONNECTIONS,
        **unknown: Never,
    ) -> None:
        check_names("PostgresStore()", unknown, ("url", "schema", "clock", "outage_seconds", "max_connections"))
        if "://" not in str(url) and "=" not in str(url):  # it may contain a password, so it is not shown
            raise ConfigurationError(
                "PostgresStore takes the address of a database: PostgresStore('postgresql://user@host/database')"
            )
        self._schema = schema
        self._clock = clock
        self._pool = TransactionPool(url, schema, max_connections=max_connections)
        self._outage_seconds = outage_seconds
        self._listeners = NotificationListener(self._pool)

    async def open(self) -> Self:
        """Connects and migrates the tables. Raises StoreUnavailableError if the server cannot be reached."""
        try:
            if not await self._run_transaction(lambda db: is_current_schema(db, self._schema)):
                await self._pool.run_alone(lambda db: migrate_schema(db, self._schema))
        except BaseException:
            await self.close()
            raise
        self._pool.outage_seconds = self._outage_seconds
        return self

    def stop_waiting(self) -> None:
        """Makes requests that wait for an unavailable server fail soon, so that the process can end."""
        self._pool.outage_seconds = 0.0

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._pool.run(
            lambda db, retried: writes.insert_session(db, session, self._clock(), retried=retried)
        )

    async def get(self, session_id: str) -> StoredSession:
        return decode_session(await self._run_statement(lambda db: reads.session_row(db, session_id)))

    async def list(
        self, filter: SessionFilter = _ANY_SESSION, *, limit: int = 50, after: str | None = None
    ) -> SessionPage:
        return await self._run_statement(lambda db: reads.list_sessions(db, filter, limit, after))

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._run_transaction(lambda db: writes.update_session(db, session_id, update, self._clock()))

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        await self._pool.run(lambda db, retried: writes.delete_session(db, session_id, token, retried=retried))

    async def clear(self) -> int:
        return await self._run_transaction(writes.delete_unowned_sessions)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        source = await self._run_statement(lambda db: reads.session_row(db, session_id))
        last = await self._run_transaction(lambda db: writes.find_fork_point(db, source["key"], at))
        fork = forked_session(decode_session(source), last["id"], title, self._clock())
        return await self._pool.run(
            lambda db, retried: writes.fork_session(db, source, fork, last["key"], self._clock(), retried=retried)
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
        request = AppendRequest(session_id, to_rows(session_id, values), token, draft, takes)
        append = writes.prepare_append(request, values)
        return await self._pool.run(
            lambda db, retried: writes.append_rows(db, append, self._clock(), retried=retried),
            is_statement=not append.needs_transaction,
        )

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> SessionTranscript:
        return await self._run_read_only(lambda db: reads.load_transcript(db, session_id, limit, before, after))

    async def load_abridged(self, session_id: str, text_bytes: int) -> tuple[SessionTranscript, bool]:
        """Returns all messages, with the newest large texts up to `text_bytes`; notes replace older ones. The second
        value is true if there are any."""
        if (empty := await self._run_statement(lambda db: reads.load_empty(db, session_id))) is not None:
            return empty, False
        return await self._run_read_only(lambda db: reads.load_abridged(db, session_id, text_bytes))

    async def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        await self.get(session_id)
        if follow:
            await self._listeners.wait_ready()

        def read(after: int) -> Awaitable[Sequence[Change]]:
            return self._run_read_only(lambda db: reads.list_changes(db, session_id, after))

        async with aclosing(self._listeners.iterate_changes(session_id, read, after, follow=follow)) as changes:
            async for change in changes:
                yield change

    async def search(
        self, query: str, *, session_id: str | None = None, limit: int = 20, filter: SessionFilter = _ANY_SESSION
    ) -> Sequence[SearchHit]:
        return await self._run_transaction(
            lambda db: reads.search_sessions(db, search_terms.parse_query(query), session_id, limit, filter)
        )

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._run_transaction(lambda db: reads.usage_statistics(db, by, since, until, session_id))

    async def acquire(
        self, session_id: str, owner: ProcessIdentity, *, ttl_ms: int = 30_000, take_over: bool = False
    ) -> Lease:
        now = self._clock()
        return await self._run_statement(
            lambda db: writes.acquire_lease(db, session_id, owner, now, ttl_ms=ttl_ms, take_over=take_over)
        )

    async def renew(self, lease: Lease) -> Lease:
        return await self._run_statement(lambda db: writes.renew_lease(db, lease))

    async def release(self, lease: Lease) -> None:
        await self._run_statement(lambda db: writes.release_lease(db, lease))

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._run_transaction(lambda db: writes.put_inbox_item(db, item, self._clock()))

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        return await self._run_statement(lambda db: writes.list_inbox(db, session_id))

    async def ask(self, approval: Approval) -> Approval:
        return await self._run_transaction(lambda db: writes.put_approval(db, approval, self._clock()))

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

        return await self._run_transaction(lambda db: writes.answer_approval(db, approval_id, respond, self._clock()))

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        run = self._run_statement if session_id is None else self._run_transaction
        return await run(lambda db: writes.list_approvals(db, session_id, only_open=only_open))

    async def close(self) -> None:
        await self._listeners.close()
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _run_transaction(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._pool.run(lambda db, _: work(db))

    async def _run_statement(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._pool.run(lambda db, _: work(db), is_statement=True)

    async def _run_read_only(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Runs several queries in one read-only snapshot."""
        return await self._pool.run(lambda db, _: work(db), is_snapshot=True)
