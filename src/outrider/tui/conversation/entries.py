"""What a conversation shows, one after the other: words, thoughts, calls, notes. `version` grows with each change."""

from collections import deque
from typing import Literal

from outrider.types.parts import FilePart, ToolPart

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


class Said(Entry):
    """What a person wrote, with the files that came along."""

    def __init__(self, id: str, text: str, files: tuple[FilePart, ...] = (), message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.files = files


class Written(Entry):
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


class Thought(Written):
    """Reasoning: folded unless somebody wants to read it."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, open: bool = True) -> None:
        super().__init__(id, message_id, text, open=open)
        self.seconds: float | None = None


class Call(Entry):
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


class Note(Entry):
    """A word of the program itself; `body` is Markdown that can be unfolded."""

    def __init__(self, id: str, text: str, kind: NoteKind = "quiet", body: str = "", message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.kind: NoteKind = kind
        self.body = body


class Ran(Entry):
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
