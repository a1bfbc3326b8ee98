"""What a compaction keeps and what it summarises: pure choices over a transcript."""

from collections.abc import Sequence

from outrider.context.budget import estimated_tokens
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart

FULL = 0.85  # of the context, less the room for an answer: time to compact
TAIL = 0.2  # of the context, at most, stays word for word


def is_full(tokens: int, context_limit: int | None, output_limit: int | None) -> bool:
    if context_limit is None:
        return False
    room = context_limit - min(output_limit or 0, context_limit // 4)
    return tokens > room * FULL


def tail_start(history: Sequence[Message], context_limit: int | None) -> int:
    """Where the part begins that stays word for word: the last messages that fit, at least the last user input.

    Calls and their results are one part, so a cut between messages never parts them."""
    allowance = int((context_limit or 50_000) * TAIL)
    start = len(history)
    for position in range(len(history) - 1, 0, -1):
        if estimated_tokens([_bare(message) for message in history[position:]]) > allowance:
            break
        if history[position].role == "user":
            start = position
    return start if start < len(history) else _last_user(history)


def since_last_compaction(history: Sequence[Message]) -> int:
    for position in range(len(history) - 1, -1, -1):
        if any(isinstance(part, CompactionPart) and part.summary for part in history[position].parts):
            return position
    return 0


def _last_user(history: Sequence[Message]) -> int:
    """At worst the whole history is summarised but for its last message."""
    return next((at for at in range(len(history) - 1, 0, -1) if history[at].role == "user"), max(len(history) - 1, 0))


def _bare(message: Message) -> Message:
    """Without the provider's count, which is of everything before it too."""
    return Message(message.role, [], metadata={"counted": message.id}) if not message.parts else _uncounted(message)


def _uncounted(message: Message) -> Message:
    copy = Message(message.role, [])
    copy.parts = message.parts
    return copy
