"""What a conversation shows, one after the other: words, thoughts, calls, notes. `version` grows with each change."""

from collections import deque
from collections.abc import Iterator
from typing import Literal

from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, FilePart, ReasoningPart, RetryPart, TextPart, ToolPart

NoteKind = Literal["quiet", "good", "warn", "bad"]
LIVE_LINES = 400  # of a running call's output; what came before is in the stored result


class Entry:
    """`unfolded` is what a person chose; None leaves it to what is usual."""

    def __init__(self, id: str, message_id: str = "") -> None:
        self.id = id
        self.message_id = message_id
        self.version = 0
        self.unfolded: bool | None = None

    def touch(self) -> None:
        self.version += 1

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self.touch()


class UserEntry(Entry):
    """What a person wrote, with the files that came along."""

    def __init__(self, id: str, text: str, files: tuple[FilePart, ...] = (), message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.files = files


class AssistantEntry(Entry):
    """What the model writes; it grows while `open`."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, open: bool = True) -> None:
        super().__init__(id, message_id)
        self.text = text
        self.open = open

    def add(self, delta: str) -> None:
        self.text += delta
        self.touch()

    def end(self, text: str) -> None:
        self.text = text
        self.open = False
        self.touch()


class ReasoningEntry(AssistantEntry):
    """Reasoning: folded unless somebody wants to read it."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, open: bool = True) -> None:
        super().__init__(id, message_id, text, open=open)
        self.seconds: float | None = None


class ToolCallEntry(Entry):
    """A call, as it is written, runs and ends."""

    def __init__(self, part: ToolPart) -> None:
        super().__init__(part.id, part.message_id)
        self.part = part
        self.raw = ""
        self.live: deque[str] = deque([""], maxlen=LIVE_LINES)
        self.child = ""  # what an agent that was called is doing

    def write(self, delta: str) -> None:
        self.raw += delta
        self.touch()

    def output(self, text: str) -> None:
        """The last lines of what a running call says."""
        first, *rest = text.split("\n")
        self.live[-1] = (self.live[-1] + first)[-2000:]
        self.live.extend(rest)
        self.touch()

    def update(self, part: ToolPart) -> None:
        self.part = part
        self.touch()


class NoticeEntry(Entry):
    """A word of the program itself; `body` is Markdown that can be unfolded."""

    def __init__(self, id: str, text: str, kind: NoteKind = "quiet", body: str = "", message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.kind: NoteKind = kind
        self.body = body


class CommandEntry(Entry):
    """A command that the person ran with `!`. `exit` is None while it runs, and "" where it is not known any more."""

    def __init__(self, id: str, command: str) -> None:
        super().__init__(id)
        self.command = command
        self.text = ""
        self.exit: str | None = None

    def output(self, text: str) -> None:
        self.text = (self.text + text)[-100_000:]
        self.touch()

    def end(self, words: str) -> None:
        self.exit = words
        self.touch()


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
            return AssistantEntry(part.id, part.message_id, part.text, open=False)
        case ReasoningPart() if part.text.strip():
            thought = ReasoningEntry(part.id, part.message_id, part.text, open=False)
            thought.seconds = _seconds(part)
            return thought
        case ToolPart():
            return ToolCallEntry(part)
        case RetryPart():
            return NoticeEntry(part.id, f"retry {part.attempt}: {part.error}", "warn", message_id=part.message_id)
        case CompactionPart():
            return compaction_note(part)
        case _:
            return None


def error_note(message: Message) -> NoticeEntry:
    error = message.error
    assert error is not None
    if error.type == ABORTED:
        return NoticeEntry(f"{message.id}-error", "interrupted", "warn", message_id=message.id)
    return NoticeEntry(f"{message.id}-error", f"{error.type}: {error.message}", "bad", message_id=message.id)


def compaction_note(part: CompactionPart) -> NoticeEntry:
    sizes = (
        f" ({part.tokens_before:,} → {part.tokens_after:,} tokens)" if part.tokens_before and part.tokens_after else ""
    )
    return NoticeEntry(part.id, f"earlier messages are summarised{sizes}", "quiet", part.summary, part.message_id)


def _said(message: Message) -> Iterator[Entry]:
    if answer := message.metadata.get(PLAN_ANSWER):
        yield NoticeEntry(f"{message.id}-plan", f"the plan was {answer}", "good", message_id=message.id)
    files = tuple(message.get_parts_by_type(FilePart))
    shown = [part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic]
    text = "\n".join(shown)
    for part in message.parts:
        if isinstance(part, CompactionPart):
            yield compaction_note(part)
        elif isinstance(part, TextPart) and "command" in part.metadata:
            yield _ran(part)
    if text.strip() or files:
        yield UserEntry(message.id, text, files, message.id)


def _ran(part: TextPart) -> CommandEntry:
    """A command of the user's own, which went along with a message."""
    ran = CommandEntry(part.id, str(part.metadata["command"]))
    ran.message_id = part.message_id
    ran.text = str(part.metadata.get("output", ""))
    ran.exit = ""
    return ran


def _seconds(part: ReasoningPart) -> float | None:
    time = part.time
    return (time.end - time.start) / 1000 if time is not None and time.end is not None else None
