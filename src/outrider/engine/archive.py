"""Finds, lists, searches, exports, imports and deletes stored sessions for front ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.agents.turn_state import TurnEnd, TurnOutcome
from outrider.errors import SessionNotFoundError, StoreError
from outrider.sessions.records import (
    Approval,
    ApprovalChange,
    Change,
    DamagedChange,
    Grouping,
    ImportResult,
    MessageChange,
    PartChange,
    SearchHit,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    SessionUpdate,
    StoredSession,
    UsageRow,
)
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.ids import is_id, now_ms

# With re-exports: front ends import types of lower layers from the engine.
__all__ = [
    "Approval",
    "ApprovalChange",
    "Change",
    "DamagedChange",
    "Grouping",
    "ImportResult",
    "MessageChange",
    "PartChange",
    "SearchHit",
    "SessionArchive",
    "SessionPage",
    "SessionTranscript",
    "StoredSession",
    "TurnEnd",
    "TurnOutcome",
    "UsageRow",
    "open_archive",
    "render_shared_page",
]

LAST_SESSION = "last"
_PAGE_SIZE = 200
_MIN_NAME_LENGTH = 4
_ALL_SESSIONS = SessionFilter()


class SessionArchive:
    """Access to the sessions of a store. A session is named by its id, by the start or the end of its id, or by `last`.
    With `data`, Outrider's data folder, deleting a session also deletes its undo data and stored outputs."""

    def __init__(self, store: Store, data: Path | None = None) -> None:
        self.store = store
        self._data = data

    async def find_session(self, name: str) -> StoredSession:
        """Resolves a name. Raises SessionNotFoundError if there is none, and StoreError if the name is ambiguous."""
        if name == LAST_SESSION:
            return await self.find_newest()
        if is_id(name):
            return await self.store.get(name)
        if len(name) < _MIN_NAME_LENGTH:
            raise SessionNotFoundError(
                f"{name!r} is too short to name a session; give at least {_MIN_NAME_LENGTH} characters"
            )
        sessions = [
            session
            async for session in self.iterate_sessions()
            if session.id.startswith(name) or session.id.endswith(name)
        ]
        if not sessions:
            raise SessionNotFoundError(f"there is no session {name!r}; see `outrider sessions list`")
        if len(sessions) > 1:
            raise StoreError(f"{name!r} matches {len(sessions)} sessions; give more characters of the id")
        return sessions[0]

    async def find_newest(self, workspace: Path | None = None) -> StoredSession:
        """Returns the session with the latest activity, of one workspace or of all."""
        sessions = await self.list_sessions(1, workspace=workspace)
        if not sessions:
            raise SessionNotFoundError("there is no session yet" + (f" in {workspace}" if workspace else ""))
        return sessions[0]

    async def list_sessions(
        self, limit: int, *, workspace: Path | None = None, children: bool = False
    ) -> Sequence[StoredSession]:
        """Returns sessions, latest activity first. With `children`, also returns the sessions that agents opened for
        each other."""
        session_filter = SessionFilter(workspace_directory=str(workspace) if workspace else None, roots=not children)
        return [session async for session in self.iterate_sessions(session_filter, limit)]

    async def list_page(
        self,
        limit: int,
        *,
        after: str | None = None,
        workspace: str | None = None,
        children: bool = False,
        parent: str | None = None,
        archived: bool | None = None,
        owner: str | None = None,
    ) -> SessionPage:
        """Returns one page of sessions. `after` is the `next` of the previous page. `parent` selects the children of a
        session, `archived` the sessions that are or are not archived, `owner` the sessions of one user."""
        roots = not children and parent is None
        session_filter = SessionFilter(
            workspace_directory=workspace, roots=roots, parent_id=parent, archived=archived, owner=owner
        )
        return await self.store.list(session_filter, limit=limit, after=after)

    async def iterate_sessions(
        self, session_filter: SessionFilter = _ALL_SESSIONS, limit: int | None = None
    ) -> AsyncIterator[StoredSession]:
        """Iterates over matching sessions and loads them page by page. Unlike `list_sessions`, it includes child
        sessions unless the filter has `roots`."""
        loaded, after = 0, None
        while limit is None or loaded < limit:
            page = await self.store.list(
                session_filter, limit=min(_PAGE_SIZE, limit - loaded) if limit else _PAGE_SIZE, after=after
            )
            for session in page.sessions:
                yield session
            loaded, after = loaded + len(page.sessions), page.next
            if after is None:
                return

    async def load(self, session_id: str, last: int | None = None, *, before: str | None = None) -> SessionTranscript:
        """Returns all messages, or the `last` ones, or the last ones before the message `before`."""
        return await self.store.load(session_id, limit=last, before=before)

    async def search(self, query: str, *, limit: int, session_id: str | None = None) -> Sequence[SearchHit]:
        """Runs a full-text query over the messages of one session or of all."""
        return await self.store.search(query, session_id=session_id, limit=limit)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        """Copies a session up to the message `at` and returns the copy."""
        return await self.store.fork(session_id, at=at, title=title)

    async def rename(self, session_id: str, title: str) -> StoredSession:
        """Sets the title of a session and returns it."""
        return await self.store.update(session_id, SessionUpdate(title=title))

    async def delete(self, session_id: str) -> None:
        """Deletes a session, its child sessions and their files. Raises SessionInUseError if another process holds the
        lease."""
        async with delete_files_of_sessions(self._data, self.store):
            await self.store.delete(session_id)

    async def delete_all(self) -> int:
        """Deletes every session without a valid lease and returns their number."""
        async with delete_files_of_sessions(self._data, self.store):
            return await self.store.clear()

    async def export_document(self, session_id: str) -> bytes:
        """Returns the session and its child sessions as a JSON document."""
        from outrider.sessions.export import export_session  # lazy: a run does not need it

        return await export_session(self.store, session_id)

    def stream_document(self, session_id: str) -> AsyncGenerator[bytes, None]:
        """Yields the document of `export_document` in chunks. The memory that it needs does not depend on the length of
        the session."""
        from outrider.sessions.export import stream_export  # lazy, as above

        return stream_export(self.store, session_id)

    async def import_document(self, document: bytes, *, as_copy: bool) -> ImportResult:
        """Stores the session of an export."""
        from outrider.sessions.export import import_session  # lazy, as above

        return await import_session(self.store, document, as_copy=as_copy)

    async def import_from_url(self, url: str, *, token: str | None, as_copy: bool) -> ImportResult:
        """Downloads an export from another server and stores its session."""
        from outrider.config.providers import proxy_for
        from outrider.sessions.export import import_from_url

        return await import_from_url(self.store, url, key=token, as_copy=as_copy, proxy=proxy_for)

    async def usage_statistics(
        self, by: Grouping, *, since: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        """Returns tokens and cost, grouped by the given key."""
        return await self.store.statistics(by, since=since, session_id=session_id)

    async def lasting_approvals(self) -> Sequence[Approval]:
        """Returns the approvals in effect for more than one call."""
        from outrider.engine.approvals import lasting_approvals  # lazy: the queue loads the model clients

        return await lasting_approvals(self.store)

    async def revoke_approval(self, approval_id: str) -> Approval:
        """Revokes an approval and returns it."""
        return await self.store.answer(approval_id, "revoked")


@asynccontextmanager
async def delete_files_of_sessions(data: Path | None, store: Store) -> AsyncGenerator[None, None]:
    """Deletes undo data, stored outputs and sandbox files of the sessions that the block deletes. Files of sessions
    that were not in this store before are not deleted: they may belong to another store. When no session remains, the
    outputs that version 0.1 stored without a session are deleted too."""
    if data is None:
        yield
        return
    from outrider.engine.undo import delete_undo_data, is_deleted, list_undo_data  # lazy: it imports the agent's tools
    from outrider.outcomes.pending import list_session_overlays, remove_session_overlays

    stored = [path for path in await asyncio.to_thread(_list_outputs, data) if not await is_deleted(path.name, store)]
    undo_data = await list_undo_data(data, store)
    overlays = await asyncio.to_thread(list_session_overlays, data)
    overlays = {path: name for path, name in overlays.items() if name and not await is_deleted(name, store)}
    yield
    await delete_undo_data(undo_data, store)
    deleted = [path for path in stored if await is_deleted(path.name, store)]
    if not (await store.list(limit=1)).sessions:
        deleted += [path for path in await asyncio.to_thread(_list_outputs, data) if path.is_file()]
    await asyncio.to_thread(_delete_paths, deleted)
    unused = [path for path, name in overlays.items() if await is_deleted(name, store)]
    await asyncio.to_thread(remove_session_overlays, unused)


_UNUSED_OUTPUT_SECONDS = 30 * 24 * 3600


async def delete_unused_outputs(path: Path) -> int:
    """Deletes outputs that belong to no session of the store at `path` and were not changed for 30 days. Returns their
    number. Newer outputs are not deleted, because they may belong to a session of another store."""
    from outrider.engine.undo import is_deleted  # lazy: it imports the agent's tools

    unchanged_since = now_ms() / 1000 - _UNUSED_OUTPUT_SECONDS
    async with SqliteStore(path) as store:
        old = [
            output
            for output in await asyncio.to_thread(_list_outputs, path.parent)
            if output.lstat().st_mtime < unchanged_since and await is_deleted(output.name, store)
        ]
    await asyncio.to_thread(_delete_paths, old)
    return len(old)


def _list_outputs(data: Path) -> list[Path]:
    """Returns the folders of stored outputs, one for each session, and the single files of version 0.1."""
    folder = data / "outputs"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _delete_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            from shutil import rmtree  # loaded late: imports the archive modules

            rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@asynccontextmanager
async def open_archive(path: Path, *, create: bool = False) -> AsyncGenerator[SessionArchive, None]:
    """Opens the store at `path`. A missing file is an empty archive; it is created only with `create`."""
    async with _open_store(path, create=create) as store:
        yield SessionArchive(store, path.parent)


def _open_store(path: Path, *, create: bool) -> Store:
    if create or path.exists():
        return SqliteStore(path)
    from outrider.sessions.memory_store import MemoryStore  # lazy: only an empty archive needs it

    return MemoryStore()


async def render_shared_page(archive: SessionArchive, session_id: str) -> str:
    """Returns the session as a self-contained HTML page."""
    from outrider.presentation.share_page import render_share_page

    return render_share_page(await archive.load(session_id))
