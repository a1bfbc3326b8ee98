"""How large a prompt is, from what the provider counted last and the characters that came since."""

from collections.abc import Sequence

from outrider.context.current import current, holds_compaction
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolPart
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
