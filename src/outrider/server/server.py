"""Starts and stops the HTTP server: listening socket, engine, background jobs, signals."""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from starlette.routing import BaseRoute
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.factory import create_store, standard_engine
from outrider.engine.frontend import QuestionQueue
from outrider.server.app import create_app
from outrider.server.auth import (
    CODE_PARAMETER,
    AsgiApp,
    AuditLog,
    BrowserLogins,
    ListenAddress,
    check_exposure,
    load_or_create_token,
)
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.state import IdleSessionCloser, ServerState, create_background_jobs
from outrider.types.events import ToolApprovalResultEvent

if TYPE_CHECKING:
    from outrider.engine.mcp_servers import ServerLogins

HEAD_SECONDS = 15.0  # seconds until the first request must have arrived
BODY_SECONDS = 60.0  # seconds without data in the middle of a body
MAX_SILENT_CONNECTIONS = 256  # connections without a complete request; beyond it the oldest is closed
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
            _, oldest = _silent.popitem(last=False)
            oldest.transport.close()

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


def raise_file_limit() -> None:
    """Allows as many open files as the system permits: each follower of the page is a connection."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MIN_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MIN_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


DEFAULT_PORT = 8765
LISTEN_BACKLOG = 512  # pending connections
_ADDRESS_FIELDS = ("host", "socket", "names", "certificate", "key")
SHUTDOWN_SECONDS = 3  # seconds to finish open responses


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `outrider serve`. Port 0 selects a free port; without a port it is DEFAULT_PORT, or a free one if
    that is in use. `new_token` replaces the token and signs all browsers out. `expose` allows other machines, which
    requires TLS; `mcp` adds /mcp; `database` is a shared Postgres server for sessions and runs."""

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


async def run_server(
    settings: Settings, options: ServeOptions, version: str, print_line: Callable[[str], object]
) -> None:
    """Serves until SIGINT or SIGTERM. Calls `print_line` with the address once the server accepts requests, and with
    the browser link."""
    requested = ListenAddress(**{name: getattr(options, name) for name in _ADDRESS_FIELDS}, port=options.port or 0)
    check_exposure(requested, exposed=options.expose)
    folder = settings.data_folder / "server"
    if options.new_token:
        for name in ("token", "logins.json"):
            (folder / name).unlink(missing_ok=True)
    token = load_or_create_token(folder / "token")
    logins, audit = BrowserLogins(folder / "logins.json"), AuditLog(folder / "audit.jsonl")
    listening, address = _bind_default_port(requested) if options.port is None else bind_socket(requested)
    raise_file_limit()
    async with AsyncExitStack() as stack:
        questions = QuestionQueue(providers=settings.providers)
        engine = await stack.enter_async_context(_open_engine(settings, options, questions))
        feeds = SessionFeedRegistry(engine, questions)
        routes = await stack.enter_async_context(_open_mcp_routes(engine, settings, version)) if options.mcp else ()
        background = await stack.enter_async_context(
            aclosing(create_background_jobs(settings, engine, options.database))
        )
        extras = ServerState(
            background=background,
            questions=questions,
            routes=routes,
            settings=settings,
            server_logins=await _open_server_logins(engine, settings, stack),
        )
        app = create_app(
            engine, feeds, address=address, token=token, version=version, state=extras, logins=logins, audit=audit
        )
        stack.callback(engine.bus.subscribe(ToolApprovalResultEvent, partial(_record_answer, audit)))
        await stack.enter_async_context(IdleSessionCloser(engine))

        def announce_address() -> None:
            print_line(f"Outrider listens on {address.url} (token in {folder / 'token'})")
            if address.socket is None:
                link = f"{address.browser_url}/?{CODE_PARAMETER}={logins.create_code()}"
                print_line(f"Open {link} (signs in one browser; `outrider serve --link` prints another link)")

        try:
            await OutriderServer(app, address, feeds, announce_address).serve([listening])
        finally:
            listening.close()
            if address.socket is not None:
                address.socket.unlink(missing_ok=True)


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
    settings: Settings, options: ServeOptions, questions: QuestionQueue
) -> AbstractAsyncContextManager[Engine]:
    return standard_engine(
        settings,
        workspace=settings.workspace,
        attended=True,
        bus=questions.bus,
        ask=questions.ask,
        store=create_store(settings.folders.store_file, options.database),
    )


def _open_mcp_routes(
    engine: Engine, settings: Settings, version: str
) -> AbstractAsyncContextManager[Sequence[BaseRoute]]:
    """Imports the MCP SDK only on request: it takes a second to load."""
    from outrider.server.mcp import mcp_routes

    return mcp_routes(engine, settings, version)


def _bind_default_port(requested: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """A fixed port keeps bookmarks and logins of browsers valid."""
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


class OutriderServer(uvicorn.Server):
    """Closes event streams before it waits for open responses, because streams never end by themselves."""

    def __init__(
        self, app: AsgiApp, address: ListenAddress, feeds: SessionFeedRegistry, on_ready: Callable[[], object] = bool
    ) -> None:
        self._feeds = feeds
        self._on_ready = on_ready
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Announces the address after the server accepts requests and signal handlers are installed."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._feeds.close()
        await super().shutdown(sockets)
