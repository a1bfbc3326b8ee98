"""Which workers there are, and which of them have died: each counts its beats, and the others watch the counts."""

from collections.abc import Callable, Sequence
from time import monotonic

import msgspec
import sqlalchemy as sa

from outrider.background.database import Database
from outrider.sessions.records import Owner
from outrider.sessions.sqlite.owners import is_alive, this_process

NOBODY = Owner("", "", 0)  # of whom nothing is known


class Heartbeat(msgspec.Struct, frozen=True):
    worker_id: str
    owner: Owner
    count: int


class WorkerRegistry:
    """The table of workers, written by each for itself."""

    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._table = f"{database.prefix}workers"
        self.me = this_process()

    def beat(self) -> bool:
        """Say that this worker lives; False if the others had given it up for dead (or it is new)."""
        with self._engine.begin() as db:
            counted = db.execute(
                sa.text(f"UPDATE {self._table} SET beats = beats + 1 WHERE id = :id"), {"id": self.me.id}
            )
            if counted.rowcount:
                return True
            owner = msgspec.json.encode(self.me).decode()
            db.execute(
                sa.text(f"INSERT INTO {self._table} VALUES (:id, :owner, 0)"), {"id": self.me.id, "owner": owner}
            )
            return False

    def others(self) -> Sequence[Heartbeat]:
        with self._engine.connect() as db:
            rows = db.execute(
                sa.text(f"SELECT id, owner, beats FROM {self._table} WHERE id <> :id"), {"id": self.me.id}
            )
            return [Heartbeat(row.id, msgspec.json.decode(row.owner, type=Owner), row.beats) for row in rows]

    def names(self) -> set[str]:
        return {self.me.id, *(beat.worker_id for beat in self.others())}

    def strike(self, worker_id: str) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": worker_id})


class Watch:
    """Tells the dead from the living by its own clock alone: clocks of machines differ, and jump."""

    def __init__(
        self,
        patience: float,
        *,
        clock: Callable[[], float] = monotonic,
        alive: Callable[[Owner], bool | None] = is_alive,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._alive = alive
        self._seen: dict[str, tuple[int, float]] = {}

    def dead(self, beats: Sequence[Heartbeat]) -> list[str]:
        """Workers whose process is known to be gone, and those whose count has stood still for too long."""
        now = self._clock()
        self._seen = {beat.worker_id: self._last_change(beat, now) for beat in beats}
        return [
            beat.worker_id
            for beat in beats
            if self._alive(beat.owner) is False or now - self._seen[beat.worker_id][1] > self._patience
        ]

    def _last_change(self, beat: Heartbeat, now: float) -> tuple[int, float]:
        known = self._seen.get(beat.worker_id)
        return known if known is not None and known[0] == beat.count else (beat.count, now)
