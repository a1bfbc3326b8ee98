"""Contents of files, each kept once under its own hash."""

import hashlib
import zlib
from collections.abc import Collection, Iterable

from outrider.errors import StoreError
from outrider.sessions.snapshots.database import Database

_LEVEL = 1


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Objects:
    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, content: bytes) -> str:
        name = name_of(content)
        self.put_all([(name, content)])
        return name

    def put_all(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Contents under the names that `name_of` gave them."""
        with self._database.writing() as db:
            for name, content in contents:
                if not db.execute("SELECT 1 FROM objects WHERE name = ?", (name,)).fetchone():
                    db.execute("INSERT INTO objects VALUES (?, ?)", (name, zlib.compress(content, _LEVEL)))

    def get(self, name: str) -> bytes:
        """Raises StoreError if it is not there, or not what it was."""
        rows = self._database.read("SELECT body FROM objects WHERE name = ?", (name,))
        if not rows:
            raise StoreError(f"the content {name} is not kept any more")
        try:
            content = zlib.decompress(rows[0][0])
        except zlib.error as error:
            raise StoreError(f"the content {name} is damaged") from error
        if name_of(content) != name:
            raise StoreError(f"the content {name} is damaged")
        return content

    def keep_only(self, names: Collection[str]) -> None:
        found = [row[0] for row in self._database.read("SELECT name FROM objects")]
        with self._database.writing() as db:
            db.executemany("DELETE FROM objects WHERE name = ?", [(name,) for name in found if name not in names])
        self._database.shrink()
