"""The agents that a run calls, found in what its session keeps."""

import msgspec

from outrider.sessions.records import Change, PartChange
from outrider.sessions.store import Store
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolRunning


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A change in the session of an agent that was called, `depth` calls below the run; its number is one of that
    session, not of the run's."""

    session_id: str
    agent: str
    depth: int
    change: Change


def called_by(change: Change) -> str:
    """The session of the agent whose call is under way or has ended with this change; "" if there is none."""
    match change:
        case PartChange(part=SubtaskPart(child_session_id=str(child))):
            return child
        case PartChange(part=ToolPart(state=ToolRunning() | ToolCompleted() | ToolError() as state)):
            return str(state.metadata.get("child_session_id") or "")
        case _:
            return ""


def has_ended(change: Change) -> bool:
    """Whether it is the end of a call."""
    return isinstance(change, PartChange) and isinstance(change.part, ToolPart) and change.part.ended


async def at_work(store: Store, session_id: str) -> list[str]:
    """The sessions of agents that work for a session's last answer now."""
    messages = (await store.load(session_id, limit=1)).messages
    parts = [PartChange(0, part) for part in messages[-1].parts] if messages else []
    ended = {called_by(part) for part in parts if has_ended(part)}
    called = dict.fromkeys(called_by(part) for part in parts)
    return [child for child in called if child and child not in ended]
