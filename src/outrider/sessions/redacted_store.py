"""Store wrappers of an engine. One redacts secrets from every value before the wrapped store writes it. The other one
converts everything that a store of the program raises or returns to a valid value or a StoreError."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from outrider._sync import describe_exception, is_interruption
from outrider.errors import OutriderError, StoreError
from outrider.permissions.redaction.redactor import Redactor
from outrider.sessions.records import (
    Approval,
    InboxItem,
    Lease,
    SessionPage,
    SessionTranscript,
    SessionUpdate,
    StoredSession,
    StoredValue,
)
from outrider.sessions.store import Store


def redact_store(store: Store, redactor: Redactor) -> Store:
    """Returns a store that redacts the secrets of `redactor`; returns `store` itself if it already does so."""
    if isinstance(store, RedactedStore) and store.covers_redactor(redactor):
        return store
    is_ours = type(store).__module__.startswith("outrider.")
    return cast("Store", RedactedStore(store if is_ours else cast("Store", GuardedStore(store)), redactor))


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
        self, session_id: str, values: Sequence[StoredValue], *, draft: bool = False, **options: Any
    ) -> Coroutine[Any, Any, int]:
        clean = self._redactor.redact_draft if draft else self._redactor.redact_for_publish
        return self._store.append(session_id, [clean(value) for value in values], draft=draft, **options)

    async def fork(self, session_id: str, *, title: str | None = None, **options: Any) -> StoredSession:
        return await self._store.fork(session_id, title=self._redactor.redact_value(title), **options)

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        return await self._store.put_inbox(self._redactor.redact_value(item))

    async def ask(self, approval: Approval) -> Approval:
        """Redacts the input. The fingerprint does not change: it is the fingerprint of the unredacted call."""
        return await self._store.ask(self._redactor.redact_value(approval))

    async def answer(self, approval_id: str, answer: Any, **options: Any) -> Approval:
        return await self._store.answer(approval_id, answer, **self._redactor.redact_value(options))

    async def __aenter__(self) -> "RedactedStore":
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._store.__aexit__(*exception)


_RETURN_TYPES: dict[str, type[Any]] = {
    "create": StoredSession,
    "get": StoredSession,
    "update": StoredSession,
    "fork": StoredSession,
    "list": SessionPage,
    "append": int,
    "load": SessionTranscript,
    "acquire": Lease,
    "renew": Lease,
    "put_inbox": InboxItem,
    "inbox": Sequence,
    "ask": Approval,
    "answer": Approval,
    "approvals": Sequence,
}


class GuardedStore:
    """A store of the program. Converts exceptions of other libraries, and values of the wrong type, to StoreErrors, so
    that a session never depends on what the program raises."""

    prompt = False  # a write may be continued in another task, and a store of the program may depend on its task

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if inspect.isasyncgenfunction(value):
            return partial(self._iterate, name, value)
        return partial(self._call, name, value) if inspect.iscoroutinefunction(value) else value

    async def __aenter__(self) -> "GuardedStore":
        await self._call("__aenter__", self._store.__aenter__)
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._call("__aexit__", self._store.__aexit__, *exception)

    async def _call(self, name: str, method: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        task = asyncio.current_task()
        try:
            value = await method(*arguments, **options)
        except BaseException as error:
            if isinstance(error, OutriderError) or is_interruption(error, task):
                raise
            raise self._make_error(name, f"failed ({describe_exception(error)})") from error
        expected_type = _RETURN_TYPES.get(name)
        if expected_type is not None and not isinstance(value, expected_type):
            raise self._make_error(name, f"returned {type(value).__name__}; it must return {expected_type.__name__}")
        return value

    async def _iterate(
        self, name: str, method: Callable[..., AsyncGenerator[Any, None]], /, *arguments: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        async with aclosing(method(*arguments, **options)) as values:
            while (value := await self._call(name, anext, values, None)) is not None:
                yield value

    def _make_error(self, name: str, problem: str) -> StoreError:
        return StoreError(f"{name}() of the store {type(self._store).__name__} {problem}")
