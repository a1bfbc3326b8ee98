"""A route as a value: what it takes, what it gives, and who answers. The description of the API is made from these."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from outrider.app.engine import Engine
from outrider.app.peers.answering import Peers
from outrider.app.views.questions import OpenQuestions
from outrider.server.background import Background
from outrider.server.feeds.feed import Feeds

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
