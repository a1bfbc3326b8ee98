"""The sessions that are kept, as somebody outside of them sees and orders them."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.agents.turn_state import TurnEnd
from outrider.engine.approval_grants import standing
from outrider.engine.run_session import in_memory
from outrider.engine.undo_cleanup import forget_lost
from outrider.errors import SessionNotFoundError, StoreError
from outrider.sessions.export import Imported, export_session, import_session
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
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.ids import is_id

__all__ = [
    "Approval", "Archive", "Grouping", "Imported", "SearchHit", "SessionPage", "StoredSession", "Transcript",
    "UsageRow", "open_archive",
]  # fmt: skip

LAST = "last"
_PAGE = 200
_SHORTEST = 4
_ANY = SessionFilter()


class Archive:
    """A session is named by its id, by enough of the id's beginning or end, or by `last`. With `data`, the folder where
    Outrider keeps its things, what was kept for an undo goes with its session."""

    def __init__(self, store: Store, data: Path | None = None) -> None:
        self.store = store
        self._data = data

    async def find(self, name: str) -> StoredSession:
        if name == LAST:
            return await self.newest()
        if is_id(name):
            return await self.store.get(name)
        if len(name) < _SHORTEST:
            raise SessionNotFoundError(f"{name!r} is too short to name a session; give at least {_SHORTEST} characters")
        found = [one async for one in self.all() if one.id.startswith(name) or one.id.endswith(name)]
        if not found:
            raise SessionNotFoundError(f"there is no session {name!r}; see `outrider sessions list`")
        if len(found) > 1:
            raise StoreError(f"{name!r} could be any of {len(found)} sessions; give more of the id")
        return found[0]

    async def newest(self, workspace: Path | None = None) -> StoredSession:
        """The session that was used last, of this workspace or of any."""
        found = await self.sessions(1, workspace=workspace)
        if not found:
            raise SessionNotFoundError("there is no session yet" + (f" in {workspace}" if workspace else ""))
        return found[0]

    async def sessions(
        self, limit: int, *, workspace: Path | None = None, children: bool = False
    ) -> Sequence[StoredSession]:
        """Newest activity first; with those that agents opened for each other, if wanted."""
        asked = SessionFilter(workspace_directory=str(workspace) if workspace else None, roots=not children)
        return [one async for one in self.all(asked, limit)]

    async def page(
        self,
        limit: int,
        *,
        after: str | None = None,
        workspace: str | None = None,
        children: bool = False,
        parent: str | None = None,
    ) -> SessionPage:
        """The same, page by page: `after` is the `next` of the page before. `parent` leaves only its children."""
        roots = not children and parent is None
        asked = SessionFilter(workspace_directory=workspace, roots=roots, parent_id=parent)
        return await self.store.list(asked, limit=limit, after=after)

    async def all(self, asked: SessionFilter = _ANY, limit: int | None = None) -> AsyncIterator[StoredSession]:
        given, after = 0, None
        while limit is None or given < limit:
            page = await self.store.list(asked, limit=min(_PAGE, limit - given) if limit else _PAGE, after=after)
            for one in page.sessions:
                yield one
            given, after = given + len(page.sessions), page.next
            if after is None:
                return

    async def load(self, session_id: str, last: int | None = None, *, before: str | None = None) -> Transcript:
        """All messages, or the last ones, or the last ones before a message."""
        return await self.store.load(session_id, limit=last, before=before)

    async def search(self, words: str, *, limit: int, session_id: str | None = None) -> Sequence[SearchHit]:
        return await self.store.search(words, session_id=session_id, limit=limit)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self.store.fork(session_id, at=at, title=title)

    async def rename(self, session_id: str, title: str) -> StoredSession:
        return await self.store.update(session_id, SessionUpdate(title=title))

    async def delete(self, session_id: str) -> None:
        await self.store.delete(session_id)
        await self._forget_changes()

    async def clear(self) -> int:
        count = await self.store.clear()
        await self._forget_changes()
        return count

    async def export(self, session_id: str) -> bytes:
        return await export_session(self.store, session_id)

    async def bring(self, document: bytes, *, as_copy: bool) -> Imported:
        """Keep what an export holds."""
        return await import_session(self.store, document, as_copy=as_copy)

    async def bring_from(self, url: str, *, token: str | None, as_copy: bool) -> Imported:
        """Keep the export that another server gives out."""
        from outrider.sessions.export import import_from

        return await import_from(self.store, url, key=token, as_copy=as_copy)

    async def usage(
        self, by: Grouping, *, since: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self.store.statistics(by, since=since, session_id=session_id)

    async def answers(self) -> Sequence[Approval]:
        """What was answered for longer than one call, and still holds."""
        return await standing(self.store)

    async def revoke(self, approval_id: str) -> Approval:
        return await self.store.answer(approval_id, "revoked")

    async def _forget_changes(self) -> None:
        if self._data is not None:
            await forget_lost(self._data, self.store)


@asynccontextmanager
async def open_archive(path: Path, *, make: bool = False) -> AsyncGenerator[Archive, None]:
    """Looking makes no file: where nothing was ever kept there is an empty archive, unless it is to be made."""
    async with _opened(path, make=make) as store:
        yield Archive(store, path.parent)


def _opened(path: Path, *, make: bool) -> Store:
    return SqliteStore(path) if make or path.exists() else in_memory()


_SHORT = 8


def short_id(session_id: str) -> str:
    """The end of an id: its beginning is the time, and so the same for sessions of one minute."""
    return session_id[-_SHORT:]


__all__ = ["TurnEnd"]


async def shared_page(archive: Archive, session_id: str) -> str:
    from outrider.sessions.share_page import share

    return share(await archive.load(session_id))
