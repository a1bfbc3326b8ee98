"""What was left open in sessions where nobody goes on, like those of agents after a crash: all of it is ended."""

from collections.abc import Sequence

from outrider.errors import SessionNotFoundError
from outrider.sessions.recovery import repair
from outrider.sessions.sqlite.owners import this_process
from outrider.sessions.store import Store
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import LEFT_OPEN


async def end_below(store: Store, messages: Sequence[Message]) -> None:
    """Of a session that is opened again, the agents that were at work for its last answer; not those whose calls go on,
    since they waited for an answer when the session was left."""
    calls = messages[-1].get_parts_by_type(ToolPart) if messages else []
    go_on = {call.metadata.get(LEFT_OPEN) for call in calls if not call.ended}
    for part in messages[-1].get_parts_by_type(SubtaskPart) if messages else ():
        if part.child_session_id is not None and part.child_session_id not in go_on:
            await end_session(store, part.child_session_id)


async def end_session(store: Store, session_id: str) -> None:
    """Also what waits for an answer, with its question. Who owned the session until now cannot write it any more."""
    try:
        lease = await store.acquire(session_id, this_process(), take_over=True)
    except SessionNotFoundError:
        return
    transcript = await store.load(session_id)
    if changed := repair(transcript, now_ms(), waits=False):
        await store.append(session_id, changed, token=lease.token)
    for question in await store.approvals(session_id, only_open=True):
        await store.answer(question.id, "revoked")
    await end_below(store, transcript.messages)
    await store.release(lease)
