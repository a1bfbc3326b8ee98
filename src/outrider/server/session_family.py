"""Which sessions agents have opened for each other, and who hears what is asked in them."""

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

ABOVE = 32  # generations; nobody calls deeper
_ASKED = {"question", "settled"}


class Family:
    """People look at one session, and its agents may call others: what those ask is asked there too."""

    def __init__(self, engine: Engine) -> None:
        self._callers: dict[str, str] = {}
        called = engine.bus.subscribe(AgentCalledEvent, self._called)
        returned = engine.bus.subscribe(AgentReturnedEvent, self._returned)
        self._unsubscribe: tuple[Callable[[], None], ...] = (called, returned)

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def concerns(self, event: Event, session_id: str) -> bool:
        """Whether an event of another session is told in this one."""
        return bool(self._callers) and asks(event) and session_id in self._above(event.session_id)

    def _above(self, session_id: str) -> list[str]:
        found: list[str] = []
        while (caller := self._callers.get(session_id)) is not None and len(found) < ABOVE:
            found.append(caller)
            session_id = caller
        return found

    def _called(self, event: AgentCalledEvent) -> None:
        self._callers[event.child_session_id] = event.session_id

    def _returned(self, event: AgentReturnedEvent) -> None:
        self._callers.pop(event.child_session_id, None)


def asks(event: Event) -> bool:
    match event:
        case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
            return True
        case SessionUpdatedEvent():
            return not _ASKED.isdisjoint(event.changes)
        case _:
            return False


async def top_of(engine: Engine, session_id: str) -> str:
    """The session for which, in the end, the agents in this one work."""
    for _ in range(ABOVE):
        parent = (await engine.store.get(session_id)).parent_id
        if parent is None:
            break
        session_id = parent
    return session_id


async def is_below(engine: Engine, session_id: str, above: str) -> bool:
    """Whether a session is another one, or was opened by its agents; by what is stored, so also after a restart."""
    for _ in range(ABOVE):
        if session_id == above:
            return True
        try:
            parent = (await engine.store.get(session_id)).parent_id
        except SessionNotFoundError:
            return False
        if parent is None:
            return False
        session_id = parent
    return False
