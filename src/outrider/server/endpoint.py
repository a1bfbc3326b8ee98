"""API endpoints as values: parameters, response type and handler. The router and the OpenAPI document are built from
them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue
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
from outrider.server.auth import LOGIN_ID, BodyTooLargeError, BrowserLogins
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.state import BackgroundJobs

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
    path: dict[str, str]
    query: Query
    body: Body
    version: str
    last_event_id: str = ""
    background: BackgroundJobs | None = None
    questions: QuestionQueue | None = None
    logins: BrowserLogins = msgspec.field(default_factory=BrowserLogins)
    login_id: str = ""
    server_url: str = ""
    settings: Settings | None = None
    server_logins: "ServerLogins | None" = None


class DocumentResponse(msgspec.Struct, frozen=True):
    """A response that is not JSON: a page, or an export to save as a file."""

    content: bytes
    media_type: str
    filename: str = ""


class SseResponse(msgspec.Struct, frozen=True):
    """A stream of server-sent events."""

    frames: Any


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. `response_type` is a type, or a media type for a response that is not JSON."""

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[Any], Awaitable[Any]]
    query: type[Any] = NoPayload
    body: type[Any] = NoPayload
    response_type: Any = None
    status: int = 200


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
_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


def make_handler(endpoint: ApiEndpoint) -> Callable[[Request], Awaitable[Response]]:
    """Returns the Starlette handler of an endpoint; it maps exceptions to error responses."""

    async def handle_request(request: Request) -> Response:
        try:
            given = await endpoint.handler(await _parse_request(endpoint, request))
        except BodyTooLargeError:
            return error_response(413, "too_large", "the body is too large")
        except (OutriderError, LookupError, ValueError, OverflowError) as error:
            return _exception_response(error)
        except asyncio.CancelledError:
            # Only the shutdown of the server cancels a handler; the client gets an error that it retries.
            return error_response(503, ServerAwayError.__name__, "the server is shutting down; stored input is kept")
        except Exception:  # noqa: BLE001  a defect of ours must not show a client its traceback
            _log.exception("%s %s failed", endpoint.method, endpoint.path)
            return error_response(500, "internal", "internal server error; see the server's log")
        return _build_response(endpoint, given)

    return handle_request


def error_response(status: int, kind: str, message: str, **details: Any) -> Response:
    error: dict[str, Any] = {"type": kind, "message": message}
    if details:
        error["details"] = details
    return Response(_encode({"error": error}), status, media_type="application/json")


async def _parse_request(endpoint: ApiEndpoint, request: Request) -> RouteRequest[Any, Any]:
    state = request.app.state
    return RouteRequest(
        engine=state.engine,
        feeds=state.feeds,
        peers=state.peers,
        path=dict(request.path_params),
        query=_parse_query(endpoint, request),
        body=await _parse_body(endpoint, request),
        version=state.version,
        last_event_id=request.headers.get("last-event-id", ""),
        background=state.background,
        questions=state.questions,
        logins=state.logins,
        login_id=request.scope.get(LOGIN_ID, ""),
        server_url=state.url,
        settings=state.settings,
        server_logins=state.server_logins,
    )


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
    return msgspec.json.decode(raw, type=endpoint.body)


def _build_response(endpoint: ApiEndpoint, result: Any) -> Response:
    match result:
        case SseResponse(frames):
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return StreamingResponse(frames, media_type="text/event-stream", headers=headers)
        case DocumentResponse(content, media_type, filename):
            named = {"content-disposition": f'attachment; filename="{filename}"'} if filename else {}
            return Response(content, media_type=media_type, headers={"cache-control": "no-store", **named})
        case None:
            return Response(status_code=204)
        case _:
            headers = {"cache-control": "no-store"}
            return Response(_encode(result), endpoint.status, media_type="application/json", headers=headers)


def _exception_response(error: Exception) -> Response:
    status = next(status for kind, status in ERROR_STATUS.items() if isinstance(error, kind))
    details = error.details if isinstance(error, OutriderError) else {}
    safe = {name: value for name, value in details.items() if isinstance(value, str | int | float | bool)}
    return error_response(status, type(error).__name__, str(error), **safe)
