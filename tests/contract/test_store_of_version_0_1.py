"""A store of a program with the methods and signatures of version 0.1 works with today's engine."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from outrider import Agent, Engine, Provider, Tool
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import (
    Approval,
    ApprovalAnswer,
    ApprovalScope,
    Change,
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

SECONDS = 20


class OldStore:
    """Delegates to a store. Every method has exactly the parameters that version 0.1 required."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.prompt = self._store.prompt

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._store.create(session)

    async def get(self, session_id: str) -> StoredSession:
        return await self._store.get(session_id)

    async def list(
        self, filter: SessionFilter | None = None, *, limit: int = 50, after: str | None = None
    ) -> SessionPage:
        return await self._store.list(filter or SessionFilter(), limit=limit, after=after)

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._store.update(session_id, update)

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        await self._store.delete(session_id, token=token)

    async def clear(self) -> int:
        return await self._store.clear()

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self._store.fork(session_id, at=at, title=title)

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
        return await self._store.append(session_id, values, token=token, draft=draft, synced=synced, takes=takes)

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> SessionTranscript:
        return await self._store.load(session_id, limit=limit, before=before, after=after)

    def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        return self._store.changes(session_id, after=after, follow=follow)

    async def search(self, query: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        return await self._store.search(query, session_id=session_id, limit=limit)

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._store.statistics(by, since=since, until=until, session_id=session_id)

    async def acquire(
        self, session_id: str, owner: ProcessIdentity, *, ttl_ms: int = 30_000, take_over: bool = False
    ) -> Lease:
        return await self._store.acquire(session_id, owner, ttl_ms=ttl_ms, take_over=take_over)

    async def renew(self, lease: Lease) -> Lease:
        return await self._store.renew(lease)

    async def release(self, lease: Lease) -> None:
        await self._store.release(lease)

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._store.put_inbox(item)

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        return await self._store.inbox(session_id)

    async def ask(self, approval: Approval) -> Approval:
        return await self._store.ask(approval)

    async def answer(
        self, approval_id: str, answer: ApprovalAnswer, *, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        return await self._store.answer(approval_id, answer, scope=scope, by=by, words=words)

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        return await self._store.approvals(session_id, only_open=only_open)

    async def close(self) -> None:
        await self._store.close()

    async def __aenter__(self) -> "OldStore":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


@Tool(policy="ask")
def risky(name: str) -> str:
    """Needs an approval."""
    return f"risky {name} is done"


def engine_on(store: OldStore) -> Engine:
    script: list[Any] = [[{"tool": "risky", "input": {"name": "dance"}}], "Danced or not."]
    return Engine(
        [Agent("writer", "You write.", "model-1", "scripted")],
        [Provider("scripted", "scripted", options={"script": script})],
        [risky],
        store=store,  # pyright: ignore[reportArgumentType]  the newer keyword parameters are missing
    )


async def test_an_approval_is_asked_and_answered():
    async with engine_on(OldStore()) as engine:
        session_id = await engine.create()
        turn = await engine.enqueue(session_id, "go")
        async with asyncio.timeout(SECONDS):
            while not (open_ := await engine.approvals(session_id)):
                await asyncio.sleep(0.01)
            answered = await engine.answer(open_[0].id, allow=True, scope="session", words="go on")
            assert (answered.answer, answered.scope, answered.words) == ("allowed", "session", "go on")
            assert (await turn).output == "Danced or not."


async def test_sessions_are_listed_searched_copied_exported_and_deleted():
    async with engine_on(OldStore()) as engine:
        session_id = await engine.create(title="zebra")
        assert [hit.session_id for hit in await engine.search("zebra")] == [session_id]
        copy = await engine.fork(session_id)
        assert {one.id for one in await engine.list()} == {session_id, copy}
        assert await engine.import_session(await engine.export(session_id)) != session_id
        await engine.delete(copy)
        assert await engine.clear() == 2
