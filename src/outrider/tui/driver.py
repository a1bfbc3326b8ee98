"""The terminal driver: reads keys and pastes, and writes the screen. It replaces parts of Textual's Linux driver that
poll, that lose early input, and that do not end when the terminal is closed."""

import os
import re
import selectors
import sys
import threading
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, ClassVar, cast

from textual import constants, events
from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.widget import Widget

_READ_BYTES = 64 * 1024
_ALTERNATE_SCREEN = "\x1b[?1049h"
# Replies to queries of other programs, such as an editor that has just ended: OSC and DCS strings, device attributes.
_REPLIES = re.compile(r"\x1b\]\d+;[^\x07\x1b]*(?:\x07|\x1b\\)|\x1bP[^\x1b]*\x1b\\|\x1b\[[?>=][\d;]*c")
# Escape and another key, typed so fast that they arrive together; not the start of a sequence, and not Alt+Enter.
_ESCAPE_AND_KEY = re.compile(r"\x1b(?=[^\x1b\r\[O]|O(?![A-Za-z]))")


class TerminalDriver(LinuxDriver):
    """Waits for input without polling, holds back keys until the application can accept them, and ends the application
    when the terminal is gone.

    Textual starts its input thread again on every SIGCONT. A shell sends SIGHUP and SIGCONT when its window is closed,
    so the new thread would read from a terminal that no longer exists, and keep the process alive.
    """

    is_screen_prepared: ClassVar[bool] = False  # the command line shows the alternate screen already

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)  # pyright: ignore[reportUnknownMemberType]  Textual leaves App's type open
        # Textual writes to stderr, which may be redirected: only stdin and stdout are known to be the terminal.
        self._file = cast("Any", TolerantFile(cast("IO[str]", sys.__stdout__)))
        self._wake_reader, self._wake_writer = os.pipe()
        self._lock = threading.Lock()
        self._held: list[Message] | None = []  # early keys and pastes; None once they are delivered
        self._active = False
        self.input = InputParser()
        self.last_input = get_time()

    @property
    def idle_seconds(self) -> float:
        """The time since the last key or mouse event."""
        return get_time() - self.last_input

    @property
    def has_job_control(self) -> bool:
        """Whether the parent process is a shell that can continue this process with `fg` after it is stopped."""
        try:
            parent = os.getppid()
            return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
        except ProcessLookupError:
            return False

    def release_input(self) -> None:
        """Delivers the keys that were typed before the application was ready, in their order."""
        with self._lock:
            messages, self._held = self._held or [], None
            for message in messages:
                super().process_message(message)

    def process_message(self, message: Message) -> None:
        with self._lock:
            if self._held is not None and isinstance(message, events.Key | events.Paste):
                self._held.append(message)
                return
        super().process_message(message)

    def start_application_mode(self) -> None:
        self._active = True
        super().start_application_mode()
        TerminalDriver.is_screen_prepared = False

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        self._active = False

    def write(self, data: str) -> None:
        """Writes to the terminal; nothing is written while another program, such as an editor, uses it."""
        if self._active and not (data == _ALTERNATE_SCREEN and TerminalDriver.is_screen_prepared):
            super().write(data)

    def disable_input(self) -> None:
        self.exit_event.set()
        os.write(self._wake_writer, b".")
        if self._key_thread is not None and self._key_thread is not threading.current_thread():
            self._key_thread.join()
        self.exit_event.clear()
        super().disable_input()

    def _get_terminal_size(self) -> tuple[int, int]:
        """Returns the size of the terminal. Textual would prefer COLUMNS and LINES, which a shell may have exported for
        another size."""
        try:
            columns, rows = os.get_terminal_size(self.fileno)
        except OSError:
            columns, rows = 0, 0
        return (columns, rows) if columns and rows else super()._get_terminal_size()

    def _sigcont_application(self, *_: object) -> None:
        """Returns to the application after a suspension (SIGTSTP) only; other SIGCONT signals change nothing."""
        if self._must_signal_resume:
            super()._sigcont_application()  # pyright: ignore[reportUnknownMemberType]

    def _enable_mouse_support(self) -> None:
        """Requests clicks, drags and the wheel. Movement without a button is not used, and would wake the process."""
        if self._mouse:
            self.write("\x1b[?1000h\x1b[?1002h\x1b[?1006h")

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write("\x1b[?1006l\x1b[?1002l\x1b[?1000l")

    def run_input_thread(self) -> None:
        """Reads the terminal until the driver stops. The parser needs a timeout only for an escape key that may be the
        start of a sequence."""
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                ready = {key.fd for key, _ in selector.select(self.input.timeout)}
                if self._wake_reader in ready:
                    os.read(self._wake_reader, 64)
                if self.fileno in ready and not self._read_input(decode):
                    return
                for event in self.input.tick():
                    self.process_message(event)

    def _read_input(self, decode: Any) -> bool:
        """Reads and processes input; returns False if the terminal is closed."""
        try:
            data = os.read(self.fileno, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._app.exit, 0)
            return False
        self.last_input = get_time()
        text = decode(data)
        if self._held is not None:
            text = text.replace("\n", "\r")  # Enter, as the terminal reported it before the application set its mode
        for event in self.input.feed(text):
            self.process_message(event)
        return True


class InputParser:
    """Converts what a terminal sends to messages: Textual's parser, with pastes and replies separated from the keys."""

    def __init__(self) -> None:
        self.separates_escape = False  # with vi keys: Escape and a letter that arrive together are not Alt+letter
        self._keys = XTermParser()
        self._pastes = PasteSplitter()
        self._release_time: float | None = None  # when an Escape that ended the input is a key

    @property
    def timeout(self) -> float | None:
        """The seconds until `tick` decides about a pending escape key, or None."""
        due = self._release_time or self._keys._timeout_time  # pyright: ignore[reportPrivateUsage]
        return None if due is None else max(due - get_time(), 0.001)

    def feed(self, text: str) -> Iterator[Message]:
        for chunk, is_paste in self._pastes.split(text):
            if is_paste:
                yield events.Paste(chunk)
            else:
                yield from map(_typed_text, self._parse_keys(_REPLIES.sub("", chunk)))
        self._release_time = get_time() + constants.ESCAPE_DELAY if self._pastes.may_begin else None

    def tick(self) -> Iterator[Message]:
        if self._release_time is not None and get_time() >= self._release_time:
            self._release_time = None
            start = self._pastes.take_start()
            yield from [events.Key("escape", start)] if start == "\x1b" else self._keys.feed(start)
        yield from self._keys.tick()

    def _parse_keys(self, text: str) -> Iterator[Message]:
        if self.separates_escape:
            *before, text = _ESCAPE_AND_KEY.split(text)
            for keys in before:
                yield from self._keys.feed(keys) if keys else ()
                yield events.Key("escape", "\x1b")
        yield from self._keys.feed(text) if text else ()  # Textual takes an empty text for the end of the input


def _typed_text(message: Message) -> Message:
    """Returns an invisible character, such as the joiners of emoji, Persian and Hindi, as a paste: Textual's text
    fields ignore keys without a visible character."""
    if isinstance(message, events.Key) and message.character and unicodedata.category(message.character) == "Cf":
        return events.Paste(message.character)
    return message


class PasteSplitter:
    """Separates bracketed pastes from keys. Textual's parser would execute the key sequences of a pasted text."""

    _START, _END = "\x1b[200~", "\x1b[201~"

    def __init__(self) -> None:
        self._pasted: list[str] | None = None  # the chunks of a paste whose end has not arrived
        self._cut = ""  # the last characters, which may be the beginning of a mark

    @property
    def may_begin(self) -> bool:
        """Whether the end of the input may be the beginning of a paste; otherwise it is a key."""
        return self._pasted is None and bool(self._cut)

    def take_start(self) -> str:
        """Returns the withheld end of the input, because no paste follows."""
        start, self._cut = self._cut, ""
        return start

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yields the chunks of the input in order; True marks a complete paste. Ctrl+C ends a paste whose end was lost,
        e.g. with a connection: otherwise no key would ever be handled again."""
        if self._pasted is not None and text == "\x03":
            text = self._END
        text = self.take_start() + text
        while text:
            if self._pasted is None:
                keys, start, text = text.partition(self._START)
                if start:
                    self._pasted = []
                else:
                    keys = self._cut_start(keys)
                if keys:
                    yield keys, False
            else:
                content, end, text = text.partition(self._END)
                if end:
                    yield "".join([*self._pasted, content]), True
                    self._pasted = None
                else:
                    length = max(len(content) - len(self._END) + 1, 0)
                    self._pasted.append(content[:length])
                    self._cut = content[length:]

    def _cut_start(self, keys: str) -> str:
        """Returns the keys without a possible beginning of a mark at their end, which is withheld until the next
        input."""
        lengths = range(len(self._START) - 1, 0, -1)
        self._cut = next((self._START[:length] for length in lengths if keys.endswith(self._START[:length])), "")
        return keys.removesuffix(self._cut)


async def run_own_binding(field: Widget, event: events.Key) -> None:
    """Runs the binding that a text field has for a key, before the field handles the next key.

    Textual runs bindings after the key has bubbled up to the application. If keys arrive together, as over a slow
    connection, letters would overtake cursor keys: `ac←b` would become `acb`.
    """
    app = cast("App[Any]", field.app)  # pyright: ignore[reportUnknownMemberType]
    for binding in field._bindings.key_to_bindings.get(event.key, ()):  # pyright: ignore[reportPrivateUsage]
        if not binding.priority and await app.run_action(binding.action, field):
            event.stop()
            event.prevent_default()
            return


class TolerantFile:
    """The terminal as a text file whose write errors are ignored: without a terminal, the application still has to
    store its state and end."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()
