"""Stored messages as entries."""

from collections.abc import Iterator

from outrider.tui.conversation.entries import Call, Entry, Note, Ran, Said, Thought, Written
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, RetryPart, TextPart, ToolPart

ABORTED = "aborted"
PLAN_ANSWER = "plan_answer"


def entries_of(message: Message) -> Iterator[Entry]:
    """What a person sees of a message; bookkeeping is not shown."""
    if message.role == "user":
        yield from _said(message)
        return
    for part in message.parts:
        found = entry_of(part)
        if found is not None:
            yield found
    if message.error is not None:
        yield error_note(message)


def entry_of(part: object) -> Entry | None:
    """The entry of a part that is whole; None for what is not shown."""
    match part:
        case TextPart(synthetic=False) if part.text.strip():
            return Written(part.id, part.message_id, part.text, open=False)
        case ReasoningPart() if part.text.strip():
            thought = Thought(part.id, part.message_id, part.text, open=False)
            thought.seconds = _seconds(part)
            return thought
        case ToolPart():
            return Call(part)
        case RetryPart():
            return Note(part.id, f"retry {part.attempt}: {part.error}", "warn", message_id=part.message_id)
        case CompactionPart():
            return compaction_note(part)
        case _:
            return None


def error_note(message: Message) -> Note:
    error = message.error
    assert error is not None
    if error.type == ABORTED:
        return Note(f"{message.id}-error", "interrupted", "warn", message_id=message.id)
    return Note(f"{message.id}-error", f"{error.type}: {error.message}", "bad", message_id=message.id)


def compaction_note(part: CompactionPart) -> Note:
    sizes = (
        f" ({part.tokens_before:,} → {part.tokens_after:,} tokens)" if part.tokens_before and part.tokens_after else ""
    )
    return Note(part.id, f"earlier messages are summarised{sizes}", "quiet", part.summary, part.message_id)


def _said(message: Message) -> Iterator[Entry]:
    if answer := message.metadata.get(PLAN_ANSWER):
        yield Note(f"{message.id}-plan", f"the plan was {answer}", "good", message_id=message.id)
    files = tuple(message.get_parts_by_type(FilePart))
    shown = [part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic]
    text = "\n".join(shown)
    for part in message.parts:
        if isinstance(part, CompactionPart):
            yield compaction_note(part)
        elif isinstance(part, TextPart) and "command" in part.metadata:
            yield _ran(part)
    if text.strip() or files:
        yield Said(message.id, text, files, message.id)


def _ran(part: TextPart) -> Ran:
    """A command of the user's own, which went along with a message."""
    ran = Ran(part.id, str(part.metadata["command"]))
    ran.message_id = part.message_id
    ran.text = str(part.metadata.get("output", ""))
    ran.exit = ""
    return ran


def _seconds(part: ReasoningPart) -> float | None:
    time = part.time
    return (time.end - time.start) / 1000 if time is not None and time.end is not None else None
