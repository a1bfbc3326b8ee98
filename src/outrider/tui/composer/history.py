"""What was said in a workspace before: kept in a file, found again with the arrow keys."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

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
