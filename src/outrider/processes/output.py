"""What a process has written: its beginning and its end in memory, the whole in a file once that is too little.

Memory and file are bounded, whatever is written: what fits neither is counted and forgotten.
"""

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

KIB, MIB = 1 << 10, 1 << 20
_SMALL = 8 * KIB
_LOOKED_AT = 64 * KIB  # so many bytes of a file are searched for secrets together
_LONGEST_SECRET = 8 * KIB
_LONGEST_LETTER = 4


FindSecrets = Callable[[bytes], Iterable[tuple[int, int]]]
"""Where in some output secrets begin and end."""


def find_none(_: bytes) -> Iterable[tuple[int, int]]:
    return ()


class OutputLimits(msgspec.Struct, frozen=True):
    """Bytes: of the beginning and of the end in memory, of one file, of all files of a supervisor together."""

    head: int = 256 * KIB
    tail: int = 256 * KIB
    file: int = 64 * MIB
    files: int = 512 * MIB


class OutputText(msgspec.Struct, frozen=True):
    """Output as text. `left_out` bytes are missing between head and tail; `replaced` bytes were not UTF-8."""

    head: str
    tail: str = ""
    left_out: int = 0
    replaced: int = 0
    size: int = 0
    path: Path | None = None
    path_size: int = 0

    def __str__(self) -> str:
        if not self.left_out:
            return self.head
        return f"{self.head}\n\n[… {self.left_out:,} of {self.size:,} bytes left out …]\n\n{self.tail}"


class OutputSlice(msgspec.Struct, frozen=True):
    """A piece of output. `skipped` bytes before it were forgotten; the next piece begins at `end`."""

    text: str
    start: int
    end: int
    skipped: int = 0


class OutputFolder:
    """Where files of output are made, for nobody else to read; a budget bounds all of them together. What
    `find_secrets` finds becomes stars in them."""

    def __init__(self, path: Path | None, limits: OutputLimits, find_secrets: FindSecrets = find_none) -> None:
        self.limits = limits
        self.find_secrets = find_secrets
        self._path = path
        self._left = limits.files

    def open(self, name: str) -> "_File | None":
        """None where there is no folder, or nothing can be written there: the ends in memory are kept all the same."""
        if self._path is None or self._left <= 0:
            return None
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:64]
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for number in range(1000):
                path = self._path / (f"{safe}.{number}.txt" if number else f"{safe}.txt")
                with contextlib.suppress(FileExistsError):
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    return _File(self, path, os.open(path, flags, 0o600))
        except OSError:
            return None
        return None

    def keep(self, name: str, text: str) -> Path | None:
        """A file with all of a text; None if it does not fit whole."""
        content = text.encode("utf-8", "replace")
        file = self.open(name)
        if file is None:
            return None
        file.write(content)
        file.close()
        return file.path if file.size == len(content) else None

    def take(self, size: int) -> int:
        granted = min(size, self._left)
        self._left -= granted
        return granted


class _File:
    def __init__(self, folder: OutputFolder, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = 0
        self._folder = folder
        self._descriptor = descriptor
        self._full = False
        self._recent = bytearray()  # the end of the file, as it was written
        self._unsearched = 0

    def write(self, chunk: bytes) -> None:
        """As much as the limits and the disk allow; from the first byte that did not fit, nothing more."""
        if self._full:
            return
        room = self._folder.take(min(len(chunk), self._folder.limits.file - self.size))
        written = 0
        with contextlib.suppress(OSError):  # a full disk is one more limit
            while written < room:
                written += os.write(self._descriptor, memoryview(chunk)[written:room])
        self.size += written
        self._full = written < len(chunk)
        self._recent += memoryview(chunk)[:written]
        self._unsearched += written
        if self._unsearched >= _LOOKED_AT:
            self._hide_secrets()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        self._hide_secrets()
        os.close(self._descriptor)

    def _hide_secrets(self) -> None:
        """In place, so that every other byte stays where it was."""
        begin = self.size - len(self._recent)
        with contextlib.suppress(OSError):
            for start, end in self._folder.find_secrets(bytes(self._recent)):
                os.pwrite(self._descriptor, b"*" * (end - start), begin + start)
        self._unsearched = 0
        del self._recent[:-_LONGEST_SECRET]


class Output:
    """All that one process writes goes through `write`, and can be read again by its place, counted in bytes."""

    def __init__(self, folder: OutputFolder, name: str) -> None:
        self.size = 0
        self._folder = folder
        self._name = name
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._file: _File | None = None
        self._spills = False

    def write(self, chunk: bytes) -> None:
        limits = self._folder.limits
        if not self._spills and self.size + len(chunk) > limits.head + limits.tail:
            self._spill()
        self.size += len(chunk)
        if self._file is not None:
            self._file.write(chunk)
        if (room := limits.head - len(self._head)) > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._keep_at_end(chunk[-limits.tail :] if len(chunk) > limits.tail else chunk, limits.tail)

    def _keep_at_end(self, chunk: bytes, most: int) -> None:
        if self._tail and len(self._tail[-1]) + len(chunk) <= min(_SMALL, most):  # a byte alone would cost forty
            last = self._tail.pop()
            self._tail_size -= len(last)
            chunk = last + chunk
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= most:
            self._tail_size -= len(self._tail.popleft())

    def _spill(self) -> None:
        """From now on memory will forget; the file begins with all that it still has."""
        self._spills = True
        self._file = self._folder.open(self._name)
        if self._file is not None:
            self._file.write(bytes(self._head))
            for chunk in self._tail:
                self._file.write(chunk)

    def text(self) -> OutputText:
        left_out = self.size - len(self._head) - self._tail_size
        tail = b"".join(self._tail)
        path, path_size = (self._file.path, self._file.size) if self._file else (None, 0)
        if not left_out:
            whole, replaced = decode(bytes(self._head) + tail)
            return OutputText(whole, replaced=replaced, size=self.size, path=path, path_size=path_size)
        head, bad = decode(bytes(self._head[: _whole(self._head)]))
        cut = _beginning(tail)
        rest, bad_too = decode(tail[cut:])
        left_out = self.size - _whole(self._head) - len(tail) + cut
        return OutputText(head, rest, left_out, bad + bad_too, self.size, path, path_size)

    def read(self, offset: int, most: int, *, complete: bool = False) -> OutputSlice:
        """From a place on, at most so many bytes. A letter that is cut in two is left for the next piece, unless the
        output is `complete`."""
        raw, most = bytearray(), max(most, _LONGEST_LETTER)
        place = start = self._nearest(max(0, offset))
        while len(raw) < most and (piece := self._piece(place, most - len(raw))):
            raw += piece
            place += len(piece)
        if place < self.size or not complete:
            del raw[_whole(raw) :]
        text, _ = decode(bytes(raw))
        return OutputSlice(text, start, start + len(raw), skipped=start - min(offset, start))

    def _nearest(self, offset: int) -> int:
        """The first place at or after this one that is still known."""
        known = offset < max(len(self._head), self._file.size if self._file else 0)
        return min(self.size, offset if known else max(offset, self.size - self._tail_size))

    def _piece(self, place: int, most: int) -> bytes:
        if place < len(self._head):
            return bytes(self._head[place : place + most])
        if self._file is not None and place < self._file.size:
            return self._file.read(place, min(most, self._file.size - place))
        at = self.size - self._tail_size
        for chunk in self._tail:
            if at <= place < at + len(chunk):
                return chunk[place - at : place - at + most]
            at += len(chunk)
        return b""

    def close(self) -> None:
        """Nothing can be written or read from the file through here any more; the file stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def decode(raw: bytes) -> tuple[str, int]:
    """Text, and how many bytes were not UTF-8 and became �."""
    try:
        return raw.decode(), 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
    replacements = text.count("�") - raw.count("�".encode())
    return text, len(raw) - (len(text.encode()) - 3 * replacements)


def _whole(raw: bytes | bytearray) -> int:
    """How many bytes there are before a letter that is cut at the end."""
    for back in range(1, min(_LONGEST_LETTER, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0xC0 == 0xC0:  # the first byte of a letter says how many belong to it
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(raw) - back if needed > back else len(raw)
        if byte < 0x80:
            break
    return len(raw)


def _beginning(raw: bytes) -> int:
    """Where the first whole letter begins."""
    return next((at for at, byte in enumerate(raw[:_LONGEST_LETTER]) if byte & 0xC0 != 0x80), 0)


EVERY = 0.1  # seconds
MOST = 8_192  # characters


class Pacer:
    """The first words are passed on at once, then a piece at most every `EVERY` seconds; of more than `MOST`
    characters in one piece, the last ones and a note."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._pending: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, text: str) -> None:
        self._dropped += max(0, len(text) - MOST)
        self._pending.append(text[-MOST:])
        self._size += len(self._pending[-1])
        while self._size - len(self._pending[0]) >= MOST:
            forgotten = len(self._pending.popleft())
            self._size -= forgotten
            self._dropped += forgotten
        if self._timer is None:
            self._pass_on()

    def flush(self) -> None:
        """Pass on what is left; nothing may be fed afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._pending:
            self._emit(self._taken())

    def _pass_on(self) -> None:
        self._timer = None
        if self._pending:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._pass_on)
            self._emit(self._taken())

    def _taken(self) -> str:
        note = f"[… {self._dropped:,} characters not shown …]\n" if self._dropped else ""
        text = "".join(self._pending)
        self._pending.clear()
        self._size = self._dropped = 0
        return note + text


_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|[ -/]*[0-~])"
)
_STRUCK_OVER = re.compile(r"[^\n\x08]\x08")
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


def plain_text(text: str) -> str:
    """Without colours; of a line that was written over and over, such as a progress bar, what stood there last. Other
    control characters become visible signs (␀), so that text can be stored and sent anywhere."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(map(_last_written, text.replace("\r\n", "\n").split("\n")))
    if "\x08" in text:
        text = _STRUCK_OVER.sub("", text)
    return text.translate(_CONTROLS)


def _last_written(line: str) -> str:
    if "\r" not in line:
        return line
    return next((piece for piece in reversed(line.split("\r")) if piece.strip()), "")
