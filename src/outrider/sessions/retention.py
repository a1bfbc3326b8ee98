"""Forgets sessions that nobody has used for long; it may run while others write."""

from outrider.errors import SessionInUseError, SessionNotFoundError
from outrider.sessions.records import SessionFilter
from outrider.sessions.store import Store

PAGE = 100


async def forget(store: Store, *, inactive_since: int, limit: int = 10_000) -> int:
    """Delete at most `limit` sessions without activity since then; those that somebody owns stay. Says how many."""
    old = SessionFilter(active_before=inactive_since, roots=True)
    forgotten, after = 0, None
    while forgotten < limit:
        page = await store.list(old, limit=min(PAGE, limit - forgotten), after=after)
        for session in page.sessions:
            try:
                await store.delete(session.id)
            except (SessionInUseError, SessionNotFoundError):
                continue
            forgotten += 1
        after = page.next
        if after is None:
            break
    return forgotten
