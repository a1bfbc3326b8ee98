"""The runs that nobody works on until somebody has answered."""

from collections.abc import Sequence

import sqlalchemy as sa

from outrider.background.database import Database


class Waiting:
    """A table of their ids. A run is named here before its worker lets go of it, and until it has gone on."""

    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._table = f"{database.prefix}waiting"

    def add(self, run_id: str) -> None:
        self._execute(f"INSERT INTO {self._table} VALUES (:id) ON CONFLICT DO NOTHING", run_id)

    def remove(self, run_id: str) -> None:
        self._execute(f"DELETE FROM {self._table} WHERE id = :id", run_id)

    def all(self) -> Sequence[str]:
        with self._engine.connect() as db:
            return [row.id for row in db.execute(sa.text(f"SELECT id FROM {self._table} ORDER BY id"))]

    def _execute(self, statement: str, run_id: str) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(statement), {"id": run_id})
