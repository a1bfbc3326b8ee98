"""How large a prompt is, from what the provider counted last and the characters that came since."""

from collections.abc import Sequence

from outrider.context.current import current
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, TextPart, ToolPart, tool_result
from outrider.types.tool_state import ToolCompleted

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_FILE = 1_500


def estimated_tokens(history: Sequence[Message], *, overhead: int = 0) -> int:
    """The prompt that this history makes. `overhead` counts system prompt and tools before the first answer.

    What a provider counted before a compaction says nothing about the prompt after it."""
    since = 0
    for position in range(len(history) - 1, -1, -1):
        message = history[position]
        if any(isinstance(part, CompactionPart) for part in message.parts):
            return since + overhead + sum(map(size_of, current(history[: position + 1])))
        if message.role == "assistant" and message.tokens.total:
            return since + message.tokens.total + _results(message)
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
    seen = (part for part in message.parts if isinstance(part, ToolPart) and not _left_the_prompt(part))
    results = map(tool_result, seen)
    return sum(characters(result.content) + TOKENS_PER_FILE * len(result.attachments) for result in results if result)


def _left_the_prompt(part: ToolPart) -> bool:
    return isinstance(part.state, ToolCompleted) and part.state.time.compacted is not None
