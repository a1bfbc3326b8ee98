"""Health and metrics of workers and servers: the endpoints /livez, /readyz and /metrics, and JSON log lines."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import msgspec

from outrider._posix import resource
from outrider.presentation.formats import format_elapsed

if TYPE_CHECKING:
    from outrider.background.heartbeat import WorkerStatus  # its module imports the database

_LIVE_SECONDS = 60.0  # a worker hangs if its heartbeat task has not run for longer
_WORK_CHECK_SECONDS = 300.0  # a worker hangs if it has not done what its heartbeats find for longer
_READY_SECONDS = 10.0  # a worker that has not reached the database for longer is not ready
_REQUEST_SECONDS = 5.0
_MAX_HEAD_BYTES = 16 << 10
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, str, str, Mapping[str, str], float]
"""Name, type, description, labels and value of a metric."""
QueueReader = Callable[[], Awaitable[Mapping[str, Mapping[str, float]]]]
"""Returns gauges of the shared queue by metric name and label; it may raise any error of a database."""


class WorkerMetrics:
    """Counters of one worker process."""

    def __init__(self) -> None:
        self.ended_runs = Counter[str]()
        self.run_seconds = 0.0
        self.failed_tasks = 0
        self.last_attempt = self.last_heartbeat = self.last_work_check = monotonic()

    def record_run(self, state: str, seconds: float) -> None:
        """Counts an execution that ended with the given state of its run."""
        self.ended_runs[state] += 1
        self.run_seconds += seconds

    def find_hang(self) -> str:
        """Returns why the process should be restarted; "" if it should not. An outage of the database is no reason."""
        now = monotonic()
        if (age := now - self.last_attempt) > _LIVE_SECONDS:
            return f"the heartbeat task has not run for {format_elapsed(age)}"
        if (age := now - self.last_work_check) > _WORK_CHECK_SECONDS and now - self.last_heartbeat < _READY_SECONDS:
            return f"the worker has not attended to what its heartbeats find for {format_elapsed(age)}"
        return ""

    def find_obstacle(self, status: "WorkerStatus") -> str:
        """Returns why the worker takes no runs now; "" if it does."""
        if status.is_draining:
            return "draining"
        age = monotonic() - self.last_heartbeat
        return f"waiting for database for {format_elapsed(age)}" if age > _READY_SECONDS or status.waits else ""

    def samples(self, status: "WorkerStatus") -> Iterator[Sample]:
        """Yields the metrics of this process."""
        gauge, counter = "gauge", "counter"
        yield "outrider_worker_runs", gauge, "Runs that this worker executes.", {}, status.runs
        yield "outrider_worker_capacity", gauge, "Runs that this worker may execute at once.", {}, status.capacity
        yield "outrider_worker_draining", gauge, "1 while the worker is being stopped.", {}, status.is_draining
        yield (
            "outrider_worker_notified",
            gauge,
            "1 if the database notifies it of runs.",
            {},
            status.is_pushed,
        )
        yield "outrider_worker_waiting_for_database", gauge, "Runs that wait for the database.", {}, status.waits
        age = monotonic() - self.last_heartbeat
        yield "outrider_worker_heartbeat_age_seconds", gauge, "Time since the last heartbeat was stored.", {}, age
        yield "outrider_worker_failed_tasks_total", counter, "Failures of tasks of the worker.", {}, self.failed_tasks
        for state, count in sorted(self.ended_runs.items()):
            yield "outrider_worker_runs_total", counter, "Executions by the state they left.", {"state": state}, count
        yield "outrider_worker_run_seconds_total", counter, "Time of all executions.", {}, self.run_seconds
        yield from process_samples()


def process_samples() -> Iterator[Sample]:
    """Yields the CPU time and memory of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "process_cpu_seconds_total", "counter", "CPU time of the process.", {}, usage.ru_utime + usage.ru_stime
    yield "process_max_resident_memory_bytes", "gauge", "Largest resident memory.", {}, usage.ru_maxrss * 1024


def format_metrics(samples: Iterable[Sample]) -> str:
    """Returns the text format of Prometheus."""
    lines: list[str] = []
    described = set[str]()
    for name, kind, description, labels, value in samples:
        if name not in described:
            described.add(name)
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
        text = ",".join(f'{key}="{_escape_label(value)}"' for key, value in labels.items())
        lines.append(f"{name}{{{text}}} {float(value):g}" if text else f"{name} {float(value):g}")
    return "\n".join(lines) + "\n"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class HealthSource(Protocol):
    """What the endpoints report about a process."""

    def find_hang(self) -> str:
        """Returns why the process should be restarted; "" if it should not."""
        ...

    async def find_obstacle(self) -> str:
        """Returns why the process takes no work now; "" if it does."""
        ...

    async def read_samples(self) -> Iterable[Sample]:
        """Returns its metrics."""
        ...


class WorkerHealth:
    """The health of a worker, and the gauges of the queue that it shares."""

    def __init__(self, metrics: WorkerMetrics, status: "Callable[[], WorkerStatus]", read_queue: QueueReader) -> None:
        self._metrics = metrics
        self._status = status
        self._read_queue = read_queue

    def find_hang(self) -> str:
        return self._metrics.find_hang()

    async def find_obstacle(self) -> str:
        return self._metrics.find_obstacle(self._status())

    async def read_samples(self) -> Iterable[Sample]:
        return [*self._metrics.samples(self._status()), *await self._queue_samples()]

    async def _queue_samples(self) -> list[Sample]:
        """Returns the gauges of the shared queue; none while the database is not available."""
        try:
            async with asyncio.timeout(_REQUEST_SECONDS / 2):
                gauges = await self._read_queue()
        except Exception:  # noqa: BLE001  a scrape must not fail for an outage
            return []
        return [
            (name, "gauge", "State of the shared queue.", {name.rpartition("_")[2]: label}, value)
            for name, values in gauges.items()
            for label, value in values.items()
        ]


class HealthServer:
    """Answers GET requests for /livez, /readyz and /metrics. It reads nothing else and changes nothing, so it needs no
    token; it listens only on the address that the user names."""

    def __init__(self, source: HealthSource) -> None:
        self._source = source

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncGenerator[int, None]:
        """Listens while the context is open, and yields the port."""
        server = await asyncio.start_server(self._handle_client, host, port, limit=_MAX_HEAD_BYTES)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _handle_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.split(b"\r\n", 1)[0].decode("latin-1")))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, line: str) -> bytes:
        method, _, target = line.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        status, kind, body = await answer_health(self._source, method, path)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)


async def answer_health(source: HealthSource, method: str, path: str) -> tuple[HTTPStatus, str, bytes]:
    """Returns status, media type and body of the response to a request of the endpoints."""
    if method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET\n"
    match path:
        case "/livez":
            return _judge(source.find_hang())
        case "/readyz":
            return _judge(await source.find_obstacle())
        case "/metrics":
            return HTTPStatus.OK, _METRICS_TYPE, format_metrics(await source.read_samples()).encode()
        case _:
            return HTTPStatus.NOT_FOUND, "text/plain", b"/livez, /readyz or /metrics\n"


def _judge(problem: str) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
    return status, "text/plain", f"{problem or 'ok'}\n".encode()


class JsonLogFormatter(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})  # `extra={"fields": …}` of the logging call
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure_log(stream: TextIO, *loggers: str, json: bool) -> None:
    """Writes the records of the loggers to the stream: each line with a timestamp, or as a JSON object."""
    handler = logging.StreamHandler(stream)
    plain = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLogFormatter() if json else plain)
    for name in loggers:
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
