"""Crash recovery of a transcript: ends unfinished calls as interrupted and unfinished responses as incomplete.

There are two exceptions: a call that only asks the user is queued again, and if the turn resumes, calls of tools that
are safe to repeat run again. The module also deletes inactive sessions."""

from collections.abc import Callable
from typing import assert_never

from msgspec.structs import replace

from outrider.errors import SessionInUseError, SessionNotFoundError
from outrider.sessions.records import SessionFilter, SessionTranscript, StoredValue
from outrider.sessions.store import Store
from outrider.types.messages import Message, MessageError, MessageTime
from outrider.types.parts import ToolPart
from outrider.types.tool_state import LEFT_OPEN, ToolCompleted, ToolError, ToolPending, ToolRunning

MAY_HAVE_HAPPENED = (
    "The program stopped while this call was running. It may have had all, some or none of its effects; "
    "it was not run again. Look at the current state before you continue."
)
NEVER_RAN = "The program stopped before this call started; it had no effect."
INCOMPLETE = "The program stopped while this answer was being written; what was shown until then is stored."

REPEATED = "repeated"
MAX_REPEATS = 3  # a call that crashes the process each time must not be repeated forever

DescribeCall = Callable[[ToolPart], str]


def repair_transcript(
    transcript: SessionTranscript,
    now: int,
    describe: DescribeCall = lambda _: "",
    *,
    keep_waiting: bool = True,
    repeat_calls: bool = False,
) -> list[StoredValue]:
    """Repairs the transcript in place and returns the changed values to store; a second run returns an empty list.

    `describe` returns a note about the effects of a running call. With `keep_waiting`, a call that awaits approval
    stays as it is and a call that only asks the user is queued again; without it, both end. With `repeat_calls` the
    turn resumes at once, so calls of its last response that are safe to repeat are queued again.
    """
    last_messages = transcript.messages[-1:]
    changed: list[StoredValue] = [
        requeued
        for message in last_messages
        for requeued in _requeue_calls(message, keep_waiting=keep_waiting, repeat_calls=repeat_calls)
    ]
    for message in transcript.messages:
        changed += _interrupt_calls(message, now, describe, keep_waiting=keep_waiting, repeat_calls=repeat_calls)
        drafts = [part for part in message.parts if part.id in transcript.drafts]
        ended = {value.id for value in changed}
        changed += [part for part in drafts if part.id not in ended]
        if drafts and message.role == "assistant" and message.finish is None:
            message.error = message.error or MessageError("interrupted", INCOMPLETE)
            message.time = MessageTime(message.time.created if message.time else now, now)
            changed.insert(len(changed) - len(drafts), replace(message, parts=[]))
    return changed


def _requeue_calls(message: Message, *, keep_waiting: bool, repeat_calls: bool) -> list[StoredValue]:
    changed: list[StoredValue] = []
    for position, part in enumerate(message.parts):
        if (
            isinstance(part, ToolPart)
            and isinstance(part.state, ToolRunning)
            and _may_resume(part, keep_waiting=keep_waiting, repeat_calls=repeat_calls)
        ):
            times = part.metadata.get(REPEATED, 0) + 1
            requeued = replace(part, state=part.state.again(), metadata={**part.metadata, REPEATED: times})
            message.parts[position] = requeued
            changed.append(requeued)
    return changed


def _may_resume(part: ToolPart, *, keep_waiting: bool, repeat_calls: bool) -> bool:
    if part.asks:
        return keep_waiting
    may_repeat = part.metadata.get(REPEATED, 0) < MAX_REPEATS
    return repeat_calls and part.repeatable and (may_repeat or LEFT_OPEN in part.metadata)


def _interrupt_calls(
    message: Message, now: int, describe: DescribeCall, *, keep_waiting: bool, repeat_calls: bool
) -> list[StoredValue]:
    ended: list[StoredValue] = []
    for position, part in enumerate(message.parts):
        if isinstance(part, ToolPart) and (
            (keep_waiting and _awaits_answer(part)) or (repeat_calls and _is_requeued(part))
        ):
            continue
        if isinstance(part, ToolPart) and (closed := _interrupt_call(part, now, describe)) is not part:
            message.parts[position] = closed
            ended.append(closed)
    return ended


def _interrupt_call(part: ToolPart, now: int, describe: DescribeCall) -> ToolPart:
    match part.state:
        case ToolRunning() as state:
            text = "\n".join(line for line in (MAY_HAVE_HAPPENED, describe(part), _output_so_far(state)) if line)
            return part.with_state(state.fail(text, now, reason="interrupted", metadata={"recovered_from": "running"}))
        case ToolPending() as state:
            text = MAY_HAVE_HAPPENED if _is_requeued(part) else NEVER_RAN
            return part.with_state(
                state.fail(text, now, reason="interrupted", metadata={"recovered_from": state.phase})
            )
        case ToolCompleted() | ToolError():
            return part
        case _:
            assert_never(part.state)


def _awaits_answer(part: ToolPart) -> bool:
    """Returns whether the call waits for an approval, or asks the user itself and was queued again."""
    return isinstance(part.state, ToolPending) and (part.state.phase == "awaiting_approval" or part.asks)


def _is_requeued(part: ToolPart) -> bool:
    return isinstance(part.state, ToolPending) and REPEATED in part.metadata


def _output_so_far(state: ToolRunning) -> str:
    output = state.metadata.get("output")
    return f"Its output until then:\n{output}" if isinstance(output, str) and output else ""


PAGE_SIZE = 100


async def delete_inactive_sessions(store: Store, *, inactive_since: int, limit: int = 10_000) -> int:
    """Deletes at most `limit` sessions without activity since `inactive_since`, except leased sessions. Returns the
    number of deleted sessions."""
    old = SessionFilter(active_before=inactive_since, roots=True)
    deleted, after = 0, None
    while deleted < limit:
        page = await store.list(old, limit=min(PAGE_SIZE, limit - deleted), after=after)
        for session in page.sessions:
            try:
                await store.delete(session.id)
            except (SessionInUseError, SessionNotFoundError):
                continue
            deleted += 1
        after = page.next
        if after is None:
            break
    return deleted
