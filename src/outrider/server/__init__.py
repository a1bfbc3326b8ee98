"""The HTTP server: exposes the engine as a JSON API with server-sent events, and serves the web page.

`serve` and `server_app` put the engine of any program behind it; `outrider serve` uses a configured engine."""

import secrets
import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from outrider._sync import run_sync
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider.engine.engine import Engine
    from outrider.server.auth import ListenAddress, Receive, Scope, Send

MIN_TOKEN_LENGTH = 32  # characters


class ServerApp:
    """An ASGI application with the API and the page for the agents of one engine.

    Mount it in another application, also under a prefix, or pass it to an ASGI server. Enter it as a context manager in
    the lifespan of the other application: that opens the engine unless it is open, and closes event streams at the
    end. An ASGI server that sends lifespan events does the same. Every request needs `token`; `sign_in_link` returns an
    address that signs one browser in.
    """

    def __init__(self, engine: "Engine", *, token: str | None, address: "ListenAddress", folder: Path | None) -> None:
        from outrider.server.app import create_app  # lazy: it loads Starlette
        from outrider.server.auth import BrowserLogins, load_or_create_token
        from outrider.server.event_stream import SessionFeedRegistry
        from outrider.server.users import AuditLog

        if token is not None and len(token) < MIN_TOKEN_LENGTH:
            raise ConfigurationError(f"a server's token needs at least {MIN_TOKEN_LENGTH} characters")
        self.engine = engine
        self.feeds = SessionFeedRegistry(engine)
        self.token = token or (load_or_create_token(folder / "token") if folder else secrets.token_urlsafe(32))
        self.address = address
        self._logins = BrowserLogins(folder / "logins.json" if folder else None)
        self._app = create_app(
            engine,
            self.feeds,
            address=address,
            token=self.token,
            version=sys.modules["outrider"].__version__,
            logins=self._logins,
            audit=AuditLog(folder / "audit.jsonl") if folder else None,
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from outrider.server.state import IdleSessionCloser

        async with AsyncExitStack() as stack:
            if not self.engine.runtime.is_open:
                await stack.enter_async_context(self.engine)
            stack.push_async_callback(self.feeds.close)
            await stack.enter_async_context(IdleSessionCloser(self.engine))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def sign_in_link(self) -> str:
        """Returns an address that signs one browser in, once, within a day."""
        from outrider.server.auth import CODE_PARAMETER

        return f"{self.address.browser_url}/?{CODE_PARAMETER}={self._logins.create_code()}"

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
        else:
            await self._app(_without_prefix(scope), receive, send)

    async def _handle_lifespan(self, receive: "Receive", send: "Send") -> None:
        await receive()
        try:
            async with self:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def _without_prefix(scope: "Scope") -> MutableMapping[str, Any]:
    """Returns the scope with the path relative to the prefix under which the application is mounted."""
    prefix = scope.get("root_path", "")
    if not prefix or not scope["path"].startswith(prefix):
        return scope
    path = scope["path"].removeprefix(prefix) or "/"
    return {**scope, "root_path": "", "path": path, "raw_path": path.encode(errors="surrogateescape")}


def server_app(
    engine: "Engine", *, token: str | None = None, url: str = "http://127.0.0.1:8000", folder: Path | str | None = None
) -> ServerApp:
    """Returns an ASGI application with the API and the page for the engine's agents.

    `url` is the address under which clients reach it, with the prefix if it is mounted under one: requests for other
    host names and of other origins are rejected. `token` is the secret that clients send as a bearer token; without it
    a token is created, and stored in `folder` if it is given, together with the logins of browsers and the audit log.
    Raises ConfigurationError for a short token, and if the extra `server` is not installed."""
    _check_engine("server_app()", engine)
    _require_extra()
    from outrider.server.app import parse_public_address

    address = parse_public_address(url)
    return ServerApp(engine, token=token, address=address, folder=Path(folder) if folder else None)


class ServeKeywords(TypedDict, total=False):
    """The keyword arguments of `serve`."""

    host: str
    port: int | None
    token: str | None
    folder: Path | str | None
    names: Sequence[str]
    expose: bool
    certificate: Path | str | None
    key: Path | str | None
    announce: Callable[[str], object]


def serve(engine: "Engine", **options: Unpack[ServeKeywords]) -> None:
    """Serves the engine's agents through the API and the page until SIGINT or SIGTERM. See `async_serve`."""
    run_sync(lambda: async_serve(engine, **options))


async def async_serve(
    engine: "Engine",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    folder: Path | str | None = None,
    names: Sequence[str] = (),
    expose: bool = False,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    announce: Callable[[str], object] = print,
) -> None:
    """Serves the engine's agents through the API and the page until SIGINT, SIGTERM or the cancellation of the task.
    Opens the engine unless it is open.

    - `host`: the address to listen on.
    - `port`: 0 selects a free port; without a port it is 8765, or a free one if that is in use.
    - `token`: the secret that clients send, as in `server_app`.
    - `folder`: where the token, the logins of browsers and the audit log are stored, as in `server_app`.
    - `names`: the host names that clients use; required with `expose` if the server listens on all addresses.
    - `expose`: allows other machines to connect, which requires `certificate` and `key`.
    - `certificate`: the file with the TLS certificate.
    - `key`: the file with the key of the certificate.
    - `announce`: called with a line that has the address and a link that signs one browser in.
    """
    _check_engine("serve()", engine)
    _require_extra()
    from outrider.server.auth import ListenAddress
    from outrider.server.server import serve_app

    requested = ListenAddress(
        host=host,
        port=port or 0,
        names=tuple(names),
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
    )

    def build_app(address: ListenAddress) -> ServerApp:
        return ServerApp(engine, token=token, address=address, folder=Path(folder) if folder else None)

    await serve_app(build_app, requested, exposed=expose, has_port=port is not None, announce=announce)


def _check_engine(where: str, engine: object) -> None:
    if not hasattr(engine, "runtime"):
        raise ConfigurationError(f"{where} takes an Engine, got {type(engine).__name__}; write Engine([…], […])")


def _require_extra() -> None:
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ConfigurationError("the server is not installed: pip install 'outrider[server]'")
