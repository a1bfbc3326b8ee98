"""Starts and stops the HTTP server: listening socket, engine, background jobs, signals."""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import msgspec
import uvicorn
from starlette.routing import BaseRoute
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from outrider._sync import do_nothing
from outrider.background.health import HealthServer, configure_log
from outrider.config.settings import Settings, with_first_vendor
from outrider.engine.engine import Engine
from outrider.engine.factory import create_store, standard_engine
from outrider.engine.frontend import QuestionQueue
from outrider.errors import ConfigurationError
from outrider.server.app import create_app
from outrider.server.auth import (
    CODE_PARAMETER,
    AsgiApp,
    BrowserLogins,
    ListenAddress,
    PublicUrl,
    Receive,
    Scope,
    Send,
    check_exposure,
    load_or_create_token,
)
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.oidc import OidcSettings
from outrider.server.routes.settings import offer_providers
from outrider.server.state import (
    DRAIN_SECONDS,
    BudgetWatcher,
    IdleSessionCloser,
    ServerMonitor,
    ServerState,
    create_background_jobs,
)
from outrider.server.users import AuditLog, UserDirectory, UserLimits
from outrider.server.webhooks import TurnWebhooks
from outrider.types.events import ToolApprovalResultEvent

if TYPE_CHECKING:
    from outrider.engine.mcp_servers import ServerLogins

HEAD_SECONDS = 15.0  # seconds until the first request must have arrived
BODY_SECONDS = 60.0  # seconds without data in the middle of a body
MAX_SILENT_CONNECTIONS = 256  # connections without a complete request; beyond it the oldest is closed
SILENT_SECONDS = 1.0  # a burst of connections is accepted before the first of their requests is read
MIN_OPEN_FILES = 65_536

_silent: "OrderedDict[int, ConnectionGuard]" = OrderedDict()


class ConnectionGuard(AutoHTTPProtocol):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """A connection that is closed if its request does not arrive in time."""

    cycle: Any
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._check_head)
        _silent[id(self)] = self
        if len(_silent) > MAX_SILENT_CONNECTIONS:
            asyncio.get_running_loop().call_later(SILENT_SECONDS, _close_silent_connections)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None:
            return
        _silent.pop(id(self), None)
        self._timer.cancel()
        if getattr(self.cycle, "more_body", False):
            self._timer = asyncio.get_running_loop().call_later(BODY_SECONDS, self._check_body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        _silent.pop(id(self), None)
        super().connection_lost(exc)

    def _check_head(self) -> None:
        if self.cycle is None:
            self.transport.close()

    def _check_body(self) -> None:
        if getattr(self.cycle, "more_body", False):
            self.transport.close()


def _close_silent_connections() -> None:
    while len(_silent) > MAX_SILENT_CONNECTIONS:
        _silent.popitem(last=False)[1].transport.close()


def raise_file_limit() -> None:
    """Allows as many open files as the system permits: each follower of the page is a connection."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MIN_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MIN_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


DEFAULT_PORT = 8765
LISTEN_BACKLOG = 512  # pending connections
_ADDRESS_FIELDS = ("host", "socket", "names", "certificate", "key", "proxies")
SHUTDOWN_SECONDS = 3  # seconds to finish open responses
YOUNG_OBJECTS = 10_000  # new objects until the garbage collector visits them


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `outrider serve`.

    - `host`: the address to listen on.
    - `port`: 0 selects a free port; without a port it is DEFAULT_PORT, or a free one if that is in use.
    - `socket`: the path of a Unix socket to listen on instead of a TCP port.
    - `names`: the host names that clients use.
    - `expose`: allows other machines to connect, which requires TLS.
    - `certificate`: the file with the TLS certificate.
    - `key`: the file with the key of the certificate.
    - `mcp`: adds /mcp.
    - `database`: a shared Postgres server for sessions and runs.
    - `new_token`: replaces the token and signs all browsers out.
    - `public_url`: the address of a reverse proxy.
    - `proxies`: the networks of the reverse proxies.
    - `health`: an address for /livez, /readyz and /metrics without a token.
    - `grace`: seconds that running turns have after SIGTERM.
    - `json_log`: writes the log as JSON lines.
    - `oidc`: the fields of `OidcSettings`.
    - `user_folders`: the folder in which users without a workspace get a folder.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    socket: Path | None = None
    names: tuple[str, ...] = ()
    expose: bool = False
    certificate: Path | None = None
    key: Path | None = None
    mcp: bool = False
    database: str | None = None
    new_token: bool = False
    public_url: str = ""
    proxies: tuple[str, ...] = ()
    health: tuple[str, int] | None = None
    grace: float | None = None
    json_log: bool = False
    oidc: dict[str, Any] | None = None
    user_folders: Path | None = None


async def run_server(
    settings: Settings, options: ServeOptions, version: str, print_line: Callable[[str], object]
) -> None:
    """Serves until SIGINT or SIGTERM. Calls `print_line` with the address once the server accepts requests, and with
    the browser link."""
    requested = ListenAddress(
        **{name: getattr(options, name) for name in _ADDRESS_FIELDS},
        port=options.port or 0,
        public=PublicUrl.parse(options.public_url) if options.public_url else None,
    )
    check_exposure(requested, exposed=options.expose)
    folder = settings.data_folder / "server"
    if options.new_token:
        for name in ("token", "logins.json"):
            (folder / name).unlink(missing_ok=True)
    token = load_or_create_token(folder / "token")
    logins, audit = BrowserLogins(folder / "logins.json"), AuditLog(folder / "audit.jsonl")
    listening, address = _bind_default_port(requested) if options.port is None else bind_socket(requested)
    raise_file_limit()
    if options.json_log:
        configure_log(sys.stderr, "outrider.server", "outrider.sessions", json=True)
    async with AsyncExitStack() as stack:
        questions = QuestionQueue(providers=settings.providers)
        users = UserDirectory(folder / "users.json", folders=options.user_folders, shared=settings.workspace)
        engine = await stack.enter_async_context(_open_engine(settings, options, questions, users))
        engine.runtime.keys_of_owner = users.keys_of_owner
        await offer_providers(engine.runtime, users)
        feeds = SessionFeedRegistry(engine, questions)
        routes = await stack.enter_async_context(_open_mcp_routes(engine, settings, version)) if options.mcp else ()
        background = await stack.enter_async_context(
            aclosing(create_background_jobs(settings, engine, options.database))
        )
        monitor = ServerMonitor(engine, grace_seconds=DRAIN_SECONDS if options.grace is None else options.grace)
        extras = ServerState(
            monitor=monitor,
            users=users,
            oidc=msgspec.convert(options.oidc, OidcSettings) if options.oidc else None,
            background=background,
            questions=questions,
            routes=routes,
            settings=settings,
            server_logins=await _open_server_logins(engine, settings, stack),
            webhooks=await stack.enter_async_context(TurnWebhooks(engine, users, folder, settings)),
        )
        app = create_app(
            engine, feeds, address=address, token=token, version=version, state=extras, logins=logins, audit=audit
        )
        stack.callback(engine.bus.subscribe(ToolApprovalResultEvent, partial(_record_answer, audit)))
        await stack.enter_async_context(IdleSessionCloser(engine))
        await stack.enter_async_context(BudgetWatcher(engine, UserLimits(users, engine), users))
        users.record_sandbox(declined=settings.no_sandbox)
        if (users.has_operators or options.oidc) and not await asyncio.to_thread(engine.runtime.can_sandbox):
            why = "--no-sandbox was given" if settings.no_sandbox else "no sandbox works here (see `outrider doctor`)"
            print_line(f"Warning: {why}, so commands of operators are denied; only administrators can run commands")
        if options.health is not None:
            port = await stack.enter_async_context(HealthServer(monitor).serve(*options.health))
            print_line(f"Health: http://{options.health[0]}:{port}/readyz")

        def announce_address() -> None:
            print_line(f"Outrider listens on {address.url} (token in {folder / 'token'})")
            if address.socket is None or address.public is not None:
                link = f"{address.browser_url}/?{CODE_PARAMETER}={logins.create_code()}"
                flag = "" if address.port in (0, DEFAULT_PORT) else f" --port {address.port}"
                print_line(f"Open {link} (signs in one browser; `outrider serve{flag} --link` prints another link)")

        try:
            await OutriderServer(app, address, feeds, announce_address, monitor).serve([listening])
        finally:
            listening.close()
            if address.socket is not None:
                address.socket.unlink(missing_ok=True)


class EngineApp(Protocol):
    """The application of a program's engine; entering it opens the engine."""

    feeds: SessionFeedRegistry

    def sign_in_link(self) -> str: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


async def serve_app(
    build_app: Callable[[ListenAddress], EngineApp],
    requested: ListenAddress,
    *,
    exposed: bool,
    has_port: bool,
    announce: Callable[[str], object],
) -> None:
    """Serves the engine of a program until SIGINT, SIGTERM or cancellation."""
    check_exposure(requested, exposed=exposed)
    listening, address = bind_socket(requested) if has_port else _bind_default_port(requested)
    try:
        raise_file_limit()
        async with build_app(address) as app:
            server = OutriderServer(app, address, app.feeds, lambda: announce(f"Open {app.sign_in_link()}"))
            serving = asyncio.create_task(server.serve([listening]))
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                server.should_exit = True
                await serving
                raise
    finally:
        listening.close()


async def _open_server_logins(engine: Engine, settings: Settings, stack: AsyncExitStack) -> "ServerLogins | None":
    if engine.runtime.mcp_servers is None:
        return None
    from outrider.engine.mcp_servers import ServerLogins  # lazy: most users have no MCP servers

    return await stack.enter_async_context(aclosing(ServerLogins(settings)))


def _record_answer(audit: AuditLog, event: ToolApprovalResultEvent) -> None:
    audit.write(
        "approval", session=event.session_id, approval=event.approval_id, approved=event.approved, by=event.answered_by
    )


def _open_engine(
    settings: Settings, options: ServeOptions, questions: QuestionQueue, users: UserDirectory
) -> AbstractAsyncContextManager[Engine]:
    return standard_engine(
        with_first_vendor(settings),
        workspace=settings.workspace,
        attended=True,
        bus=questions.bus,
        ask=questions.ask,
        store=create_store(settings.folders.store_file, options.database),
        limits_of_owner=users.limits_of_owner,
    )


def _open_mcp_routes(
    engine: Engine, settings: Settings, version: str
) -> AbstractAsyncContextManager[Sequence[BaseRoute]]:
    """Imports the MCP SDK only on request: it takes a second to load."""
    from outrider.server.mcp import mcp_routes

    return mcp_routes(engine, settings, version)


def _bind_default_port(requested: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """Binds the default port, or a free one if it is in use. A fixed port keeps bookmarks and browser logins valid."""
    if requested.socket is None:
        with suppress(OSError):
            return bind_socket(msgspec.structs.replace(requested, port=DEFAULT_PORT))
    return bind_socket(requested)


def bind_socket(requested: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """Binds the socket before the address is printed. A Unix socket is accessible to its owner only."""
    if requested.socket is not None:
        return _bind_unix_socket(requested.socket), requested
    family = socket.AF_INET6 if ":" in requested.host else socket.AF_INET
    # With the protocol: asyncio disables Nagle's algorithm only then, which delays each response by 40 ms otherwise.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((requested.host, requested.port))
        listening.listen(LISTEN_BACKLOG)
    except OverflowError:
        listening.close()
        raise ConfigurationError(f"{requested.port} is not a port; pass a number up to 65535") from None
    except OSError:
        listening.close()
        raise
    return listening, msgspec.structs.replace(requested, port=listening.getsockname()[1])


def _bind_unix_socket(path: Path) -> socket.socket:
    """Removes an existing file only if it is a socket without a listener."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    if path.is_socket() and _is_stale_socket(path):
        path.unlink()
    previous_umask = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen(LISTEN_BACKLOG)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(previous_umask)
    return listening


def _is_stale_socket(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) != 0


@cache
def program_froze_objects() -> bool:
    """Returns whether the program had called `gc.freeze` before its first server. Python visits every frozen object to
    count them, so this is done once in a process."""
    return gc.get_freeze_count() > 0


class OutriderServer(uvicorn.Server):
    """Closes event streams before it waits for open responses, because streams never end by themselves."""

    def __init__(
        self,
        app: AsgiApp,
        address: ListenAddress,
        feeds: SessionFeedRegistry,
        on_ready: Callable[[], object] = do_nothing,
        monitor: ServerMonitor | None = None,
    ) -> None:
        self._feeds = feeds
        self._monitor = monitor
        self._on_ready = on_ready
        self._gc_thresholds = gc.get_threshold()
        self._unfreezes = False
        super().__init__(
            uvicorn.Config(
                app,  # pyright: ignore[reportArgumentType]  an ASGI application with other parameter names
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                ws="none",
                http=ConnectionGuard,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                ssl_certfile=address.certificate,
                ssl_keyfile=address.key,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles the signals without raising them again, as uvicorn does: that would end the process before the engine
        has closed its sessions."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops the server. SIGTERM lets running turns end first; a second signal, or Ctrl+C, does not wait for
        them."""
        if sig == signal.SIGTERM and self._monitor is not None and not self._monitor.is_draining:
            self._monitor.start_drain()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._monitor is not None and await self._monitor.is_drained():
            self.should_exit = True
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Announces the address after the server accepts requests and signal handlers are installed.

        A full garbage collection blocks the event loop. `gc.freeze` excludes what exists before the first request, and
        with the larger first generation most objects of a request or a delta are free before they are visited: with
        100 turns and 500 followers there is no full collection in half a minute, instead of seven of 100 ms."""
        await super().startup(sockets)
        self._unfreezes = not program_froze_objects()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *self._gc_thresholds[1:])
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._unfreezes:  # a program may continue after its server; what it has frozen itself stays frozen
            gc.unfreeze()
        gc.set_threshold(*self._gc_thresholds)
        await self._feeds.close()
        await super().shutdown(sockets)
