"""Buffers the output of a process: head and tail in memory, and a spill file once the memory limit is exceeded.

Memory and file sizes are bounded. Bytes beyond both limits are counted and dropped.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from outrider._lazy import lazy_pattern
from outrider._posix import O_CLOEXEC, O_NOFOLLOW

KIB, MIB = 1 << 10, 1 << 20
_MERGE_BYTES = 8 * KIB
_SECRET_SCAN_BYTES = 64 * KIB  # the file is scanned for secrets after this many new bytes
_MAX_SECRET_BYTES = 8 * KIB
_MAX_UTF8_BYTES = 4


FindSecrets = Callable[[bytes], Iterable[tuple[int, int]]]
"""Returns the start and end offsets of secrets in output."""


def find_no_secrets(_: bytes) -> Iterable[tuple[int, int]]:
    """Returns no matches: the default secret search."""
    return ()


class OutputLimits(msgspec.Struct, frozen=True):
    """Limits in bytes: head and tail in memory, one spill file, and all spill files of a supervisor."""

    head: int = 256 * KIB
    tail: int = 256 * KIB
    file: int = 64 * MIB
    files: int = 512 * MIB


class CapturedOutput(msgspec.Struct, frozen=True):
    """Decoded output.

    - `head`: the first part, or all of it.
    - `tail`: the last part; empty if nothing is missing.
    - `left_out`: bytes that are missing between head and tail.
    - `replaced`: bytes that were not valid UTF-8.
    - `size`: bytes of the complete output.
    - `path`: the spill file with the complete output, if there is one.
    - `path_size`: bytes in that file.
    """

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
    """A part of the output. `skipped` bytes before it were dropped; the next part starts at `end`."""

    text: str
    start: int
    end: int
    skipped: int = 0


class OutputFolder:
    """Creates spill files that only the user can read, within a total size limit.

    Bytes that `find_secrets` reports are overwritten with asterisks in the files.
    """

    def __init__(self, path: Path | None, limits: OutputLimits, find_secrets: FindSecrets = find_no_secrets) -> None:
        self.limits = limits
        self.find_secrets = find_secrets
        self._path = path
        self._remaining_bytes = limits.files
        self._next_numbers: dict[str, int] = {}

    def open_file(self, name: str) -> "_SpillFile | None":
        """Creates a file; returns None if there is no folder, it is not writable, or the size limit is reached."""
        if self._path is None or self._remaining_bytes <= 0:
            return None
        safe = "".join(character if character.isalnum() or character in "-_" else "_" for character in name)[:64]
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            while True:
                number = self._next_numbers.get(safe, 0)
                self._next_numbers[safe] = number + 1
                path = self._path / (f"{safe}.{number}.txt" if number else f"{safe}.txt")
                with contextlib.suppress(FileExistsError):
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC
                    return _SpillFile(self, path, os.open(path, flags, 0o600))
        except OSError:
            return None

    def store_text(self, name: str, text: str) -> Path | None:
        """Writes a string to a new file and returns its path, or None if the string does not fit completely."""
        content = text.encode("utf-8", "replace")
        file = self.open_file(name)
        if file is None:
            return None
        file.write(content)
        file.close()
        return file.path if file.size == len(content) else None

    def reserve_bytes(self, size: int) -> int:
        """Subtracts bytes from the total limit; returns how many are granted."""
        granted = min(size, self._remaining_bytes)
        self._remaining_bytes -= granted
        return granted


class _SpillFile:
    """A file with the output of one process, with secrets masked."""

    def __init__(self, folder: OutputFolder, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = 0
        self._folder = folder
        self._descriptor = descriptor
        self._full = False
        self._recent = bytearray()  # the unmasked end of the file, for secrets that cross two chunks
        self._unscanned_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Writes as much as the limits and the disk allow. After the first byte that does not fit, writes no more."""
        if self._full:
            return
        room = self._folder.reserve_bytes(min(len(chunk), self._folder.limits.file - self.size))
        written = 0
        with contextlib.suppress(OSError):  # a full disk acts like a limit
            while written < room:
                written += os.write(self._descriptor, memoryview(chunk)[written:room])
        self.size += written
        self._full = written < len(chunk)
        self._recent += memoryview(chunk)[:written]
        self._unscanned_bytes += written
        if self._unscanned_bytes >= _SECRET_SCAN_BYTES:
            self._mask_secrets()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        self._mask_secrets()
        os.close(self._descriptor)

    def _mask_secrets(self) -> None:
        """Overwrites secrets in place, so that the offsets of all other bytes stay valid."""
        begin = self.size - len(self._recent)
        with contextlib.suppress(OSError):
            for start, end in self._folder.find_secrets(bytes(self._recent)):
                os.pwrite(self._descriptor, b"*" * (end - start), begin + start)
        self._unscanned_bytes = 0
        del self._recent[:-_MAX_SECRET_BYTES]


class ProcessOutputBuffer:
    """Stores the output of one process; `read` returns any part of it by byte offset."""

    def __init__(self, folder: OutputFolder, name: str) -> None:
        self.size = 0
        self._folder = folder
        self._name = name
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._file: _SpillFile | None = None
        self._has_spilled = False

    def write(self, chunk: bytes) -> None:
        """Appends a chunk; starts the spill file before memory has to drop bytes."""
        limits = self._folder.limits
        if not self._has_spilled and self.size + len(chunk) > limits.head + limits.tail:
            self._start_spilling()
        self.size += len(chunk)
        if self._file is not None:
            self._file.write(chunk)
        if (room := limits.head - len(self._head)) > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._append_to_tail(chunk[-limits.tail :] if len(chunk) > limits.tail else chunk, limits.tail)

    def _append_to_tail(self, chunk: bytes, limit: int) -> None:
        """Appends to the tail and drops its oldest chunks beyond the limit."""
        if self._tail and len(self._tail[-1]) + len(chunk) <= min(
            _MERGE_BYTES, limit
        ):  # a bytes object costs about 40 bytes of overhead
            newest = self._tail.pop()
            self._tail_size -= len(newest)
            chunk = newest + chunk
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= limit:
            self._tail_size -= len(self._tail.popleft())

    def _start_spilling(self) -> None:
        """Opens the spill file and copies the buffered bytes, before memory starts to drop them."""
        self._has_spilled = True
        self._file = self._folder.open_file(self._name)
        if self._file is not None:
            self._file.write(bytes(self._head))
            for chunk in self._tail:
                self._file.write(chunk)

    def text(self) -> CapturedOutput:
        """Returns the buffered output as text: all of it, or head and tail."""
        left_out = self.size - len(self._head) - self._tail_size
        tail = b"".join(self._tail)
        path, path_size = (self._file.path, self._file.size) if self._file else (None, 0)
        if not left_out:
            full_text, replaced = decode_output(bytes(self._head) + tail)
            return CapturedOutput(full_text, replaced=replaced, size=self.size, path=path, path_size=path_size)
        head, head_replaced = decode_output(bytes(self._head[: _complete_length(self._head)]))
        tail_start = _first_character(tail)
        tail_text, tail_replaced = decode_output(tail[tail_start:])
        left_out = self.size - _complete_length(self._head) - len(tail) + tail_start
        return CapturedOutput(head, tail_text, left_out, head_replaced + tail_replaced, self.size, path, path_size)

    def read(self, offset: int, max_bytes: int, *, complete: bool = False) -> OutputSlice:
        """Returns at most `max_bytes` from an offset on. Leaves a split UTF-8 character for the next read, unless the
        output is `complete`."""
        raw, max_bytes = bytearray(), max(max_bytes, _MAX_UTF8_BYTES)
        position = start = self._nearest_available(max(0, offset))
        while len(raw) < max_bytes and (part := self._read_chunk(position, max_bytes - len(raw))):
            raw += part
            position += len(part)
        if position < self.size or not complete:
            del raw[_complete_length(raw) :]
        text, _ = decode_output(bytes(raw))
        return OutputSlice(text, start, start + len(raw), skipped=start - min(offset, start))

    def _nearest_available(self, offset: int) -> int:
        """Returns the first offset at or after this one whose bytes are still available."""
        is_in_head_or_file = offset < max(len(self._head), self._file.size if self._file else 0)
        return min(self.size, offset if is_in_head_or_file else max(offset, self.size - self._tail_size))

    def _read_chunk(self, position: int, limit: int) -> bytes:
        """Returns bytes at an offset from the head, the file or the tail; empty if none has them."""
        if position < len(self._head):
            return bytes(self._head[position : position + limit])
        if self._file is not None and position < self._file.size:
            return self._file.read(position, min(limit, self._file.size - position))
        chunk_start = self.size - self._tail_size
        for chunk in self._tail:
            if chunk_start <= position < chunk_start + len(chunk):
                return chunk[position - chunk_start : position - chunk_start + limit]
            chunk_start += len(chunk)
        return b""

    def close(self) -> None:
        """Closes the spill file; the file itself stays on disk."""
        if self._file is not None:
            self._file.close()
            self._file = None


def decode_output(raw: bytes) -> tuple[str, int]:
    """Decodes UTF-8; returns the text and how many invalid bytes were replaced with �."""
    try:
        return raw.decode(), 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
    replacements = text.count("�") - raw.count("�".encode())
    return text, len(raw) - (len(text.encode()) - 3 * replacements)


def _complete_length(raw: bytes | bytearray) -> int:
    """Returns the length without a UTF-8 character that is cut off at the end."""
    for back in range(1, min(_MAX_UTF8_BYTES, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0xC0 == 0xC0:  # the first byte of a character encodes its length
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(raw) - back if length > back else len(raw)
        if byte < 0x80:
            break
    return len(raw)


def _first_character(raw: bytes) -> int:
    """Returns the offset of the first complete UTF-8 character."""
    return next((offset for offset, byte in enumerate(raw[:_MAX_UTF8_BYTES]) if byte & 0xC0 != 0x80), 0)


THROTTLE_SECONDS = 0.1
MAX_THROTTLED_CHARACTERS = 8_192


class OutputThrottle:
    """Emits the first text at once, then at most one text every THROTTLE_SECONDS.

    If more than MAX_THROTTLED_CHARACTERS arrive between two emits, it drops the first ones and adds a note.
    """

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._pending: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, text: str) -> None:
        """Adds text; emits it at once if no timer is running."""
        self._dropped += max(0, len(text) - MAX_THROTTLED_CHARACTERS)
        self._pending.append(text[-MAX_THROTTLED_CHARACTERS:])
        self._size += len(self._pending[-1])
        while self._size - len(self._pending[0]) >= MAX_THROTTLED_CHARACTERS:
            dropped = len(self._pending.popleft())
            self._size -= dropped
            self._dropped += dropped
        if self._timer is None:
            self._emit_pending()

    def flush(self) -> None:
        """Emits the pending text and cancels the timer. Do not call `feed` afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._pending:
            self._emit(self._take_pending())

    def _emit_pending(self) -> None:
        self._timer = None
        if self._pending:
            self._timer = asyncio.get_running_loop().call_later(THROTTLE_SECONDS, self._emit_pending)
            self._emit(self._take_pending())

    def _take_pending(self) -> str:
        note = f"[… {self._dropped:,} characters not shown …]\n" if self._dropped else ""
        text = "".join(self._pending)
        self._pending.clear()
        self._size = self._dropped = 0
        return note + text


_ESCAPES = lazy_pattern(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor movement
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # window titles, links and other strings
    r"|[ -/]*[0-~])"
)
_BACKSPACED = lazy_pattern(r"[^\n\x08]\x08")
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


def plain_text(text: str) -> str:
    """Removes escape sequences and overwritten text: of a progress bar, the last state remains.

    Other control characters become visible symbols (␀), so that the text can be stored and displayed anywhere.
    """
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(map(_last_overwrite, text.replace("\r\n", "\n").split("\n")))
    if "\x08" in text:
        text = _BACKSPACED.sub("", text)
    return text.translate(_CONTROLS)


def _last_overwrite(line: str) -> str:
    if "\r" not in line:
        return line
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


# How output is shown to a model. Head and tail together stay below the cap of the tool runner, so that it does not cut
# them again.
MAX_END_CHARACTERS, MAX_END_LINES = 12_000, 900


def format_output(output: CapturedOutput) -> str:
    """Formats the output. Output that is still in memory is truncated by the runner; longer output shows head and tail,
    and the file path."""
    text = plain_text(output.head)
    if output.left_out:
        head = "\n".join(text[:MAX_END_CHARACTERS].split("\n")[:MAX_END_LINES])
        tail = "\n".join(plain_text(output.tail)[-MAX_END_CHARACTERS:].split("\n")[-MAX_END_LINES:])
        text = f"{head}\n\n[… the middle of {output.size:,} bytes left out: {_output_location(output)} …]\n\n{tail}"
    if output.replaced:
        text = append_note(text, f"{output.replaced:,} bytes were not UTF-8 and are shown as �")
    return text


def format_slice(output_slice: OutputSlice) -> str:
    text = plain_text(output_slice.text)
    return f"[… {output_slice.skipped:,} bytes left out …]\n{text}" if output_slice.skipped else text


def append_note(text: str, note: str) -> str:
    """Appends the note in brackets on a separate line."""
    if not note:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}[{note}]"


def _output_location(output: CapturedOutput) -> str:
    if output.path is None:
        return "the output could not be stored"
    if output.path_size < output.size:
        return f"the first {output.path_size:,} are in {output.path}; read or search it there"
    return f"the whole output is in {output.path}; read or search it there"
