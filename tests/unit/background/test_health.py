"""What operators see of a worker: endpoints, metrics, JSON log lines, and a supervisor that starts it again."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.health import HealthServer, JsonLogFormatter, WorkerHealth, WorkerMetrics, format_metrics
from outrider.background.heartbeat import WorkerStatus
from outrider.background.local_worker import ensure_worker, stop_worker, worker_log_path
from outrider.config.paths import AppFolders
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.tracing.otel import configure_telemetry


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


class Queue:
    """A shared queue that may be out of reach."""

    is_away = False

    async def read(self) -> dict[str, dict[str, float]]:
        if self.is_away:
            raise ConnectionError("the database is away")
        return {"outrider_queue_runs_state": {"queued": 7}}


async def test_endpoints_distinguish_a_live_worker_from_one_that_takes_no_runs():
    metrics, status, queue = WorkerMetrics(), WorkerStatus(runs=2, capacity=4), Queue()
    metrics.record_run("done", 1.5)
    server = HealthServer(WorkerHealth(metrics, lambda: status, queue.read))
    async with server.serve("127.0.0.1", 0) as port:
        assert await ask(port, "/livez") == (200, "ok\n")
        assert await ask(port, "/readyz?verbose") == (200, "ok\n")
        code, text = await ask(port, "/metrics")
        assert code == 200
        assert 'outrider_worker_runs_total{state="done"} 1' in text
        assert 'outrider_queue_runs_state{state="queued"} 7' in text
        queue.is_away = True
        metrics.last_heartbeat = monotonic() - 30
        assert await ask(port, "/livez") == (200, "ok\n"), "an outage is no reason to restart the process"
        assert await ask(port, "/readyz") == (503, "waiting for database for 30s\n")
        assert "outrider_queue_runs_state" not in (await ask(port, "/metrics"))[1]
        status = WorkerStatus(is_draining=True)
        assert await ask(port, "/readyz") == (503, "draining\n")
        metrics.last_work_check = monotonic() - 400
        assert (await ask(port, "/livez"))[0] == 200, "it waits for the database"
        metrics.last_heartbeat = monotonic()
        assert (await ask(port, "/livez"))[0] == 503
        metrics.last_work_check = monotonic()
        metrics.last_attempt = monotonic() - 90
        assert (await ask(port, "/livez"))[0] == 503
        assert (await ask(port, "/other"))[0] == 404
        assert (await ask(port, "/livez", "POST"))[0] == 405
        assert await ask(port, "/metrics", "HEAD") == (200, "")


def test_metrics_are_described_once_and_labels_are_escaped():
    labels = [{"provider": 'a"b\\c\n'}, {"provider": "d"}]
    text = format_metrics(("paused", "gauge", "Paused.", label, 1.0) for label in labels)
    assert text == (
        '# HELP paused Paused.\n# TYPE paused gauge\npaused{provider="a\\"b\\\\c\\n"} 1\npaused{provider="d"} 1\n'
    )


def test_a_log_line_is_one_json_object_with_its_exception():
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.LogRecord("outrider.worker", logging.WARNING, "", 0, "run %s", ("x",), sys.exc_info())
    line = JsonLogFormatter().format(record)
    decoded = json.loads(line)
    assert "\n" not in line
    assert (decoded["level"], decoded["message"]) == ("warning", "run x")
    assert "ValueError: first" in decoded["exception"]


SUPERVISED = """
import os, sys, signal
from pathlib import Path
starts = Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
if len(starts.read_text()) < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""
SUPERVISOR = """
import sys
from pathlib import Path
from outrider.background import local_worker
local_worker._FIRST_PAUSE_SECONDS = float(sys.argv[2])
write = lambda text: print(text, flush=True)
sys.exit(local_worker.supervise_worker([sys.executable, "-c", *sys.argv[3:]], Path(sys.argv[1]), write))
"""


async def start_supervisor(folder: Path, *worker: str, pause: float = 0.01) -> asyncio.subprocess.Process:
    command = [sys.executable, "-c", SUPERVISOR, str(folder), str(pause), *worker]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


@pytest.mark.slow
async def test_a_killed_worker_is_started_again_and_one_that_ends_is_not(tmp_path: Path):
    (starts := tmp_path / "starts").touch()
    child = await start_supervisor(tmp_path, SUPERVISED, str(starts))
    output, _ = await asyncio.wait_for(child.communicate(), 60)
    assert (child.returncode, starts.read_text()) == (0, "xxx")
    assert output.decode().count("ended with code -9; it is started again") == 2


@pytest.mark.slow
async def test_a_worker_that_always_fails_is_given_up(tmp_path: Path):
    child = await start_supervisor(tmp_path, "raise SystemExit(2)")
    output, _ = await asyncio.wait_for(child.communicate(), 120)
    assert (child.returncode, output.count(b"started again")) == (2, 7)


@pytest.mark.slow
async def test_a_stop_ends_a_supervisor_that_is_about_to_start_the_worker_again(tmp_path: Path):
    folders = AppFolders(tmp_path, tmp_path, tmp_path)
    child = await start_supervisor(tmp_path, "raise SystemExit(2)", pause=3600.0)
    assert child.stdout is not None
    assert b"started again" in await asyncio.wait_for(child.stdout.readline(), 60)
    stopped = await asyncio.to_thread(stop_worker, folders)
    assert stopped is not None
    assert stopped.pid == child.pid
    assert await asyncio.wait_for(child.wait(), 60) == 0
    assert await asyncio.to_thread(stop_worker, folders) is None


@pytest.mark.slow
async def test_a_killed_worker_whose_supervisor_lives_is_not_started_twice(tmp_path: Path):
    folders = AppFolders(tmp_path, tmp_path, tmp_path)
    dies = f"""
import os, signal
from pathlib import Path
from outrider.background.local_worker import WorkerLock
assert WorkerLock(Path({str(tmp_path)!r}), ["1"]).acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""
    child = await start_supervisor(tmp_path, dies, pause=3600.0)
    assert child.stdout is not None
    assert b"code -9; it is started again" in await asyncio.wait_for(child.stdout.readline(), 60)
    found = await asyncio.to_thread(ensure_worker, folders, os.environ)
    assert found is not None
    assert found.pid == child.pid
    assert not worker_log_path(folders).exists(), "a second worker was started"
    await asyncio.to_thread(stop_worker, folders)
    assert await asyncio.wait_for(child.wait(), 60) == 0


EXPORTED = """
from outrider import EventBus
from outrider.events import LoopCompletedEvent, LoopStartedEvent
from outrider.tracing.otel import configure_telemetry
import os
bus = EventBus()
stop = configure_telemetry(bus, os.environ)
bus.publish(LoopStartedEvent(session_id="s", user_message="a secret", agent_name="writer"))
ended = {"termination_reason": "completed", "total_turns": 1, "duration_ms": 5}
bus.publish(LoopCompletedEvent(session_id="s", agent_name="writer", **ended))
stop()
"""


def test_telemetry_follows_the_standard_variables():
    pytest.importorskip("opentelemetry.sdk", reason="SKIPPED: the SDK of OpenTelemetry is not installed")
    bus = EventBus()
    assert configure_telemetry(bus, {}) is None
    assert configure_telemetry(bus, {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console"}) is None
    with pytest.raises(ConfigurationError, match="'nowhere' is not installed"):
        configure_telemetry(bus, {"OTEL_TRACES_EXPORTER": "nowhere"})
    # In another process: the console exporter prints to the stdout that was there when it was imported.
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none"}
    printed = subprocess.check_output([sys.executable, "-c", EXPORTED], env=environment, text=True)
    assert "invoke_agent writer" in printed
    assert "a secret" not in printed
