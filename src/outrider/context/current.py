"""What a model still sees of a transcript after compactions: pure, so that the same history gives the same bytes."""

from collections.abc import Sequence

from msgspec.structs import replace

from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted

SUMMARY = "Summary of the conversation so far; the messages it stands for were removed:\n\n{summary}"
LARGE = 4_000  # characters of an old output that leave the prompt with a compaction


def current(history: Sequence[Message]) -> list[Message]:
    """The history with everything that a compaction stands for replaced by its summary."""
    for position in range(len(history) - 1, -1, -1):
        for part in history[position].parts:
            if isinstance(part, CompactionPart) and part.summary:
                return [_summary_message(part), *_tail(history, part, position), *history[position + 1 :]]
    return list(history)


def holds_compaction(message: Message) -> bool:
    return any([isinstance(part, CompactionPart) for part in message.parts])


def _summary_message(part: CompactionPart) -> Message:
    return Message("user", [TextPart(SUMMARY.format(summary=part.summary), synthetic=True, id=part.id)])


def _tail(history: Sequence[Message], part: CompactionPart, position: int) -> list[Message]:
    """What came before the compaction and is not in its summary: from the named message on. Large outputs leave the
    prompt too, but for those of the last answer, which the model may not have read yet."""
    start = next((at for at in range(position) if history[at].id == part.tail_start_id), position)
    last = max(start, position - 1)
    return [*map(_lightened, history[start:last]), *history[last:position]]


def _lightened(message: Message) -> Message:
    if not any(_is_large(part) for part in message.parts):
        return message
    parts = [_without_output(part) if _is_large(part) else part for part in message.parts]
    return replace(message, parts=parts)


def _is_large(part: object) -> bool:
    return isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted) and len(part.state.output) > LARGE


def _without_output(part: ToolPart) -> ToolPart:
    state = part.state
    return replace(part, state=state.compact(state.time.end)) if isinstance(state, ToolCompleted) else part
