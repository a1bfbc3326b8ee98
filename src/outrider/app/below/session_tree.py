"""An open session and those that its agents open: what holds in each, by its id."""

from weakref import WeakValueDictionary

from outrider.permissions.modes import stricter
from outrider.sessions.session import Session
from outrider.types.agents import Mode


class SessionTree:
    """Sessions of agents that were called are known as long as somebody works in them."""

    def __init__(self, root: Session) -> None:
        self._root = root
        self._called: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def add(self, called: Session) -> None:
        self._called[called.id] = called

    def find(self, session_id: str) -> Session | None:
        return self._root if session_id in ("", self._root.id) else self._called.get(session_id)

    def mode_of(self, session_id: str) -> Mode:
        """The mode of a session and of all above it, together; of one that nobody knows, the one without any rights."""
        session = self.find(session_id)
        if session is None:
            return "chat"
        return session.mode if session is self._root else stricter(self.mode_of(session.parent_id or ""), session.mode)
