"""The run queue: decides fairly which queued run a worker starts next."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from outrider.background.database import STARTABLE, RunDatabase, sql_text
from outrider.background.records import RUN_QUEUE_NAME, Run
from outrider.config.file import BackgroundTable, BoundsTable
from outrider.types.ids import now_ms

UserShare = tuple[str, str]
"""(queue, user): the unit between which the queue is fair."""
LimitGroup = tuple[str, str]
"""("queue", name) or ("provider", name): what can have a limit."""


class QueuedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A queued run. Among the runs of one user a smaller `priority` starts first, then a smaller `number` (creation
    time)."""

    id: str
    queue: str
    user: str
    provider: str
    priority: int
    number: int

    @property
    def user_share(self) -> UserShare:
        """The share of the queue that the run belongs to."""
        return self.queue, self.user

    @property
    def limit_groups(self) -> tuple[LimitGroup, LimitGroup]:
        """The groups whose limits apply to the run."""
        return ("queue", self.queue), ("provider", self.provider)


class QueueState(msgspec.Struct, kw_only=True):
    """The input of a choice.

    - `own`: the number of running runs of the worker that chooses.
    - `room`: how many more runs each limited group may start.
    - `running`: the number of running runs per share.
    - `served`: the order in which shares last started a run; larger is later.
    """

    own: int = 0
    room: dict[LimitGroup, int] = {}
    running: Counter[UserShare] = msgspec.field(default_factory=Counter)
    served: dict[UserShare, int] = {}


def choose_runs(queued: Sequence[QueuedRun], capacity: int, state: QueueState) -> list[QueuedRun]:
    """Returns the next runs to start, in order. The share with the fewest running runs is next; among equals the one
    that waited longest. So the first run of each user starts before the second run of any user, however many runs a
    user has submitted."""
    runs_by_share = _group_by_share(queued)
    room, running = dict(state.room), Counter(state.running)
    served = defaultdict(int, state.served)
    chosen: list[QueuedRun] = []
    while len(chosen) < capacity:
        heads = [head for runs in runs_by_share.values() if (head := _first_startable(runs, room)) is not None]
        if not heads:
            break
        run = min(heads, key=lambda head: (running[head.user_share], served[head.user_share], head.number, head.id))
        runs_by_share[run.user_share].remove(run)
        running[run.user_share] += 1
        served[run.user_share] = max(served.values(), default=0) + 1
        for group in run.limit_groups:
            if group in room:
                room[group] -= 1
        chosen.append(run)
    return chosen


def _group_by_share(queued: Sequence[QueuedRun]) -> dict[UserShare, list[QueuedRun]]:
    runs_by_share: dict[UserShare, list[QueuedRun]] = {}
    for run in sorted(queued, key=lambda run: (run.priority, run.number, run.id)):
        runs_by_share.setdefault(run.user_share, []).append(run)
    return runs_by_share


def _first_startable(queued: Sequence[QueuedRun], room: Mapping[LimitGroup, int]) -> QueuedRun | None:
    """Returns the first run whose groups have room. A run whose provider is at its limit does not block the runs after
    it."""
    return next((run for run in queued if all(room.get(group, 1) > 0 for group in run.limit_groups)), None)


_DEQUEUE_LOCK_KEY = 0x6F757473  # Postgres advisory lock: two concurrent choices would both fill the same free capacity

# Ends an assignment with a number. The condition is also true for what it has released before: the connection may get
# lost after the commit, and then the caller repeats it. A run that another worker may take has no worker any more.
RELEASE = "state = 'released'"
IS_ATTEMPT = "id = :id AND worker = :worker AND attempts = :attempt AND state <> 'queued'"
# No worker has started the run since its entry was read, and no one has canceled or retried it.
_IS_UNCHANGED = "id = :id AND attempts = :attempts AND canceled = :was_canceled"
ProviderLookup = Callable[[str], str]
"""Returns the name of the provider of an agent."""


# The shares of the queue that have runs to start. Each step seeks the next one in the index `entries_startable`, so the
# cost depends on the number of shares and not on the number of runs. (Postgres has no skip scan for DISTINCT.)
_KEYS = "queue, owner, agent, provider"
_SHARES = f"""
    WITH RECURSIVE shares (queue, owner, agent, provider) AS (
        SELECT * FROM (SELECT {_KEYS} FROM {{0}} WHERE {STARTABLE} ORDER BY {_KEYS} LIMIT 1) AS first
        UNION ALL
        SELECT {{1}}
    )"""
_NEXT_SHARE_POSTGRES = f"""next.* FROM shares AS share CROSS JOIN LATERAL (
    SELECT {_KEYS} FROM {{0}} WHERE {STARTABLE}
        AND ({_KEYS}) > (share.queue, share.owner, share.agent, share.provider)
    ORDER BY {_KEYS} LIMIT 1) AS next"""


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The queue's record of a run.

    - `id`: the id of the run.
    - `state`: "queued", "assigned" to a worker, or "released": over, or waiting for an approval.
    - `worker`: the worker that has the run, or had it last.
    - `after_run`: the run that must be over first.
    - `attempts`: how often the run was assigned to a worker.
    - `canceled`: whether the run was canceled.
    - `ready`: when the run may start, in Unix milliseconds.
    - `agent`: the name of its agent; "" for the default.
    - `provider`: the provider of its model; "" for that of its agent.
    """

    id: str
    state: str
    worker: str = ""
    after_run: str = ""
    attempts: int = 0
    canceled: bool = False
    ready: int = 0
    agent: str = ""
    provider: str = ""

    def is_assigned_to(self, worker_id: str) -> bool:
        """Returns whether the worker owns the run."""
        return self.state == "assigned" and self.worker == worker_id


class RunQueue:
    """The queue of runs, in separate tables because DBOS queues have no fairness between users. A chosen run is first
    recorded here as assigned to a worker and then resumed in that worker's DBOS queue. This table alone decides which
    worker owns a run."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._engine, self._statements = database.engine, database.statements
        self.paused_providers: set[str] = set()  # as of the last read of the queue
        self._entries = f"{database.table_prefix}entries"
        self._runs_table = f"{database.table_prefix}line"
        self._reports_table = f"{database.table_prefix}reports"
        self._waiting_table = f"{database.table_prefix}waiting"
        self._retries_table = f"{database.table_prefix}retries"
        self._served_table = f"{database.table_prefix}turns"
        self._breakers = f"{database.table_prefix}breakers"

    def add_run(
        self, db: sa.Connection, run: QueuedRun, *, agent: str, ready: int | None = None, after_run: str = ""
    ) -> None:
        """Inserts a new run in the caller's transaction, which also enqueues the workflow; does nothing if the run
        exists. If `run.provider` is empty, the provider of the agent applies. The run can start at time `ready`."""
        line = {"id": run.id, "queue": run.queue, "user": run.user, "agent": agent, "provider": run.provider}
        inserted = db.execute(
            sql_text(
                f"INSERT INTO {self._runs_table} VALUES (:id, :queue, :user, :agent, :provider, NULL)"
                " ON CONFLICT DO NOTHING"
            ),
            line,
        )
        if not inserted.rowcount:
            return
        start = run.number if ready is None else ready
        entry = {"priority": run.priority, "created": run.number, "ready": start, "after_run": after_run}
        self._insert_entry(db, {**line, **entry, "attempts": 0, "held": int(start > run.number), "canceled": 0})
        self._database.notify_workers(db)

    def _insert_entry(self, db: sa.Connection, entry: dict[str, Any]) -> bool:
        """Inserts an entry, and returns whether the run had none."""
        columns = "priority, created, ready, after_run, attempts, held, canceled"
        values = ", ".join(f":{name}" for name in columns.split(", "))
        statement = (
            f"INSERT INTO {self._entries} (id, state, worker, {_KEYS}, {columns})"
            f" VALUES (:id, 'queued', '', :queue, :user, :agent, :provider, {values}) ON CONFLICT DO NOTHING"
        )
        return bool(db.execute(sql_text(statement), entry).rowcount)

    def get_entries(self, run_ids: Collection[str]) -> dict[str, QueueEntry]:
        """Returns the entries by run id."""
        if not run_ids:
            return {}
        if len(run_ids) == 1:  # most calls: without a list, the statement is the same each time
            return {entry.id: entry for entry in self._select_entries("id = :id", id=next(iter(run_ids)))}
        return {entry.id: entry for entry in self._select_entries(ids=list(run_ids))}

    def list_active(self, states: Collection[str], queue: str, user: str, *, limit: int, offset: int) -> Sequence[str]:
        """Returns the runs in the given states ("queued", "assigned"), newest first, without those that are over."""
        table = self._database.entries_by("entries_created")
        statement = sql_text(
            f"SELECT id FROM {table} WHERE state IN :states AND (:queue = '' OR queue = :queue)"
            " AND (:user = '' OR owner = :user) ORDER BY created DESC, id DESC LIMIT :limit OFFSET :offset"
        ).bindparams(sa.bindparam("states", expanding=True))
        values = {"states": list(states), "queue": queue, "user": user, "limit": limit, "offset": offset}
        with self._statements.connect() as db:
            return [row.id for row in db.execute(statement, values)]

    def list_owned(self, users: Collection[str], released: Collection[str]) -> Sequence[str]:
        """Returns the runs of the users that are queued or assigned, and those of the `released` ones that are
        theirs."""
        statement = sql_text(
            f"SELECT id FROM {self._entries} WHERE state IN ('queued', 'assigned') AND owner IN :users"
            f" UNION SELECT id FROM {self._entries} WHERE id IN :released AND owner IN :users"
        ).bindparams(sa.bindparam("users", expanding=True), sa.bindparam("released", expanding=True))
        with self._statements.connect() as db:
            return [row.id for row in db.execute(statement, {"users": list(users), "released": list(released)})]

    def count_states(self) -> dict[str, float]:
        """Returns how many runs are queued and how many are assigned to workers."""
        statement = f"SELECT state, count(*) AS runs FROM {self._entries} WHERE state <> 'released' GROUP BY state"
        with self._statements.connect() as db:
            counted = {row.state: row.runs for row in db.execute(sql_text(statement))}
        return {state: counted.get(state, 0) for state in ("queued", "assigned")}

    def find_ids(self, ending: str) -> Sequence[str]:
        """Returns up to two runs whose ids end with the text."""
        statement = f"SELECT id FROM {self._runs_table} WHERE id LIKE :ending ESCAPE '!' LIMIT 2"
        escaped = ending.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        with self._statements.connect() as db:
            return [row.id for row in db.execute(sql_text(statement), {"ending": f"%{escaped}"})]

    def list_unreleased(self, run_id: str | None = None) -> Sequence[QueueEntry]:
        """Returns the entries of runs that a worker has started and not released."""
        condition = "state <> 'released' AND attempts > 0"
        if run_id is not None:
            return self._select_entries(f"{condition} AND id = :id", id=run_id)
        return self._select_entries(condition)

    def list_assigned(self, worker_id: str) -> Sequence[QueueEntry]:
        """Returns the entries that are assigned to a worker."""
        return self._select_entries("state = 'assigned' AND worker = :worker", worker=worker_id)

    def list_workers(self) -> set[str]:
        """Returns the workers that have assigned runs."""
        with self._statements.connect() as db:
            rows = db.execute(sql_text(f"SELECT DISTINCT worker FROM {self._entries} WHERE state = 'assigned'"))
            return {row.worker for row in rows}

    def dequeue_runs(self, worker_id: str, limits: BackgroundTable, provider: ProviderLookup) -> Sequence[str]:
        """Assigns the next runs to the worker, as many as all limits allow. The caller resumes their workflows."""
        if not (due := self._find_due()):
            return ()
        with self._engine.begin() as db:
            self._acquire_lock(db)
            state = self._load_state(db, limits, provider, worker_id)
            capacity = limits.runs - state.own
            if capacity <= 0:
                return ()
            if "held" in due:
                self._release_held(db)
            candidates = self._load_candidates(db, capacity, provider)
            chosen = choose_runs(candidates, capacity, state)
            self._assign_runs(db, chosen, worker_id, max(state.served.values(), default=0))
            return [run.id for run in chosen]

    def _release_held(self, db: sa.Connection) -> None:
        """Lets the runs start whose start time has come."""
        held = self._database.entries_by("entries_held")
        statement = f"UPDATE {held} SET held = 0 WHERE held = 1 AND state = 'queued' AND ready <= :now"
        db.execute(sql_text(statement), {"now": now_ms()})

    def requeue_run(self, run_id: str, worker_id: str) -> bool:
        """Puts a run of a worker back into the queue, at its old position. Returns False if the run is no longer the
        worker's: of several processes that recover a dead worker, one succeeds."""
        return self._update(
            "state = 'queued', worker = ''", "id = :id AND worker = :worker", notify=True, id=run_id, worker=worker_id
        )

    def requeue_pending(self, run_id: str, worker_id: str) -> bool:
        """Puts a run back into the queue whose workflow DBOS lists as executed by a worker, if it is the worker's or
        released. A worker that was paused can take the workflow of a run that another worker has ended since; DBOS
        then rejects the outcome of that one, and lists the run as started until a worker executes it again."""
        is_open = "id = :id AND (worker = :worker OR state = 'released')"
        return self._update("state = 'queued', worker = ''", is_open, notify=True, id=run_id, worker=worker_id)

    def reopen_run(self, run: Run, entry: QueueEntry | None, *, canceled: bool = False, is_retry: bool = False) -> bool:
        """Queues a run again and rewinds its workflow, in one transaction. Returns False, with nothing changed, if the
        run was queued, started, ended, retried or canceled since `entry` was read. A run that is reopened as `canceled`
        does not start: a worker ends its open calls after `finish_cancel`. With `is_retry` its failures are counted
        anew."""
        return self._database.change_with_workflow(
            lambda db: self._reopen(db, run, entry, canceled=canceled, is_retry=is_retry),
            lambda client: client.rewind_workflow(run.id, queue_name=RUN_QUEUE_NAME),
        )

    def reopen_rewound(self, run: Run, entry: QueueEntry | None) -> bool:
        """Queues a run whose workflow an earlier version has rewound and not queued."""
        with self._engine.begin() as db:
            return self._reopen(db, run, entry, canceled=entry is not None and entry.canceled, is_retry=False)

    def _reopen(self, db: sa.Connection, run: Run, entry: QueueEntry | None, *, canceled: bool, is_retry: bool) -> bool:
        """Queues a run if its entry has not changed; a run that version 0.1 ended has none, so this inserts one.
        Removes it from the waiting runs, and deletes its report, which a worker may have stored a moment ago; no worker
        stores one afterwards."""
        if entry is None:
            is_queued = self._insert_ended_run(db, run, canceled=canceled)
        else:
            is_queued = self._reopen_entry(db, entry, canceled=canceled)
        if is_queued:
            retries = (self._retries_table,) if is_retry else ()
            for table in (self._reports_table, self._waiting_table, *retries):
                db.execute(sql_text(f"DELETE FROM {table} WHERE id = :id"), {"id": run.id})
            self._database.notify_workers(db)
        return is_queued

    def _reopen_entry(self, db: sa.Connection, entry: QueueEntry, *, canceled: bool) -> bool:
        """Queues a run if its entry has not changed. The number of attempts stays: each start by a worker is an
        attempt. The run may be in the queue already, if it was canceled or its workflow has ended: DBOS rewinds no
        other."""
        statement = sql_text(
            f"UPDATE {self._entries} SET state = 'queued', worker = '', canceled = :canceled, held = 0"
            f" WHERE {_IS_UNCHANGED}"
        )
        values = {"id": entry.id, "attempts": entry.attempts, "was_canceled": int(entry.canceled)}
        return bool(db.execute(statement, {**values, "canceled": int(canceled)}).rowcount)

    def _insert_ended_run(self, db: sa.Connection, run: Run, *, canceled: bool) -> bool:
        statement = sql_text(f"SELECT agent, provider FROM {self._runs_table} WHERE id = :id")
        line, created = db.execute(statement, {"id": run.id}).first(), run.created or now_ms()
        names = {"agent": line.agent, "provider": line.provider} if line else {"agent": "", "provider": ""}
        columns = {"id": run.id, "queue": run.queue, "user": run.user, "priority": run.priority, **names}
        times = {"created": created, "ready": created, "after_run": "", "held": 0}
        return self._insert_entry(db, {**columns, **times, "attempts": 1, "canceled": int(canceled)})

    def release_run(self, run_id: str, worker_id: str, attempt: int | None = None) -> bool:
        """Ends the worker's assignment with the number `attempt`, or any: a worker that was removed as dead can be
        assigned the same run again while it still ends its first execution. The worker's id stays in the entry, because
        a crash before DBOS has stored the outcome makes the run recoverable by `requeue_run`."""
        if attempt is None:
            is_own = "id = :id AND worker = :worker AND state = 'assigned'"
            return self._update(RELEASE, is_own, id=run_id, worker=worker_id)
        return self._update(RELEASE, IS_ATTEMPT, id=run_id, worker=worker_id, attempt=attempt)

    def claim_run(self, entry: QueueEntry, worker_id: str) -> bool:
        """Assigns a run that is over to a worker for cleanup, if its entry has not changed since it was read."""
        return self._update(
            "state = 'assigned', worker = :new",
            f"{_IS_UNCHANGED} AND worker = :worker AND state = :state",
            id=entry.id,
            worker=entry.worker,
            state=entry.state,
            attempts=entry.attempts,
            was_canceled=int(entry.canceled),
            new=worker_id,
        )

    def cancel_run(self, run_id: str) -> None:
        """Cancels a run and its workflow in one transaction. A worker that assigns the run at the same time sees that
        it is canceled. A run that no worker has started needs no cleanup and is released."""
        statement = sql_text(
            f"UPDATE {self._entries} SET canceled = 1, state = CASE WHEN attempts = 0 THEN 'released' ELSE state END"
            " WHERE id = :id AND state <> 'released'"
        )

        def mark(db: sa.Connection) -> bool:
            if db.execute(statement, {"id": run_id}).rowcount:
                self._database.notify_workers(db, started=True)
            return True  # a run that version 0.1 ended has no entry

        self._database.change_with_workflow(mark, lambda client: client.cancel_workflow(run_id))

    def finish_cancel(self, entry: QueueEntry) -> bool:
        """Cancels the workflow of a run that is canceled and in the queue. Returns False if the run was retried, or
        assigned to a worker for cleanup, since `entry` was read."""
        statement = sql_text(f"UPDATE {self._entries} SET worker = '' WHERE {_IS_UNCHANGED} AND state = 'queued'")
        values = {"id": entry.id, "attempts": entry.attempts, "was_canceled": 1}
        return self._database.change_with_workflow(
            lambda db: bool(db.execute(statement, values).rowcount),
            lambda client: client.cancel_workflow(entry.id),
        )

    def notify_workers(self) -> None:
        """Makes workers read the queue and the waiting runs now."""
        with self._engine.begin() as db:
            self._database.notify_workers(db, started=True)

    def list_awaited_runs(self) -> Sequence[str]:
        """Returns the runs that other runs wait for."""
        with self._statements.connect() as db:
            statement = f"SELECT DISTINCT after_run FROM {self._entries} WHERE after_run <> '' AND state = 'queued'"
            return [row.after_run for row in db.execute(sql_text(statement))]

    def release_dependents(self, run_id: str) -> None:
        """Lets the runs start that waited for this one, however it ended."""
        self._update("after_run = ''", "after_run = :id", notify=True, id=run_id)

    def _update(self, assignments: str, condition: str, *, notify: bool = False, **values: Any) -> bool:
        with (self._engine if notify else self._statements).begin() as db:
            statement = f"UPDATE {self._entries} SET {assignments} WHERE {condition}"
            is_changed = bool(db.execute(sql_text(statement), values).rowcount)
            if is_changed and notify:
                self._database.notify_workers(db, started="canceled" in assignments)
            return is_changed

    def _select_entries(self, condition: str = "", **values: Any) -> Sequence[QueueEntry]:
        """Returns the entries that match the condition, or without one those with the `ids`."""
        columns = "id, state, worker, after_run, attempts, canceled, ready, agent, provider"
        select = f"SELECT {columns} FROM {self._entries} WHERE"
        statement = sql_text(f"{select} {condition}") if condition else self._with_ids(select)
        with self._statements.connect() as db:
            return [
                QueueEntry(
                    id=row.id,
                    state=row.state,
                    worker=row.worker,
                    after_run=row.after_run,
                    attempts=row.attempts,
                    canceled=bool(row.canceled),
                    ready=row.ready,
                    agent=row.agent,
                    provider=row.provider,
                )
                for row in db.execute(statement, values)
            ]

    def _find_due(self) -> set[str]:
        """Returns "startable" if there are runs that can start, and "held" if there are runs whose start time has
        come."""
        startable, held = self._startable_conditions()
        statement = f"SELECT {startable} AS startable, {held} AS held"
        with self._statements.connect() as db:
            row = db.execute(sql_text(statement), {"now": now_ms()}).mappings().one()
            return {name for name, is_found in row.items() if is_found}

    def startable_condition(self) -> str:
        """Returns an SQL expression: whether a run can start at the time `:now`, apart from limits."""
        return f"({' OR '.join(self._startable_conditions())})"

    def _startable_conditions(self) -> tuple[str, str]:
        startable, held_index = (
            self._database.entries_by("entries_startable"),
            self._database.entries_by("entries_held"),
        )
        return (
            f"EXISTS (SELECT 1 FROM {startable} WHERE {STARTABLE})",
            f"EXISTS (SELECT 1 FROM {held_index} WHERE held = 1 AND state = 'queued' AND ready <= :now)",
        )

    def _acquire_lock(self, db: sa.Connection) -> None:
        """Serializes choices until the transaction ends. On SQLite any write statement takes the only write lock."""
        statement = f"SELECT pg_advisory_xact_lock({_DEQUEUE_LOCK_KEY})" if self._database.is_postgres else None
        db.execute(sql_text(statement or f"DELETE FROM {self._served_table} WHERE FALSE"))

    def _load_candidates(self, db: sa.Connection, capacity: int, provider: ProviderLookup) -> list[QueuedRun]:
        """Returns the first runs of each user and agent: more than `capacity` of one cannot be chosen."""
        columns, order = f"id, {_KEYS}, priority, created", "ORDER BY priority, created, id LIMIT :capacity"
        if self._database.is_postgres:
            statement = (
                _SHARES.format(self._entries, _NEXT_SHARE_POSTGRES.format(self._entries))
                + f"""
                SELECT entry.* FROM shares AS share CROSS JOIN LATERAL (
                    SELECT {columns} FROM {self._entries} WHERE {STARTABLE} AND ({_KEYS})
                        = (share.queue, share.owner, share.agent, share.provider) {order}) AS entry"""
            )
            rows = list(db.execute(sql_text(statement), {"capacity": capacity}))
        else:
            rows = [
                row
                for share in self._list_shares(db)
                for row in db.execute(
                    sql_text(
                        f"SELECT {columns} FROM {self._entries} WHERE {STARTABLE} AND queue = :queue AND owner = :owner"
                        f" AND agent = :agent AND provider = :provider {order}"
                    ),
                    {**share, "capacity": capacity},
                )
            ]
        return [
            QueuedRun(
                id=row.id,
                queue=row.queue,
                user=row.owner,
                provider=row.provider or provider(row.agent),
                priority=row.priority,
                number=row.created,
            )
            for row in rows
        ]

    def _list_shares(self, db: sa.Connection) -> list[dict[str, str]]:
        """Returns the shares with runs to start. SQLite has no LATERAL, and compares rows by their first column only;
        a query costs less there than a round trip."""
        names = _KEYS.split(", ")
        first = f"SELECT {_KEYS} FROM {self._database.entries_by('entries_startable')} WHERE {STARTABLE}"
        order = f"ORDER BY {_KEYS} LIMIT 1"
        seeks = [
            " AND ".join([first, *(f"{name} = :{name}" for name in names[:position]), f"{names[position]} > :last"])
            for position in reversed(range(len(names)))
        ]
        shares: list[dict[str, str]] = []
        row = db.execute(sql_text(f"{first} {order}")).first()
        while row is not None:
            shares.append(share := dict(zip(names, row, strict=True)))
            rows = (
                db.execute(sql_text(f"{seek} {order}"), {**share, "last": share[name]}).first()
                for seek, name in zip(seeks, reversed(names), strict=True)
            )
            row = next((next_row for next_row in rows if next_row is not None), None)
        return shares

    def _load_state(
        self, db: sa.Connection, limits: BackgroundTable, provider: ProviderLookup, worker_id: str
    ) -> QueueState:
        statement = f"""
            SELECT {_KEYS}, worker, count(*) AS runs FROM {self._entries} WHERE state = 'assigned'
            GROUP BY {_KEYS}, worker"""
        state, busy = QueueState(), Counter[LimitGroup]()
        for row in db.execute(sql_text(statement)):
            state.own += row.runs if row.worker == worker_id else 0
            state.running[row.queue, row.owner] += row.runs
            busy["queue", row.queue] += row.runs
            busy["provider", row.provider or provider(row.agent)] += row.runs
        for group, bounds in _limited_groups(limits):
            free = [] if bounds.at_once is None else [bounds.at_once - busy[group]]
            if bounds.starts is not None:
                free.append(bounds.starts - self._count_recent_starts(db, group, bounds, provider))
            if free:
                state.room[group] = min(free)
        paused = db.execute(sql_text(f"SELECT id, until FROM {self._breakers}")).all()
        self.paused_providers = {row.id for row in paused}
        for row in paused:
            group = ("provider", row.id)
            room = 0 if row.until > now_ms() else max(1 - busy[group], 0)
            state.room[group] = min(state.room.get(group, room), room)
        rows = db.execute(sql_text(f"SELECT queue, owner, number FROM {self._served_table}"))
        state.served = {(row.queue, row.owner): row.number for row in rows}
        return state

    def _count_recent_starts(
        self, db: sa.Connection, group: LimitGroup, bounds: BoundsTable, provider: ProviderLookup
    ) -> int:
        statement = (
            f"SELECT queue, agent, provider, count(*) AS runs FROM {self._runs_table}"
            " WHERE begun > :since GROUP BY queue, agent, provider"
        )
        rows = db.execute(sql_text(statement), {"since": now_ms() - round(bounds.seconds * 1000)})
        named = [(row.runs, row.queue, row.provider or provider(row.agent)) for row in rows]
        return sum(runs for runs, queue, name in named if group in (("queue", queue), ("provider", name)))

    def _assign_runs(self, db: sa.Connection, chosen: Sequence[QueuedRun], worker_id: str, last_number: int) -> None:
        """Assigns the runs; `last_number` is the largest number of a turn so far."""
        if not chosen:
            return
        ids = [run.id for run in chosen]
        entries = f"UPDATE {self._entries} SET state = 'assigned', worker = :worker, attempts = attempts + 1"
        db.execute(self._with_ids(f"{entries} WHERE"), {"ids": ids, "worker": worker_id})
        db.execute(self._with_ids(f"UPDATE {self._runs_table} SET begun = :now WHERE"), {"ids": ids, "now": now_ms()})
        turns = {run.user_share: last_number + position for position, run in enumerate(chosen, 1)}
        rows = ", ".join(f"(:queue{row}, :user{row}, :number{row})" for row in range(len(turns)))
        values: dict[str, Any] = {}
        for row, ((queue, user), number) in enumerate(turns.items()):
            values |= {f"queue{row}": queue, f"user{row}": user, f"number{row}": number}
        db.execute(
            sql_text(
                f"INSERT INTO {self._served_table} VALUES {rows}"
                " ON CONFLICT (queue, owner) DO UPDATE SET number = excluded.number"
            ),
            values,
        )

    def _with_ids(self, statement: str) -> sa.TextClause:
        """Returns a statement that ends with a condition on `ids`. With a list of placeholders, each number of ids
        would be another statement, which the server has to plan."""
        if self._database.is_postgres:
            return sql_text(f"{statement} id = ANY(:ids)")
        return sql_text(f"{statement} id IN :ids").bindparams(sa.bindparam("ids", expanding=True))


def _limited_groups(limits: BackgroundTable) -> Iterable[tuple[LimitGroup, BoundsTable]]:
    yield from ((("queue", name), bounds) for name, bounds in limits.queues.items())
    yield from ((("provider", name), bounds) for name, bounds in limits.providers.items())


class WaitingRuns:
    """A table with the ids of runs that a worker's heartbeat must check, because they wait for approvals or for their
    next attempt. A run is added before its worker releases it, and removed in the transaction that queues it again."""

    def __init__(self, database: RunDatabase) -> None:
        self._engine, self._statements = database.engine, database.statements
        self._table, self._entries = f"{database.table_prefix}waiting", f"{database.table_prefix}entries"

    def add_run(self, run_id: str) -> None:
        """Adds a run that is about to wait."""
        self._execute(f"INSERT INTO {self._table} VALUES (:id) ON CONFLICT DO NOTHING", id=run_id)

    def remove_ended(self, run_id: str, attempts: int) -> None:
        """Removes a run that was over after `attempts` starts. If it was started again since, it may wait again."""
        is_restarted = f"SELECT 1 FROM {self._entries} WHERE id = :id AND attempts <> :attempts"
        statement = f"DELETE FROM {self._table} WHERE id = :id AND NOT EXISTS ({is_restarted})"
        self._execute(statement, id=run_id, attempts=attempts)

    def list_runs(self) -> Sequence[str]:
        """Returns the ids."""
        with self._statements.connect() as db:
            return [row.id for row in db.execute(sql_text(f"SELECT id FROM {self._table} ORDER BY id"))]

    def _execute(self, statement: str, **values: Any) -> None:
        with self._engine.begin() as db:
            db.execute(sql_text(statement), values)
