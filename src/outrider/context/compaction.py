"""What a compaction keeps and what it summarises: pure choices over a transcript."""

from collections.abc import Sequence

from outrider.context.lower import current, holds_compaction
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning, ToolState

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_FILE = 1_500


def estimated_tokens(history: Sequence[Message], *, overhead: int = 0) -> int:
    """The prompt that this history makes. `overhead` counts system prompt and tools before the first answer.

    What a provider counted before a compaction says nothing about the prompt after it."""
    since = 0
    for position in range(len(history) - 1, -1, -1):
        message = history[position]
        if holds_compaction(message):
            return since + overhead + sum(map(size_of, current(history[: position + 1])))
        counted = message.tokens.total if message.role == "assistant" else 0
        if counted:
            return since + counted + _results(message)
        since += size_of(message)
    return since + overhead


def characters(text: str) -> int:
    """Tokens of a text, roughly."""
    return len(text) // CHARACTERS_PER_TOKEN


def size_of(message: Message) -> int:
    """Tokens of one message by itself, roughly."""
    total = _results(message)
    for part in message.parts:
        match part:
            case TextPart() if not part.ignored:
                total += characters(part.text)
            case ReasoningPart():
                total += characters(part.text)
            case FilePart():
                total += TOKENS_PER_FILE
            case _:
                pass
    return total


def _results(message: Message) -> int:
    """The results of an answer's calls were not yet counted when it was given."""
    return sum([_result(part.state) for part in message.parts if isinstance(part, ToolPart)])


def _result(state: ToolState) -> int:
    """Tokens of a call's end, roughly, as long as it is in the prompt."""
    match state:
        case ToolCompleted(output=text, attachments=attachments):
            return 0 if state.time.compacted is not None else characters(text) + TOKENS_PER_FILE * len(attachments)
        case ToolError(error=text):
            return characters(text)
        case ToolPending() | ToolRunning():
            return 0


FULL = 0.85  # of the context, less the room for an answer: time to compact
TAIL = 0.2  # of the context, at most, stays word for word
PINNED = 8_000  # characters of the user's last words that a summary keeps as they are
PINNED_WORDS = "{summary}\n\n## The user's last words, as they were\n{words}"


def is_full(tokens: int, context_limit: int | None, output_limit: int | None) -> bool:
    if context_limit is None:
        return False
    room = context_limit - min(output_limit or 0, context_limit // 4)
    return tokens > room * FULL


def tail_start(history: Sequence[Message], context_limit: int | None, *, share: float = TAIL) -> int:
    """Where the part begins that stays word for word: the last messages that fit, at least the last user input; at
    worst the last message alone. What came before a compaction does not come back.

    Calls and their results are one part, so a cut between messages never parts them."""
    allowance = int((context_limit or 50_000) * share)
    newer = range(len(history) - 1, since_last_compaction(history), -1)
    inputs = [position for position in newer if _is_input(history[position])]
    start, size = inputs[0] if inputs else max(len(history) - 1, 0), 0
    for position in newer:
        size += size_of(history[position])
        if size > allowance:
            break
        if _is_input(history[position]):
            start = position
    return start


def since_last_compaction(history: Sequence[Message]) -> int:
    for position in range(len(history) - 1, -1, -1):
        if any(isinstance(part, CompactionPart) and part.summary for part in history[position].parts):
            return position
    return 0


def pinned(summary: str, history: Sequence[Message], start: int) -> str:
    """The summary of what came before `start`, with the last words of the user if they are not in what stays."""
    if any(_is_input(message) for message in history[start:]):
        return summary
    words = next((_words(message) for message in reversed(history[:start]) if _is_input(message)), "")
    return PINNED_WORDS.format(summary=summary, words=words[:PINNED]) if words.strip() else summary


def _is_input(message: Message) -> bool:
    return message.role == "user" and not any(isinstance(part, CompactionPart) for part in message.parts)


def _words(message: Message) -> str:
    return "\n".join(part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic)
