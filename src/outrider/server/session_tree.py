"""The tree of sessions that agents open for each other, to forward questions of child sessions to their ancestors."""

from collections.abc import Callable

from outrider.engine.engine import Engine
from outrider.errors import SessionNotFoundError
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    Event,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
)

MAX_DEPTH = 32  # bound for walks over the tree; agents cannot nest deeper
_QUESTION_CHANGES = {"question", "settled"}


class SessionTree:
    """Tracks which session called which. A user follows one session, so questions of its child sessions must appear
    there."""

    def __init__(self, engine: Engine) -> None:
        self._parents: dict[str, str] = {}
        unsubscribe_called = engine.bus.subscribe(AgentCalledEvent, self._add_child)
        unsubscribe_returned = engine.bus.subscribe(AgentReturnedEvent, self._remove_child)
        self._unsubscribe: tuple[Callable[[], None], ...] = (unsubscribe_called, unsubscribe_returned)

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def forwards_event(self, event: Event, session_id: str) -> bool:
        """Returns whether an event of another session is forwarded to this one."""
        return bool(self._parents) and is_question_event(event) and session_id in self._ancestors(event.session_id)

    def _ancestors(self, session_id: str) -> list[str]:
        ancestors: list[str] = []
        while (parent := self._parents.get(session_id)) is not None and len(ancestors) < MAX_DEPTH:
            ancestors.append(parent)
            session_id = parent
        return ancestors

    def _add_child(self, event: AgentCalledEvent) -> None:
        self._parents[event.child_session_id] = event.session_id

    def _remove_child(self, event: AgentReturnedEvent) -> None:
        self._parents.pop(event.child_session_id, None)


def is_question_event(event: Event) -> bool:
    """Returns whether the event asks a user, or settles what was asked."""
    match event:
        case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
            return True
        case SessionUpdatedEvent():
            return not _QUESTION_CHANGES.isdisjoint(event.changes)
        case _:
            return False


async def find_root_session(engine: Engine, session_id: str) -> str:
    """Returns the session at the root of the call tree."""
    for _ in range(MAX_DEPTH):
        parent = (await engine.store.get(session_id)).parent_id
        if parent is None:
            break
        session_id = parent
    return session_id


async def is_descendant(engine: Engine, session_id: str, ancestor_id: str) -> bool:
    """Returns whether the session is the ancestor itself or one of its descendants. It reads stored parents, so it
    works after a restart."""
    for _ in range(MAX_DEPTH):
        if session_id == ancestor_id:
            return True
        try:
            parent = (await engine.store.get(session_id)).parent_id
        except SessionNotFoundError:
            return False
        if parent is None:
            return False
        session_id = parent
    return False
