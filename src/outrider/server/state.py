"""Parts of a server besides its routes: background jobs, health and drain, closing of idle sessions."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import msgspec
from starlette.routing import BaseRoute

from outrider._sync import do_nothing, run_beside
from outrider.background.health import Sample, process_samples
from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue, list_processes
from outrider.errors import ConfigurationError, LimitReachedError, OutriderError, SessionNotFoundError
from outrider.server.event_stream import find_root_session
from outrider.server.oidc import OidcSettings
from outrider.server.users import Requester, UserDirectory, UserLimits
from outrider.server.webhooks import TurnWebhooks
from outrider.types.events import ErrorEvent, Event, LLMRequestEvent

if TYPE_CHECKING:
    from outrider.background.jobs import JobClient
    from outrider.engine.mcp_servers import ServerLogins


JobClientFactory = Callable[[], "AbstractAsyncContextManager[JobClient]"]


class BackgroundJobs:
    """Opens the job client on first use. `start_worker` ensures that a worker executes submitted runs; runs work in
    `workspace` unless another folder is named."""

    def __init__(
        self, open: JobClientFactory, start_worker: Callable[[], object] = do_nothing, *, workspace: Path | None = None
    ) -> None:
        self.workspace = workspace or Path.cwd()
        self._open = open
        self._start_worker = start_worker
        self._client: JobClient | None = None
        self._open_lock = asyncio.Lock()
        self._exit_stack = AsyncExitStack()

    async def open_client(self) -> "JobClient":
        """Returns the job client. Raises ConfigurationError if the `background` extra is not installed."""
        async with self._open_lock:
            if self._client is None:
                if find_spec("dbos") is None:
                    raise ConfigurationError("background runs are not installed: pip install 'outrider[background]'")
                self._client = await self._exit_stack.enter_async_context(self._open())
        return self._client

    async def ensure_worker(self) -> None:
        await asyncio.to_thread(self._start_worker)

    async def is_run(self, session_id: str) -> bool:
        """Returns whether the session belongs to a background run."""
        if find_spec("dbos") is None:
            return False
        try:
            await (await self.open_client()).get_run(session_id)
        except SessionNotFoundError:
            return False
        return True

    async def resume_waiting_runs(self) -> None:
        """Starts a worker if an answer has made a run ready, because no worker holds a waiting run."""
        if find_spec("dbos") is not None and await (await self.open_client()).has_work():
            await self.ensure_worker()

    async def aclose(self) -> None:
        await self._exit_stack.aclose()


def create_background_jobs(settings: Settings, engine: Engine, server: str | None = None) -> BackgroundJobs:
    """Returns the jobs of this user and machine, for which a worker is started on demand, or those of the Postgres
    `server`, whose users run their own workers."""

    def open_jobs() -> "AbstractAsyncContextManager[JobClient]":
        from outrider.background.factory import jobs_with_store

        return jobs_with_store(engine.store, settings.folders, server)

    def start_worker() -> None:
        from outrider.background.local_worker import ensure_worker

        if server is None and not settings.missing:
            ensure_worker(settings.folders, settings.environ)

    return BackgroundJobs(open_jobs, start_worker, workspace=settings.workspace)


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has besides its engine; without a value the endpoints for it report that it is not available.

    - `background`: the server's background runs.
    - `questions`: the open questions of its models.
    - `routes`: additional routes outside the API.
    - `settings`: the settings of the engine.
    - `server_logins`: the logins at the MCP servers of the engine.
    - `monitor`: counts requests and answers /livez, /readyz and /metrics.
    - `users`: the users of the server; without any, the holder of the token owns everything.
    - `oidc`: the login provider.
    - `webhooks`: the webhooks that are notified about turns.
    """

    background: BackgroundJobs | None = None
    questions: QuestionQueue | None = None
    routes: Sequence[BaseRoute] = ()
    settings: Settings | None = None
    server_logins: "ServerLogins | None" = None
    monitor: "ServerMonitor | None" = None
    users: UserDirectory = msgspec.field(default_factory=UserDirectory)
    oidc: OidcSettings | None = None
    webhooks: TurnWebhooks | None = None


IDLE_SECONDS = 60.0  # a session without events is closed after this
CHECK_SECONDS = 10.0


class IdleSessionCloser:
    """Closes sessions in which nothing happens, so that a terminal can open them. A session stays open while it has a
    turn, a process or an open question."""

    def __init__(self, engine: Engine, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._engine = engine
        self._idle_seconds = idle_seconds
        self._active_at: dict[str, float] = {}
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._running.enter_async_context(run_beside(self._keep_closing()))
        self._running.callback(self._engine.bus.subscribe_all(self._note_event))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def _note_event(self, event: Event) -> None:
        self._active_at[event.session_id] = monotonic()

    async def _keep_closing(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._idle_seconds))
            with suppress(OutriderError):  # an outage of the store: the sessions are closed later
                await self.close_idle_sessions()

    async def close_idle_sessions(self) -> None:
        now = monotonic()
        asking = {approval.session_id for approval in await self._engine.approvals()}
        for session_id, live in list(self._engine.live.items()):
            active_at = self._active_at.setdefault(session_id, now)
            is_retained = live.in_turn or session_id in asking
            if is_retained or now - active_at < self._idle_seconds:
                continue
            if not any(process.alive for process in list_processes(self._engine, session_id)):
                await self._engine.close(session_id)
        self._active_at = {name: active_at for name, active_at in self._active_at.items() if name in self._engine.live}


class BudgetWatcher:
    """Aborts turns of users who have spent their budget, after a check before each request to a model. The check when
    input is accepted is not enough: queued input, or a long turn, can exceed the budget later."""

    def __init__(self, engine: Engine, limits: UserLimits, users: UserDirectory) -> None:
        self._engine = engine
        self._limits = limits
        self._users = users
        self._due: dict[str, None] = {}  # sessions, in the order of their requests
        self._is_due = asyncio.Event()
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await self._running.enter_async_context(run_beside(self._keep_checking()))
        self._running.callback(
            self._engine.bus.subscribe(
                LLMRequestEvent, lambda event: loop.call_soon_threadsafe(self._note_request, event.session_id)
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def _note_request(self, session_id: str) -> None:
        if any(account.budget is not None for account in (*self._users.users, *self._users.former, *self._users.teams)):
            self._due[session_id] = None
            self._is_due.set()

    async def _keep_checking(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            while self._due:
                session_id = next(iter(self._due))
                del self._due[session_id]
                with suppress(OutriderError):  # an outage of the store: the next request is checked again
                    await self._check_session(session_id)

    async def _check_session(self, session_id: str) -> None:
        root = await self._engine.store.get(await find_root_session(self._engine, session_id))
        owner = self._users.get(root.owner) or self._users.find_former(name=root.owner)
        if owner is None:
            return
        try:
            await self._limits.check_budget(Requester.from_user(owner))
        except LimitReachedError as error:
            self._engine.bus.publish(
                ErrorEvent(session_id=root.id, error_type=type(error).__name__, message=error.message)
            )
            await self._engine.abort(root.id)


DRAIN_SECONDS = 20.0  # for running turns, after SIGTERM
STORE_SECONDS = 2.5  # a store that does not answer within this time is not ready
READINESS_SECONDS = 1.0  # how long an answer of /readyz is reused: requests without a token must not load the store
DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)  # seconds

USER_NAME = "outrider.user"  # key of the ASGI scope
SendMessage = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger("outrider.server.requests")


class ServerMonitor:
    """Counts requests, knows whether the server takes work (a `HealthSource`), and drains it: then no turn can be
    started, and running turns have `grace_seconds` to end. Turns that wait for an answer do not delay the end: they
    continue after the next start."""

    def __init__(self, engine: Engine, *, grace_seconds: float = DRAIN_SECONDS) -> None:
        self._engine = engine
        self._grace_seconds = grace_seconds
        self._drain_started: float | None = None
        self._readiness: tuple[float, str] = (float("-inf"), "")
        self._responses = Counter[tuple[str, int]]()
        self._durations = Counter[float]()
        self._total_seconds = 0.0
        self._denied = Counter[str]()
        self.open_streams = 0

    @property
    def is_draining(self) -> bool:
        return self._drain_started is not None

    def start_drain(self) -> None:
        """Starts the drain. Only sets a value, because a signal handler calls it."""
        self._drain_started = monotonic()

    async def is_drained(self) -> bool:
        if self._drain_started is None:
            return False
        if monotonic() - self._drain_started >= self._grace_seconds:
            return True
        in_turn = {session_id for session_id, live in self._engine.live.items() if live.in_turn}
        return not in_turn or in_turn <= {approval.session_id for approval in await self._engine.approvals()}

    def record_denial(self, reason: str) -> None:
        self._denied[reason] += 1

    @contextmanager
    def track_response(self, scope: MutableMapping[str, Any], send: SendMessage) -> Generator[SendMessage]:
        """Yields a `send` function that counts the response, and its stream of events while it is open."""
        started, is_stream = monotonic(), False

        async def tracked(message: MutableMapping[str, Any]) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                self._record_response(scope, message["status"], monotonic() - started)
                is_stream = any(value.startswith(b"text/event-stream") for _, value in message.get("headers", ()))
                self.open_streams += is_stream
            await send(message)

        try:
            yield tracked
        finally:
            self.open_streams -= is_stream

    def _record_response(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        """Counts a response; `seconds` is the time until it started."""
        method, path = scope["method"], scope["path"]
        self._responses[method, status] += 1
        self._total_seconds += seconds
        for bound in DURATION_BUCKETS:
            self._durations[bound] += seconds <= bound
        if _log.isEnabledFor(logging.INFO):
            client = (scope.get("client") or ("",))[0]
            fields = {"method": method, "path": path[:300], "status": status, "ms": round(seconds * 1000, 1)}
            _log.info("request", extra={"fields": {**fields, "user": scope.get(USER_NAME, ""), "client": client}})

    def find_hang(self) -> str:
        return ""  # the event loop that would hang is the one that answers

    async def find_obstacle(self) -> str:
        if self.is_draining:
            return "draining"
        checked_at, problem = self._readiness
        if monotonic() - checked_at > READINESS_SECONDS:
            problem = await self._check_store()
            self._readiness = monotonic(), problem
        return problem

    async def _check_store(self) -> str:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._engine.approvals()
        except (OutriderError, OSError, TimeoutError):
            return "the store is not available"
        return ""

    async def read_samples(self) -> Iterable[Sample]:
        return [*self._request_samples(), *self._session_samples(), *process_samples()]

    def _session_samples(self) -> Iterator[Sample]:
        live = list(self._engine.live.values())
        yield "outrider_server_open_sessions", "gauge", "Sessions that this server has open.", {}, len(live)
        running = sum(session.in_turn for session in live)
        yield "outrider_server_running_turns", "gauge", "Turns that run or wait for an answer.", {}, running
        yield "outrider_server_event_streams", "gauge", "Open streams of events.", {}, self.open_streams
        yield "outrider_server_draining", "gauge", "1 while the server is being stopped.", {}, self.is_draining

    def _request_samples(self) -> Iterator[Sample]:
        for (method, status), count in sorted(self._responses.items()):
            labels = {"method": method, "status": str(status)}
            yield "outrider_server_requests_total", "counter", "Responses by method and status.", labels, count
        for reason, count in sorted(self._denied.items()):
            yield "outrider_server_denied_total", "counter", "Denied requests by reason.", {"reason": reason}, count
        name, text, total = "outrider_server_request_seconds", "Time until a response starts.", self._responses.total()
        for bound in DURATION_BUCKETS:
            yield f"{name}_bucket", "counter", text, {"le": f"{bound:g}"}, self._durations[bound]
        yield f"{name}_bucket", "counter", text, {"le": "+Inf"}, total
        yield f"{name}_sum", "counter", text, {}, self._total_seconds
        yield f"{name}_count", "counter", text, {}, total
