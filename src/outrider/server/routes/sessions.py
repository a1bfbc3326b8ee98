"""Endpoints for sessions: list, create, read, change, export, import, follow and open."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from outrider.config.providers import expand_model_name
from outrider.engine.archive import (
    ImportResult,
    SearchHit,
    SessionPage,
    SessionTranscript,
    StoredSession,
    render_shared_page,
)
from outrider.engine.engine import Engine
from outrider.engine.frontend import archive_of, context_limit, was_cut_off
from outrider.engine.session_trace import TimelineEntry, session_timeline, stored_trace
from outrider.errors import SessionNotFoundError
from outrider.models.context_ledger import ContextReport, build_report
from outrider.server.endpoint import (
    ApiEndpoint,
    DocumentResponse,
    NonNegativeInt,
    NoPayload,
    PageLimit,
    RouteRequest,
    SseResponse,
)
from outrider.server.payloads import TranscriptWithViews, add_transcript_views
from outrider.types.modes import ApprovalLevel, Mode, ReasoningEffort
from outrider.types.parts import ModelRef


class SessionsQuery(msgspec.Struct, frozen=True):
    """`after` is the `next` value of the previous page; `children` includes child sessions, and `parent` selects those
    of one session; `archived` selects sessions that are archived, or that are not."""

    limit: PageLimit = 50
    after: str | None = None
    workspace: str | None = None
    children: bool = False
    parent: str | None = None
    archived: bool | None = None


class NewSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str = ""
    mode: Mode | None = None
    approval: ApprovalLevel | None = None
    agent: str | None = None
    workspace: str | None = None


class SessionChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str | None = None
    mode: Mode | None = None
    approval: ApprovalLevel | None = None
    agent: str | None = None
    archived: bool | None = None


class MessagesQuery(msgspec.Struct, frozen=True):
    """Selects the last `limit` messages, the last ones before a message, or the first ones after a message. With
    `views` the response says what to show of each message and part."""

    limit: PageLimit = 50
    before: str | None = None
    after: str | None = None
    views: bool = False


class SearchQuery(msgspec.Struct, frozen=True):
    query: str
    session_id: str | None = None
    limit: PageLimit = 20


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copies everything up to and including message `at`; without it, everything."""

    at: str | None = None
    title: str | None = None


class ImportQuery(msgspec.Struct, frozen=True):
    as_copy: bool = True


class RemoteExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The URL of an export on another server, and the token of that server."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    token: str | None = None


class ClearResult(msgspec.Struct, frozen=True):
    deleted: int


class FollowQuery(msgspec.Struct, frozen=True):
    """`after` is the sequence number of the last change that the client has; the Last-Event-ID header takes precedence.
    With `views` changes of messages and parts come with what to show."""

    after: NonNegativeInt = 0
    views: bool = False


async def list_sessions(request: RouteRequest[SessionsQuery, NoPayload]) -> SessionPage:
    query = request.query
    return await archive_of(request.engine).list_page(
        query.limit,
        after=query.after,
        workspace=query.workspace,
        children=query.children,
        parent=query.parent,
        archived=query.archived,
    )


async def create_session(request: RouteRequest[NoPayload, NewSession]) -> StoredSession:
    new = request.body
    if new.workspace is not None and not await asyncio.to_thread(Path(new.workspace).is_dir):
        raise ValueError(f"the workspace is not a folder of this machine: {new.workspace}")
    session_id = await request.engine.create(
        title=new.title, mode=new.mode, agent=new.agent, workspace=new.workspace, approval=new.approval
    )
    return await request.engine.store.get(session_id)


async def get_session(request: RouteRequest[NoPayload, NoPayload]) -> StoredSession:
    return await request.engine.store.get(request.path["session_id"])


async def change_session(request: RouteRequest[NoPayload, SessionChanges]) -> StoredSession:
    session_id, changes = request.path["session_id"], request.body
    if changes.title is not None:
        await request.engine.rename(session_id, changes.title)
    if changes.mode is not None:
        await request.engine.set_mode(session_id, changes.mode)
    if changes.approval is not None:
        await request.engine.set_approval(session_id, changes.approval)
    if changes.agent is not None:
        await request.engine.set_agent(session_id, changes.agent)
    if changes.archived is not None:
        await request.engine.set_archived(session_id, archived=changes.archived)
    return await request.engine.store.get(session_id)


async def delete_session(request: RouteRequest[NoPayload, NoPayload]) -> None:
    await request.engine.close(request.path["session_id"])
    await archive_of(request.engine).delete(request.path["session_id"])


async def clear_sessions(request: RouteRequest[NoPayload, NoPayload]) -> ClearResult:
    return ClearResult(await archive_of(request.engine).delete_all())


async def read_messages(request: RouteRequest[MessagesQuery, NoPayload]) -> SessionTranscript:
    query = request.query
    transcript = await request.engine.store.load(
        request.path["session_id"], limit=query.limit, before=query.before, after=query.after
    )
    return add_transcript_views(transcript) if query.views else transcript


async def search_sessions(request: RouteRequest[SearchQuery, NoPayload]) -> list[SearchHit]:
    query = request.query
    found = await request.engine.store.search(query.query, session_id=query.session_id, limit=query.limit)
    return list(found)


async def fork_session(request: RouteRequest[NoPayload, ForkRequest]) -> StoredSession:
    return await request.engine.store.fork(request.path["session_id"], at=request.body.at, title=request.body.title)


async def export_session(request: RouteRequest[NoPayload, NoPayload]) -> DocumentResponse:
    session_id = request.path["session_id"]
    document = await archive_of(request.engine).export_document(session_id)
    return DocumentResponse(document, "application/json", f"{session_id}.json")


async def import_session(request: RouteRequest[ImportQuery, msgspec.Raw]) -> ImportResult:
    return await archive_of(request.engine).import_document(bytes(request.body), as_copy=request.query.as_copy)


async def import_from(request: RouteRequest[ImportQuery, RemoteExport]) -> ImportResult:
    source = request.body
    archive = archive_of(request.engine)
    return await archive.import_from_url(source.url, token=source.token, as_copy=request.query.as_copy)


async def share_session(request: RouteRequest[NoPayload, NoPayload]) -> DocumentResponse:
    page = await render_shared_page(archive_of(request.engine), request.path["session_id"])
    return DocumentResponse(page.encode(), "text/html; charset=utf-8", f"{request.path['session_id']}.html")


async def trace_page(request: RouteRequest[NoPayload, NoPayload]) -> DocumentResponse:
    trace = await stored_trace(archive_of(request.engine), request.path["session_id"])
    return DocumentResponse(trace.to_html().encode(), "text/html; charset=utf-8", "trace.html")


async def get_timeline(request: RouteRequest[NoPayload, NoPayload]) -> list[TimelineEntry]:
    return await session_timeline(archive_of(request.engine), request.path["session_id"])


async def get_context(request: RouteRequest[NoPayload, NoPayload]) -> ContextReport:
    session_id = request.path["session_id"]
    messages = (await archive_of(request.engine).load(session_id)).messages
    return await asyncio.to_thread(build_report, session_id, messages)


async def follow_session(request: RouteRequest[FollowQuery, NoPayload]) -> SseResponse:
    after = request.query.after
    if request.last_event_id:
        if not request.last_event_id.isdecimal():
            raise ValueError("Last-Event-ID is not a sequence number")
        after = int(request.last_event_id)
    session_id = request.path["session_id"]
    await request.engine.store.get(session_id)
    return SseResponse(request.feeds.stream_frames(session_id, after, views=request.query.views))


class AllEventsQuery(msgspec.Struct, frozen=True):
    """`follow` are SESSION:SEQ pairs with commas between them: the sessions whose changes and events are sent, and the
    last change of each that the client has. With `views` changes come with what to show."""

    follow: str = ""
    views: bool = False


MAX_FOLLOWED = 50


async def follow_all(request: RouteRequest[AllEventsQuery, NoPayload]) -> SseResponse:
    followed: dict[str, int] = {}
    for pair in filter(None, request.query.follow.split(",")):
        session_id, _, seq = pair.rpartition(":")
        if not session_id or not seq.isdecimal():
            raise ValueError("`follow` must be SESSION:SEQ pairs with commas between them")
        with suppress(SessionNotFoundError):  # deleted meanwhile: the list of sessions says so
            await request.engine.store.get(session_id)
            followed[session_id] = int(seq)
    if len(followed) > MAX_FOLLOWED:
        raise ValueError(f"at most {MAX_FOLLOWED} sessions can be followed by one stream")
    return SseResponse(request.feeds.stream_all(followed, views=request.query.views))


SESSION_PATH = "/api/sessions/{session_id}"
SESSION_ROUTES = (
    ApiEndpoint(method="GET", path="/api/sessions", name="list_sessions",
                summary="List sessions, latest activity first", handler=list_sessions, query=SessionsQuery,
                response_type=SessionPage),
    ApiEndpoint(method="POST", path="/api/sessions", name="create_session", summary="Create a session",
                handler=create_session, body=NewSession, response_type=StoredSession, status=201),
    ApiEndpoint(method="DELETE", path="/api/sessions", name="clear_sessions",
                summary="Delete every session that no process owns", handler=clear_sessions, response_type=ClearResult),
    ApiEndpoint(method="GET", path="/api/search", name="search", summary="Search titles, text and tool output",
                handler=search_sessions, query=SearchQuery, response_type=list[SearchHit]),
    ApiEndpoint(method="GET", path="/api/events", name="follow_all",
                summary="Stream the states of sessions, and the changes and events of followed ones",
                handler=follow_all, query=AllEventsQuery, response_type="text/event-stream"),
    ApiEndpoint(method="POST", path="/api/import", name="import_session", summary="Import an exported session",
                handler=import_session, query=ImportQuery, body=msgspec.Raw, response_type=ImportResult, status=201),
    ApiEndpoint(method="POST", path="/api/import-from", name="import_from",
                summary="Import a session from another server", handler=import_from, query=ImportQuery,
                body=RemoteExport, response_type=ImportResult, status=201),
    ApiEndpoint(method="GET", path=SESSION_PATH, name="get_session", summary="Get a session without its messages",
                handler=get_session, response_type=StoredSession),
    ApiEndpoint(method="PATCH", path=SESSION_PATH, name="change_session",
                summary="Change title, mode, approval level or agent, or archive", handler=change_session,
                body=SessionChanges, response_type=StoredSession),
    ApiEndpoint(method="DELETE", path=SESSION_PATH, name="delete_session", summary="Delete a session",
                handler=delete_session, status=204),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/messages", name="read_messages", summary="Get a page of messages",
                handler=read_messages, query=MessagesQuery, response_type=TranscriptWithViews),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/events", name="follow_session",
                summary="Stream stored changes, then live events", handler=follow_session, query=FollowQuery,
                response_type="text/event-stream"),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/fork", name="fork_session",
                summary="Copy a session up to a message", handler=fork_session, body=ForkRequest,
                response_type=StoredSession, status=201),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/export", name="export_session",
                summary="Export the session as JSON", handler=export_session, response_type="application/json"),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/share", name="share_session",
                summary="Export the session as one HTML page", handler=share_session, response_type="text/html"),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/trace", name="trace_page",
                summary="Export the session's trace as one HTML page", handler=trace_page, response_type="text/html"),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/context", name="get_context",
                summary="Get the sources of each request to a model, with tokens and cost, and why its cache missed",
                handler=get_context, response_type=ContextReport),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/timeline", name="get_timeline",
                summary="List answers and calls of a session and of the agents that it called, with times and tokens",
                handler=get_timeline, response_type=list[TimelineEntry]),
)  # fmt: skip


class OpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`take_over` ends the turn of another process in the session."""

    take_over: bool = False


class ModelChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PROVIDER/MODEL, used until the session is closed; empty for the agent's model."""

    model: str = ""


class EffortChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reasoning effort, used until the session is closed; null for the agent's own."""

    effort: ReasoningEffort | None = None


class SessionStatus(msgspec.Struct, frozen=True):
    """`busy` is set while a turn runs; `broke_off` if the last turn was interrupted. `context_limit` is the model's
    context size in tokens, if known."""

    busy: bool
    broke_off: bool
    model: str
    context_limit: int | None = None
    effort: ReasoningEffort = "medium"


async def open_session(request: RouteRequest[NoPayload, OpenRequest]) -> SessionStatus:
    await request.engine.open(request.path["session_id"], take_over=request.body.take_over)
    return _session_status(request.engine, request.path["session_id"])


async def choose_model(request: RouteRequest[NoPayload, ModelChoice]) -> SessionStatus:
    await request.engine.open(request.path["session_id"])
    live = request.engine.live[request.path["session_id"]]
    await live.use_model(_parse_model(request))
    return _session_status(request.engine, live.session.id)


async def choose_effort(request: RouteRequest[NoPayload, EffortChoice]) -> SessionStatus:
    await request.engine.open(request.path["session_id"])
    live = request.engine.live[request.path["session_id"]]
    await live.use_effort(request.body.effort)
    return _session_status(request.engine, live.session.id)


def _parse_model(request: RouteRequest[NoPayload, ModelChoice]) -> ModelRef | None:
    providers = request.engine.runtime.spec.providers
    kinds = {name: found.kind for name, found in providers.items()}
    provider, _, model = expand_model_name(request.body.model, kinds).partition("/")
    if request.body.model and (provider not in providers or not model):
        raise ValueError(f"the model must be PROVIDER/MODEL, with a provider of: {', '.join(providers)}")
    return ModelRef(provider, model) if model else None


def _session_status(engine: Engine, session_id: str) -> SessionStatus:
    live = engine.live[session_id]
    agent = live.agent
    limit = context_limit(engine.runtime.spec.providers.values(), ModelRef(agent.provider, agent.model))
    model = f"{agent.provider}/{agent.model}"
    return SessionStatus(live.in_turn, was_cut_off(live.session.messages), model, limit, agent.reasoning_effort)


OPEN_ROUTES = (
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/open", name="open_session",
                summary="Open a session and get its status", handler=open_session, body=OpenRequest,
                response_type=SessionStatus),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/model", name="choose_model",
                summary="Set the model for the following answers", handler=choose_model, body=ModelChoice,
                response_type=SessionStatus),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/effort", name="choose_effort",
                summary="Set the reasoning effort for the following answers", handler=choose_effort,
                body=EffortChoice, response_type=SessionStatus),
)  # fmt: skip
