"""A store wrapper that redacts secrets from every value before another store writes it."""

from collections.abc import Coroutine, Sequence
from typing import Any, cast

from outrider.permissions.redaction.redactor import Redactor
from outrider.sessions.records import Approval, InboxItem, SessionUpdate, StoredSession, StoredValue
from outrider.sessions.store import Store


def redact_store(store: Store, redactor: Redactor) -> Store:
    """Returns a store that redacts what `redactor` knows; returns `store` itself if it does so already."""
    if isinstance(store, RedactedStore) and store.covers_redactor(redactor):
        return store
    return cast("Store", RedactedStore(store, redactor))


class RedactedStore:
    """Redacts the values of all writing methods; `__getattr__` forwards the other methods unchanged.

    A draft also loses a trailing string that may be the start of a secret.
    """

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor

    def covers_redactor(self, redactor: Redactor) -> bool:
        return set(redactor.known_forms) <= set(self._redactor.known_forms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, session: StoredSession) -> StoredSession:
        return await self._store.create(self._redactor.redact_value(session))

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        return await self._store.update(session_id, self._redactor.redact_value(update))

    def append(
        self, session_id: str, values: Sequence[StoredValue], *, draft: bool = False, **more: Any
    ) -> Coroutine[Any, Any, int]:
        clean = self._redactor.redact_draft if draft else self._redactor.redact_for_publish
        return self._store.append(session_id, [clean(value) for value in values], draft=draft, **more)

    async def fork(self, session_id: str, *, title: str | None = None, **more: Any) -> StoredSession:
        return await self._store.fork(session_id, title=self._redactor.redact_value(title), **more)

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._store.put_inbox(self._redactor.redact_value(item))

    async def ask(self, approval: Approval) -> Approval:
        """Redacts the input; the fingerprint stays that of the unredacted call."""
        return await self._store.ask(self._redactor.redact_value(approval))

    async def answer(self, approval_id: str, answer: Any, **more: Any) -> Approval:
        return await self._store.answer(approval_id, answer, **self._redactor.redact_value(more))

    async def __aenter__(self) -> "RedactedStore":
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._store.__aexit__(*exception)
