"""The sessions that a server keeps, seen and ordered like those of this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from outrider.app.archive.archive import Archive
from outrider.app.remote.client import Client
from outrider.app.remote.feeds.held import messages, path_of, stored, whole_transcript
from outrider.errors import StoreError
from outrider.sessions.records import (
    Approval,
    Grouping,
    SearchHit,
    SessionFilter,
    SessionPage,
    SessionUpdate,
    StoredSession,
    Transcript,
    UsageRow,
)

if TYPE_CHECKING:
    from outrider.sessions.store import Store

MOST = 500  # sessions or hits of one request


class RemoteArchive(Archive):
    def __init__(self, client: Client) -> None:
        # An archive asks its store for no more than this, except in the methods below.
        super().__init__(cast("Store", _Shelf(client)))
        self._client = client

    async def export(self, session_id: str) -> bytes:
        return await self._client.ask("GET", f"{path_of(session_id)}/export")

    async def answers(self) -> Sequence[Approval]:
        return await self._client.get("/api/answers", list[Approval])

    async def revoke(self, approval_id: str) -> Approval:
        known = next((one for one in await self.answers() if one.id == approval_id), None)
        if known is None:
            raise StoreError("there is no such answer any more")
        await self._client.ask("DELETE", f"/api/answers/{approval_id}")
        return msgspec.structs.replace(known, answer="revoked")


class _Shelf:
    """What a server gives out of its store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, session_id: str) -> StoredSession:
        return await stored(self._client, session_id)

    async def list(self, asked: SessionFilter, *, limit: int, after: str | None = None) -> SessionPage:
        query: dict[str, Any] = {"workspace": asked.workspace_directory, "children": not asked.roots}
        query |= {"parent": asked.parent_id, "limit": min(limit, MOST), "after": after}
        return await self._client.get("/api/sessions", SessionPage, **query)

    async def load(self, session_id: str, *, limit: int | None = None, before: str | None = None) -> Transcript:
        if limit is None:
            return await whole_transcript(self._client, session_id)
        return await messages(self._client, session_id, min(limit, MOST), before=before)

    async def search(self, words: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        query = {"query": words, "session_id": session_id, "limit": min(limit, MOST)}
        return await self._client.get("/api/search", list[SearchHit], **query)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self._client.post(f"{path_of(session_id)}/fork", {"at": at, "title": title}, StoredSession)

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        await self._client.ask("PATCH", path_of(session_id), {"title": update.title})
        return await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        await self._client.ask("DELETE", path_of(session_id))

    async def statistics(
        self, by: Grouping, *, since: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._client.get("/api/usage", list[UsageRow], by=by, since=since, session_id=session_id)
