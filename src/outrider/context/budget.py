"""How large a prompt is, from what the provider counted last and the characters that came since."""

from collections.abc import Sequence

from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, TextPart, ToolPart, tool_result

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_FILE = 1_500


def estimated_tokens(history: Sequence[Message], *, overhead: int = 0) -> int:
    """The prompt that this history makes. `overhead` counts system prompt and tools before the first answer."""
    since = 0
    for message in reversed(history):
        if any(isinstance(part, CompactionPart) for part in message.parts):
            return since + _size(message) + overhead
        if message.role == "assistant" and message.tokens.total:
            return since + message.tokens.total + _results(message)
        since += _size(message)
    return since + overhead


def characters(text: str) -> int:
    """Tokens of a text, roughly."""
    return len(text) // CHARACTERS_PER_TOKEN


def _results(message: Message) -> int:
    """The results of an answer's calls were not yet counted when it was given."""
    results = (tool_result(part) for part in message.parts if isinstance(part, ToolPart))
    return sum(characters(result.content) + TOKENS_PER_FILE * len(result.attachments) for result in results if result)


def _size(message: Message) -> int:
    total = _results(message)
    for part in message.parts:
        match part:
            case TextPart() if not part.ignored:
                total += characters(part.text)
            case ReasoningPart():
                total += characters(part.text)
            case FilePart():
                total += TOKENS_PER_FILE
            case CompactionPart():
                total += characters(part.summary)
            case _:
                pass
    return total
