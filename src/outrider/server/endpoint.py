"""API endpoints as values: parameters, response type and handler. The router and the OpenAPI document are built from
them."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import aclosing, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue
from outrider.engine.session_tools import OWNER_LIMITS
from outrider.errors import (
    ConfigurationError,
    InvalidStateTransition,
    LeaseLostError,
    LimitReachedError,
    OutriderError,
    ProcessError,
    ProviderError,
    ServerAwayError,
    SessionInUseError,
    SessionNotFoundError,
    StorageFullError,
    StoreError,
    StoreUnavailableError,
    ToolFailure,
)
from outrider.remote.agent_server import PeerTurnRegistry
from outrider.server.auth import (
    EVENT_STREAM,
    LOGIN_ID,
    READ_METHODS,
    REQUESTER,
    TOKEN_ID,
    BodyTooLargeError,
    BrowserLogins,
    Receive,
    Send,
)
from outrider.server.event_stream import SessionFeedRegistry, find_root_session
from outrider.server.state import BackgroundJobs
from outrider.server.turn_stream import ProtocolTurns
from outrider.server.users import (
    SERVER_REQUESTER,
    AccessDeniedError,
    Requester,
    ShareLevel,
    UserDirectory,
    UserLimits,
)
from outrider.server.webhooks import TurnWebhooks

if TYPE_CHECKING:
    from outrider.engine.mcp_servers import ServerLogins

Body = TypeVar("Body")
Query = TypeVar("Query")
PageLimit = Annotated[int, msgspec.Meta(ge=1, le=500)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class NoPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query or body type of an endpoint that takes none."""


class RouteRequest(msgspec.Struct, Generic[Query, Body], frozen=True):
    """A parsed and validated request."""

    engine: Engine
    feeds: SessionFeedRegistry
    peers: PeerTurnRegistry
    turns: ProtocolTurns
    path: dict[str, str]
    query: Query
    body: Body
    version: str
    last_event_id: str = ""
    idempotency_key: str = ""
    background: BackgroundJobs | None = None
    questions: QuestionQueue | None = None
    logins: BrowserLogins = msgspec.field(default_factory=BrowserLogins)
    login_id: str = ""
    token_id: str = ""
    server_url: str = ""
    settings: Settings | None = None
    server_logins: "ServerLogins | None" = None
    requester: Requester = SERVER_REQUESTER
    users: UserDirectory = msgspec.field(default_factory=UserDirectory)
    limits: UserLimits | None = None
    webhooks: TurnWebhooks | None = None

    async def access_to(self, session_id: str) -> ShareLevel | None:
        """Returns the requester's access to a session; the session of a called agent has that of its caller."""
        if self.requester.is_admin:
            return "write"
        try:
            root = await self.engine.store.get(await find_root_session(self.engine, session_id))
        except SessionNotFoundError:
            return None
        return self.users.access_level(self.requester, root.id, root.owner)

    async def require_access(self, session_id: str, needed: str = "write") -> None:
        """Raises AccessDeniedError, or SessionNotFoundError for a session that the requester may not know of."""
        level = await self.access_to(session_id)
        if level is None:
            raise SessionNotFoundError(f"there is no session {session_id}")
        if needed == "write" and (level != "write" or self.requester.role == "viewer"):
            raise AccessDeniedError(f"{self.requester.name} may read this session, but not change it")
        await self.require_workspace(session_id)

    async def may_open(self) -> bool:
        """Returns whether the session of the path is open, or the requester may write in it: opening it processes
        queued input."""
        session_id = self.path["session_id"]
        if session_id not in self.engine.live:
            with suppress(AccessDeniedError):
                await self.require_access(session_id)
                return True
            return False
        return True

    def find_folder(self, user_name: str) -> Path:
        """Returns the folder that sessions of a user stay in."""
        shared = self.settings.workspace if self.settings is not None else Path.cwd()
        return self.users.find_folder(user_name) or shared

    async def require_workspace(self, session_id: str) -> None:
        """Raises AccessDeniedError if the workspace has left the folder of the session's owner: the owner can replace
        folders in it by links to others."""
        session = await self.engine.store.get(session_id)
        owner = self.users.get(session.owner)
        if self.requester.is_admin or owner is None or owner.role == "admin" or not session.workspace_directory:
            return
        workspace, root = Path(session.workspace_directory), self.find_folder(owner.name)
        if await asyncio.to_thread(_has_left, workspace, root):
            raise AccessDeniedError(f"the workspace of this session is not in {root} any more")

    async def still_has_access(self, session_ids: Iterable[str]) -> bool:
        """Returns whether the requester is still signed in, as a user with the same role and team, and may read these
        sessions, as far as they exist."""
        if self.login_id and not self.logins.is_signed_in(self.login_id):
            return False
        if self.token_id and not self.users.has_token(self.requester.name, self.token_id):
            return False
        if self.requester.name != SERVER_REQUESTER.name:
            user = self.users.get(self.requester.name)
            if user is None or Requester.from_user(user) != self.requester:
                return False
        return not any([await self._is_hidden(session_id) for session_id in session_ids])

    async def _is_hidden(self, session_id: str) -> bool:
        if await self.access_to(session_id) is None:
            with suppress(SessionNotFoundError):
                await self.engine.store.get(session_id)
                return True
        return False

    async def require_limited_run(self, session_id: str) -> None:
        """Raises AccessDeniedError for a background run without limits whose owner has limits now, because an
        administrator submitted it who has lost that role: its worker would not apply the limits."""
        if self.requester.is_admin or self.background is None:
            return
        root = await self.engine.store.get(await find_root_session(self.engine, session_id))
        is_limited = root.id in self.engine.live or OWNER_LIMITS in root.metadata
        if is_limited or self.users.limits_of_owner(root.owner) is None or not await self.background.is_run(root.id):
            return
        raise AccessDeniedError("this run was submitted by an administrator, and only an administrator continues it")

    async def require_owner_budget(self, session_id: str) -> None:
        """Raises LimitReachedError if the owner of a shared session, who pays for it, has spent the budget of the
        month."""
        if self.limits is None or self.requester.is_admin:
            return
        root = await self.engine.store.get(await find_root_session(self.engine, session_id))
        owner = self.users.get(root.owner)
        if owner is not None and owner.name != self.requester.name:
            await self.limits.check_budget(Requester.from_user(owner))


def _has_left(workspace: Path, root: Path) -> bool:
    real = root.resolve()
    is_named_inside = workspace.is_relative_to(root) or workspace.is_relative_to(real)
    return is_named_inside and not workspace.resolve().is_relative_to(real)


class DocumentResponse(msgspec.Struct, frozen=True):
    """A response that is not JSON: a page, or an export to save as a file."""

    content: bytes
    media_type: str
    filename: str = ""


class SseResponse(msgspec.Struct, frozen=True):
    """A stream of server-sent events. It ends when the requester may not read one of `session_ids` any more."""

    frames: Any
    session_ids: tuple[str, ...] = ()


ACCESS_SECONDS = 1.0  # how often the access of a client that follows sessions is checked


async def stream_while_allowed(request: RouteRequest[Any, Any], response: SseResponse) -> AsyncGenerator[bytes, None]:
    """Yields the frames until the requester is signed out, gets other rights or loses the access to a session."""
    checked_at = monotonic()
    async with aclosing(response.frames) as frames:
        async for frame in frames:
            is_due = monotonic() - checked_at >= ACCESS_SECONDS
            if is_due and not await request.still_has_access(response.session_ids):
                return
            checked_at = monotonic() if is_due else checked_at
            yield frame


class EventStreamResponse(StreamingResponse):
    """Leaves its stream to the request guard, which runs it after the routes have returned. Otherwise each follower
    would keep the call frames of the routing layers alive: a hundred objects that each full garbage collection
    visits."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        scope[EVENT_STREAM] = self.stream_until_disconnect

    async def stream_until_disconnect(self, receive: Receive, send: Send) -> None:
        """Sends the frames until they end or the client has closed the connection."""
        try:
            async with asyncio.TaskGroup() as group:
                disconnect = group.create_task(_raise_on_disconnect(receive))
                await self.stream_response(send)
                disconnect.cancel()
        except* ClientDisconnect:
            pass


async def _raise_on_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of the API.

    - `method`, `path`: the HTTP method and the path with its parameters in braces.
    - `name`: the operation id in the OpenAPI document.
    - `summary`: one line for the OpenAPI document.
    - `handler`: called with the parsed request.
    - `query`, `body`: the types of the query parameters and of the JSON body.
    - `response_type`: a type, or a media type for a response that is not JSON.
    - `event_type`: the type of the events, if the response is a stream of server-sent events, or can be on request.
    - `status`: the status of a successful response.
    - `starts_work`: whether requests are rejected while the server is being stopped.
    - `access`: what the requester needs; without it, "read" for GET and "write" for other methods. "admin" is for
      administrators.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[Any], Awaitable[Any]]
    query: type[Any] = NoPayload
    body: type[Any] = NoPayload
    response_type: Any = None
    event_type: Any = None
    status: int = 200
    starts_work: bool = False
    access: Literal["", "read", "write", "admin"] = ""

    @property
    def needed_access(self) -> Literal["", "read", "write", "admin"]:
        return self.access or ("read" if self.method in READ_METHODS else "write")


# The first matching class applies, so a subclass must be listed before its base class.
ERROR_STATUS: dict[type[Exception], int] = {
    SessionNotFoundError: 404,
    SessionInUseError: 409,
    LeaseLostError: 409,
    InvalidStateTransition: 409,
    LimitReachedError: 409,
    StorageFullError: 507,
    StoreUnavailableError: 503,
    StoreError: 400,
    ConfigurationError: 400,
    ProcessError: 404,
    ToolFailure: 400,
    ProviderError: 502,
    LookupError: 404,
    ValueError: 400,
    OverflowError: 400,
    OutriderError: 409,
}

_log = logging.getLogger("outrider.server")
encode_response = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


IDEMPOTENCY_HEADER = "idempotency-key"
REPEAT_SECONDS = 86_400
MAX_REPEATS = 10_000
MAX_REPEAT_BYTES = 64 * 1024 * 1024  # of all stored responses; the oldest are forgotten


class RepeatedRequests:
    """The responses of this process to requests with an Idempotency-Key header: a repeated request gets the first
    response again. Only successful responses that are not event streams are stored."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # Time, hash of the body and response, oldest first.
        self._answers: dict[tuple[str, ...], tuple[float, bytes, asyncio.Task[Response]]] = {}

    async def answer_once(self, request: Request, key: str, handle: Callable[[], Awaitable[Response]]) -> Response:
        requester: Requester = request.scope.get(REQUESTER, SERVER_REQUESTER)
        cache_key = (requester.name, f"{request.url.path}?{request.url.query}", key)
        body = hashlib.sha256(await request.body()).digest()
        self._forget_old()
        entry = self._answers.get(cache_key)
        if entry is None:
            entry = self._answers[cache_key] = (self._clock(), body, asyncio.create_task(_await(handle)))
        elif entry[1] != body:
            return error_response(409, "key_reused", "this Idempotency-Key was sent with another body")
        response = await asyncio.shield(entry[2])
        if isinstance(response, StreamingResponse) or response.status_code >= 300:
            self._answers.pop(cache_key, None)
        return response

    def _forget_old(self) -> None:
        size = sum(map(_response_size, self._answers.values()))
        while self._answers:
            oldest = next(iter(self._answers))
            is_small = len(self._answers) <= MAX_REPEATS and size <= MAX_REPEAT_BYTES
            if is_small and self._clock() - self._answers[oldest][0] < REPEAT_SECONDS:
                return
            size -= _response_size(self._answers.pop(oldest))


def _response_size(stored: tuple[float, bytes, "asyncio.Task[Response]"]) -> int:
    task = stored[2]
    is_sent = task.done() and not task.cancelled() and task.exception() is None
    return len(getattr(task.result(), "body", b"")) if is_sent else 0


async def _await(handle: Callable[[], Awaitable[Response]]) -> Response:
    return await handle()


def make_handler(endpoint: ApiEndpoint) -> Callable[[Request], Awaitable[Response]]:
    """Returns the Starlette handler of an endpoint; it maps exceptions to error responses."""

    async def handle_request(request: Request) -> Response:
        key = request.headers.get(IDEMPOTENCY_HEADER, "")
        if key and request.method == "POST":
            return await request.app.state.repeats.answer_once(request, key, lambda: handle_once(request))
        return await handle_once(request)

    async def handle_once(request: Request) -> Response:
        if endpoint.starts_work and request.app.state.monitor is not None and request.app.state.monitor.is_draining:
            return error_response(503, ServerAwayError.__name__, "the server is being stopped; try again in a moment")
        try:
            result = await _call_endpoint(endpoint, request)
        except AccessDeniedError as error:
            return error_response(403, "forbidden", str(error))
        except BodyTooLargeError:
            return error_response(413, "too_large", "the body is too large")
        except (OutriderError, LookupError, ValueError, OverflowError) as error:
            return _exception_response(error)
        except asyncio.CancelledError:
            # Only the shutdown of the server cancels a handler; the client gets an error that it retries.
            return error_response(
                503, ServerAwayError.__name__, "the server is shutting down; stored input is not lost"
            )
        except Exception:  # noqa: BLE001  the traceback of a defect is not for clients
            _log.exception("%s %s failed", endpoint.method, endpoint.path)
            return error_response(500, "internal", "internal server error; see the server's log")
        return _build_response(endpoint, result)

    return handle_request


async def _call_endpoint(endpoint: ApiEndpoint, request: Request) -> Any:
    parsed = await _parse_request(endpoint, request)
    await _check_access(endpoint, parsed)
    result = await endpoint.handler(parsed)
    return SseResponse(stream_while_allowed(parsed, result)) if isinstance(result, SseResponse) else result


def error_response(status: int, kind: str, message: str, **details: Any) -> Response:
    error: dict[str, Any] = {"type": kind, "message": message}
    if details:
        error["details"] = details
    return Response(encode_response({"error": error}), status, media_type="application/json")


async def _parse_request(endpoint: ApiEndpoint, request: Request) -> RouteRequest[Any, Any]:
    state = request.app.state
    return RouteRequest[Any, Any](
        engine=state.engine,
        feeds=state.feeds,
        peers=state.peers,
        turns=state.turns,
        path=dict(request.path_params),
        query=_parse_query(endpoint, request),
        body=await _parse_body(endpoint, request),
        version=state.version,
        last_event_id=request.headers.get("last-event-id", ""),
        idempotency_key=request.headers.get(IDEMPOTENCY_HEADER, ""),
        background=state.background,
        questions=state.questions,
        logins=state.logins,
        login_id=request.scope.get(LOGIN_ID, ""),
        token_id=request.scope.get(TOKEN_ID, ""),
        server_url=state.url,
        settings=state.settings,
        server_logins=state.server_logins,
        requester=request.scope.get(REQUESTER, SERVER_REQUESTER),
        users=state.users,
        limits=state.limits,
        webhooks=state.webhooks,
    )


async def _check_access(endpoint: ApiEndpoint, request: RouteRequest[Any, Any]) -> None:
    """Raises AccessDeniedError, or SessionNotFoundError for a session that the requester may not know of."""
    requester, needed = request.requester, endpoint.needed_access
    if not requester.is_admin:
        if needed == "admin":
            raise AccessDeniedError(f"{requester.name} is not an administrator")
        if needed == "write" and requester.role == "viewer":
            raise AccessDeniedError(f"{requester.name} is a viewer")
        session_id = await _find_session(request)
        if session_id is not None:
            await request.require_access(session_id, needed)
            if needed == "write" and "session_id" not in request.path:
                await request.require_limited_run(session_id)
            if endpoint.starts_work:
                await request.require_owner_budget(session_id)
    if endpoint.starts_work and request.limits is not None:
        await request.limits.check_budget(requester)


async def _find_session(request: RouteRequest[Any, Any]) -> str | None:
    """Returns the session that the path names, by its id or by that of a run, an approval or a question."""
    path = request.path
    if (session_id := path.get("session_id") or path.get("run_id")) is not None:
        return session_id
    if (approval_id := path.get("approval_id")) is not None:
        approvals = [*await request.engine.approvals(), *await request.engine.store.approvals()]
        return next((approval.session_id for approval in approvals if approval.id == approval_id), "")
    if (question_id := path.get("question_id")) is not None:
        questions = request.questions.open_questions() if request.questions else []
        return next((question.session_id for question in questions if question.id == question_id), "")
    return None


def _parse_query(endpoint: ApiEndpoint, request: Request) -> Any:
    pairs = parse_qsl(request.url.query, keep_blank_values=True)
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("duplicate query parameter")
    unknown = values.keys() - {field.name for field in msgspec.structs.fields(endpoint.query)}
    if unknown:
        raise ValueError(f"unknown query parameter: {', '.join(sorted(unknown))}")
    return msgspec.convert(values, endpoint.query, strict=False)


async def _parse_body(endpoint: ApiEndpoint, request: Request) -> Any:
    raw = await request.body()
    if endpoint.body is NoPayload:
        return NoPayload()
    return msgspec.json.decode(raw or b"{}", type=endpoint.body)


def _build_response(endpoint: ApiEndpoint, result: Any) -> Response:
    match result:
        case SseResponse(frames):
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return EventStreamResponse(frames, media_type="text/event-stream", headers=headers)
        case DocumentResponse(content, media_type, filename):
            named = {"content-disposition": f'attachment; filename="{filename}"'} if filename else {}
            return Response(content, media_type=media_type, headers={"cache-control": "no-store", **named})
        case None:
            return Response(status_code=204)
        case _:
            headers = {"cache-control": "no-store"}
            return Response(encode_response(result), endpoint.status, media_type="application/json", headers=headers)


def _exception_response(error: Exception) -> Response:
    status = next(status for kind, status in ERROR_STATUS.items() if isinstance(error, kind))
    details = error.details if isinstance(error, OutriderError) else {}
    safe = {name: value for name, value in details.items() if isinstance(value, str | int | float | bool)}
    return error_response(status, type(error).__name__, str(error), **safe)
