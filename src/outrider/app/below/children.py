"""Journals for the sessions of agents that are called."""

from outrider.app.below.descendants import end_below
from outrider.app.below.session_tree import SessionTree
from outrider.bus import EventBus
from outrider.sessions.journal import Journal, begin, resume
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.sessions.waiting.leases import Holder


class Children:
    """They belong to the session that called, and whoever takes that one over takes them over too: `holder` is who may
    write them until then. `tree` is where tools find them."""

    def __init__(self, store: Store, bus: EventBus, holder: Holder, tree: SessionTree | None) -> None:
        self._store = store
        self._bus = bus
        self._holder = holder
        self._tree = tree

    async def begin(self, child: Session) -> Journal:
        return self._known(await begin(child, self._store, self._bus, holder=self._holder))

    async def resume(self, session_id: str) -> Journal:
        """One whose agent waited for an answer when all of it was left."""
        journal = self._known(
            await resume(session_id, self._store, self._bus, holder=self._holder, take_over=True, repeats=True)
        )
        await end_below(self._store, journal.session.messages)
        return journal

    def _known(self, journal: Journal) -> Journal:
        if self._tree is not None:
            self._tree.add(journal.session)
        return journal
