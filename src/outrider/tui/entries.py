"""Transcript entries: user inputs, responses, reasoning, tool calls, notices and user commands."""

from collections import deque
from collections.abc import Iterator
from typing import Literal

from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, RetryPart, TextPart, ToolPart

NoteKind = Literal["quiet", "good", "warn", "bad"]
MAX_LIVE_LINES = 400  # of a running call's output; the stored result contains earlier lines


class TranscriptEntry:
    """Base class of entries. `version` increases with every change, which invalidates the rendered lines. `unfolded` is
    the user's choice; None means the default."""

    def __init__(self, id: str, message_id: str = "") -> None:
        self.id = id
        self.message_id = message_id
        self.version = 0
        self.unfolded: bool | None = None

    def mark_changed(self) -> None:
        self.version += 1

    def toggle_folded(self) -> None:
        self.unfolded = not self.unfolded
        self.mark_changed()


class UserEntry(TranscriptEntry):
    """A message of the user, with its attached files."""

    def __init__(self, id: str, text: str, files: tuple[FilePart, ...] = (), message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.files = files


class AssistantEntry(TranscriptEntry):
    """Text of the model; it is still streaming while `open`."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, open: bool = True) -> None:
        super().__init__(id, message_id)
        self.text = text
        self.open = open

    def append_text(self, delta: str) -> None:
        self.text += delta
        self.mark_changed()

    def finish(self, text: str) -> None:
        self.text = text
        self.open = False
        self.mark_changed()


class ReasoningEntry(AssistantEntry):
    """Reasoning of the model, collapsed by default."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, open: bool = True) -> None:
        super().__init__(id, message_id, text, open=open)
        self.seconds: float | None = None


class ToolCallEntry(TranscriptEntry):
    """A tool call, from its streaming input to its result."""

    def __init__(self, part: ToolPart) -> None:
        super().__init__(part.id, part.message_id)
        self.part = part
        self.raw_input = ""
        self.live_output: deque[str] = deque([""], maxlen=MAX_LIVE_LINES)
        self.child_activity = ""  # current activity of a called agent

    def append_input(self, delta: str) -> None:
        self.raw_input += delta
        self.mark_changed()

    def append_output(self, text: str) -> None:
        """Append to the last lines of the running call's output."""
        first, *rest = text.split("\n")
        self.live_output[-1] = (self.live_output[-1] + first)[-2000:]
        self.live_output.extend(rest)
        self.mark_changed()

    def update_part(self, part: ToolPart) -> None:
        self.part = part
        self.mark_changed()


class NoticeEntry(TranscriptEntry):
    """A notice of the application, not part of the session; `body` is Markdown that can be expanded."""

    def __init__(self, id: str, text: str, kind: NoteKind = "quiet", body: str = "", message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.kind: NoteKind = kind
        self.body = body


class CommandEntry(TranscriptEntry):
    """A command that the user ran with `!`. `exit_text` is None while it runs, and "" if it was not stored."""

    def __init__(self, id: str, command: str) -> None:
        super().__init__(id)
        self.command = command
        self.text = ""
        self.exit_text: str | None = None

    def append_output(self, text: str) -> None:
        self.text = (self.text + text)[-100_000:]
        self.mark_changed()

    def finish(self, exit_text: str) -> None:
        self.exit_text = exit_text
        self.mark_changed()


ABORTED = "aborted"
PLAN_ANSWER = "plan_answer"


def message_entries(message: Message) -> Iterator[TranscriptEntry]:
    """Return the visible entries of a message."""
    if message.role == "user":
        yield from _user_entries(message)
        return
    for part in message.parts:
        found = part_entry(part)
        if found is not None:
            yield found
    if message.error is not None:
        yield error_notice(message)


def part_entry(part: object) -> TranscriptEntry | None:
    """Return the entry of a complete part, or None if the part is not shown."""
    match part:
        case TextPart(synthetic=False) if part.text.strip():
            return AssistantEntry(part.id, part.message_id, part.text, open=False)
        case ReasoningPart() if part.text.strip():
            thought = ReasoningEntry(part.id, part.message_id, part.text, open=False)
            thought.seconds = _reasoning_seconds(part)
            return thought
        case ToolPart():
            return ToolCallEntry(part)
        case RetryPart():
            return NoticeEntry(part.id, f"retry {part.attempt}: {part.error}", "warn", message_id=part.message_id)
        case CompactionPart():
            return compaction_notice(part)
        case _:
            return None


def error_notice(message: Message) -> NoticeEntry:
    error = message.error
    assert error is not None
    if error.type == ABORTED:
        return NoticeEntry(f"{message.id}-error", "interrupted", "warn", message_id=message.id)
    return NoticeEntry(f"{message.id}-error", f"{error.type}: {error.message}", "bad", message_id=message.id)


def compaction_notice(part: CompactionPart) -> NoticeEntry:
    sizes = (
        f" ({part.tokens_before:,} → {part.tokens_after:,} tokens)" if part.tokens_before and part.tokens_after else ""
    )
    return NoticeEntry(part.id, f"earlier messages were summarized{sizes}", "quiet", part.summary, part.message_id)


def _user_entries(message: Message) -> Iterator[TranscriptEntry]:
    if answer := message.metadata.get(PLAN_ANSWER):
        yield NoticeEntry(f"{message.id}-plan", f"the plan was {answer}", "good", message_id=message.id)
    files = tuple(message.get_parts_by_type(FilePart))
    shown = [part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic]
    text = "\n".join(shown)
    for part in message.parts:
        if isinstance(part, CompactionPart):
            yield compaction_notice(part)
        elif isinstance(part, TextPart) and "command" in part.metadata:
            yield _command_entry(part)
    if text.strip() or files:
        yield UserEntry(message.id, text, files, message.id)


def _command_entry(part: TextPart) -> CommandEntry:
    """Return the entry of a user command whose output was sent with a message."""
    ran = CommandEntry(part.id, str(part.metadata["command"]))
    ran.message_id = part.message_id
    ran.text = str(part.metadata.get("output", ""))
    ran.exit_text = ""
    return ran


def _reasoning_seconds(part: ReasoningPart) -> float | None:
    time = part.time
    return (time.end - time.start) / 1000 if time is not None and time.end is not None else None
