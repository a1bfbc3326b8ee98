"""`outrider worker`: runs a worker in this terminal, controls the resident one, and prints service units."""

import asyncio
import os
import plistlib
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from outrider.cli import exit_codes
from outrider.cli.commands.jobs_common import require_background, run_with_jobs
from outrider.cli.commands.run import handle_interrupts
from outrider.cli.main import program_version
from outrider.cli.output import Console, format_table
from outrider.cli.setup import settings_from_arguments, user_folders
from outrider.config.paths import AppFolders
from outrider.errors import ConfigurationError, StoreUnavailableError
from outrider.presentation.formats import format_age, format_duration, format_elapsed, short_id
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.background.health import HealthSource, Sample
    from outrider.background.heartbeat import WorkerInfo
    from outrider.background.jobs import JobClient
    from outrider.background.local_worker import WorkerLock
    from outrider.background.worker import Worker
    from outrider.config.settings import Settings


UNIT_NAME = "outrider-worker"
_LAUNCHD_LABEL = "dev.outrider.worker"
_PASSED_VARIABLES = ("OUTRIDER_HOME", "PATH")  # only paths; API keys belong in the separate environment file
_DEFAULT_GRACE_SECONDS, _EXIT_SECONDS = 20.0, 40.0  # of the settings; to hand over the runs afterwards
KEY_POLL_SECONDS = 5.0
_SYSTEMD_TEMPLATE = """\
[Unit]
Description=Outrider background worker

[Service]
ExecStart={command}
{environ}
EnvironmentFile=-{keys}
# SIGTERM to the worker only: commands of runs may end within its grace period.
KillMode=mixed
TimeoutStopSec={stop_seconds:.0f}
Restart=on-failure
RestartSec=10
# Of a wrong setting or a missing key: another start would not help.
RestartPreventExitStatus=2

[Install]
WantedBy=default.target
"""


class ServiceUnit(msgspec.Struct, frozen=True):
    """A service unit: its text, the path where the system expects it, and the commands that enable and start it."""

    text: str
    path: Path
    start_commands: tuple[str, ...]


def print_unit(arguments: Namespace, folders: AppFolders, environ: Mapping[str, str]) -> int:
    """Prints the unit to stdout, and the installation steps to stderr."""
    command, console = worker_command(arguments, folders), Console()
    unit = build_unit(sys.platform, command, folders, environ, grace=arguments.grace)
    console.write(unit.text)
    console.print_stderr(f"Write this to {unit.path}, then:")
    for line in unit.start_commands:
        console.print_stderr(f"  {line}")
    console.print_stderr(
        f"Put API keys as lines like ANTHROPIC_API_KEY=… into {env_file_path(folders)}, readable by you only."
    )
    if arguments.database and has_password(arguments.database) and not arguments.database.file:
        console.print_stderr(f"Put the database URL into {database_file_path(folders)}, readable by you only.")
    return exit_codes.SUCCESS


def worker_command(arguments: Namespace, folders: AppFolders) -> list[str]:
    """Returns the command that starts a worker with the same options. A database URL with a password is replaced with
    the name of a file, because every user can read command lines."""
    database = arguments.database
    if database and (database.file or has_password(database)):
        database = f"@{database.file or database_file_path(folders)}"
    listen = arguments.listen_url
    if listen and (listen.file or has_password(listen)):
        listen = f"@{listen.file}" if listen.file else None  # OUTRIDER_LISTEN_URL of the environment file
    options = {
        "--database": database,
        "--listen-url": listen,
        "--runs": arguments.runs,
        "--grace": None if arguments.grace is None else f"{arguments.grace:g}",
        "--health": arguments.health and _format_address(*arguments.health),
        "--log-format": "json" if arguments.log_format == "json" else None,
    }
    words = [word for name, value in options.items() if value for word in (name, str(value))]
    return [sys.executable, "-m", "outrider", "worker", *words]


def _format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def has_password(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password) or "password=" in parts.query


def database_file_path(folders: AppFolders) -> Path:
    """Returns the path of the file with the database URL that the service unit names."""
    return folders.config / "worker.database"


def env_file_path(folders: AppFolders) -> Path:
    """Returns the path of the file with API keys that the service unit reads."""
    return folders.config / "worker.env"


def build_unit(
    platform: str,
    command: Sequence[str],
    folders: AppFolders,
    environ: Mapping[str, str],
    *,
    grace: float | None = None,
) -> ServiceUnit:
    """Returns the service unit for the platform: launchd on macOS, else systemd, which kills a worker only after its
    grace period."""
    environment = {name: environ[name] for name in _PASSED_VARIABLES if environ.get(name)}
    if platform == "darwin":
        return _launchd_unit(command, folders, environment)
    return _systemd_unit(command, folders, environment, _DEFAULT_GRACE_SECONDS if grace is None else grace)


def _systemd_unit(command: Sequence[str], folders: AppFolders, environ: Mapping[str, str], grace: float) -> ServiceUnit:
    text = _SYSTEMD_TEMPLATE.format(
        command=" ".join(_quote_systemd_word(word).replace("$", "$$") for word in command),
        environ="\n".join(f"Environment={_quote_systemd_word(f'{name}={value}')}" for name, value in environ.items()),
        keys=_escape_percent(str(env_file_path(folders))),
        stop_seconds=grace + _EXIT_SECONDS,
    )
    path = folders.home / ".config" / "systemd" / "user" / f"{UNIT_NAME}.service"
    return ServiceUnit(text, path, (f"systemctl --user enable --now {UNIT_NAME}", "loginctl enable-linger"))


def _launchd_unit(command: Sequence[str], folders: AppFolders, environ: Mapping[str, str]) -> ServiceUnit:
    """Builds a launchd agent. launchd has no EnvironmentFile, so a shell sources the file and then execs the worker."""
    keys = shlex.quote(str(env_file_path(folders)))
    log = str(folders.data / "worker.log")
    agent = {
        "Label": _LAUNCHD_LABEL,
        "ProgramArguments": ["/bin/sh", "-c", f"set -a; [ ! -f {keys} ] || . {keys}; exec {shlex.join(command)}"],
        "EnvironmentVariables": dict(environ),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    path = folders.home / "Library" / "LaunchAgents" / f"{_LAUNCHD_LABEL}.plist"
    text = plistlib.dumps(agent).decode()
    return ServiceUnit(text, path, (f"launchctl bootstrap gui/$(id -u) {shlex.quote(str(path))}",))


def _quote_systemd_word(word: str) -> str:
    escaped = _escape_percent(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _escape_percent(text: str) -> str:
    """Escapes `%`, which starts a specifier in systemd units."""
    return text.replace("%", "%%")


_WORKER_DIFFERS = """\
The running worker was started by another version, or with other keys, addresses or OUTRIDER_ variables than are set
here. To use the current ones: outrider worker --restart"""


def run_worker(arguments: Namespace) -> int:
    """Runs a worker, or the action of `--status`, `--stop`, `--restart` or `--print-unit`."""
    require_background()
    if arguments.status:
        return _print_status(arguments)
    if arguments.stop:
        return _stop_worker()
    if arguments.restart:
        return _restart_worker(settings_from_arguments(arguments))
    if arguments.print_unit:
        return print_unit(arguments, user_folders(), os.environ)
    from outrider.background.local_worker import WorkerLock, collect_launch_values, supervise_worker
    from outrider.config.paths import make_private_folder

    if arguments.resident and not arguments.supervised:
        command = [sys.executable, "-m", "outrider", *sys.argv[1:], "--supervised"]
        return supervise_worker(command, user_folders().data, _log_line)

    settings = settings_from_arguments(arguments)
    lock = WorkerLock(
        make_private_folder(settings.data_folder),
        collect_launch_values(os.environ, program_version()) if arguments.resident else (),
    )
    has_lock = arguments.database is None and lock.acquire()
    if arguments.resident and not has_lock:
        return exit_codes.SUCCESS
    if settings.missing and arguments.health is not None:
        asyncio.run(_wait_for_key(arguments, settings.missing))
        settings = settings_from_arguments(arguments)
    asyncio.run(_serve_runs(arguments, settings, lock if has_lock else None))
    return exit_codes.SUCCESS


def ensure_worker_running(arguments: Namespace, settings: "Settings | None" = None) -> None:
    """Starts a local worker if none is running. With a shared database the user runs workers separately, and a server
    runs its own."""
    if not arguments.worker or arguments.database or arguments.attach:
        return
    if settings is not None and settings.missing:
        Console().print_stderr(f"No worker was started: {settings.missing}")
        return
    from outrider.background.local_worker import collect_launch_values, ensure_worker, was_launched_differently

    holder = ensure_worker(user_folders(), os.environ)
    if holder is not None and was_launched_differently(holder, collect_launch_values(os.environ, program_version())):
        Console().print_stderr(_WORKER_DIFFERS, "yellow")


def _log_line(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


async def _serve_runs(arguments: Namespace, settings: "Settings", lock: "WorkerLock | None") -> None:
    """Executes runs until a signal arrives, or until a resident worker is idle. Releases the worker lock at the end."""
    from outrider.background.factory import standard_worker
    from outrider.background.local_worker import configure_worker_log, wait_until_idle, worker_log_path

    configure_worker_log(sys.stderr, json=arguments.log_format == "json")
    console = Console()
    with handle_interrupts() as interrupts:
        async with AsyncExitStack() as stack:
            options = {"runs": arguments.runs, "grace": arguments.grace, "listen_url": arguments.listen_url}
            worker = await open_worker(
                stack,
                lambda: standard_worker(settings, arguments.database, version=program_version(), **options),
                interrupts.requested,
            )
            if stop_telemetry := worker.export_telemetry(os.environ):
                stack.push_async_callback(asyncio.to_thread, stop_telemetry)
            await _serve_health(arguments, worker, stack)
            hint = "it stops when idle" if arguments.resident else "Ctrl+C stops it and releases its runs"
            console.print_stderr(f"Worker {short_id(worker.id)} is waiting for runs; {hint}.")
            stop_tasks: list[asyncio.Task[Any]] = [asyncio.create_task(interrupts.requested.wait())]
            if arguments.resident and lock is not None:
                idle = wait_until_idle(
                    worker.job_client, lock, seconds=arguments.idle, log=worker_log_path(settings.folders)
                )
                stop_tasks.append(asyncio.create_task(idle))
            await _wait_for_first(stop_tasks)
            if interrupts.requested.is_set():
                console.print_stderr(
                    f"Stopping: running calls have {format_duration(worker.grace)} to end, then all runs are released;"
                    " a second signal (Ctrl+C) exits immediately."
                )
                await worker.drain()  # before the endpoints close
        if lock is not None:
            lock.release()


class _MissingKey(msgspec.Struct, frozen=True):
    """The health of a worker that waits for the key of a model (a `HealthSource`)."""

    reason: str

    def find_hang(self) -> str:
        return ""

    async def find_obstacle(self) -> str:
        return self.reason

    async def read_samples(self) -> "Sequence[Sample]":
        return ()


async def _wait_for_key(arguments: Namespace, missing: str) -> None:
    """Reports on the address of `--health` that no model can be reached, until a key is stored. If the process exited
    instead, its supervisor would restart it in a loop. Exits after a signal."""
    _log_line(f"waiting for a key: {missing}")
    async with AsyncExitStack() as stack:
        interrupts = stack.enter_context(handle_interrupts())
        await _listen_for_health(arguments, _MissingKey(" ".join(missing.split())), stack)
        while (await asyncio.to_thread(settings_from_arguments, arguments)).missing:
            with suppress(TimeoutError):
                await asyncio.wait_for(interrupts.requested.wait(), KEY_POLL_SECONDS)
                raise SystemExit(exit_codes.SUCCESS)
    _log_line("a model can be reached")


async def open_worker(
    stack: AsyncExitStack, create: "Callable[[], AbstractAsyncContextManager[Worker]]", stop: asyncio.Event
) -> "Worker":
    """Opens a worker on the stack; waits while the database is not available. Exits when `stop` is set, also while a
    store waits for the database itself."""
    from outrider.background.database import is_outage, outage_pause

    attempt = 0
    while True:
        try:
            async with _canceled_by(stop):
                return await stack.enter_async_context(create())
        except TimeoutError:
            if stop.is_set():
                raise SystemExit(exit_codes.SUCCESS) from None
            raise
        except Exception as problem:
            if not isinstance(problem, StoreUnavailableError) and not is_outage(problem):
                raise
            if attempt == 0:
                _log_line(f"waiting for database: {problem}")
        with suppress(TimeoutError):
            async with asyncio.timeout(outage_pause(attempt)):
                await stop.wait()
                raise SystemExit(exit_codes.SUCCESS)
        attempt += 1


@asynccontextmanager
async def _canceled_by(stop: asyncio.Event) -> AsyncGenerator[None, None]:
    """Cancels the body when the event is set, and then raises TimeoutError."""
    async with asyncio.timeout(None) as limit:
        waiter = asyncio.create_task(stop.wait())
        waiter.add_done_callback(lambda task: None if task.cancelled() else limit.reschedule(0))
        try:
            yield
        finally:
            waiter.cancel()


async def _serve_health(arguments: Namespace, worker: "Worker", stack: AsyncExitStack) -> None:
    """Serves the endpoints of `--health` until the stack is closed."""
    from outrider.background.health import WorkerHealth

    if arguments.health is not None:
        health = WorkerHealth(worker.metrics, lambda: worker.status, worker.job_client.read_queue_gauges)
        await _listen_for_health(arguments, health, stack)


async def _listen_for_health(arguments: Namespace, source: "HealthSource", stack: AsyncExitStack) -> None:
    from outrider.background.health import HealthServer

    try:
        port = await stack.enter_async_context(HealthServer(source).serve(*arguments.health))
    except OSError as problem:
        raise ConfigurationError(f"the worker cannot listen on the address of --health: {problem}") from problem
    Console().print_stderr(f"Health: http://{arguments.health[0]}:{port}/readyz")


async def _wait_for_first(tasks: list[asyncio.Task[Any]]) -> None:
    """Waits until one task is done, then cancels and awaits the others."""
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)


def _print_status(arguments: Namespace) -> int:
    """Prints the workers that share the database, and what they wait for. Returns a failure if none is alive."""
    from outrider.background.local_worker import WorkerLock, worker_log_path

    workers: Sequence[WorkerInfo] = ()
    paused: dict[str, int] = {}
    if arguments.database is not None or user_folders().runs_file.exists():  # asking creates no database
        workers, paused = run_with_jobs(arguments, _load_status)
    console, live = Console(), [worker for worker in workers if worker.state not in ("dead", "silent")]
    if not workers:
        console.print("No worker is running for this database." if arguments.database else "No worker is running.")
    else:
        rows = [_status_row(worker) for worker in workers]
        for line in format_table(("worker", "machine", "pid", "state", "runs", "version", "up"), rows, console.width):
            console.print(line)
    for provider, until in paused.items():
        wait = format_elapsed(max(until - now_ms(), 0) / 1000)
        console.print(f"Runs of provider {provider} wait: next attempt in {wait}.")
    if arguments.database is None and (holder := WorkerLock(user_folders().data).holder()):
        log = worker_log_path(user_folders())
        console.print(f"A worker is running as process {holder.pid}; if it was started automatically, its log is {log}")
        return exit_codes.SUCCESS
    return exit_codes.SUCCESS if live else exit_codes.FAILURE


async def _load_status(jobs: "JobClient") -> "tuple[Sequence[WorkerInfo], dict[str, int]]":
    return await jobs.list_workers(), await jobs.list_paused_providers()


def _status_row(worker: "WorkerInfo") -> tuple[str, ...]:
    status = worker.status
    state = f"silent for {format_elapsed(worker.age or 0)}" if worker.state == "silent" else worker.state
    up = format_age((now_ms() - status.started) / 1000) if status.started else ""
    runs = f"{status.runs}/{status.capacity}" if status.capacity else ""
    return short_id(worker.id), worker.owner.host, str(worker.owner.pid), state, runs, status.version, up


def _restart_worker(settings: "Settings") -> int:
    """Stops the worker and starts one with the current program, keys and addresses, which resumes its runs."""
    from outrider.background.local_worker import ensure_worker

    if settings.missing:
        raise ConfigurationError(settings.missing)
    _stop_worker()
    ensure_worker(user_folders(), os.environ)
    Console().print_stderr("A new worker is starting.")
    return exit_codes.SUCCESS


def _stop_worker() -> int:
    from outrider.background.local_worker import stop_worker

    holder = stop_worker(user_folders())
    Console().print_stderr(
        f"Worker process {holder.pid} stopped." if holder else "No worker is running on this machine."
    )
    return exit_codes.SUCCESS
