"""A route as a value: what it takes, what it gives, and who answers. The description of the API is made from these."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outrider.engine.engine import Engine
from outrider.engine.frontend import OpenQuestions
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
from outrider.remote.agent_server import Peers
from outrider.server.auth import BodyTooLargeError
from outrider.server.event_stream import Feeds
from outrider.server.state import Background

Body = TypeVar("Body")
Query = TypeVar("Query")
Limit = Annotated[int, msgspec.Meta(ge=1, le=500)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a route takes no query or no body."""


class Asked(msgspec.Struct, Generic[Query, Body], frozen=True):
    """A request that has been read and checked."""

    engine: Engine
    feeds: Feeds
    peers: Peers
    path: dict[str, str]
    query: Query
    body: Body
    version: str
    last_event_id: str = ""
    background: Background | None = None
    questions: OpenQuestions | None = None


class Document(msgspec.Struct, frozen=True):
    """An answer that is not JSON: a page, or an export to be kept as a file."""

    content: bytes
    media_type: str
    filename: str = ""


class Stream(msgspec.Struct, frozen=True):
    """An answer that goes on: server-sent events."""

    frames: Any


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`gives` is a type, or a media type for what is not JSON."""

    method: str
    path: str
    name: str
    summary: str
    answer: Callable[[Any], Awaitable[Any]]
    query: type[Any] = Nothing
    body: type[Any] = Nothing
    gives: Any = None
    status: int = 200


STATUS: dict[type[Exception], int] = {
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


def answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint as Starlette wants it."""

    async def answer(request: Request) -> Response:
        try:
            given = await endpoint.answer(await _asked(endpoint, request))
        except BodyTooLargeError:
            return refusal(413, "too_large", "the body is too large")
        except (OutriderError, LookupError, ValueError, OverflowError) as error:
            return _refused(error)
        except asyncio.CancelledError:
            # Only the end of the server cancels an answer. Whoever waits hears of it, and comes back.
            return refusal(503, ServerAwayError.__name__, "the server is ending; what was asked for is kept")
        except Exception:  # noqa: BLE001  a defect of ours must not show a client its traceback
            _log.exception("%s %s failed", endpoint.method, endpoint.path)
            return refusal(500, "internal", "the server failed; its log says why")
        return _response(endpoint, given)

    return answer


def refusal(status: int, kind: str, message: str, **details: Any) -> Response:
    error: dict[str, Any] = {"type": kind, "message": message}
    if details:
        error["details"] = details
    return Response(_encode({"error": error}), status, media_type="application/json")


async def _asked(endpoint: Endpoint, request: Request) -> Asked[Any, Any]:
    state = request.app.state
    return Asked(
        engine=state.engine,
        feeds=state.feeds,
        peers=state.peers,
        path=dict(request.path_params),
        query=_query(endpoint, request),
        body=await _body(endpoint, request),
        version=state.version,
        last_event_id=request.headers.get("last-event-id", ""),
        background=state.background,
        questions=state.questions,
    )


def _query(endpoint: Endpoint, request: Request) -> Any:
    pairs = parse_qsl(request.url.query, keep_blank_values=True)
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a query parameter is given twice")
    unknown = values.keys() - {field.name for field in msgspec.structs.fields(endpoint.query)}
    if unknown:
        raise ValueError(f"no such query parameter: {', '.join(sorted(unknown))}")
    return msgspec.convert(values, endpoint.query, strict=False)


async def _body(endpoint: Endpoint, request: Request) -> Any:
    raw = await request.body()
    if endpoint.body is Nothing:
        return Nothing()
    return msgspec.json.decode(raw, type=endpoint.body)


def _response(endpoint: Endpoint, given: Any) -> Response:
    match given:
        case Stream(frames):
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return StreamingResponse(frames, media_type="text/event-stream", headers=headers)
        case Document(content, media_type, filename):
            named = {"content-disposition": f'attachment; filename="{filename}"'} if filename else {}
            return Response(content, media_type=media_type, headers={"cache-control": "no-store", **named})
        case None:
            return Response(status_code=204)
        case _:
            headers = {"cache-control": "no-store"}
            return Response(_encode(given), endpoint.status, media_type="application/json", headers=headers)


def _refused(error: Exception) -> Response:
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    details = error.details if isinstance(error, OutriderError) else {}
    safe = {name: value for name, value in details.items() if isinstance(value, str | int | float | bool)}
    return refusal(status, type(error).__name__, str(error), **safe)
