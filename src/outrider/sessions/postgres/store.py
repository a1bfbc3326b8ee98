"""Sessions in a Postgres database, shared by many machines."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from outrider.errors import SessionNotFoundError
from outrider.sessions.postgres import inbox as requests
from outrider.sessions.postgres import reads, writes
from outrider.sessions.postgres import search as finding
from outrider.sessions.postgres.connection import News, Pool
from outrider.sessions.postgres.schema import Connection, migrate
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
    SessionFilter,
    SessionPage,
    SessionUpdate,
    StoredSession,
    Transcript,
    UsageRow,
)
from outrider.sessions.rows import search_terms as words
from outrider.sessions.rows.codec import to_rows
from outrider.sessions.rows.rows import forked, read_session
from outrider.types.ids import now_ms

T = TypeVar("T")
_ANY = SessionFilter()


class PostgresStore:
    """`async with` opens it: it connects, and makes or updates the tables in `schema`."""

    prompt = False

    def __init__(self, url: str, *, schema: str = "outrider", clock: Callable[[], int] = now_ms) -> None:
        self._schema = schema
        self._clock = clock
        self._pool = Pool(url, schema)
        self._news = News(self._pool)

    async def open(self) -> Self:
        try:
            await self._run(lambda db: migrate(db, self._schema))
        except BaseException:
            await self.close()
            raise
        return self

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._pool.run(lambda db, again: writes.create(db, session, self._clock(), again=again))

    async def get(self, session_id: str) -> StoredSession:
        return read_session(await self._run(lambda db: reads.session_row(db, session_id)))

    async def list(self, filter: SessionFilter = _ANY, *, limit: int = 50, after: str | None = None) -> SessionPage:
        return await self._run(lambda db: reads.list_sessions(db, filter, limit, after))

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._run(lambda db: writes.update(db, session_id, update, self._clock()))

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        await self._pool.run(lambda db, again: writes.delete(db, session_id, token, again=again))

    async def clear(self) -> int:
        return await self._run(writes.clear)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        source = await self._run(lambda db: reads.session_row(db, session_id))
        last = await self._run(lambda db: writes.fork_point(db, source["key"], at))
        fork = forked(read_session(source), last["id"], title, self._clock())
        return await self._pool.run(
            lambda db, again: writes.fork(db, source, fork, last["key"], self._clock(), again=again)
        )

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
        order = writes.Append(session_id, to_rows(session_id, values), token, draft, takes)
        return await self._pool.run(lambda db, again: writes.append(db, order, self._clock(), again=again))

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> Transcript:
        return await self._look(lambda db: reads.load(db, session_id, limit, before, after))

    async def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        await self.get(session_id)
        if follow:
            await self._news.ready()
        with self._news.listen(session_id) as news:
            while True:
                news.clear()
                try:
                    found = await self._look(lambda db, after=after: reads.changes(db, session_id, after))
                except SessionNotFoundError:
                    yield DeletedChange(after + 1)
                    return
                for change in found:
                    yield change
                    after = change.seq
                if not found and not follow:
                    return
                if not found:
                    await news.wait()

    async def search(self, query: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        return await self._run(lambda db: finding.search(db, words.parse(query), session_id, limit))

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._run(lambda db: finding.usage(db, by, since, until, session_id))

    async def acquire(self, session_id: str, owner: Owner, *, ttl_ms: int = 30_000, take_over: bool = False) -> Lease:
        now = self._clock()
        return await self._run(
            lambda db: requests.acquire(db, session_id, owner, now, ttl_ms=ttl_ms, take_over=take_over)
        )

    async def renew(self, lease: Lease) -> Lease:
        return await self._run(lambda db: requests.renew(db, lease))

    async def release(self, lease: Lease) -> None:
        await self._run(lambda db: requests.release(db, lease))

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._run(lambda db: requests.put_inbox(db, item, self._clock()))

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        return await self._run(lambda db: requests.inbox(db, session_id))

    async def ask(self, approval: Approval) -> Approval:
        return await self._run(lambda db: requests.ask(db, approval, self._clock()))

    async def answer(
        self, approval_id: str, answer: ApprovalAnswer, *, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        return await self._run(
            lambda db: requests.answer(db, approval_id, answer, self._clock(), scope=scope, by=by, words=words)
        )

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        return await self._run(lambda db: requests.approvals(db, session_id, only_open=only_open))

    async def close(self) -> None:
        await self._news.close()
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._pool.run(lambda db, _: work(db))

    async def _look(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Several queries that see one moment."""

        async def looked(db: Connection, _: bool) -> T:  # noqa: FBT001  the shape of work
            await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return await work(db)

        return await self._pool.run(looked)
