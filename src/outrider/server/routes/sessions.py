"""Sessions: listed, made, read, changed, carried from one place to another."""

from typing import Annotated

import msgspec

from outrider.engine.archive import Imported, SearchHit, SessionPage, StoredSession, Transcript, shared_page
from outrider.engine.engine import Engine
from outrider.engine.frontend import archive_of, context_limit, was_cut_off
from outrider.engine.session_trace import stored_trace
from outrider.server.routing import Asked, Document, Endpoint, Limit, Nothing, Number, Stream
from outrider.types.agents import Mode
from outrider.types.parts import ModelRef


class ListQuery(msgspec.Struct, frozen=True):
    """`after` is the `next` of the page before; `children` adds the sessions that agents opened for each other, and
    `parent` leaves only those of one session."""

    limit: Limit = 50
    after: str | None = None
    workspace: str | None = None
    children: bool = False
    parent: str | None = None


class NewSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str = ""
    mode: Mode | None = None
    agent: str | None = None
    workspace: str | None = None


class SessionChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str | None = None
    mode: Mode | None = None
    agent: str | None = None


class PageQuery(msgspec.Struct, frozen=True):
    """The last `limit` messages, or the last ones before a message, or the first after one."""

    limit: Limit = 50
    before: str | None = None
    after: str | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    query: str
    session_id: str | None = None
    limit: Limit = 20


class ForkPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything up to and with message `at`; without one, everything."""

    at: str | None = None
    title: str | None = None


class ImportQuery(msgspec.Struct, frozen=True):
    as_copy: bool = True


class Elsewhere(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of an export on another server, and the token of that server."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    token: str | None = None


class Cleared(msgspec.Struct, frozen=True):
    deleted: int


class FollowQuery(msgspec.Struct, frozen=True):
    """The number of the last change that was seen; the header Last-Event-ID says the same."""

    after: Number = 0


async def list_sessions(asked: Asked[ListQuery, Nothing]) -> SessionPage:
    query = asked.query
    return await archive_of(asked.engine).page(
        query.limit,
        after=query.after,
        workspace=query.workspace,
        children=query.children,
        parent=query.parent,
    )


async def create_session(asked: Asked[Nothing, NewSession]) -> StoredSession:
    new = asked.body
    made = await asked.engine.create(title=new.title, mode=new.mode, agent=new.agent, workspace=new.workspace)
    return await asked.engine.store.get(made)


async def get_session(asked: Asked[Nothing, Nothing]) -> StoredSession:
    return await asked.engine.store.get(asked.path["session_id"])


async def change_session(asked: Asked[Nothing, SessionChanges]) -> StoredSession:
    session_id, wanted = asked.path["session_id"], asked.body
    if wanted.title is not None:
        await asked.engine.rename(session_id, wanted.title)
    if wanted.mode is not None:
        await asked.engine.set_mode(session_id, wanted.mode)
    if wanted.agent is not None:
        await asked.engine.set_agent(session_id, wanted.agent)
    return await asked.engine.store.get(session_id)


async def delete_session(asked: Asked[Nothing, Nothing]) -> None:
    await asked.engine.close(asked.path["session_id"])
    await archive_of(asked.engine).delete(asked.path["session_id"])


async def clear_sessions(asked: Asked[Nothing, Nothing]) -> Cleared:
    return Cleared(await archive_of(asked.engine).clear())


async def read_messages(asked: Asked[PageQuery, Nothing]) -> Transcript:
    query = asked.query
    return await asked.engine.store.load(
        asked.path["session_id"], limit=query.limit, before=query.before, after=query.after
    )


async def search(asked: Asked[SearchQuery, Nothing]) -> list[SearchHit]:
    query = asked.query
    found = await asked.engine.store.search(query.query, session_id=query.session_id, limit=query.limit)
    return list(found)


async def fork_session(asked: Asked[Nothing, ForkPoint]) -> StoredSession:
    return await asked.engine.store.fork(asked.path["session_id"], at=asked.body.at, title=asked.body.title)


async def export_session(asked: Asked[Nothing, Nothing]) -> Document:
    session_id = asked.path["session_id"]
    document = await archive_of(asked.engine).export(session_id)
    return Document(document, "application/json", f"{session_id}.json")


async def import_session(asked: Asked[ImportQuery, msgspec.Raw]) -> Imported:
    return await archive_of(asked.engine).bring(bytes(asked.body), as_copy=asked.query.as_copy)


async def import_from(asked: Asked[ImportQuery, Elsewhere]) -> Imported:
    there = asked.body
    archive = archive_of(asked.engine)
    return await archive.bring_from(there.url, token=there.token, as_copy=asked.query.as_copy)


async def share_session(asked: Asked[Nothing, Nothing]) -> Document:
    page = await shared_page(archive_of(asked.engine), asked.path["session_id"])
    return Document(page.encode(), "text/html; charset=utf-8", f"{asked.path['session_id']}.html")


async def trace_page(asked: Asked[Nothing, Nothing]) -> Document:
    trace = await stored_trace(archive_of(asked.engine), asked.path["session_id"])
    return Document(trace.to_html().encode(), "text/html; charset=utf-8", "trace.html")


async def follow_session(asked: Asked[FollowQuery, Nothing]) -> Stream:
    after = asked.query.after
    if asked.last_event_id:
        if not asked.last_event_id.isdecimal():
            raise ValueError("Last-Event-ID is not a number of a change")
        after = int(asked.last_event_id)
    session_id = asked.path["session_id"]
    await asked.engine.store.get(session_id)
    return Stream(asked.feeds.follow(session_id, after))


ONE = "/api/sessions/{session_id}"
SESSIONS = (
    Endpoint(method="GET", path="/api/sessions", name="list_sessions", summary="Sessions, newest activity first",
             answer=list_sessions, query=ListQuery, gives=SessionPage),
    Endpoint(method="POST", path="/api/sessions", name="create_session", summary="A new session",
             answer=create_session, body=NewSession, gives=StoredSession, status=201),
    Endpoint(method="DELETE", path="/api/sessions", name="clear_sessions", summary="Delete every session nobody owns",
             answer=clear_sessions, gives=Cleared),
    Endpoint(method="GET", path="/api/search", name="search", summary="Search titles, text and tool output",
             answer=search, query=SearchQuery, gives=list[SearchHit]),
    Endpoint(method="POST", path="/api/import", name="import_session", summary="Keep an exported session",
             answer=import_session, query=ImportQuery, body=msgspec.Raw, gives=Imported, status=201),
    Endpoint(method="POST", path="/api/import-from", name="import_from", summary="Bring a session from another server",
             answer=import_from, query=ImportQuery, body=Elsewhere, gives=Imported, status=201),
    Endpoint(method="GET", path=ONE, name="get_session", summary="One session, without its transcript",
             answer=get_session, gives=StoredSession),
    Endpoint(method="PATCH", path=ONE, name="change_session", summary="Change title, mode or agent",
             answer=change_session, body=SessionChanges, gives=StoredSession),
    Endpoint(method="DELETE", path=ONE, name="delete_session", summary="Delete a session",
             answer=delete_session, status=204),
    Endpoint(method="GET", path=f"{ONE}/messages", name="read_messages", summary="Messages, page by page",
             answer=read_messages, query=PageQuery, gives=Transcript),
    Endpoint(method="GET", path=f"{ONE}/events", name="follow_session", summary="What was kept, then what happens",
             answer=follow_session, query=FollowQuery, gives="text/event-stream"),
    Endpoint(method="POST", path=f"{ONE}/fork", name="fork_session", summary="A new session from a message on",
             answer=fork_session, body=ForkPoint, gives=StoredSession, status=201),
    Endpoint(method="GET", path=f"{ONE}/export", name="export_session", summary="The session as a JSON document",
             answer=export_session, gives="application/json"),
    Endpoint(method="GET", path=f"{ONE}/share", name="share_session", summary="The session as one HTML page",
             answer=share_session, gives="text/html"),
    Endpoint(method="GET", path=f"{ONE}/trace", name="trace_page", summary="The session's trace as one HTML page",
             answer=trace_page, gives="text/html"),
)  # fmt: skip


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`take_over` ends what another process does in the session."""

    take_over: bool = False


class ChosenModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As PROVIDER/MODEL, until the session is closed; empty for the agent's own."""

    model: str = ""


class OpenedSession(msgspec.Struct, frozen=True):
    """`busy` while a turn is under way; `broke_off` where the last one has no end of its own. `context_limit` is how
    many tokens the model holds, where that is known."""

    busy: bool
    broke_off: bool
    model: str
    context_limit: int | None = None


async def open_session(asked: Asked[Nothing, Opening]) -> OpenedSession:
    await asked.engine.open(asked.path["session_id"], take_over=asked.body.take_over)
    return _standing(asked.engine, asked.path["session_id"])


async def choose_model(asked: Asked[Nothing, ChosenModel]) -> OpenedSession:
    await asked.engine.open(asked.path["session_id"])
    live = asked.engine.live[asked.path["session_id"]]
    await live.use_model(_model_of(asked))
    return _standing(asked.engine, live.session.id)


def _model_of(asked: Asked[Nothing, ChosenModel]) -> ModelRef | None:
    provider, _, model = asked.body.model.partition("/")
    known = asked.engine.staff.plan.providers
    if asked.body.model and (provider not in known or not model):
        raise ValueError(f"write PROVIDER/MODEL, with a provider of: {', '.join(known)}")
    return ModelRef(provider, model) if model else None


def _standing(engine: Engine, session_id: str) -> OpenedSession:
    live = engine.live[session_id]
    agent = live.agent
    limit = context_limit(engine.staff.plan.providers.values(), ModelRef(agent.provider, agent.model))
    return OpenedSession(live.in_turn, was_cut_off(live.session), f"{agent.provider}/{agent.model}", limit)


OPENING = (
    Endpoint(method="POST", path=f"{ONE}/open", name="open_session", summary="Work in a session; how it stands",
             answer=open_session, body=Opening, gives=OpenedSession),
    Endpoint(method="POST", path=f"{ONE}/model", name="choose_model", summary="The model that answers from now on",
             answer=choose_model, body=ChosenModel, gives=OpenedSession),
)  # fmt: skip
