"""What was done to files, in its order, and what is under way: kept so that it survives the end of the program."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from outrider.errors import StoreError
from outrider.sessions.snapshots.database import Database
from outrider.sessions.snapshots.images import Image, Snapshot
from outrider.types.ids import new_id, now_ms


class Caller(msgspec.Struct, frozen=True):
    """A call of another agent, in whose course something was changed."""

    session_id: str
    call_id: str


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed something: a call, with the calls that led to it (the nearest first), or an undo or redo of earlier
    changes."""

    session_id: str = ""
    call_id: str = ""
    part_id: str = ""
    callers: tuple[Caller, ...] = ()
    kind: Literal["call", "undo", "redo"] = "call"
    earlier: tuple[str, ...] = ()

    @property
    def sessions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.session_id, *(caller.session_id for caller in self.callers))))


class FileChange(msgspec.Struct, frozen=True):
    """None is a file that is not there."""

    path: str
    before: Image | None
    after: Image | None


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """What one call changed. `uncovered` files were too many or too large to be kept: they cannot be undone. Of the
    `doubtful` ones it is not certain that this call changed them: somebody else had the time to."""

    id: str = msgspec.field(default_factory=new_id)
    workspace: str
    files: tuple[FileChange, ...]
    created: int = msgspec.field(default_factory=now_ms)
    origin: Origin = Origin()
    uncovered: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    undone: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)


class UnderWay(msgspec.Struct, frozen=True):
    """Something that began and has not ended: the files as they were, and (where it is known) the hashes they shall
    have. `mark` is the number of the last change before it."""

    snapshot: Snapshot
    origin: Origin
    planned: dict[str, str | None] | None = None
    mark: int = 0


class Changes:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, snapshot: Snapshot, origin: Origin, planned: dict[str, str | None] | None) -> UnderWay:
        with self._database.writing() as db:
            mark = db.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0]
            begun = UnderWay(snapshot, origin, planned, mark)
            db.execute("INSERT INTO under_way VALUES (?, ?, ?)", (snapshot.id, mark, msgspec.msgpack.encode(begun)))
        return begun

    def end(self, begun_id: str) -> None:
        with self._database.writing() as db:
            db.execute("DELETE FROM under_way WHERE id = ?", (begun_id,))

    def under_way(self) -> list[UnderWay]:
        rows = self._database.read("SELECT body FROM under_way ORDER BY mark, id")
        return [msgspec.msgpack.decode(row[0], type=UnderWay) for row in rows]

    def add(self, changed: ChangeSet) -> None:
        with self._database.writing() as db:
            row = (changed.id, msgspec.json.encode(changed))
            number = db.execute("INSERT INTO changes (id, body) VALUES (?, ?)", row).lastrowid
            db.executemany("INSERT INTO belongs VALUES (?, ?)", [(name, number) for name in changed.origin.sessions])

    def replace(self, changed: ChangeSet) -> None:
        with self._database.writing() as db:
            db.execute("UPDATE changes SET body = ? WHERE id = ?", (msgspec.json.encode(changed), changed.id))

    def get(self, change_id: str) -> ChangeSet:
        rows = self._database.read("SELECT body FROM changes WHERE id = ?", (change_id,))
        if not rows:
            raise StoreError(f"the change {change_id} is not kept (any more)")
        return _read(rows)[0]

    def of_session(self, session_id: str) -> list[ChangeSet]:
        """What the session, and the agents that it called, have changed, in its order."""
        return _read(
            self._database.read(
                "SELECT body FROM belongs JOIN changes USING (number) WHERE session = ? ORDER BY number", (session_id,)
            )
        )

    def since(self, mark: int = 0) -> list[ChangeSet]:
        return _read(self._database.read("SELECT body FROM changes WHERE number > ? ORDER BY number", (mark,)))

    def needed(self) -> set[str]:
        """The contents without which something could not be undone or redone."""
        begun = {image.hash for one in self.under_way() for image in one.snapshot.images.values()}
        sides = (image for one in self.since() for file in one.files for image in (file.before, file.after))
        return begun | {image.hash for image in sides if image is not None}

    def forget(self, change_ids: Iterable[str]) -> None:
        with self._database.writing() as db:
            for change_id in change_ids:
                db.execute(
                    "DELETE FROM belongs WHERE number IN (SELECT number FROM changes WHERE id = ?)", (change_id,)
                )
                db.execute("DELETE FROM changes WHERE id = ?", (change_id,))


def _read(rows: Sequence[tuple[bytes]]) -> list[ChangeSet]:
    return [msgspec.json.decode(row[0], type=ChangeSet) for row in rows]
