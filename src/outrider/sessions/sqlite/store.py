"""Sessions in one SQLite file, shared by all processes of a machine: the store that is used by default."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from outrider.errors import SessionNotFoundError
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
from outrider.sessions.rows.rows import Followers
from outrider.sessions.sqlite import (
    inbox as requests,
)
from outrider.sessions.sqlite import (
    reads,
    writes,
)
from outrider.sessions.sqlite import (
    reads as counting,
)
from outrider.sessions.sqlite import (
    search as finding,
)
from outrider.sessions.sqlite import (
    writes as leases,
)
from outrider.sessions.sqlite.connection import Readers
from outrider.sessions.sqlite.files import file_system
from outrider.sessions.sqlite.recovery import FileSystem, open_file
from outrider.sessions.sqlite.search import IdleMaintenance
from outrider.sessions.sqlite.writer import Writer
from outrider.types.ids import now_ms

POLL_SECONDS = 0.1


class ChangeNotifier(Followers):
    """Other processes are noticed by the file's version, which costs microseconds to ask for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._poll: asyncio.Task[None] | None = None

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._watch_others())
        try:
            with super().listen(session_id) as ear:
                yield ear
        finally:
            if not self:
                self._poll.cancel()

    async def close(self) -> None:
        self.tell_all()
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)

    async def _watch_others(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            seen = -1
            while True:
                version = db.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    self.tell_all()
                seen = version
                await asyncio.sleep(POLL_SECONDS)
        finally:
            db.close()


T = TypeVar("T")
# What may be written in the caller's own thread: more would hold up its event loop.
LIGHT_ROWS, LIGHT_BYTES = 64, 128 * 1024
_ANY = SessionFilter()


class SqliteStore:
    """`notices` says what opening it had to do: a migration's backup, a damaged file that was set aside."""

    prompt = True

    def __init__(
        self, path: str | Path, *, clock: Callable[[], int] = now_ms, file_system: FileSystem = file_system
    ) -> None:
        self.path = Path(path)
        self.notices = open_file(self.path, file_system)
        self._clock = clock
        self._chores = IdleMaintenance(clock)
        self._writer = Writer(self.path, self._chores)
        self._readers = Readers(self.path)
        self._news = ChangeNotifier(self.path)

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._writer.run(lambda db: writes.create(db, session, self._clock()), synced=False)

    async def get(self, session_id: str) -> StoredSession:
        return await self._readers.run(lambda db: reads.get(db, session_id))

    async def list(self, filter: SessionFilter = _ANY, *, limit: int = 50, after: str | None = None) -> SessionPage:
        return await self._readers.run(lambda db: reads.list_sessions(db, filter, limit, after))

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._change(
            session_id, lambda db: writes.update(db, session_id, update, self._clock()), synced=False
        )

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        await self._change(session_id, lambda db: writes.delete(db, session_id, token))

    async def clear(self) -> int:
        count = await self._writer.run(writes.clear, heavy=True)
        self._news.tell_all()
        return count

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self._writer.run(lambda db: writes.fork(db, session_id, at, title, self._clock()), heavy=True)

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
        heavy = len(order.rows) > LIGHT_ROWS or sum(len(row.body) for row in order.rows) > LIGHT_BYTES
        synced = synced and not draft
        seq = await self._writer.run(lambda db: writes.append(db, order, self._clock()), synced=synced, heavy=heavy)
        self._news.tell(session_id)
        return seq

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> Transcript:
        return await self._readers.run(lambda db: reads.load(db, session_id, limit, before, after))

    async def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        await self.get(session_id)
        with self._news.listen(session_id) as news:
            while True:
                news.clear()
                try:
                    found = await self._readers.run(lambda db, after=after: reads.changes(db, session_id, after))
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
        while await self._writer.run(self._chores.index, synced=False):
            pass
        parsed = words.parse(query)
        return await self._readers.run(lambda db: finding.search(db, parsed, session_id, limit))

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._readers.run(lambda db: counting.usage(db, by, since, until, session_id))

    async def acquire(self, session_id: str, owner: Owner, *, ttl_ms: int = 30_000, take_over: bool = False) -> Lease:
        return await self._writer.run(
            lambda db: leases.acquire(db, session_id, owner, self._clock(), ttl_ms=ttl_ms, take_over=take_over),
            synced=False,
        )

    async def renew(self, lease: Lease) -> Lease:
        return await self._writer.run(lambda db: leases.renew(db, lease), synced=False)

    async def release(self, lease: Lease) -> None:
        await self._writer.run(lambda db: leases.release(db, lease), synced=False)

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._change(item.session_id, lambda db: requests.put_inbox(db, item, self._clock()))

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        def read(db: sqlite3.Connection) -> list[InboxItem]:
            return requests.inbox(db, session_id)

        found = self._writer.look(read)
        return found if found is not None else await self._readers.run(read)

    async def ask(self, approval: Approval) -> Approval:
        return await self._change(approval.session_id, lambda db: requests.ask(db, approval, self._clock()))

    async def answer(
        self, approval_id: str, answer: ApprovalAnswer, *, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        answered = await self._writer.run(
            lambda db: requests.answer(db, approval_id, answer, self._clock(), scope=scope, by=by, words=words)
        )
        self._news.tell(answered.session_id)
        return answered

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        return await self._readers.run(lambda db: requests.approvals(db, session_id, only_open=only_open))

    async def close(self) -> None:
        await self._news.close()
        await self._writer.close()
        await self._readers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _change(self, session_id: str, write: Callable[[sqlite3.Connection], T], *, synced: bool = True) -> T:
        result = await self._writer.run(write, synced=synced)
        self._news.tell(session_id)
        return result
