"""Whether a run only waits for somebody: then no worker has to hold it."""

from collections.abc import Sequence

from outrider.app.engine import Engine
from outrider.errors import SessionNotFoundError
from outrider.sessions.store import Store
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import ToolPending, ToolRunning


async def only_waits(engine: Engine, run_id: str) -> bool:
    """Whether nothing happens in the run, nor in what its agents work on, until somebody has answered."""
    live = engine.live.get(run_id)
    messages = live.journal.session.messages if live else []
    if not messages or not _is_open(messages[-1]):
        return False
    return bool(await engine.store.approvals(only_open=True)) and await _waits(engine.store, messages)


async def _waits(store: Store, messages: Sequence[Message]) -> bool:
    """Each open call waits for an answer, or for an agent that does; an agent works for one call alone."""
    if not messages or not _is_open(messages[-1]):
        return False
    states = [call.state for call in messages[-1].get_parts_by_type(ToolPart)]
    if any(isinstance(state, ToolPending) and state.phase != "awaiting_approval" for state in states):
        return False
    running = sum(isinstance(state, ToolRunning) for state in states)
    children = [part.child_session_id for part in messages[-1].get_parts_by_type(SubtaskPart)] if running else []
    waiting = [child for child in children if child and await _waits(store, await _last(store, child))]
    return len(waiting) == running


async def _last(store: Store, session_id: str) -> Sequence[Message]:
    """An agent is told of before its session is there, and begins with work."""
    try:
        return (await store.load(session_id, limit=1)).messages
    except SessionNotFoundError:
        return ()


def _is_open(message: Message) -> bool:
    return any(not call.ended for call in message.get_parts_by_type(ToolPart))
