"""Journals for the sessions of agents that are called."""

from outrider.app.below.descendants import end_below
from outrider.app.below.session_tree import SessionTree
from outrider.bus import EventBus
from outrider.sessions.journal import Journal, begin, resume
from outrider.sessions.session import Session
from outrider.sessions.store import Store


class Children:
    """They belong to the session that called, and so does the right to write them. `tree` is where tools find them."""

    def __init__(self, store: Store, bus: EventBus, tree: SessionTree | None) -> None:
        self._store = store
        self._bus = bus
        self._tree = tree

    async def begin(self, child: Session) -> Journal:
        return self._known(await begin(child, self._store, self._bus))

    async def resume(self, session_id: str) -> Journal:
        """One whose agent waited for an answer when all of it was left."""
        journal = self._known(await resume(session_id, self._store, self._bus, repeats=True))
        await end_below(self._store, journal.session.messages)
        return journal

    def _known(self, journal: Journal) -> Journal:
        if self._tree is not None:
            self._tree.add(journal.session)
        return journal
