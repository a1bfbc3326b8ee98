"""Endpoints for sessions: list, create, read, change, export, import, follow and open."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from outrider.config.providers import expand_model_name
from outrider.engine.archive import (
    ImportResult,
    SearchHit,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    StoredSession,
    render_shared_page,
)
from outrider.engine.engine import Engine
from outrider.engine.factory import CASSETTES
from outrider.engine.frontend import archive_of, context_limit, was_cut_off
from outrider.engine.session_trace import TimelineEntry, session_timeline, stored_trace
from outrider.errors import SessionNotFoundError
from outrider.models.context_ledger import build_report
from outrider.server.endpoint import (
    ApiEndpoint,
    DocumentResponse,
    NonNegativeInt,
    NoPayload,
    PageLimit,
    RouteRequest,
    SseResponse,
)
from outrider.server.event_stream import SessionSummary
from outrider.server.payloads import (
    ContextReportWithMap,
    TranscriptWithViews,
    add_context_map,
    add_transcript_views,
)
from outrider.server.users import AccessDeniedError, SessionShare, ShareLevel
from outrider.session_replay.recorded_session import load_session
from outrider.session_replay.replay import find_cassette, replay
from outrider.session_replay.what_if import Comparison, ComparisonRow, compare, what_if
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
    """Lists sessions. Users who are not administrators get their own, and on the first page those shared with them."""
    query, requester = request.query, request.requester
    if query.parent is not None and not await request.access_to(query.parent):
        raise SessionNotFoundError(f"there is no session {query.parent}")
    is_own = not requester.is_admin and query.parent is None
    page = await archive_of(request.engine).list_page(
        query.limit,
        after=query.after,
        workspace=query.workspace,
        children=query.children,
        parent=query.parent,
        archived=query.archived,
        owner=requester.name if is_own else None,
    )
    if not is_own or query.after is not None:
        return page
    shared = [await _find_session(request.engine, session_id) for session_id in request.users.shared_with(requester)]
    shared_sessions = [
        session for session in shared if session is not None and query.workspace in (None, session.workspace_directory)
    ]
    return msgspec.structs.replace(page, sessions=(*page.sessions, *shared_sessions))


async def _find_session(engine: Engine, session_id: str) -> StoredSession | None:
    with suppress(SessionNotFoundError):
        return await engine.store.get(session_id)
    return None


IDEMPOTENCY_MARK = "idempotency_key"  # in the metadata of a session
MAX_COPIES = 100  # sessions with the same metadata that are searched for the original


async def create_session(request: RouteRequest[NoPayload, NewSession]) -> StoredSession:
    new, key = request.body, request.idempotency_key
    if key and (existing := await _created_session(request)) is not None:
        return existing
    if new.workspace is not None and not await asyncio.to_thread(Path(new.workspace).is_dir):
        raise ValueError(f"the workspace is not a folder of this machine: {new.workspace}")
    session_id = await request.engine.create(
        title=new.title,
        mode=new.mode,
        agent=new.agent,
        workspace=await choose_workspace(request, new.workspace),
        approval=new.approval,
        owner=request.requester.owner,
        metadata={IDEMPOTENCY_MARK: key} if key else None,
    )
    return await request.engine.store.get(session_id)


async def _created_session(request: RouteRequest[NoPayload, NewSession]) -> StoredSession | None:
    """Returns the session that an earlier request with the same key created, also before a restart of the server."""
    mark = SessionFilter(metadata={IDEMPOTENCY_MARK: request.idempotency_key}, owner=request.requester.owner)
    return await find_original(request.engine, mark)


async def find_original(engine: Engine, selected: SessionFilter) -> StoredSession | None:
    """Returns the first matching session that is not a copy: a fork has the metadata of its original."""
    sessions = await engine.list(selected, limit=MAX_COPIES)
    return next((session for session in sessions if session.forked_from is None), None)


async def choose_workspace(request: RouteRequest[Any, Any], requested: str | None) -> str | None:
    """Returns the folder for new work of the requester, and creates the user's folder if it is missing. Administrators
    may choose any folder. For others, raises AccessDeniedError if the folder is not below the user's folder (or that of
    the server for a user without one), or if it belongs to the server or to another user."""
    name = request.requester.name
    if request.requester.is_admin:
        user = request.users.get(name)
        return requested or (user.workspace if user is not None else "") or None
    root, own_folder = request.find_folder(name), request.users.find_folder(name)

    def choose() -> tuple[Path, Path]:
        if own_folder is not None:
            own_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(requested or root).resolve(), root.resolve()

    chosen, folder = await asyncio.to_thread(choose)
    if not chosen.is_relative_to(folder):
        raise AccessDeniedError(f"the sessions of {name} stay in {root}")
    limits, data = request.users.limits_of_owner(name), request.engine.runtime.data
    hides = limits is not None and limits.hides(str(chosen), str(folder))
    if hides or (data is not None and chosen.is_relative_to(data.resolve()) and not _is_below(folder, data)):
        raise AccessDeniedError(
            f"{chosen} is a folder of the server or of another user; an administrator gives {name} a folder with "
            f"`outrider users set {name} --workspace FOLDER`"
        )
    return str(chosen)


def _is_below(folder: Path, data: Path) -> bool:
    """Returns whether a folder that an administrator gave to a user is inside the server's data folder."""
    return folder != data.resolve() and folder.is_relative_to(data.resolve())


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
    session_id = request.path["session_id"]
    owner = (await request.engine.store.get(session_id)).owner
    if not request.requester.is_admin and owner != request.requester.name:
        raise AccessDeniedError("only the owner of a session can delete it")
    await request.engine.close(session_id)
    async with request.limits.count_deleted(owner) if request.limits is not None else nullcontext():
        await archive_of(request.engine).delete(session_id)
    request.users.unshare(session_id)


async def clear_sessions(request: RouteRequest[NoPayload, NoPayload]) -> ClearResult:
    return ClearResult(await archive_of(request.engine).delete_all())


async def read_messages(request: RouteRequest[MessagesQuery, NoPayload]) -> SessionTranscript:
    query = request.query
    transcript = await request.engine.store.load(
        request.path["session_id"], limit=query.limit, before=query.before, after=query.after
    )
    return add_transcript_views(transcript) if query.views else transcript


async def search_sessions(request: RouteRequest[SearchQuery, NoPayload]) -> list[SearchHit]:
    query, is_admin = request.query, request.requester.is_admin
    limit = query.limit if is_admin else MAX_SEARCHED
    store = request.engine.store
    matches = await store.search(query.query, session_id=query.session_id, limit=limit)
    hits = [hit for hit in matches if is_admin or await request.access_to(hit.session_id)]
    if not is_admin and len(matches) == limit and len(hits) < query.limit:  # most hits are of other users
        hits = await _search_own(request)
    return hits[: query.limit]


async def _search_own(request: RouteRequest[SearchQuery, NoPayload]) -> list[SearchHit]:
    """Searches the requester's sessions one after the other, those with the latest activity first."""
    query, hits = request.query, list[SearchHit]()
    own_sessions = archive_of(request.engine).iterate_sessions(SessionFilter(owner=request.requester.name))
    ids = [*request.users.shared_with(request.requester), *[session.id async for session in own_sessions]]
    for session_id in ids[:MAX_SEARCHED]:
        hits += await request.engine.store.search(query.query, session_id=session_id, limit=query.limit)
        if len(hits) >= query.limit:
            break
    return hits


async def fork_session(request: RouteRequest[NoPayload, ForkRequest]) -> StoredSession:
    copy = await request.engine.store.fork(request.path["session_id"], at=request.body.at, title=request.body.title)
    _share_copy(request, copy)
    return copy


def _share_copy(request: RouteRequest[Any, Any], copy: StoredSession) -> None:
    """Shares a copy with the user who made it. The copy belongs to the owner of the original, whose folder it works in,
    and the owner can end the share."""
    requester = request.requester
    if not requester.is_admin and copy.owner != requester.name:
        request.users.share(SessionShare(session_id=copy.id, to=requester.name, level="write"))


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


async def get_context(request: RouteRequest[NoPayload, NoPayload]) -> ContextReportWithMap:
    session_id = request.path["session_id"]
    messages = (await archive_of(request.engine).load(session_id)).messages
    return add_context_map(await asyncio.to_thread(build_report, session_id, messages))


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ignore` lists fields of requests that may differ, such as `system`; with `fresh_results` the tools run again."""

    ignore: tuple[str, ...] = ()
    fresh_results: bool = False


class ReplayReply(msgspec.Struct, frozen=True):
    """`same` if nothing differs; `text` is the report, a line for each step and each difference."""

    same: bool
    text: str


class WhatIfRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At least one change: `model` is `provider/model`, `results` maps call ids to new results. `at_step` is the number
    of answers to preserve."""

    model: str | None = None
    agent: str | None = None
    instructions: str | None = None
    results: dict[str, str] = {}
    at_step: NonNegativeInt | None = None


class CompareQuery(msgspec.Struct, frozen=True):
    """`other` is the id of the second session."""

    other: str


class ComparisonReply(msgspec.Struct, frozen=True):
    """`same` if answers and calls are equal; `session_id` is the second session, after the `shared` first steps."""

    same: bool
    shared: int
    session_id: str
    rows: list[ComparisonRow]


async def replay_session(request: RouteRequest[NoPayload, ReplayRequest]) -> ReplayReply:
    session_id, engine = request.path["session_id"], request.engine
    await engine.store.get(session_id)
    cassette = None
    if engine.cassettes is None and request.settings is not None:
        cassette = find_cassette(request.settings.data_folder / CASSETTES, session_id)
    body = request.body
    result = await replay(engine, session_id, cassette=cassette, ignore=body.ignore, fresh_results=body.fresh_results)
    return ReplayReply(result.same, result.text())


async def rerun_session(request: RouteRequest[NoPayload, WhatIfRequest]) -> ComparisonReply:
    """Calls that need an approval are denied: no client follows the copy yet."""
    changes = {name: value for name, value in msgspec.structs.asdict(request.body).items() if value}
    at_step = request.body.at_step
    changes.pop("at_step", None)
    async with request.engine.replace(attended=False) as unattended:
        result = await what_if(unattended, request.path["session_id"], at_step=at_step, **changes)
    _share_copy(request, await request.engine.store.get(result.session.id))
    return _as_reply(result.comparison)


async def compare_session(request: RouteRequest[CompareQuery, NoPayload]) -> ComparisonReply:
    store = request.engine.store
    if await request.access_to(request.query.other) is None:  # access to the session of the path was checked before
        raise SessionNotFoundError(f"there is no session {request.query.other}")
    first = await load_session(store, request.path["session_id"])
    return _as_reply(compare(first, await load_session(store, request.query.other)))


def _as_reply(comparison: Comparison) -> ComparisonReply:
    return ComparisonReply(comparison.same, comparison.shared, comparison.b.session_id, comparison.rows())


async def follow_session(request: RouteRequest[FollowQuery, NoPayload]) -> SseResponse:
    after = request.query.after
    if request.last_event_id:
        if not request.last_event_id.isdecimal():
            raise ValueError("Last-Event-ID is not a sequence number")
        after = int(request.last_event_id)
    session_id = request.path["session_id"]
    await request.engine.store.get(session_id)
    frames = request.feeds.stream_frames(session_id, after, views=request.query.views)
    return SseResponse(frames, (session_id,))


class AllEventsQuery(msgspec.Struct, frozen=True):
    """`follow` are SESSION:SEQ pairs with commas between them: the sessions whose changes and events are sent, and the
    last change of each that the client has. With `views` changes come with what to show."""

    follow: str = ""
    views: bool = False


MAX_FOLLOWED = 50
MAX_SEARCHED = 500  # hits of all users that are filtered for one user


async def follow_all(request: RouteRequest[AllEventsQuery, NoPayload]) -> SseResponse:
    followed: dict[str, int] = {}
    for pair in filter(None, request.query.follow.split(",")):
        session_id, _, seq = pair.rpartition(":")
        if not session_id or not seq.isdecimal():
            raise ValueError("`follow` must be SESSION:SEQ pairs with commas between them")
        with suppress(SessionNotFoundError):  # it was deleted: the list of sessions reports that
            await request.engine.store.get(session_id)
            if await request.access_to(session_id):
                followed[session_id] = int(seq)
    if len(followed) > MAX_FOLLOWED:
        raise ValueError(f"at most {MAX_FOLLOWED} sessions can be followed by one stream")
    frames = request.feeds.stream_all(followed, views=request.query.views, is_visible=_visibility_for(request))
    return SseResponse(frames, tuple(followed))


def _visibility_for(request: RouteRequest[Any, Any]) -> Callable[[SessionSummary], bool] | None:
    """Returns a filter for the sessions that the requester may see; None if that is all of them. A deleted
    session, which has no owner any more, is visible if the filter has accepted it before."""
    users, requester = request.users, request.requester
    seen_ids: set[str] = set()

    def is_visible(session: SessionSummary) -> bool:
        if session.deleted:
            return session.id in seen_ids
        if users.access_level(requester, session.id, session.owner) is None:
            return False
        seen_ids.add(session.id)
        return True

    return None if requester.is_admin else is_visible


class NewShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to` is a user, a team as team:NAME, or * for every user."""

    to: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    level: ShareLevel = "read"


async def list_shares(request: RouteRequest[NoPayload, NoPayload]) -> list[SessionShare]:
    session = await request.engine.store.get(request.path["session_id"])
    return request.users.shares_of(session.id)


async def add_share(request: RouteRequest[NoPayload, NewShare]) -> list[SessionShare]:
    session_id = await _require_own_session(request)
    request.users.share(SessionShare(session_id=session_id, to=request.body.to, level=request.body.level))
    return request.users.shares_of(session_id)


async def remove_share(request: RouteRequest[NoPayload, NoPayload]) -> None:
    if not request.users.unshare(await _require_own_session(request), request.path["to"]):
        raise LookupError(f"this session is not shared with {request.path['to']}")


async def _require_own_session(request: RouteRequest[Any, Any]) -> str:
    session = await request.engine.store.get(request.path["session_id"])
    if not request.requester.is_admin and session.owner != request.requester.name:
        raise AccessDeniedError("only the owner of a session can share it")
    if session.parent_id is not None:
        raise ValueError("share the session that called this one")
    return session.id


SESSION_PATH = "/api/sessions/{session_id}"
SESSION_ROUTES = (
    ApiEndpoint(method="GET", path="/api/sessions", name="list_sessions",
                summary="List sessions, latest activity first", handler=list_sessions, query=SessionsQuery,
                response_type=SessionPage),
    ApiEndpoint(method="POST", path="/api/sessions", name="create_session", summary="Create a session",
                handler=create_session, body=NewSession, response_type=StoredSession, status=201),
    ApiEndpoint(method="DELETE", path="/api/sessions", name="clear_sessions",
                summary="Delete every session that no process owns", access="admin", handler=clear_sessions,
                response_type=ClearResult),
    ApiEndpoint(method="GET", path="/api/search", name="search", summary="Search titles, text and tool output",
                handler=search_sessions, query=SearchQuery, response_type=list[SearchHit]),
    ApiEndpoint(method="GET", path="/api/events", name="follow_all",
                summary="Stream the states of sessions, and the changes and events of followed ones",
                handler=follow_all, query=AllEventsQuery, response_type="text/event-stream"),
    ApiEndpoint(method="POST", path="/api/import", name="import_session", summary="Import an exported session",
                access="admin", handler=import_session, query=ImportQuery, body=msgspec.Raw,
                response_type=ImportResult, status=201),
    ApiEndpoint(method="POST", path="/api/import-from", name="import_from",
                summary="Import a session from another server", access="admin", handler=import_from, query=ImportQuery,
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
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/shares", name="list_shares",
                summary="List the users and teams that a session is shared with", handler=list_shares,
                response_type=list[SessionShare]),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/shares", name="add_share",
                summary="Share a session with a user, a team or everyone", handler=add_share, body=NewShare,
                response_type=list[SessionShare], status=201),
    ApiEndpoint(method="DELETE", path=f"{SESSION_PATH}/shares/{{to}}", name="remove_share",
                summary="End the sharing of a session", handler=remove_share, status=204),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/share", name="share_session",
                summary="Export the session as one HTML page", handler=share_session, response_type="text/html"),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/trace", name="trace_page",
                summary="Export the session's trace as one HTML page", handler=trace_page, response_type="text/html"),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/context", name="get_context",
                summary="Get the sources of each request to a model, with tokens and cost, and why its cache missed",
                handler=get_context, response_type=ContextReportWithMap),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/replay", name="replay_session",
                summary="Run a recorded session again with its recorded answers, and report what differs",
                starts_work=True, handler=replay_session, body=ReplayRequest, response_type=ReplayReply),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/what-if", name="rerun_session",
                summary="Run a copy of a session from one of its steps with a change, and compare both",
                starts_work=True, handler=rerun_session, body=WhatIfRequest, response_type=ComparisonReply),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/compare", name="compare_session",
                summary="Compare two sessions after their last shared message", handler=compare_session,
                query=CompareQuery, response_type=ComparisonReply),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/timeline", name="get_timeline",
                summary="List answers and calls of a session and of the agents that it called, with times and tokens",
                handler=get_timeline, response_type=list[TimelineEntry]),
)  # fmt: skip


class OpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`take_over` ends the turn of another process in the session."""

    take_over: bool = False


class ModelChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PROVIDER/MODEL, stored with the session; empty for the agent's model."""

    model: str = ""


class EffortChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reasoning effort, stored with the session; null for the agent's own."""

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
    await live.store_choices()
    return _session_status(request.engine, live.session.id)


async def choose_effort(request: RouteRequest[NoPayload, EffortChoice]) -> SessionStatus:
    await request.engine.open(request.path["session_id"])
    live = request.engine.live[request.path["session_id"]]
    await live.use_effort(request.body.effort)
    await live.store_choices()
    return _session_status(request.engine, live.session.id)


def _parse_model(request: RouteRequest[NoPayload, ModelChoice]) -> ModelRef | None:
    providers = request.engine.runtime.spec.providers
    kinds = {name: config.kind for name, config in providers.items()}
    provider, _, model = expand_model_name(request.body.model, kinds).partition("/")
    if request.body.model and (provider not in providers or not model):
        raise ValueError(f"the model must be PROVIDER/MODEL, with a provider of: {', '.join(providers)}")
    return ModelRef(provider, model) if model else None


def _session_status(engine: Engine, session_id: str) -> SessionStatus:
    live = engine.live[session_id]
    agent = live.agent
    limit = context_limit(engine.runtime.spec.providers.values(), agent.model_ref)
    model = str(agent.model_ref)
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
