"""Runs that begin when another one is over: until then they stand in a queue of its name, which nobody works on."""

from collections.abc import Sequence

import sqlalchemy as sa

from outrider.background.database import QUEUE, Database

_AFTER = "after:"


def queue_after(run_id: str) -> str:
    return f"{_AFTER}{run_id}"


def run_before(queue: str) -> str:
    """The run whose end those of a queue wait for; "" if it is none of these queues."""
    return queue.removeprefix(_AFTER) if queue.startswith(_AFTER) else ""


class Afterwards:
    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._status = database.status_table

    def awaited(self) -> Sequence[str]:
        """The runs that others wait for."""
        statement = (
            f"SELECT DISTINCT queue_name AS name FROM {self._status}"
            f" WHERE status = 'ENQUEUED' AND queue_name LIKE '{_AFTER}%'"
        )
        with self._engine.connect() as db:
            return [row.name.removeprefix(_AFTER) for row in db.execute(sa.text(statement))]

    def release(self, run_id: str) -> None:
        """It is over, however it ended: whoever waited for it stands in line."""
        statement = f"UPDATE {self._status} SET queue_name = :line WHERE queue_name = :queue AND status = 'ENQUEUED'"
        with self._engine.begin() as db:
            db.execute(sa.text(statement), {"line": QUEUE, "queue": queue_after(run_id)})
