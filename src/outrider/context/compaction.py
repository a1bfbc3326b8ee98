"""Token estimates, and which messages a compaction summarises and which it leaves unchanged."""

from collections.abc import Sequence

from outrider.context.lower import apply_compaction, has_compaction
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning, ToolState

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_FILE = 1_500


def estimate_tokens(history: Sequence[Message], *, overhead: int = 0) -> int:
    """Estimates the tokens of the prompt for this history. `overhead` is the size of system prompt and tools, used
    until the first answer reports real numbers. Numbers reported before a compaction are ignored."""
    since = 0
    for position in range(len(history) - 1, -1, -1):
        message = history[position]
        if has_compaction(message):
            return since + overhead + sum(map(estimate_message_tokens, apply_compaction(history[: position + 1])))
        counted = message.tokens.total if message.role == "assistant" else 0
        if counted:
            return since + counted + _result_tokens(message)
        since += estimate_message_tokens(message)
    return since + overhead


def estimate_text_tokens(text: str) -> int:
    """Estimates the tokens of a text."""
    return len(text) // CHARACTERS_PER_TOKEN


def estimate_message_tokens(message: Message) -> int:
    """Estimates the tokens of one message."""
    total = _result_tokens(message)
    for part in message.parts:
        match part:
            case TextPart() if not part.ignored:
                total += estimate_text_tokens(part.text)
            case ReasoningPart():
                total += estimate_text_tokens(part.text)
            case FilePart():
                total += TOKENS_PER_FILE
            case _:
                pass
    return total


def _result_tokens(message: Message) -> int:
    """Estimates the results of an answer's calls, which the answer's reported tokens do not include."""
    return sum([_state_tokens(part.state) for part in message.parts if isinstance(part, ToolPart)])


def _state_tokens(state: ToolState) -> int:
    """Estimates a call's result; 0 if its output was removed from the prompt."""
    match state:
        case ToolCompleted(output=text, attachments=attachments):
            if state.time.compacted is not None:
                return 0
            return estimate_text_tokens(text) + TOKENS_PER_FILE * len(attachments)
        case ToolError(error=text):
            return estimate_text_tokens(text)
        case ToolPending() | ToolRunning():
            return 0


FULL_SHARE = 0.85  # of the context window without the room for an answer: above it, a compaction starts
TAIL_SHARE = 0.2  # of the context window that is not summarised, at most
PINNED_CHARACTERS = 8_000  # of the user's last input that are appended to a summary
PINNED_TEXT = "{summary}\n\n## The user's last words, as they were\n{words}"


def needs_compaction(tokens: int, context_limit: int | None, output_limit: int | None) -> bool:
    if context_limit is None:
        return False
    room = context_limit - min(output_limit or 0, context_limit // 4)
    return tokens > room * FULL_SHARE


def find_tail_start(history: Sequence[Message], context_limit: int | None, *, share: float = TAIL_SHARE) -> int:
    """Returns the position of the first message that is not summarised: as many of the last messages as fit, at least
    those since the last user input, or only the last message. Messages before an earlier compaction stay summarised.

    Calls and their results are one part, so a cut between messages never separates them."""
    allowance = int((context_limit or 50_000) * share)
    newer = range(len(history) - 1, last_compaction_position(history), -1)
    inputs = [position for position in newer if _is_input(history[position])]
    start, size = inputs[0] if inputs else max(len(history) - 1, 0), 0
    for position in newer:
        size += estimate_message_tokens(history[position])
        if size > allowance:
            break
        if _is_input(history[position]):
            start = position
    return start


def last_compaction_position(history: Sequence[Message]) -> int:
    for position in range(len(history) - 1, -1, -1):
        if any(isinstance(part, CompactionPart) and part.summary for part in history[position].parts):
            return position
    return 0


def pin_last_input(summary: str, history: Sequence[Message], start: int) -> str:
    """Returns the summary with the user's last input appended, if no input is in the messages from `start` on."""
    if any(_is_input(message) for message in history[start:]):
        return summary
    words = next((_user_text(message) for message in reversed(history[:start]) if _is_input(message)), "")
    return PINNED_TEXT.format(summary=summary, words=words[:PINNED_CHARACTERS]) if words.strip() else summary


def _is_input(message: Message) -> bool:
    return message.role == "user" and not any(isinstance(part, CompactionPart) for part in message.parts)


def _user_text(message: Message) -> str:
    return "\n".join(part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic)
