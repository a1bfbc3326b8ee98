"""Database triggers that record every write to a call and to the end of a run."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from outrider.background.database import SCHEMA

_SQLITE = (
    "CREATE TABLE {name} (number INTEGER PRIMARY KEY, id TEXT, what TEXT)",
    "CREATE TRIGGER {name}_added AFTER INSERT ON {table} BEGIN {note} END",
    "CREATE TRIGGER {name}_changed AFTER UPDATE ON {table} BEGIN {note} END",
)
_POSTGRES = (
    "CREATE TABLE {name} (number bigint GENERATED ALWAYS AS IDENTITY, id text, what text)",
    "CREATE FUNCTION {name}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note} RETURN NULL; END $$",
    "CREATE TRIGGER {name}_written AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}_note()",
)
_ENDS = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


class Audit:
    """`runs` and `sessions` are addresses of the two databases, which may be one."""

    def __init__(self, runs: str, sessions: str) -> None:
        self._runs = _engine(runs)
        self._sessions = _engine(sessions)

    def install(self) -> None:
        shared = self._runs.dialect.name == "postgresql"
        _watch(self._sessions, "audit_parts", "outrider.parts" if shared else "parts", "id", "outcome")
        table = f"{SCHEMA}.workflow_status" if shared else "workflow_status"
        _watch(self._runs, "audit_runs", table, "workflow_uuid", "status")

    def faults(self) -> list[str]:
        return [*self._calls(), *self._ends()]

    def _calls(self) -> Iterator[str]:
        """A call ends once, and no process writes to it afterwards."""
        for part, outcomes in _written(self._sessions, "audit_parts").items():
            ended = [outcome for outcome in outcomes if outcome is not None]
            if len(ended) > 1 or (ended and outcomes[-1] is None):
                yield f"the part {part} was written after its end: {outcomes}"

    def _ends(self) -> Iterator[str]:
        for run, states in _written(self._runs, "audit_runs").items():
            ended = [state for state in states if state in _ENDS]
            if len(ended) != 1 or states[-1] not in _ENDS:
                yield f"the run {run} ended {len(ended)} times: {states}"

    def close(self) -> None:
        self._runs.dispose()
        self._sessions.dispose()


def _engine(place: str) -> sa.Engine:
    url = sa.make_url(place if "://" in place else f"sqlite:///{place}")
    return sa.create_engine(url.set(drivername="postgresql+psycopg") if "postgresql" in place else url)


def _watch(engine: sa.Engine, name: str, table: str, key: str, what: str) -> None:
    note = f"INSERT INTO {name} (id, what) VALUES (NEW.{key}, NEW.{what});"
    if engine.dialect.name == "postgresql":
        note = note.replace(name, f"public.{name}")
    with engine.begin() as db:
        for statement in _POSTGRES if engine.dialect.name == "postgresql" else _SQLITE:
            db.exec_driver_sql(statement.format(name=name, table=table, note=note))


def _written(engine: sa.Engine, name: str) -> dict[str, Sequence[str | None]]:
    written: dict[str, list[str | None]] = defaultdict(list)
    with engine.connect() as db:
        for row in db.execute(sa.text(f"SELECT id, what FROM {name} ORDER BY number")):
            written[row.id].append(row.what)
    return dict(written)
