"""The input field: Enter sends; Shift+Enter, Alt+Enter or Ctrl+J insert a new line. Also paste marks and history."""

import asyncio
import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from textual import _ansi_sequences as sequences
from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.keys import Keys
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static, TextArea

from outrider.presentation.formats import is_editable
from outrider.tui.completion import (
    CompletionChoice,
    CompletionList,
    CompletionResult,
    complete_word,
    dropped_paths,
    word_before,
)
from outrider.tui.driver import TerminalDriver, run_own_binding
from outrider.tui.vim import VimKeys

MAX_PASTE_LINES, MAX_PASTE_CHARS = 12, 1500
MAX_EDITED_CHARS = 100_000  # a longer text is shown as a mark: the text area would need seconds for it
_PASTE_MARK = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


def normalize_newlines(text: str) -> str:
    """Returns the text with LF line ends. Terminals send CR for each line end of a bracketed paste."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


class PasteBuffer:
    """Stores long pasted texts, which the composer shows as short marks until the input is sent."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def shorten_paste(self, text: str) -> str:
        """Returns a short text unchanged; stores a long one and returns a marker that represents it. A text with
        control characters is stored too: it is sent unchanged, but a terminal cannot show it."""
        text = normalize_newlines(text)
        lines = text.count("\n") + 1
        short = lines <= MAX_PASTE_LINES and len(text) <= MAX_PASTE_CHARS
        if short and is_editable(text):
            return text
        number = len(self._texts) + 1
        self._texts[number] = text
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{number}: {size}]"

    def expand_marks(self, text: str) -> str:
        return _PASTE_MARK.sub(lambda match: self._texts.get(int(match[1]), match[0]), text)

    def clear(self) -> None:
        self._texts.clear()

    @property
    def texts(self) -> dict[int, str]:
        return dict(self._texts)

    def restore(self, texts: dict[int, str]) -> None:
        self._texts = dict(texts)


MAX_HISTORY = 1000
_MAX_STORED_CHARS = 100_000


class InputHistory:
    """Input history of a workspace, newest last, stored in one JSON Lines file that several processes may append to.

    Read and write errors (full disk, missing rights) are ignored: the history then lasts until the program exits.
    """

    def __init__(self, folder: Path | None, workspace: Path) -> None:
        name = hashlib.sha256(str(workspace).encode()).hexdigest()[:16]
        self._file = folder / f"{name}.jsonl" if folder is not None else None
        self._inputs = self._read_inputs()
        self._index = len(self._inputs)
        self._draft = ""

    def add(self, text: str) -> None:
        """Appends an input, unless it equals the previous one."""
        if text.strip() and text != (self._inputs[-1] if self._inputs else None):
            self._inputs.append(text)
            with suppress(OSError):
                self._append_row(text)
        self._index = len(self._inputs)

    @property
    def newest_first(self) -> list[str]:
        """The distinct inputs of the history, newest first."""
        return list(dict.fromkeys(reversed(self._inputs)))

    def step_back(self, current: str) -> str | None:
        """Returns the previous input; stores `current` as the draft, so that `step_forward` can return to it."""
        if self._index == 0:
            return None
        if self._index == len(self._inputs):
            self._draft = current
        self._index -= 1
        return self._inputs[self._index]

    def step_forward(self) -> str | None:
        if self._index >= len(self._inputs):
            return None
        self._index += 1
        return self._draft if self._index == len(self._inputs) else self._inputs[self._index]

    def _read_inputs(self) -> list[str]:
        inputs: list[str] = []
        for row in self._read_rows()[-MAX_HISTORY:]:
            try:
                inputs.append(msgspec.json.decode(row, type=str))
            except msgspec.MsgspecError:
                continue  # a line truncated by a crash
        return inputs

    def _read_rows(self) -> list[bytes]:
        try:
            return self._file.read_bytes().splitlines() if self._file is not None else []
        except OSError:
            return []

    def _append_row(self, text: str) -> None:
        if self._file is None or len(text) > _MAX_STORED_CHARS:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(msgspec.json.encode(text) + b"\n")


# The last two are what Textual reports for modified Enter keys in xterm's modifyOtherKeys mode.
_NEW_LINE_KEYS = frozenset({"shift+enter", "alt+enter", "ctrl+j", "ctrl+enter", "shift+\r", "\r"})


_VALUES_SECONDS = 0.15  # after the last key, MCP servers are asked for completions
_DRAFT_SECONDS = 1.0  # after the last change; a draft is lost only by a crash within this time


class StoredDraft(msgspec.Struct, frozen=True):
    """An input that was not sent, and the texts of its paste marks."""

    text: str = ""
    pastes: dict[int, str] = {}


class DraftFile:
    """The unsent input of a workspace, stored so that it survives a restart. Read and write errors are ignored."""

    def __init__(self, folder: Path, workspace: Path) -> None:
        self._file = folder / f"{hashlib.sha256(str(workspace).encode()).hexdigest()[:16]}.json"

    def read(self) -> StoredDraft:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=StoredDraft)
        except (OSError, msgspec.MsgspecError):
            return StoredDraft()

    def write(self, draft: StoredDraft) -> None:
        with suppress(OSError):
            if not draft.text.strip():
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(draft))


# Joiner, variation selectors, keycap and skin tones: they change the emoji before them.
_EMOJI_MARKS = frozenset("\u200d\ufe0e\ufe0f\u20e3\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")


def _character_start(line: str, end: int) -> int:
    """Returns where the character that ends at `end` starts, as people see it: a letter with its accents, an emoji of
    several parts, or a flag."""
    start = end - 1
    while start and (_changes_previous(line[start]) or line[start - 1] == "\u200d"):
        start -= 1
    letters = 0  # regional indicators; two of them are a flag
    while letters <= start and "\U0001f1e6" <= line[start - letters] <= "\U0001f1ff":
        letters += 1
    return start - 1 if letters and letters % 2 == 0 else start


def _changes_previous(char: str) -> bool:
    return char in _EMOJI_MARKS or unicodedata.combining(char) != 0


class Composer(TextArea):
    """The input field with completion, history, paste marks, a stored draft and optional vi keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("alt+b,alt+left", "cursor_word_left", show=False),
        Binding("alt+f,alt+right", "cursor_word_right", show=False),
        Binding("alt+d", "delete_word_right", show=False),
        Binding("alt+z,ctrl+shift+z", "redo", show=False),
        Binding("ctrl+underscore", "undo", show=False),
        Binding("ctrl+z", "undo_or_suspend", show=False),
    ]

    DEFAULT_CSS = """
    Composer {
        height: auto; max-height: 12; min-height: 1; border: none; padding: 0; background: $background;
        scrollbar-size-vertical: 1;
        & .text-area--cursor-line { background: $background; }
        &:focus { border: none; }
        &.-normal .text-area--cursor { background: $secondary; }
    }
    """

    class Submitted(Message):
        """The user submitted a text. `queue` delivers it after the current turn, instead of during it."""

        def __init__(self, text: str, *, queue: bool) -> None:
            super().__init__()
            self.text = text
            self.queue = queue

    class ImageRequested(Message):
        """The user pasted with Ctrl+V: the clipboard may hold an image, which terminals cannot paste."""

    class ValuesRequested(Message):
        """MCP servers may complete the text before the cursor."""

        def __init__(self, head: str) -> None:
            super().__init__()
            self.head = head

    class WithdrawRequested(Message):
        """The user wants to edit the last queued input again."""

    def __init__(
        self,
        completions: CompletionList,
        history: InputHistory,
        commands: Sequence[CompletionChoice],
        draft: DraftFile | None = None,
    ) -> None:
        super().__init__(
            id="composer",
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Ask a question or describe a task",
        )
        self.cursor_blink = False  # a blinking cursor would draw twice a second while nothing happens
        self.input_history = history
        self.commands = commands
        self.files: Callable[[], Sequence[str]] = lambda: ()
        self.resources: Mapping[str, str | None] = {}  # of MCP servers, as SERVER:URI; for a template, its beginning
        self.suggestions: Sequence[str] = ()  # Tab inserts them into an empty composer, one after the other
        self.busy = False
        self.has_queued_input = False  # an input is queued and not delivered yet
        self._completions = completions
        self._pastes = PasteBuffer()
        self._draft = draft
        self._draft_timer: asyncio.TimerHandle | None = None
        self.vim: VimKeys | None = None
        self._completion: CompletionResult | None = None
        self._values = ("", CompletionResult(0, ()))  # the last completion by MCP servers, and the text for it
        self._values_timer: asyncio.TimerHandle | None = None
        self._completed_state: tuple[str, tuple[int, int]] = ("", (0, 0))
        self._has_styles = False  # the colors of the text area are those of the current style sheet

    def set_text(self, text: str) -> None:
        """Replaces the text; undo restores the previous one."""
        text = normalize_newlines(text)
        # An earlier input that is too long, or has control characters, is shown as a mark.
        fits = len(text) <= MAX_EDITED_CHARS and is_editable(text)
        visible_text = text if fits else self._pastes.shorten_paste(text)
        self.history.checkpoint()
        self.replace(visible_text, self.document.start, self.document.end, maintain_selection_offset=False)
        self.history.checkpoint()
        self.move_cursor(self.document.end)

    def discard_text(self) -> None:
        """Empties the composer. Undo and the input history can restore the text."""
        self.input_history.add(self.expanded_text())
        self.set_text("")
        if self.vim is not None:
            self.use_vim_keys(on=True)  # the next text is typed in insert mode

    def undo(self) -> None:
        super().undo()
        self.history.checkpoint()  # the next change must not be undone together with an earlier one

    def action_undo_or_suspend(self) -> None:
        """Undoes the last change. If there is none, stops the process, as Ctrl+Z does in a shell."""
        app = cast("App[Any]", self.app)  # pyright: ignore[reportUnknownMemberType]
        driver = app._driver  # pyright: ignore[reportPrivateUsage]
        if self.history.undo_stack:
            self.undo()
        elif isinstance(driver, TerminalDriver) and driver.has_job_control:
            app.action_suspend_process()

    def get_cursor_left_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        start = _character_start(self.document.get_line(row), column) if column else 0
        return (row, start) if column else super().get_cursor_left_location()

    def get_cursor_right_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        end = column + 1
        while end < len(line) and _character_start(line, end + 1) <= column:
            end += 1
        return (row, end) if column < len(line) else super().get_cursor_right_location()

    def redo(self) -> None:
        super().redo()
        self.history.checkpoint()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._has_styles = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """Returns the lines of a region. Textual reads the colors from the style sheet for every key, which takes
        longer than the rest of the drawing; here it does so only after the styles have changed."""
        if self._has_styles:
            return Widget.render_lines(self, crop)
        self._has_styles = True
        return super().render_lines(crop)

    def on_mount(self) -> None:
        if self._draft is not None and not self.text and (draft := self._draft.read()).text:
            self._pastes.restore(draft.pastes)
            self.set_text(draft.text)

    def on_unmount(self) -> None:
        if self._values_timer is not None:
            self._values_timer.cancel()
        self.store_draft()

    def store_draft(self) -> None:
        """Stores the unsent input now."""
        if self._draft_timer is not None:
            self._draft_timer.cancel()
            self._draft_timer = None
        if self._draft is not None:
            self._draft.write(StoredDraft(self.text, self._pastes.texts))

    def expanded_text(self) -> str:
        """Returns the text with the pasted texts in place of their marks."""
        return self._pastes.expand_marks(self.text)

    def use_vim_keys(self, *, on: bool) -> None:
        self.vim = VimKeys(self) if on else None
        driver = cast("App[Any]", self.app)._driver  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        if isinstance(driver, TerminalDriver):
            driver.input.separates_escape = on
        self._show_vim_mode()

    def _show_vim_mode(self) -> None:
        """Shows normal mode by the color of the cursor and by the sign before the text."""
        is_normal = self.vim is not None and self.vim.mode == "normal"
        self.set_class(is_normal, "-normal")
        for sign in self.screen.query("#prompt").results(Static):
            sign.update("N" if is_normal else "›")

    async def _on_key(self, event: events.Key) -> None:
        if self._completion is None and self.vim is not None and self.vim.handle_key(event.key, event.character):
            self._show_vim_mode()
            event.stop()
            event.prevent_default()
            return
        if event.key == "ctrl+v":
            self.post_message(self.ImageRequested())
        if event.key == "ctrl+v" or self._handle_key(event.key):
            event.stop()
            event.prevent_default()
        else:
            await run_own_binding(self, event)  # if there is none, Textual calls the handler of TextArea next

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.insert_paste(event.text)

    def insert_paste(self, text: str) -> None:
        """Inserts a pasted text; if it consists of paths of files, inserts mentions of these files."""
        if paths := dropped_paths(text):
            self.insert("".join(f'@"{path}" ' for path in paths))
        else:
            self.insert(self._pastes.shorten_paste(text))

    def check_message_enabled(self, message: Message) -> bool:
        """Drops messages that no widget handles: Textual would pass them to every parent before it draws a key."""
        return not isinstance(message, TextArea.SelectionChanged) and super().check_message_enabled(message)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.update_completions()
        if self._draft is not None and self._draft_timer is None:
            self._draft_timer = asyncio.get_running_loop().call_later(_DRAFT_SECONDS, self.store_draft)

    def update_completions(self) -> None:
        """Computes the completions for the word at the cursor."""
        self._completed_state = (self.text, self.cursor_location)
        row, column = self.cursor_location
        line = self.document.get_line(row)
        files = (*self.resources, *self.files()) if "@" in line else ()
        templates = {name: prefix for name, prefix in self.resources.items() if prefix is not None}
        completion = complete_word(
            line, column, is_first_line=row == 0, commands=self.commands, files=files, templates=templates
        )
        if self._takes_values(head := line[:column], is_first_line=row == 0):
            self._request_values(head)
            completion = self._known_values(head) or completion
        self._set_completion(completion)

    def _takes_values(self, head: str, *, is_first_line: bool) -> bool:
        """Returns whether MCP servers can complete the text before the cursor: an argument of a prompt, or a value in
        the address of a resource."""
        if is_first_line and head.startswith("/"):
            command, separator, _ = head.partition(" ")
            return bool(separator) and ":" in command and any(choice.text == command for choice in self.commands)
        word = word_before(head, len(head))[1]
        return word.startswith("@") and any(word[1:].startswith(prefix) for prefix in self.resources.values() if prefix)

    def _request_values(self, head: str) -> None:
        if self._values_timer is not None:
            self._values_timer.cancel()
        if self._values[0] != head:
            request = partial(self.post_message, self.ValuesRequested(head))
            self._values_timer = asyncio.get_running_loop().call_later(_VALUES_SECONDS, request)

    def _known_values(self, head: str) -> CompletionResult | None:
        """Returns the choices of the last response that still begin with the typed text."""
        before, (start, choices) = self._values[0], (self._values[1].start, self._values[1].choices)
        if not head.startswith(before) or len(head) < start:
            return None
        matches = tuple(choice for choice in choices if choice.text.startswith(head[start:]))
        return CompletionResult(start, matches, is_hint=True) if matches else None

    def show_values(self, head: str, start: int, choices: tuple[CompletionChoice, ...]) -> None:
        """Shows the completions by MCP servers for the text before the cursor, if it is still the same."""
        self._values = head, CompletionResult(start, choices, is_hint=True)
        row, column = self.cursor_location
        if choices and self.document.get_line(row)[:column] == head:
            self._set_completion(self._values[1])

    def _handle_key(self, key: str) -> bool:
        """Handles a key and returns whether it was consumed.

        Completions are updated by a message after the text changes. Keys that arrive in one burst would see stale
        completions, so Enter and Tab update them first.
        """
        if key in ("enter", "tab") and self._completed_state != (self.text, self.cursor_location):
            self.update_completions()
        if self._completion is not None and self._handle_completion_key(key):
            return True
        match key:
            case _ if key in _NEW_LINE_KEYS:
                self.insert("\n")
            case "enter":
                return self._handle_enter()
            case "tab":
                self._handle_tab()
            case "up" if self.has_queued_input and not self.text:
                self.post_message(self.WithdrawRequested())
            case "up" if self.cursor_at_first_line:
                return self._recall_input(self.input_history.step_back(self.text))
            case "down" if self.cursor_at_last_line:
                return self._recall_input(self.input_history.step_forward())
            case _:
                return False
        return True

    def _handle_tab(self) -> None:
        """Queues the text during a turn; on the start screen, puts the next suggestion into the composer."""
        if self.busy and self.text.strip():
            self._submit_text(queue=True)
        elif self.suggestions and self.text in ("", *self.suggestions):
            index = self.suggestions.index(self.text) if self.text else -1
            self.set_text(self.suggestions[(index + 1) % len(self.suggestions)])

    def _handle_completion_key(self, key: str) -> bool:
        match key:
            case "up" | "down":
                self._completions.move_selection(-1 if key == "up" else 1)
            case "tab":
                self._accept_completion()
            case "enter" if self._completion and self._completion.is_hint and not self._completions.has_moved:
                return False
            case "enter":
                return self._accept_completion()
            case "escape":
                self._set_completion(None)
            case _:
                return False
        return True

    def _accept_completion(self) -> bool:
        """Inserts the selected completion. Returns False if the text is already complete, so that Enter sends it."""
        completion, choice = self._completion, self._completions.selected_choice
        if completion is None or choice is None:
            return False
        row, column = self.cursor_location
        typed = self.document.get_line(row)[completion.start : column]
        self._set_completion(None)
        if typed == choice.text:
            return False
        self.replace(choice.text if choice.is_open else f"{choice.text} ", (row, completion.start), (row, column))
        self._set_completion(None)
        return completion.is_hint or not choice.text.startswith("/") or typed.endswith(" ")

    def _set_completion(self, completion: CompletionResult | None) -> None:
        self._completion = completion
        self._completions.set_choices(completion.choices if completion else ())

    def _handle_enter(self) -> bool:
        """Sends the text. A backslash before Enter inserts a new line, for terminals without modified Enter keys."""
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self.text.strip():
            self._submit_text(queue=False)
        return True

    def _submit_text(self, *, queue: bool) -> None:
        text = self.expanded_text().strip()
        self.input_history.add(text)
        self._pastes.clear()
        self.load_text("")  # without a history: undo would bring back marks of pastes that are sent
        self._set_completion(None)
        self.store_draft()
        if self.vim is not None:
            self.use_vim_keys(on=True)
        self.post_message(self.Submitted(text, queue=queue))

    def _recall_input(self, text: str | None) -> bool:
        if text is not None:
            self.set_text(text)
            self._set_completion(None)
        return text is not None


_ALT_ENTER = "\x1b\r"


def register_alt_enter() -> None:
    """Maps the escape sequence of Alt+Enter to Ctrl+J (a new line). Textual would report it as Enter, which would send
    an unfinished message."""
    key_sequences = cast("dict[str, Any]", sequences.ANSI_SEQUENCES_KEYS)
    key_sequences.setdefault(_ALT_ENTER, (Keys.ControlJ,))
