"""What is known of files that were read before, so that they need not be read again."""

import msgspec

from outrider.sessions.snapshots.database import Database
from outrider.sessions.snapshots.images import Seen


class Memory:
    """What is known of files that were read, also by earlier programs; void once contents were given up by anybody."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.seen: dict[str, Seen] = {}
        self._written = 0
        self._void = self._read("void")
        if known := self._read("seen"):
            self.seen.update(msgspec.msgpack.decode(known, type=dict[str, Seen]))
            self._written = len(self.seen)

    def check(self) -> None:
        if (void := self._read("void")) != self._void:
            self._void = void
            self.seen.clear()
            self._written = 0

    def keep(self, least: int) -> None:
        """Write it down once so much is new."""
        if len(self.seen) - self._written >= least:
            self._write("seen", msgspec.msgpack.encode(self.seen))
            self._written = len(self.seen)

    def forget(self) -> None:
        self._void = str(int(self._void or b"0") + 1).encode()
        self._write("void", self._void)
        self._write("seen", msgspec.msgpack.encode({}))
        self.seen.clear()
        self._written = 0

    def _read(self, name: str) -> bytes:
        rows = self._database.read("SELECT value FROM state WHERE name = ?", (name,))
        return rows[0][0] if rows else b""

    def _write(self, name: str, value: bytes) -> None:
        with self._database.writing() as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))
