"""The contract of a store: what every place that keeps sessions does, whatever it is made of.

Every row carries its session's sequence number of its last change; numbers are gapless. A write returns when it is
kept: what was acknowledged survives the end of the process, and (drafts aside, and what need not be synced) of the
machine. Messages and parts are unique by id within their session; writing one again replaces its value and gives it a
new number.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from outrider.sessions.records import (
    Approval,
    ApprovalAnswer,
    ApprovalScope,
    Change,
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


class Store(Protocol):
    prompt: bool
    """Whether a write is mostly done before it would have to wait for anything, so that it may be begun at once."""

    async def create(self, session: StoredSession) -> StoredSession:
        """Keep a new session; one that is there already raises StoreError."""
        ...

    async def get(self, session_id: str) -> StoredSession:
        """Raises SessionNotFoundError, as everything below does for a session that is not there."""
        ...

    async def list(self, filter: SessionFilter = ..., *, limit: int = 50, after: str | None = None) -> SessionPage:
        """Newest activity first. `after` is the `next` of the page before."""
        ...

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession: ...

    async def delete(self, session_id: str, *, token: int | None = None) -> None:
        """Delete a session and those that its agents opened. One that somebody else owns raises SessionInUseError."""
        ...

    async def clear(self) -> int:
        """Delete every session that nobody owns; says how many."""
        ...

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        """A new session with a copy of everything up to and with message `at` (None: all). Ids stay the same."""
        ...

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
        """Keep messages (with their parts) and parts, all or nothing; returns the number of the last change.

        `token` is the lease's: an outdated one raises LeaseLostError, none where somebody owns the session raises
        SessionInUseError. `draft` values are still being written: they survive the process but perhaps not the
        machine, and are found by a search once they are final. What is not `synced` survives the machine as well after
        a moment: 250 ms at most, or with the next write that is. `takes` are inbox items that enter the transcript
        with this write; one that was taken before raises StoreError.
        """
        ...

    async def load(
        self, session_id: str, *, limit: int | None = None, before: str | None = None, after: str | None = None
    ) -> Transcript:
        """All messages, the last `limit`, the last `limit` before one, or the first `limit` after one."""
        ...

    def changes(self, session_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Change, None]:
        """Every value newer than `after`, in order; then, with `follow`, what changes from now on."""
        ...

    async def search(self, query: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        """Titles first, then text and tool output, newest first. Every word counts; "a phrase" and prefix* work."""
        ...

    async def statistics(
        self, by: Grouping, *, since: int | None = None, until: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        """Usage by UTC day, provider/model, agent or tool; times are Unix milliseconds."""
        ...

    async def acquire(self, session_id: str, owner: Owner, *, ttl_ms: int = 30_000, take_over: bool = False) -> Lease:
        """Become the owner. Raises SessionInUseError while another one holds it, unless `take_over`."""
        ...

    async def renew(self, lease: Lease) -> Lease:
        """Raises LeaseLostError once somebody else has it; a lease that merely expired is renewed."""
        ...

    async def release(self, lease: Lease) -> None: ...

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        """Keep an item; one whose id is known is given back as it is."""
        ...

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        """What has not been taken, in the order in which it came."""
        ...

    async def ask(self, approval: Approval) -> Approval:
        """Keep a question. The same call with the same input is asked once: a second time gives what there is."""
        ...

    async def answer(
        self, approval_id: str, answer: ApprovalAnswer, *, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        """The first yes or no counts, with its words for the model, and comes back to whoever answers later; `revoked`
        always counts."""
        ...

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> "Store": ...

    async def __aexit__(self, *_: Any) -> None: ...
