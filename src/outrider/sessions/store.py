"""The `Store` protocol: what every session store implements.

Each row has the sequence number of its last change within its session; numbers have no gaps. A write returns after its
commit: an acknowledged write survives a crash of the process. It also survives a crash of the machine, except for
drafts and writes with `synced=False`. Message and part ids are unique within their session; writing an id again
replaces the value and assigns a new sequence number.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

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
from outrider.types.outcomes import OutcomeChoice


class Store(Protocol):
    """Persists sessions. Implementations: `SqliteStore`, `PostgresStore`, `MemoryStore`."""

    prompt: bool
    """True if a write usually completes without suspending the coroutine. The journal then starts it in the caller's
    task, if the store is one of this package: it may be continued in another task, and a program's store may depend
    on its task."""

    async def create(self, session: StoredSession) -> StoredSession:
        """Stores a new session. Raises StoreError if the id exists."""
        ...

    async def get(self, session_id: str) -> StoredSession:
        """Returns a session. Raises SessionNotFoundError for an unknown id, as do all methods with a `session_id`."""
        ...

    async def list(self, filter: SessionFilter = ..., *, limit: int = 50, after: str | None = None) -> SessionPage:
        """Returns a page of sessions, newest activity first. `after` is the `next` cursor of the previous page."""
        ...

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        """Changes fields of a session and returns its new value."""
        ...

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        """Deletes a session and its child sessions. Raises SessionInUseError if another process holds the lease."""
        ...

    async def clear(self) -> int:
        """Deletes every session without a valid lease and returns their number."""
        ...

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        """Creates a session with a copy of all messages up to and including `at` (None: all). Message ids stay."""
        ...

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
        """Stores messages (with their parts) and parts in one transaction; returns the last sequence number.

        `token` is the lease's token: an outdated token raises LeaseLostError, and no token raises SessionInUseError
        while the session is leased. `draft` values are incomplete: they survive the process but perhaps not the
        machine, and search does not find them. A write without `synced` reaches the disk within 250 ms, or with the
        next synced write. `takes` lists inbox items that enter the transcript in this transaction; an item that was
        taken before raises StoreError.
        """
        ...

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> SessionTranscript:
        """Returns all messages, or the last `limit` messages, or the last `limit` before the id `before`, or the first
        `limit` after the id `after`. With an empty `after`, returns the first `limit` messages of the session."""
        ...

    def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        """Yields every value with a sequence number above `after`, in order; with `follow`, then waits for more."""
        ...

    async def search(
        self, query: str, *, session_id: str | None = None, limit: int = 20, filter: SessionFilter = ...
    ) -> Sequence[SearchHit]:
        """Returns matching titles, then text and tool output, newest first; only of sessions that match `filter`.

        A match contains every word of the query; `"a phrase"` and `prefix*` are supported.
        """
        ...

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        """Returns usage by UTC day, provider/model, agent or tool; times are Unix milliseconds."""
        ...

    async def acquire(
        self, session_id: str, owner: ProcessIdentity, *, ttl_ms: int = 30_000, take_over: bool = False
    ) -> Lease:
        """Acquires the lease. Raises SessionInUseError while another owner holds it, unless `take_over` is set."""
        ...

    async def renew(self, lease: Lease) -> Lease:
        """Extends a lease. Raises LeaseLostError if another owner acquired it; an expired lease can be renewed."""
        ...

    async def release(self, lease: Lease) -> None:
        """Ends a lease. Does nothing if the lease was lost."""
        ...

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        """Stores an inbox item. If the id exists, returns the stored item unchanged."""
        ...

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        """Returns the items that were not taken, in the order of arrival."""
        ...

    async def ask(self, approval: Approval) -> Approval:
        """Stores an approval request. The same call with the same input returns the existing request."""
        ...

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
        """Answers an approval request. The first answer wins: a later one returns it unchanged, except `revoked`.
        `withdrawn` never replaces an answer either; it is stored as `revoked`. The request is read and written in one
        transaction; `Approval.answered_with` implements these rules.

        `by` names the user who answers, and `words` is the user's comment for the model. `keep` and `choice` answer a
        question about an outcome. `width` is the id of the width that a lasting answer covers.
        """
        ...

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        """Returns the approval requests of one session or of all, in order of creation."""
        ...

    async def close(self) -> None:
        """Closes connections and stops background threads."""
        ...

    async def __aenter__(self) -> "Store": ...

    async def __aexit__(self, *_: Any) -> None: ...


STORE_METHODS = tuple(
    name for name, value in vars(Store).items() if callable(value) and (name[0] != "_" or name.startswith("__a"))
)
"""The names of all methods that a store has."""
