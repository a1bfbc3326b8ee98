"""Parts of a server besides its routes: background jobs, webhooks, health and drain, closing of idle sessions."""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
from starlette.routing import BaseRoute

from outrider.background.health import Sample, process_samples
from outrider.config.file import WEBHOOK_EVENTS, WebhookEvent
from outrider.config.settings import Settings
from outrider.engine.archive import StoredSession
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue, list_processes
from outrider.errors import ConfigurationError, LimitReachedError, OutriderError, SessionNotFoundError, ToolFailure
from outrider.server.event_stream import find_root_session
from outrider.server.oidc import OidcSettings
from outrider.server.users import Requester, UserDirectory, UserLimits
from outrider.types.events import (
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LoopCompletedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
)
from outrider.types.ids import new_id, now_ms

if TYPE_CHECKING:
    import sqlalchemy as sa

    from outrider.background.jobs import JobClient
    from outrider.background.webhooks import WebhookNotice, WebhookOutbox
    from outrider.engine.mcp_servers import ServerLogins


JobClientFactory = Callable[[], "AbstractAsyncContextManager[JobClient]"]


class BackgroundJobs:
    """Opens the job client on first use. `start_worker` ensures that a worker executes submitted runs; runs work in
    `workspace` unless another folder is named."""

    def __init__(
        self, open: JobClientFactory, start_worker: Callable[[], object] = bool, *, workspace: Path | None = None
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
        """Starts a worker if an answer has made a run ready: a waiting run is held by no worker."""
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
            ensure_worker(settings.folders, os.environ)

    return BackgroundJobs(open_jobs, start_worker, workspace=settings.workspace)


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """`background` are the server's runs, `questions` the open questions of its models, `routes` additional routes
    outside the API. `settings` are those of the engine, and `server_logins` the logins at its MCP servers. `monitor`
    counts requests and answers /livez, /readyz and /metrics. Without `users`, the holder of the token owns
    everything."""

    background: BackgroundJobs | None = None
    questions: QuestionQueue | None = None
    routes: Sequence[BaseRoute] = ()
    settings: Settings | None = None
    server_logins: "ServerLogins | None" = None
    monitor: "ServerMonitor | None" = None
    users: UserDirectory = msgspec.field(default_factory=UserDirectory)
    oidc: OidcSettings | None = None
    webhooks: "TurnWebhooks | None" = None


IDLE_SECONDS = 60.0  # a session without events is closed after this
CHECK_SECONDS = 10.0


class IdleSessionCloser:
    """Closes sessions in which nothing happens, so that a terminal can open them. A session stays open while it has a
    turn, a process or an open question."""

    def __init__(self, engine: Engine, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._engine = engine
        self._idle_seconds = idle_seconds
        self._active_at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], object] = bool

    async def __aenter__(self) -> Self:
        self._unsubscribe = self._engine.bus.subscribe_all(self._note_event)
        self._task = asyncio.create_task(self._keep_closing())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

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
            is_kept = live.in_turn or session_id in asking
            if is_kept or now - active_at < self._idle_seconds:
                continue
            if not any(process.alive for process in list_processes(self._engine, session_id)):
                await self._engine.close(session_id)
        self._active_at = {name: at for name, at in self._active_at.items() if name in self._engine.live}


class BudgetWatcher:
    """Ends turns of users who have spent their budget: a budget is checked when input is accepted, and input that was
    queued then, or a long turn, would exceed it. It checks before each request to a model."""

    def __init__(self, engine: Engine, limits: UserLimits, users: UserDirectory) -> None:
        self._engine = engine
        self._limits = limits
        self._users = users
        self._due: dict[str, None] = {}  # sessions, in the order of their requests
        self._is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], object] = bool

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._unsubscribe = self._engine.bus.subscribe(
            LLMRequestEvent, lambda event: loop.call_soon_threadsafe(self._note_request, event.session_id)
        )
        self._task = asyncio.create_task(self._keep_checking())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _note_request(self, session_id: str) -> None:
        if any(one.budget is not None for one in (*self._users.users, *self._users.former, *self._users.teams)):
            self._due[session_id] = None
            self._is_due.set()

    async def _keep_checking(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            while self._due:
                session_id = next(iter(self._due))
                del self._due[session_id]
                with suppress(OutriderError):  # an outage of the store: it is checked with the next request
                    await self._check_session(session_id)

    async def _check_session(self, session_id: str) -> None:
        root = await self._engine.store.get(await find_root_session(self._engine, session_id))
        owner = self._users.get(root.owner) or self._users.find_former(name=root.owner)
        if owner is None:
            return
        try:
            await self._limits.check_budget(Requester(owner.name, owner.role, owner.team))
        except LimitReachedError as error:
            self._engine.bus.publish(
                ErrorEvent(session_id=root.id, error_type=type(error).__name__, message=error.message)
            )
            await self._engine.abort(root.id)


class WebhookSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a notice; approvals and questions of agents that it called are part of it."""

    id: str
    title: str = ""
    owner: str = ""
    workspace: str = ""


class WebhookApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an answer to `POST /api/approvals/{id}`."""

    id: str
    tool: str
    description: str = ""


class WebhookQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a model that waits for an answer to `POST /api/questions/{id}`."""

    id: str
    text: str
    options: tuple[str, ...] = ()


class WebhookError(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str


class TurnNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a webhook receives about a turn, without secrets. `notice` is the same each time it is posted; `time` is in
    Unix milliseconds. `reason` is why a turn ended, `output` its last text (up to 10,000 characters)."""

    notice: str
    event: WebhookEvent
    time: int
    session: WebhookSession
    reason: str = ""
    output: str = ""
    error: WebhookError | None = None
    approval: WebhookApproval | None = None
    question: WebhookQuestion | None = None


class ServerWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook of the configuration, whose id is its name, or one that was added to the running server."""

    id: str
    url: str
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    user: str = ""
    secret: str = ""
    is_configured: bool = False


MAX_NOTICE_TEXT = 10_000
WEBHOOK_POLL_SECONDS = 2.0  # between looks for a notice that is due again
WEBHOOK_FILE = "webhooks.sqlite"
MAX_WEBHOOKS = 100
DELIVERED_DAYS = 7  # a delivered notice is remembered so long
_WEBHOOK_TABLES = (
    "CREATE TABLE IF NOT EXISTS webhooks (id TEXT PRIMARY KEY, definition TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS notices (id TEXT PRIMARY KEY, url TEXT NOT NULL, body TEXT NOT NULL, "
    "tries INTEGER NOT NULL, due BIGINT)",
    "CREATE INDEX IF NOT EXISTS notices_due ON notices (due)",
)


class TurnWebhooks:
    """Notifies webhooks about turns that run on this server. Notices are stored in `folder` before they are posted, so
    that they survive a restart. A notice for a user's webhook is stored and posted only if the user may see the session
    at that moment."""

    def __init__(self, engine: Engine, users: UserDirectory, folder: Path, settings: Settings) -> None:
        self._engine = engine
        self._users = users
        self._path = folder / WEBHOOK_FILE
        self._limits = settings.background
        self._configured = [
            ServerWebhook(id=name, is_configured=True, **msgspec.structs.asdict(table))
            for name, table in settings.webhooks.items()
        ]
        self._database: sa.Engine | None = None
        self._opening = threading.Lock()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._errors: dict[str, WebhookError] = {}
        self._is_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], object] = bool

    async def __aenter__(self) -> Self:
        """Raises ConfigurationError for a webhook of the configuration that cannot be used."""
        for webhook in self._configured:
            self._check(webhook)
        loop = asyncio.get_running_loop()
        self._unsubscribe = self._engine.bus.subscribe_all(
            lambda event: loop.call_soon_threadsafe(self._note_event, event) if self._is_wanted(event) else None
        )
        self._tasks = [asyncio.create_task(self._keep_storing()), asyncio.create_task(self._keep_posting())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        await asyncio.sleep(0)  # events of other threads
        await self._events.join()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self._database is not None:
            self._database.dispose()

    @property
    def _is_used(self) -> bool:
        return bool(self._configured) or self._database is not None or self._path.exists()

    def _is_wanted(self, event: Event) -> bool:
        is_question = isinstance(event, SessionUpdatedEvent) and "question" in event.changes
        is_known = isinstance(event, LoopCompletedEvent | ToolApprovalRequestedEvent | ErrorEvent)
        return (is_known or is_question) and self._is_used

    def _note_event(self, event: Event) -> None:
        """Errors of a turn come before its end."""
        if isinstance(event, ErrorEvent):
            self._errors[event.session_id] = WebhookError(type=event.error_type, message=event.message)
        else:
            self._events.put_nowait(event)

    async def _keep_storing(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._store_notices(event)
            except Exception:  # noqa: BLE001  one event must not end the notices of all others
                _webhook_log.exception("cannot store the webhook notices of %s", event.event_type)
            finally:
                self._events.task_done()

    async def _store_notices(self, event: Event) -> None:
        error = self._errors.pop(event.session_id, None) if isinstance(event, LoopCompletedEvent) else None
        stored = await self._engine.store.get(event.session_id)
        if isinstance(event, LoopCompletedEvent) and stored.parent_id is not None:
            return  # a called agent: the turn of its caller continues
        root = await self._engine.store.get(await find_root_session(self._engine, event.session_id))
        event_id, notice = self._describe(event, root, error)
        chosen = [one for one in await self.list_webhooks() if notice.event in one.events and self._may_see(one, root)]
        if chosen:
            await asyncio.to_thread(self._insert_notices, chosen, event_id, notice)
            self._is_due.set()

    def _describe(self, event: Event, root: StoredSession, error: WebhookError | None) -> tuple[str, TurnNotice]:
        session = WebhookSession(id=root.id, title=root.title, owner=root.owner, workspace=root.workspace_directory)
        described = TurnNotice(notice="", event="turn.completed", time=now_ms(), session=session)
        replace = msgspec.structs.replace
        match event:
            case LoopCompletedEvent():
                kinds: dict[str, WebhookEvent] = {"completed": "turn.completed", "aborted": "turn.aborted"}
                reason, output = event.termination_reason, event.output[:MAX_NOTICE_TEXT]
                event_id = new_id()
                described = replace(
                    described, event=kinds.get(reason, "turn.failed"), reason=reason, output=output, error=error
                )
            case ToolApprovalRequestedEvent():
                event_id = event.approval_id
                approval = WebhookApproval(
                    id=event_id, tool=event.tool_name, description=event.description[:MAX_NOTICE_TEXT]
                )
                described = replace(described, event="approval.requested", approval=approval)
            case _:
                asked = msgspec.convert(cast("SessionUpdatedEvent", event).changes["question"], WebhookQuestion)
                event_id = asked.id
                described = replace(described, event="question.asked", question=asked)
        return event_id, msgspec.convert(self._engine.discreet(msgspec.to_builtins(described)), TurnNotice)

    def _may_see(self, webhook: ServerWebhook, root: StoredSession) -> bool:
        if not webhook.user:
            return True
        user = self._users.get(webhook.user)
        requester = Requester(user.name, user.role, user.team) if user is not None else None
        return requester is not None and self._users.access_level(requester, root.id, root.owner) is not None

    def _insert_notices(self, webhooks: Sequence[ServerWebhook], event_id: str, notice: TurnNotice) -> None:
        from outrider.background.webhooks import WebhookNotice

        oldest = f"{now_ms() - DELIVERED_DAYS * 86_400_000:012x}"  # ids begin with the time
        with self._open().begin() as db:
            db.exec_driver_sql("DELETE FROM notices WHERE due IS NULL AND id < ?", (f"{oldest[:8]}-{oldest[8:]}",))
            for webhook in webhooks:
                named = msgspec.structs.replace(notice, notice=f"{event_id}:{webhook.id}")
                body = msgspec.json.encode(named).decode()
                self._outbox().add_notice(db, WebhookNotice(id=named.notice, url=webhook.url, body=body))

    async def _keep_posting(self) -> None:
        while True:
            if self._is_used:
                try:
                    await self._post_due()
                except Exception:  # noqa: BLE001  such as a full disk: the notices are posted later
                    _webhook_log.exception("cannot post webhook notices")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), WEBHOOK_POLL_SECONDS)
            self._is_due.clear()

    async def _post_due(self) -> None:
        outbox = await asyncio.to_thread(self._outbox)
        await outbox.post_due(self._limits.webhooks, self._limits.webhook_secret)

    async def _send(self, notice: "WebhookNotice", hosts: Sequence[str], secret: str) -> None:
        """Posts a notice, unless its webhook was removed or its user may not see the session any more."""
        from outrider.background.webhooks import post_notice

        known = {webhook.id: webhook for webhook in await self.list_webhooks()}
        webhook = known.get(notice.id.partition(":")[2])
        session_id = msgspec.json.decode(notice.body, type=TurnNotice).session.id
        if webhook is None:
            return
        try:
            root = await self._engine.store.get(session_id)
        except SessionNotFoundError:
            return
        if self._may_see(webhook, root):
            await post_notice(webhook.url, notice.body, notice.id, hosts, webhook.secret or secret)

    async def list_webhooks(self) -> list[ServerWebhook]:
        added = await asyncio.to_thread(self._read_added) if self._is_used else []
        return [*self._configured, *added]

    def _read_added(self) -> list[ServerWebhook]:
        with self._open().connect() as db:
            rows = db.exec_driver_sql("SELECT definition FROM webhooks ORDER BY id").all()
        return [msgspec.json.decode(row[0], type=ServerWebhook) for row in rows]

    async def count_pending(self) -> Counter[str]:
        """Returns how many notices of each webhook wait for their receiver."""

        def count() -> Counter[str]:
            with self._open().connect() as db:
                rows = db.exec_driver_sql("SELECT id FROM notices WHERE due IS NOT NULL").all()
            return Counter(row[0].partition(":")[2] for row in rows)

        return await asyncio.to_thread(count) if self._is_used else Counter()

    async def add(self, webhook: ServerWebhook) -> None:
        """Raises ConfigurationError if it cannot be used, or if there are too many."""
        self._check(webhook)
        if len(await self.list_webhooks()) >= MAX_WEBHOOKS:
            raise ConfigurationError(f"this server has {MAX_WEBHOOKS} webhooks; remove one first")

        def insert() -> None:
            with self._open().begin() as db:
                definition = msgspec.json.encode(webhook).decode()
                db.exec_driver_sql("INSERT INTO webhooks VALUES (?, ?)", (webhook.id, definition))

        await asyncio.to_thread(insert)

    async def remove(self, webhook_id: str) -> bool:
        """Removes an added webhook with its waiting notices. Returns False if there is none. Raises ConfigurationError
        for one of the configuration."""
        if any(webhook.id == webhook_id for webhook in self._configured):
            raise ConfigurationError(f"the webhook {webhook_id} is in config.toml; remove it there")

        def delete() -> bool:
            with self._open().begin() as db:
                return bool(db.exec_driver_sql("DELETE FROM webhooks WHERE id = ?", (webhook_id,)).rowcount)

        return await asyncio.to_thread(delete) if self._is_used else False

    def _check(self, webhook: ServerWebhook) -> None:
        if find_spec("sqlalchemy") is None:
            raise ConfigurationError("webhooks are not installed: pip install 'outrider[background]'")
        from outrider.background.webhooks import check_url, sign_notice

        try:
            check_url(webhook.url)
            sign_notice(webhook.secret, "id", "", 0)
        except ToolFailure as error:
            raise ConfigurationError(f"the webhook {webhook.id}: {error}") from None
        except ValueError:
            raise ConfigurationError(
                f"the webhook {webhook.id}: its secret starts with whsec_, but is not base64"
            ) from None
        if webhook.user and self._users.get(webhook.user) is None:
            raise ConfigurationError(f"the webhook {webhook.id}: there is no user {webhook.user!r}")

    def _outbox(self) -> "WebhookOutbox":
        from outrider.background.webhooks import WebhookOutbox

        return WebhookOutbox(self._open(), "notices", self._send)

    def _open(self) -> "sa.Engine":
        """Opens the file, which contains secrets, on first use."""
        with self._opening:
            if self._database is None:
                self._database = self._create_database()
            return self._database

    def _create_database(self) -> "sa.Engine":
        import sqlalchemy as sa  # lazy: most servers have no webhooks

        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600))
        database = sa.create_engine(f"sqlite:///{self._path}", connect_args={"timeout": 30})
        with database.begin() as db:
            for statement in _WEBHOOK_TABLES:
                db.exec_driver_sql(statement)
        return database


DRAIN_SECONDS = 20.0  # for running turns, after SIGTERM
STORE_SECONDS = 2.5  # a store that does not answer within this time is not ready
READINESS_SECONDS = 1.0  # how long an answer of /readyz is reused: requests without a token must not load the store
DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)  # seconds

USER_NAME = "outrider.user"  # key of the ASGI scope
SendMessage = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger("outrider.server.requests")
_webhook_log = logging.getLogger("outrider.server")


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
        """Only sets a value: it is called by a signal handler."""
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
        at, problem = self._readiness
        if monotonic() - at > READINESS_SECONDS:
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
        running = sum(one.in_turn for one in live)
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
