"""A terminal for tests: the real program in a pseudo-terminal, and a screen that is looked at as a person would."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pyte

from outrider.tui.dialogs import ARMED_AFTER
from tests.fixtures.warm_start import take_terminal

LIMIT = 60.0  # seconds; for machines that are busy with something else

KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "shift+tab": "\x1b[Z",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "pageup": "\x1b[5~",
    "ctrl+j": "\n",
    "ctrl+b": "\x02",
    "ctrl+c": "\x03",
    "ctrl+d": "\x04",
    "ctrl+r": "\x12",
    "ctrl+s": "\x13",
    "alt+enter": "\x1b\r",
}


class Terminal:
    """`raw` holds every byte that the program wrote."""

    def __init__(
        self,
        arguments: list[str],
        *,
        cwd: Path,
        environ: dict[str, str],
        size: tuple[int, int] = (100, 32),
        program: tuple[str, ...] = (sys.executable, "-m", "outrider"),
    ) -> None:
        columns, rows = size
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.raw = bytearray()
        self._master, slave = pty.openpty()
        self.started = time.monotonic()
        self._set_size(columns, rows)
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=environ,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509  no other way to a controlling terminal
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def text(self) -> str:
        with self._lock:
            return "\n".join(row.rstrip() for row in self._screen.display)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press(self, *keys: str) -> None:
        """One after the other, each as a piece of its own: an escape and a letter at once would be another key."""
        for number, key in enumerate(keys):
            if number:
                time.sleep(0.03)
            self.type(KEYS.get(key, key))

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def say(self, text: str) -> None:
        self.type(text)
        self.wait_for(text.rsplit("\n", maxsplit=1)[-1][-20:])
        self.press("enter")

    def wait_for(self, *texts: str, without: str = "", limit: float = LIMIT) -> float:
        """Until all of these are on the screen at once; how long it took."""
        start = time.monotonic()
        while time.monotonic() - start < limit:
            shown = self.text()
            if all(text in shown for text in texts) and not (without and without in shown):
                return time.monotonic() - start
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.02)
        state = f"the program has ended with {self.process.poll()}" if self.process.poll() is not None else "it runs"
        raise AssertionError(f"not on the screen: {texts!r} (without {without!r}); {state}. The screen:\n{self.text()}")

    def answer(self, key: str) -> None:
        """A question that is on the screen takes no key in its first moments."""
        time.sleep(ARMED_AFTER + 0.02)
        self.press(key)

    def resize(self, columns: int, rows: int) -> None:
        with self._lock:
            self._screen.resize(rows, columns)
        self._set_size(columns, rows)
        os.kill(self.process.pid, signal.SIGWINCH)

    def cpu(self) -> float:
        """Seconds of the program and all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def hang_up(self) -> None:
        """The window is closed."""
        os.kill(self.process.pid, signal.SIGHUP)

    def wait(self, limit: float = LIMIT) -> int:
        return self.process.wait(limit)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(30)
        os.close(self._master)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                return
            if not piece:
                return
            with self._lock:
                self.raw += piece
                self._stream.feed(piece)
