"""A store that keeps no secrets: what is written goes through a redactor on its way into another store."""

from collections.abc import Coroutine, Sequence
from typing import Any, cast

from outrider.permissions.redaction.redactor import Redactor
from outrider.sessions.records import Approval, InboxItem, Kept, SessionUpdate, StoredSession
from outrider.sessions.store import Store


def redacted(store: Store, redactor: Redactor) -> Store:
    """The store, or another front of it where it would keep something that the redactor knows."""
    if isinstance(store, RedactedStore) and store.hides(redactor):
        return store
    return cast("Store", RedactedStore(store, redactor))


class RedactedStore:
    """What only reads or names things goes straight to the store behind. A draft goes without what may be the beginning
    of a secret."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor

    def hides(self, redactor: Redactor) -> bool:
        return set(redactor.known) <= set(self._redactor.known)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._store.create(self._redactor.value(session))

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._store.update(session_id, self._redactor.value(update))

    def append(
        self, session_id: str, values: Sequence[Kept], *, draft: bool = False, **more: Any
    ) -> Coroutine[Any, Any, int]:
        clean = self._redactor.draft if draft else self._redactor.kept
        return self._store.append(session_id, [clean(value) for value in values], draft=draft, **more)

    async def fork(self, session_id: str, *, title: str | None = None, **more: Any) -> StoredSession:
        return await self._store.fork(session_id, title=self._redactor.value(title), **more)

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._store.put_inbox(self._redactor.value(item))

    async def ask(self, approval: Approval) -> Approval:
        """The fingerprint is that of the call as it will run."""
        return await self._store.ask(self._redactor.value(approval))

    async def answer(self, approval_id: str, answer: Any, **more: Any) -> Approval:
        return await self._store.answer(approval_id, answer, **self._redactor.value(more))

    async def __aenter__(self) -> "RedactedStore":
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._store.__aexit__(*exception)
