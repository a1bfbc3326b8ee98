"""What a crash left open is ended, once: calls as interrupted, unfinished answers as incomplete.

The exceptions: calls that only ask a person are put back, to be asked again; and where a turn is to go on, calls of
tools that are safe to repeat are run again."""

from collections.abc import Callable

from msgspec.structs import replace

from outrider.errors import SessionInUseError, SessionNotFoundError
from outrider.sessions.records import Kept, SessionFilter, Transcript
from outrider.sessions.store import Store
from outrider.types.messages import Message, MessageError, MessageTime
from outrider.types.parts import ToolPart
from outrider.types.tool_state import LEFT_OPEN, ToolPending, ToolRunning

MAY_HAVE_HAPPENED = (
    "The program stopped while this call was running. It may have had all, some or none of its effects; "
    "it was not run again. Look at the current state before you go on."
)
NEVER_RAN = "The program stopped before this call started; it had no effect."
INCOMPLETE = "The program stopped while this answer was being written; what was shown until then is kept."

REPEATED = "repeated"
MOST_REPEATS = 3  # a call that takes the program with it each time is ended in the end

Describe = Callable[[ToolPart], str]


def repair(
    transcript: Transcript,
    at: int,
    describe: Describe = lambda _: "",
    *,
    waits: bool = True,
    repeats: bool = False,
) -> list[Kept]:
    """Change the transcript's messages, and give what has to be stored; a second time there is nothing to do.

    `describe` may add what is known about a running call's effects. A call that waits for an approval stays as it is,
    since it is asked about again, and one that only asks a person is put back before its start; without `waits` both
    end too. With `repeats` the turn goes on at once, so calls of its last answer that are safe to repeat are put back.
    """
    last = transcript.messages[-1:]
    changed: list[Kept] = [back for message in last for back in _put_back(message, waits=waits, repeats=repeats)]
    for message in transcript.messages:
        changed += _end_calls(message, at, describe, waits=waits, repeats=repeats)
        drafts = [part for part in message.parts if part.id in transcript.drafts]
        ended = {value.id for value in changed}
        changed += [part for part in drafts if part.id not in ended]
        if drafts and message.role == "assistant" and message.finish is None:
            message.error = message.error or MessageError("interrupted", INCOMPLETE)
            message.time = MessageTime(message.time.created if message.time else at, at)
            changed.insert(len(changed) - len(drafts), replace(message, parts=[]))
    return changed


def _put_back(message: Message, *, waits: bool, repeats: bool) -> list[Kept]:
    changed: list[Kept] = []
    for position, part in enumerate(message.parts):
        if (
            isinstance(part, ToolPart)
            and isinstance(part.state, ToolRunning)
            and _goes_on(part, waits=waits, repeats=repeats)
        ):
            times = part.metadata.get(REPEATED, 0) + 1
            back = replace(part, state=part.state.again(), metadata={**part.metadata, REPEATED: times})
            message.parts[position] = back
            changed.append(back)
    return changed


def _goes_on(part: ToolPart, *, waits: bool, repeats: bool) -> bool:
    if part.asks:
        return waits
    few = part.metadata.get(REPEATED, 0) < MOST_REPEATS
    return repeats and part.repeatable and (few or LEFT_OPEN in part.metadata)


def _end_calls(message: Message, at: int, describe: Describe, *, waits: bool, repeats: bool) -> list[Kept]:
    ended: list[Kept] = []
    for position, part in enumerate(message.parts):
        if isinstance(part, ToolPart) and ((waits and _is_asked_about(part)) or (repeats and _is_put_back(part))):
            continue
        if isinstance(part, ToolPart) and (closed := _end(part, at, describe)) is not part:
            message.parts[position] = closed
            ended.append(closed)
    return ended


def _end(part: ToolPart, at: int, describe: Describe) -> ToolPart:
    match part.state:
        case ToolRunning() as state:
            text = "\n".join(line for line in (MAY_HAVE_HAPPENED, describe(part), _output_so_far(state)) if line)
            return part.with_state(state.fail(text, at, reason="interrupted", metadata={"recovered_from": "running"}))
        case ToolPending() as state:
            words = MAY_HAVE_HAPPENED if _is_put_back(part) else NEVER_RAN
            return part.with_state(
                state.fail(words, at, reason="interrupted", metadata={"recovered_from": state.phase})
            )
        case _:
            return part


def _is_asked_about(part: ToolPart) -> bool:
    """Also of one that asks somebody itself, and was put back."""
    return isinstance(part.state, ToolPending) and (part.state.phase == "awaiting_approval" or part.asks)


def _is_put_back(part: ToolPart) -> bool:
    return isinstance(part.state, ToolPending) and REPEATED in part.metadata


def _output_so_far(state: ToolRunning) -> str:
    output = state.metadata.get("output")
    return f"Its output until then:\n{output}" if isinstance(output, str) and output else ""


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
