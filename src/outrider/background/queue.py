"""The line in the database: who stands in it, and what a worker takes from it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from outrider.background.database import QUEUE, Database
from outrider.config.file import BackgroundTable, BoundsTable
from outrider.types.ids import now_ms

Share = tuple[str, str]
"""A queue and one of its users: what is fair is said between these."""
Group = tuple[str, str]
"""("queue", its name) or ("provider", its name): what may have a bound."""


class QueuedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in line. A smaller `priority` comes first among the runs of one user; `number` is its place in time."""

    id: str
    queue: str
    user: str
    provider: str
    priority: int
    number: int

    @property
    def share(self) -> Share:
        return self.queue, self.user

    @property
    def groups(self) -> tuple[Group, Group]:
        return ("queue", self.queue), ("provider", self.provider)


class QueueState(msgspec.Struct, kw_only=True):
    """How things stand before a choice: `room` for more runs in groups that have a bound, how many runs of each share
    are `running`, and in which order shares were `served` last (the larger, the later)."""

    room: dict[Group, int] = {}
    running: Counter[Share] = msgspec.field(default_factory=Counter)
    served: dict[Share, int] = {}


def choose(tickets: Sequence[QueuedRun], places: int, standing: QueueState) -> list[QueuedRun]:
    """The next runs, in order. The user who has the fewest running is next; of several the one who waited longest
    for a turn. So everybody's first run comes before anybody's second, however many one has submitted."""
    lines = _lines(tickets)
    room, running = dict(standing.room), Counter(standing.running)
    served = defaultdict(int, standing.served)
    chosen: list[QueuedRun] = []
    while len(chosen) < places:
        heads = [head for line in lines.values() if (head := _first(line, room)) is not None]
        if not heads:
            break
        ticket = min(heads, key=lambda head: (running[head.share], served[head.share], head.number, head.id))
        lines[ticket.share].remove(ticket)
        running[ticket.share] += 1
        served[ticket.share] = max(served.values(), default=0) + 1
        for group in ticket.groups:
            if group in room:
                room[group] -= 1
        chosen.append(ticket)
    return chosen


def _lines(tickets: Sequence[QueuedRun]) -> dict[Share, list[QueuedRun]]:
    lines: dict[Share, list[QueuedRun]] = {}
    for ticket in sorted(tickets, key=lambda ticket: (ticket.priority, ticket.number, ticket.id)):
        lines.setdefault(ticket.share, []).append(ticket)
    return lines


def _first(line: Sequence[QueuedRun], room: Mapping[Group, int]) -> QueuedRun | None:
    """The first one that may begin: behind a run whose provider is busy, another one need not wait."""
    return next((ticket for ticket in line if all(room.get(group, 1) > 0 for group in ticket.groups)), None)


_OWN = "worker:"
_CHOOSING = 0x6F757473  # the advisory lock of whoever chooses: two at once would both fill the same room
_IN_FLIGHT = "status.status IN ('ENQUEUED', 'PENDING')"  # word for word what the durable engine's index covers

Provider = Callable[[str], str]
"""The name of the provider that an agent thinks with."""


def own_queue(worker_id: str) -> str:
    return f"{_OWN}{worker_id}"


class RunQueue:
    """A table beside the durable engine's own, with what that does not know of a run: queue, user, agent, its start."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine
        self._line = f"{database.prefix}line"
        self._turns = f"{database.prefix}turns"
        self._status = database.status_table

    def join(self, run_id: str, *, queue: str, user: str, agent: str, provider: str = "") -> None:
        """Before the run is submitted, so that none can be taken of which nothing is known. `provider` is what the
        order names; otherwise it is the agent's."""
        given = {"id": run_id, "queue": queue, "user": user, "agent": agent, "provider": provider}
        holes = ", ".join(f":{name}" for name in given)
        with self._engine.begin() as db:
            db.execute(sa.text(f"INSERT INTO {self._line} VALUES ({holes}, NULL) ON CONFLICT DO NOTHING"), given)

    def take(self, worker_id: str, terms: BackgroundTable, provider: Provider) -> Sequence[str]:
        """Move the next runs into the worker's own queue, as many as all limits leave room for."""
        if not self._somebody_waits():
            return ()
        with self._engine.begin() as db:
            self._alone(db)
            places = terms.runs - self._held(db, worker_id)
            if places <= 0:
                return ()
            chosen = choose(self._tickets(db, places, provider), places, self._standing(db, terms, provider))
            for ticket in chosen:
                self._move(db, ticket, worker_id)
            return [ticket.id for ticket in chosen]

    def return_all(self, worker_id: str) -> None:
        """What a worker took and has not begun stands in line again, where it stood."""
        with self._engine.begin() as db:
            db.execute(
                sa.text(
                    f"UPDATE {self._status} SET queue_name = :line WHERE queue_name = :own AND status = 'ENQUEUED'"
                ),
                {"line": QUEUE, "own": own_queue(worker_id)},
            )

    def takers(self) -> set[str]:
        """The workers that have taken runs which have not begun."""
        rows = self._read(f"SELECT DISTINCT queue_name AS name FROM {self._status} AS status WHERE {_IN_FLIGHT}")
        return {row.name.removeprefix(_OWN) for row in rows if row.name and row.name.startswith(_OWN)}

    def _read(self, statement: str) -> Sequence[sa.Row[tuple[str, ...]]]:
        with self._engine.connect() as db:
            return db.execute(sa.text(statement)).all()

    def _somebody_waits(self) -> bool:
        return bool(
            self._read(
                f"SELECT 1 FROM {self._status} AS status"
                f" WHERE queue_name = '{QUEUE}' AND status = 'ENQUEUED' AND {_IN_FLIGHT} LIMIT 1"
            )
        )

    def _alone(self, db: sa.Connection) -> None:
        """SQLite has one writer: whoever means to write something is alone from then on."""
        statement = f"SELECT pg_advisory_xact_lock({_CHOOSING})" if self._database.shared else None
        db.execute(sa.text(statement or f"DELETE FROM {self._turns} WHERE FALSE"))

    def _held(self, db: sa.Connection, worker_id: str) -> int:
        statement = f"SELECT count(*) FROM {self._status} AS status WHERE queue_name = :own AND {_IN_FLIGHT}"
        return db.execute(sa.text(statement), {"own": own_queue(worker_id)}).scalar_one()

    def _tickets(self, db: sa.Connection, places: int, provider: Provider) -> list[QueuedRun]:
        """Of each user's runs with each agent the first ones: more than there are places cannot be chosen."""
        statement = f"""
            SELECT id, queue, owner, agent, provider, priority, created_at FROM (
                SELECT line.id, queue, owner, agent, provider, status.priority, status.created_at, row_number() OVER (
                    PARTITION BY queue, owner, agent, provider
                    ORDER BY status.priority, status.created_at, line.id) AS rank
                FROM {self._status} AS status JOIN {self._line} AS line ON line.id = status.workflow_uuid
                WHERE status.queue_name = '{QUEUE}' AND status.status = 'ENQUEUED' AND {_IN_FLIGHT}
            ) AS waiting WHERE rank <= :places"""
        return [
            QueuedRun(
                id=row.id,
                queue=row.queue,
                user=row.owner,
                provider=row.provider or provider(row.agent),
                priority=row.priority or 0,
                number=row.created_at,
            )
            for row in db.execute(sa.text(statement), {"places": places})
        ]

    def _standing(self, db: sa.Connection, terms: BackgroundTable, provider: Provider) -> QueueState:
        statement = f"""
            SELECT queue, owner, agent, provider, count(*) AS runs
            FROM {self._status} AS status JOIN {self._line} AS line ON line.id = status.workflow_uuid
            WHERE {_IN_FLIGHT} AND status.queue_name LIKE '{_OWN}%' GROUP BY queue, owner, agent, provider"""
        standing, busy = QueueState(), Counter[Group]()
        for row in db.execute(sa.text(statement)):
            standing.running[row.queue, row.owner] += row.runs
            busy["queue", row.queue] += row.runs
            busy["provider", row.provider or provider(row.agent)] += row.runs
        for group, bounds in _bounded(terms):
            left = [] if bounds.at_once is None else [bounds.at_once - busy[group]]
            if bounds.starts is not None:
                left.append(bounds.starts - self._begun(db, group, bounds, provider))
            if left:
                standing.room[group] = min(left)
        rows = db.execute(sa.text(f"SELECT queue, owner, number FROM {self._turns}"))
        standing.served = {(row.queue, row.owner): row.number for row in rows}
        return standing

    def _begun(self, db: sa.Connection, group: Group, bounds: BoundsTable, provider: Provider) -> int:
        statement = (
            f"SELECT queue, agent, provider, count(*) AS runs FROM {self._line}"
            " WHERE begun > :since GROUP BY queue, agent, provider"
        )
        rows = db.execute(sa.text(statement), {"since": now_ms() - round(bounds.seconds * 1000)})
        named = [(row.runs, row.queue, row.provider or provider(row.agent)) for row in rows]
        return sum(runs for runs, queue, name in named if group in (("queue", queue), ("provider", name)))

    def _move(self, db: sa.Connection, ticket: QueuedRun, worker_id: str) -> None:
        given = {
            "id": ticket.id,
            "own": own_queue(worker_id),
            "now": now_ms(),
            "queue": ticket.queue,
            "user": ticket.user,
        }
        for statement in (
            f"UPDATE {self._status} SET queue_name = :own WHERE workflow_uuid = :id AND status = 'ENQUEUED'",
            f"UPDATE {self._line} SET begun = :now WHERE id = :id",
            f"INSERT INTO {self._turns} SELECT :queue, :user, coalesce(max(number), 0) + 1 FROM {self._turns}"
            " WHERE TRUE ON CONFLICT (queue, owner) DO UPDATE SET number = excluded.number",
        ):
            wanted = {name: value for name, value in given.items() if f":{name}" in statement}
            db.execute(sa.text(statement), wanted)


def _bounded(terms: BackgroundTable) -> Iterable[tuple[Group, BoundsTable]]:
    yield from ((("queue", name), bounds) for name, bounds in terms.queues.items())
    yield from ((("provider", name), bounds) for name, bounds in terms.providers.items())


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


_AFTER = "after:"


def queue_after(run_id: str) -> str:
    return f"{_AFTER}{run_id}"


def run_before(queue: str) -> str:
    """The run whose end those of a queue wait for; "" if it is none of these queues."""
    return queue.removeprefix(_AFTER) if queue.startswith(_AFTER) else ""


class DependentRuns:
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
