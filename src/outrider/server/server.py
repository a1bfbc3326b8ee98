"""Runs the server: where it listens, who may come in, and how it ends."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager
from pathlib import Path

import msgspec
import uvicorn
from starlette.routing import BaseRoute

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine, store_at
from outrider.engine.frontend import OpenQuestions
from outrider.server.app import application
from outrider.server.auth import Address, App, check, keep_token
from outrider.server.event_stream import Feeds
from outrider.server.state import ServerState, background_of

WAITING = 512  # connections before they are taken
GRACE = 3  # seconds in which answers under way may end


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Port 0 is any free one. `expose` says that other machines may come in, which needs TLS; `mcp`, that other agents
    may give orders at /mcp; `database`, that sessions and runs are those of a server that machines share."""

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    names: tuple[str, ...] = ()
    expose: bool = False
    certificate: Path | None = None
    key: Path | None = None
    mcp: bool = False
    database: str | None = None


async def serve(settings: Settings, options: ServeOptions, version: str, tell: Callable[[str], object]) -> None:
    """Serves until it is interrupted. `tell` hears the address once it answers, with the link for a browser."""
    wanted = Address(**{name: getattr(options, name) for name in Address.__struct_fields__})
    check(wanted, beyond_this_machine=options.expose)
    token = keep_token(settings.data / "server" / "token")
    listening, address = bound(wanted)
    async with AsyncExitStack() as opened:
        questions = OpenQuestions(providers=settings.providers)
        engine = await opened.enter_async_context(_engine(settings, options, questions))
        feeds = Feeds(engine)
        routes = await opened.enter_async_context(_for_agents(engine, settings, version)) if options.mcp else ()
        background = await opened.enter_async_context(aclosing(background_of(settings, engine, options.database)))
        extras = ServerState(background=background, questions=questions, routes=routes)
        app = application(engine, feeds, address=address, token=token, version=version, extras=extras)

        def ready() -> None:
            tell(f"Outrider listens on {address.url} (token in {settings.data / 'server' / 'token'})")
            if address.socket is None:
                tell(f"Open {address.url}/?token={token}")

        try:
            await Server(app, address, feeds, ready).serve([listening])
        finally:
            listening.close()
            if address.socket is not None:
                address.socket.unlink(missing_ok=True)


def _engine(settings: Settings, options: ServeOptions, questions: OpenQuestions) -> AbstractAsyncContextManager[Engine]:
    return standard_engine(
        settings,
        workspace=settings.workspace,
        attended=True,
        bus=questions.bus,
        ask=questions.ask,
        store=store_at(settings.folders.store, options.database),
    )


def _for_agents(engine: Engine, settings: Settings, version: str) -> AbstractAsyncContextManager[Sequence[BaseRoute]]:
    """Loaded by those who want it: the protocol's library takes a second."""
    from outrider.server.mcp import mcp_routes

    return mcp_routes(engine, settings, version)


def bound(wanted: Address) -> tuple[socket.socket, Address]:
    """The socket is ours before anybody is told of it; a Unix socket is for its owner only."""
    if wanted.socket is not None:
        return _unix_socket(wanted.socket), wanted
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((wanted.host, wanted.port))
        listening.listen(WAITING)
    except OSError:
        listening.close()
        raise
    return listening, msgspec.structs.replace(wanted, port=listening.getsockname()[1])


def _unix_socket(path: Path) -> socket.socket:
    """Whatever lies at the path stays there, unless it is a socket at which nobody answers any more."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    if path.is_socket() and _nobody_answers(path):
        path.unlink()
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen(WAITING)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


def _nobody_answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) != 0


class Server(uvicorn.Server):
    """Streams go on for ever, so they are ended before the server waits for its answers to end."""

    def __init__(self, app: App, address: Address, feeds: Feeds, ready: Callable[[], object] = bool) -> None:
        self._feeds = feeds
        self._ready = ready
        super().__init__(
            uvicorn.Config(
                app,  # pyright: ignore[reportArgumentType]  an ASGI application, whatever its parameters are called
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=GRACE,
                ssl_certfile=address.certificate,
                ssl_keyfile=address.key,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Being told to end is how a server ends: unlike the library's own way the signal is not raised again, which
        would end the program before the engine has closed its sessions."""
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
        """Nobody is told of it before it answers, and before a signal can end it in order."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._feeds.close()
        await super().shutdown(sockets)
