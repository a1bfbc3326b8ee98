"""Terminals for tests: the real program in a pseudo-terminal, in tmux and in xterm, and screens to look at."""

import fcntl
import os
import pty
import select
import shutil
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

LIMIT = float(os.environ.get("OUTRIDER_TEST_LIMIT", "60"))  # seconds; for machines that are busy with something else

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
    "pagedown": "\x1b[6~",
    "end": "\x1b[F",
    "f2": "\x1bOQ",
    "f3": "\x1bOR",
    "f4": "\x1bOS",
    "ctrl+j": "\n",
    "ctrl+b": "\x02",
    "ctrl+c": "\x03",
    "ctrl+d": "\x04",
    "ctrl+r": "\x12",
    "ctrl+s": "\x13",
    "ctrl+x": "\x18",
    "alt+enter": "\x1b\r",
}


class ScreenReader:
    """Something with a screen; `text` returns its rows."""

    def text(self) -> str:
        raise NotImplementedError

    def ended(self) -> int | None:
        """The exit code of the program, or None while it runs or if it is not known."""
        return None

    def wait_for_change(self) -> None:
        """Waits until the screen may have changed. To look at a screen starts a program, or costs as much CPU time."""
        time.sleep(0.05)

    def wait_for(self, *texts: str, without: str = "", limit: float = LIMIT) -> float:
        """Until all of these are on the screen at once; how long it took."""
        start = time.monotonic()
        while time.monotonic() - start < limit:
            shown = self.text()
            if all(text in shown for text in texts) and not (without and without in shown):
                return time.monotonic() - start
            if self.ended() is not None:
                break
            self.wait_for_change()
        state = f"the program has ended with {self.ended()}" if self.ended() is not None else "it runs"
        raise AssertionError(f"not on the screen: {texts!r} (without {without!r}); {state}. The screen:\n{self.text()}")


class Terminal(ScreenReader):
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
        self._changed = threading.Event()
        self._text: str | None = None
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
        self._closed = False
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def text(self) -> str:
        with self._lock:
            self._changed.clear()
            if self._text is None:
                self._text = "\n".join(row.rstrip() for row in self._screen.display)
            return self._text

    def wait_for_change(self) -> None:
        self._changed.wait(0.1)
        time.sleep(0.02)  # a screen is drawn in several pieces

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press(self, *keys: str) -> None:
        """One after the other, each as a separate write: an escape and a letter at once would be another key."""
        for number, key in enumerate(keys):
            if number:
                time.sleep(0.03)
            self.type(KEYS.get(key, key))

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def paste_slowly(self, text: str) -> None:
        """Pastes a text that is larger than the buffers between terminal and program."""
        content = f"\x1b[200~{text}\x1b[201~".encode()
        while content:
            content = content[os.write(self._master, content[:4096]) :]

    def say(self, text: str) -> None:
        self.type(text)
        self.wait_for(text.rsplit("\n", maxsplit=1)[-1][-20:])
        self.press("enter")

    def ended(self) -> int | None:
        return self.process.poll() if not self._reader.is_alive() else None

    def wait_for_bytes(self, sequence: bytes) -> None:
        deadline = time.monotonic() + LIMIT
        while sequence not in self.raw and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sequence in self.raw

    def answer(self, key: str) -> None:
        """A question that is on the screen takes no key in its first moments."""
        time.sleep(ARMED_AFTER + 0.02)
        self.press(key)

    def resize(self, columns: int, rows: int) -> None:
        with self._lock:
            self._screen.resize(rows, columns)
            self._text = None
        self._set_size(columns, rows)
        os.kill(self.process.pid, signal.SIGWINCH)

    def cpu(self) -> float:
        """Seconds of the program and all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def hang_up(self) -> None:
        """The terminal is lost, as the program sees it."""
        os.kill(self.process.pid, signal.SIGHUP)

    def close_window(self) -> None:
        """The window is closed: the kernel sends SIGHUP and SIGCONT, and the terminal reads and writes no more."""
        self._closed = True
        self._reader_stop()
        os.close(self._master)

    def mouse(self, button: int, column: int, row: int, *, release: bool = False) -> None:
        """An SGR mouse report; columns and rows start with 1."""
        self.type(f"\x1b[<{button};{column};{row}{'m' if release else 'M'}")

    def click(self, column: int, row: int) -> None:
        self.mouse(0, column, row)
        self.mouse(0, column, row, release=True)

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.mouse(0, *start)
        self.mouse(32, *end)
        time.sleep(0.05)
        self.mouse(0, *end, release=True)

    def find(self, text: str) -> tuple[int, int]:
        """The column and the row of a text on the screen, both starting with 1."""
        for number, row in enumerate(self.text().split("\n"), 1):
            if text in row:
                return row.index(text) + 1, number
        raise AssertionError(f"not on the screen: {text!r}. The screen:\n{self.text()}")

    def reversed_or_coloured(self, column: int, row: int) -> str:
        """The background colour at a position, to see selections."""
        with self._lock:
            return self._screen.buffer[row - 1][column - 1].bg

    def wait(self, limit: float = LIMIT) -> int:
        """Waits for the end of the program and until all that it wrote is on the screen."""
        code = self.process.wait(limit)
        self._reader.join(2)  # it ends when no process has the terminal open
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if not self._closed:
            self._reader.join(30)
            os.close(self._master)

    def _reader_stop(self) -> None:
        """Ends the reading thread, which would keep the closed descriptor in use."""
        self._stop.set()
        self._reader.join(30)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                if not select.select([self._master], [], [], 0.1)[0]:
                    continue
                piece = os.read(self._master, 65536)
            except OSError:
                return
            if not piece:
                return
            with self._lock:
                self.raw += piece
                self._stream.feed(piece)
                self._text = None
            self._changed.set()


class Tmux(ScreenReader):
    """The program in a pane of tmux, with a separate server."""

    def __init__(self, arguments: list[str], *, cwd: Path, environ: dict[str, str], size: tuple[int, int]) -> None:
        self._socket = cwd.parent / "tmux"
        self._environ = environ
        columns, rows = size
        config = cwd.parent / "tmux.conf"
        config.write_text("set -g status off\nset -s escape-time 0\nset -g default-terminal tmux-256color\n")
        given = [f"{name}={value}" for name, value in environ.items() if name != "TERM"]
        program = ["env", *given, sys.executable, "-m", "outrider", *arguments]
        self._run("-f", str(config), "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(cwd), *program)

    def text(self) -> str:
        return self._run("capture-pane", "-p").rstrip("\n")

    def send(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def type(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def paste(self, text: str) -> None:
        self._run("load-buffer", "-", text=text)
        self._run("paste-buffer", "-p")

    def resize(self, columns: int, rows: int) -> None:
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def pid(self) -> int:
        return int(self._run("display-message", "-p", "#{pane_pid}"))

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False)

    def _run(self, *arguments: str, text: str | None = None) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        environ = {**self._environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environ, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


class XServer:
    """A virtual X display."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", "1600x1200x24", "-nolisten", "tcp", "-noreset"]
        self._process = subprocess.Popen(
            command, pass_fds=[writer], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(writer)
        with os.fdopen(reader) as answer:
            self.display = f":{answer.readline().strip()}"  # Xvfb ends if the pipe is closed before the newline

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Xterm(ScreenReader):
    """The program in a real xterm; what it writes is logged by xterm and shown by pyte."""

    def __init__(
        self, server: XServer, arguments: list[str], *, cwd: Path, environ: dict[str, str], size: tuple[int, int]
    ) -> None:
        columns, rows = size
        self._log = cwd.parent / "xterm.log"
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._read = 0
        self._owners: list[subprocess.Popen[bytes]] = []
        self._environ = {**environ, "DISPLAY": server.display, "LC_ALL": "C.UTF-8"}
        self._environ.pop("TERM", None)
        options = [
            "-u8",
            "-tn",
            "xterm-256color",
            "-fn",
            "fixed",
            "-geometry",
            f"{columns}x{rows}",
            "-l",
            "-lf",
            str(self._log),
        ]
        program = [sys.executable, "-m", "outrider", *arguments]
        self.process = subprocess.Popen(["xterm", *options, "-e", *program], cwd=cwd, env=self._environ)
        self._window = self._find_window()
        deadline = time.monotonic() + LIMIT
        while not self._run_tool("windowfocus", self._window) and time.monotonic() < deadline:
            time.sleep(0.05)  # the window is not visible yet

    def text(self) -> str:
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._read)
                piece = file.read()
            self._read += len(piece)
            self._stream.feed(piece)
        return "\n".join(row.rstrip() for row in self._screen.display)

    def background(self, column: int, row: int) -> str:
        self.text()
        return self._screen.buffer[row - 1][column - 1].bg

    def type(self, text: str) -> None:
        self._tool("type", "--delay", "5", text)

    def key(self, *names: str) -> None:
        self._tool("key", *names)

    def select_text(self, text: str, selection: str = "primary") -> None:
        """Makes the text the X selection, as if it was selected in another window."""
        command = ["xclip", "-quiet", "-selection", selection]  # stays in the foreground, to be ended with the window
        owner = subprocess.Popen(command, stdin=subprocess.PIPE, env=self._environ, stderr=subprocess.DEVNULL)
        assert owner.stdin is not None
        owner.stdin.write(text.encode())
        owner.stdin.close()
        self._owners.append(owner)
        time.sleep(0.2)

    def copy_image(self, path: Path) -> None:
        command = ["xclip", "-quiet", "-selection", "clipboard", "-target", "image/png", str(path)]
        self._owners.append(subprocess.Popen(command, env=self._environ, stderr=subprocess.DEVNULL))
        time.sleep(0.3)

    def clipboard(self, selection: str = "clipboard") -> str:
        command = ["xclip", "-o", "-selection", selection]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environ, check=False, timeout=10)
        return done.stdout

    def click(self, column: int, row: int) -> None:
        self._tool("mousemove", "--window", self._window, *self._pixels(column, row), "click", "1")

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        move = ("mousemove", "--window", self._window)
        self._tool(*move, *self._pixels(*start), "mousedown", "1")
        self._tool(*move, *self._pixels(*end))
        time.sleep(0.2)
        self._tool("mouseup", "1")

    def close_window(self) -> None:
        self._tool("windowkill", self._window)

    def close(self) -> None:
        for process in (self.process, *self._owners):
            if process.poll() is None:
                process.kill()
            process.wait()

    def _pixels(self, column: int, row: int) -> tuple[str, str]:
        """The middle of a cell: the font `fixed` has cells of 6 by 13 pixels, and xterm a border of 2."""
        return str(2 + (column - 1) * 6 + 3), str(2 + (row - 1) * 13 + 6)

    def _find_window(self) -> str:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            found = self._tool("search", "--pid", str(self.process.pid), check=False).split()
            if found and self._log.exists():
                return found[-1]
            time.sleep(0.05)
        self.close()
        raise AssertionError("xterm has opened no window")

    def _run_tool(self, *arguments: str) -> bool:
        return not subprocess.run(
            ["xdotool", *arguments], capture_output=True, env=self._environ, check=False
        ).returncode

    def _tool(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(["xdotool", *arguments], capture_output=True, text=True, env=self._environ, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout


def has_programs(*names: str) -> bool:
    return all(shutil.which(name) for name in names)
