"""The field in which people write: Enter sends, Shift+Enter, Alt+Enter or Ctrl+J begin a new line."""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from textual import _ansi_sequences as sequences
from textual import events
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea

from outrider.tui.completion import Choice, Completion, Completions, complete, dropped_path
from outrider.tui.rendering.text import clean

LINES, CHARACTERS = 12, 1500
_MARK = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


class Pastes:
    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def take(self, text: str) -> str:
        """The text itself if it is short, else a mark for it."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines <= LINES and len(text) <= CHARACTERS:
            return text
        number = len(self._texts) + 1
        self._texts[number] = text
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{number}: {size}]"

    def put_in(self, text: str) -> str:
        return _MARK.sub(lambda found: self._texts.get(int(found[1]), found[0]), text)

    def clear(self) -> None:
        self._texts.clear()


MOST = 1000
_LONGEST = 100_000


class History:
    """Newest last. One file per workspace; several terminals may append to it. What cannot be kept or read (a full
    disk, a folder that is not ours) is remembered as long as the program runs, and worth no complaint."""

    def __init__(self, folder: Path | None, workspace: Path) -> None:
        name = hashlib.sha256(str(workspace).encode()).hexdigest()[:16]
        self._file = folder / f"{name}.jsonl" if folder is not None else None
        self._said = self._read()
        self._place = len(self._said)
        self._draft = ""

    def add(self, text: str) -> None:
        """Keep it, unless it was said just before."""
        if text.strip() and text != (self._said[-1] if self._said else None):
            self._said.append(text)
            with suppress(OSError):
                self._write(text)
        self._place = len(self._said)

    def older(self, current: str) -> str | None:
        """What was said before what is shown; `current` is kept for the way back."""
        if self._place == 0:
            return None
        if self._place == len(self._said):
            self._draft = current
        self._place -= 1
        return self._said[self._place]

    def newer(self) -> str | None:
        if self._place >= len(self._said):
            return None
        self._place += 1
        return self._draft if self._place == len(self._said) else self._said[self._place]

    def _read(self) -> list[str]:
        said: list[str] = []
        for row in self._rows()[-MOST:]:
            try:
                said.append(msgspec.json.decode(row, type=str))
            except msgspec.MsgspecError:
                continue  # a line that a crash cut off
        return said

    def _rows(self) -> list[bytes]:
        try:
            return self._file.read_bytes().splitlines() if self._file is not None else []
        except OSError:
            return []

    def _write(self, text: str) -> None:
        if self._file is None or len(text) > _LONGEST:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(msgspec.json.encode(text) + b"\n")


# The last two are what terminals send that tell modified keys apart in xterm's way.
_NEW_LINE = frozenset({"shift+enter", "alt+enter", "ctrl+j", "ctrl+enter", "shift+\r", "\r"})


class Composer(TextArea):
    DEFAULT_CSS = """
    Composer {
        height: auto; max-height: 12; min-height: 1; border: none; padding: 0; background: $background;
        scrollbar-size-vertical: 1;
        & .text-area--cursor-line { background: $background; }
        &:focus { border: none; }
    }
    """

    class Sent(Message):
        """`queue`: it waits for the end of the turn, instead of steering it."""

        def __init__(self, text: str, *, queue: bool) -> None:
            super().__init__()
            self.text = text
            self.queue = queue

    class TakenBack(Message):
        """What was said last shall not be taken yet."""

    def __init__(self, completions: Completions, history: History, commands: Sequence[Choice]) -> None:
        super().__init__(
            id="composer",
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Ask something, or say what to do",
        )
        self.said = history
        self.commands = commands
        self.files: Callable[[], Sequence[str]] = lambda: ()
        self.busy = False
        self.waits = False  # something that was said has not been taken yet
        self._completions = completions
        self._pastes = Pastes()
        self._completion: Completion | None = None
        self._looked_at: tuple[str, tuple[int, int]] = ("", (0, 0))

    def set(self, text: str) -> None:
        self.text = clean(text)
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        if self._take_key(event.key):
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        path = dropped_path(event.text)
        text = f'@"{path}" ' if path is not None else self._pastes.take(clean(event.text))
        self.insert(text)

    def on_text_area_changed(self) -> None:
        self.look_again()

    def look_again(self) -> None:
        """What could be meant by the word at the cursor."""
        self._looked_at = (self.text, self.cursor_location)
        row, column = self.cursor_location
        line = self.document.get_line(row)
        files = self.files() if "@" in line else ()
        self._offer(complete(line, column, first=row == 0, commands=self.commands, files=files))

    def _take_key(self, key: str) -> bool:
        """Whether the key had a meaning of its own here. What is offered follows the text a little later, so that keys
        which come all at once could take an offer that was made for less."""
        if key in ("enter", "tab") and self._looked_at != (self.text, self.cursor_location):
            self.look_again()
        if self._completion is not None and self._complete_with(key):
            return True
        if key in _NEW_LINE:
            self.insert("\n")
            return True
        match key:
            case "enter":
                return self._enter()
            case "tab":
                if self.busy and self.text.strip():
                    self._send(queue=True)
                return True
            case "up" if self.waits and not self.text:
                self.post_message(self.TakenBack())
                return True
            case "up" if self.cursor_at_first_line:
                return self._recall(self.said.older(self.text))
            case "down" if self.cursor_at_last_line:
                return self._recall(self.said.newer())
            case _:
                return False

    def _complete_with(self, key: str) -> bool:
        match key:
            case "up" | "down":
                self._completions.move(-1 if key == "up" else 1)
            case "tab":
                self._accept()
            case "enter":
                return self._accept()
            case "escape":
                self._offer(None)
            case _:
                return False
        return True

    def _accept(self) -> bool:
        """Put the chosen text in; False where it stands there already, so that Enter sends it."""
        completion, choice = self._completion, self._completions.chosen
        if completion is None or choice is None:
            return False
        row, column = self.cursor_location
        typed = self.document.get_line(row)[completion.start : column]
        self._offer(None)
        if typed == choice.text:
            return False
        self.replace(f"{choice.text} ", (row, completion.start), (row, column))
        self._offer(None)
        return not choice.text.startswith("/") or typed.endswith(" ")

    def _offer(self, completion: Completion | None) -> None:
        self._completion = completion
        self._completions.offer(completion.choices if completion else ())

    def _enter(self) -> bool:
        """A backslash before Enter begins a new line too, for terminals that know no other way."""
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self.text.strip():
            self._send(queue=False)
        return True

    def _send(self, *, queue: bool) -> None:
        text = self._pastes.put_in(self.text).strip()
        self.said.add(text)
        self._pastes.clear()
        self.clear()
        self._offer(None)
        self.post_message(self.Sent(text, queue=queue))

    def _recall(self, text: str | None) -> bool:
        if text is not None:
            self.set(text)
            self._offer(None)
        return text is not None


_ALT_ENTER = "\x1b\r"


def tell_alt_enter_from_enter() -> None:
    """Enter sends, so taking one for the other would send half a message. Both become Ctrl+J, a new line."""
    known = cast("dict[str, Any]", sequences.ANSI_SEQUENCES_KEYS)
    known.setdefault(_ALT_ENTER, (Keys.ControlJ,))
