"""Endpoints for agents, models, usage, health, stored approval answers and requests of peer servers."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from decimal import Decimal
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal

import msgspec

from outrider.engine.archive import SessionFilter, UsageRow
from outrider.engine.child_sessions import DelegatedLimits
from outrider.engine.engine import Engine
from outrider.engine.frontend import archive_of, list_models
from outrider.errors import SessionNotFoundError
from outrider.presentation.item_views import UsageView, usage_view
from outrider.remote.agent_server import FailedTurn
from outrider.server.auth import CODE_PARAMETER
from outrider.server.endpoint import ApiEndpoint, NonNegativeInt, NoPayload, RouteRequest, SseResponse
from outrider.server.payloads import LastingAnswer, add_lasting_view
from outrider.server.users import SERVER_USER, AccessDeniedError, Role
from outrider.types.agents import Limits, Mode
from outrider.types.codec import load_part
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.request import Delta, delta_tag


class AgentCard(msgspec.Struct, frozen=True):
    """An agent, without its instructions."""

    name: str
    role: str
    model: str
    mode: Mode


class UsageQuery(msgspec.Struct, frozen=True):
    """Times are Unix milliseconds."""

    by: Literal["day", "model", "agent", "tool"] = "day"
    since: NonNegativeInt | None = None
    until: NonNegativeInt | None = None
    session_id: str | None = None


class UsageRowWithView(UsageRow, frozen=True, kw_only=True):
    """Usage; `view` has its tokens and its cost as texts."""

    view: UsageView


class HealthStatus(msgspec.Struct, frozen=True):
    ok: bool
    version: str
    open_sessions: int
    waiting_approvals: int


async def list_agents(request: RouteRequest[NoPayload, NoPayload]) -> list[AgentCard]:
    agents = request.engine.runtime.spec.agents.values()
    return [AgentCard(agent.name, agent.role, str(agent.model_ref), agent.mode) for agent in agents]


async def get_models(request: RouteRequest[NoPayload, NoPayload]) -> list[str]:
    plan = request.engine.runtime.spec
    listed = [str(model) for model in await list_models(plan.providers.values())]
    used_models = [str(agent.model_ref) for agent in plan.agents.values()]
    return list(dict.fromkeys((*used_models, *listed)))


async def get_usage(request: RouteRequest[UsageQuery, NoPayload]) -> list[UsageRowWithView]:
    """Returns usage. Users who are not administrators get that of the sessions that they own."""
    query, requester = request.query, request.requester
    if query.session_id and not await request.access_to(query.session_id):
        raise SessionNotFoundError(f"there is no session {query.session_id}")
    session_ids: list[str | None] = [query.session_id]
    if not requester.is_admin and not query.session_id:
        owned = archive_of(request.engine).iterate_sessions(SessionFilter(owner=requester.name))
        session_ids = [session.id async for session in owned]
    rows = [
        row
        for session_id in session_ids
        for row in await request.engine.store.statistics(
            query.by, since=query.since, until=query.until, session_id=session_id
        )
    ]
    return [_add_usage_view(_add_rows(key, rows)) for key in dict.fromkeys(row.key for row in rows)]


def _add_rows(key: str, rows: Sequence[UsageRow]) -> UsageRow:
    """Adds up the rows with this key."""
    matches = [row for row in rows if row.key == key]
    return UsageRow(
        key=key,
        messages=sum(row.messages for row in matches),
        tokens=reduce(add, (row.tokens for row in matches), UsageRow(key="").tokens),
        cost=sum((row.cost for row in matches), Decimal(0)),
        unpriced=sum(row.unpriced for row in matches),
        calls=sum(row.calls for row in matches),
        errors=sum(row.errors for row in matches),
        duration_ms=sum(row.duration_ms for row in matches),
    )


async def get_session_usage(request: RouteRequest[NoPayload, NoPayload]) -> UsageRowWithView:
    session_id = request.path["session_id"]
    await request.engine.store.get(session_id)
    rows = [
        row
        for related_id in [session_id, *await _descendants(request.engine, session_id)]
        for row in await request.engine.store.statistics("model", session_id=related_id)
    ]
    renamed = [msgspec.structs.replace(row, key=session_id) for row in rows]
    return _add_usage_view(_add_rows(session_id, renamed))


async def _descendants(engine: Engine, session_id: str) -> list[str]:
    """Returns the sessions of the agents that a session called, and of those that they called."""
    descendants: list[str] = []
    pending = [session_id]
    while pending:
        parent = pending.pop()
        after: str | None = None
        while True:
            page = await archive_of(engine).list_page(500, after=after, parent=parent)
            children = [session.id for session in page.sessions if session.id not in descendants]
            descendants += children
            pending += children
            after = page.next
            if after is None:
                break
    return descendants


def _add_usage_view(row: UsageRow) -> UsageRowWithView:
    view = usage_view(row.tokens, row.cost, unpriced=row.unpriced)
    return UsageRowWithView(**msgspec.structs.asdict(row), view=view)


async def get_health(request: RouteRequest[NoPayload, NoPayload]) -> HealthStatus:
    """Reads the store, so that a response means that the store works."""
    approvals = await request.engine.approvals()
    return HealthStatus(
        ok=True, version=request.version, open_sessions=len(request.engine.live), waiting_approvals=len(approvals)
    )


class LoginLink(msgspec.Struct, frozen=True):
    """A link that signs one browser in, once, within a day."""

    url: str


class LoginLinkQuery(msgspec.Struct, frozen=True):
    """The user of the link: the requester, unless an administrator names another one."""

    user: str | None = None


class RequesterView(msgspec.Struct, frozen=True, kw_only=True):
    """Who is signed in. Without users (`has_users`), the holder of the server's token may do everything."""

    name: str
    role: Role
    team: str = ""
    has_users: bool = False


async def get_requester(request: RouteRequest[NoPayload, NoPayload]) -> RequesterView:
    requester = request.requester
    return RequesterView(
        name=requester.name, role=requester.role, team=requester.team, has_users=bool(request.users.users)
    )


async def create_login_link(request: RouteRequest[LoginLinkQuery, NoPayload]) -> LoginLink:
    name = request.query.user or request.requester.name
    if name != request.requester.name and not request.requester.is_admin:
        raise AccessDeniedError("only administrators create links for other users")
    if name == SERVER_USER and name != request.requester.name:
        raise AccessDeniedError("only the holder of the server's token creates links for it")
    if name != SERVER_USER and request.users.get(name) is None:
        raise LookupError(f"there is no user {name}")
    code = request.logins.create_code(name, request.token_id if name == request.requester.name else "")
    return LoginLink(f"{request.server_url}/?{CODE_PARAMETER}={code}")


async def sign_out(request: RouteRequest[NoPayload, NoPayload]) -> None:
    """Ends the login of the browser that asks. The server's token stays valid."""
    request.logins.sign_out(request.login_id)


INFO_ROUTES = (
    ApiEndpoint(method="POST", path="/api/login-links", name="create_login_link",
                summary="Create a link that signs in one browser", handler=create_login_link,
                query=LoginLinkQuery, response_type=LoginLink, status=201),
    ApiEndpoint(method="GET", path="/api/me", name="get_requester", summary="Get who is signed in, and their role",
                handler=get_requester, response_type=RequesterView),
    ApiEndpoint(method="POST", path="/api/sign-out", name="sign_out", summary="Sign this browser out",
                access="read", handler=sign_out, status=204),
    ApiEndpoint(method="GET", path="/api/agents", name="agents", summary="List the agents", handler=list_agents,
                response_type=list[AgentCard]),
    ApiEndpoint(method="GET", path="/api/models", name="models", summary="List the models of all providers",
                handler=get_models, response_type=list[str]),
    ApiEndpoint(method="GET", path="/api/usage", name="usage", summary="Tokens and cost by day, model, agent or tool",
                handler=get_usage, query=UsageQuery, response_type=list[UsageRowWithView]),
    ApiEndpoint(method="GET", path="/api/sessions/{session_id}/usage", name="session_usage",
                summary="Tokens and cost of a session and of the agents that it called", handler=get_session_usage,
                response_type=UsageRowWithView),
    ApiEndpoint(method="GET", path="/api/health", name="health", summary="Check that the server and its store work",
                handler=get_health, response_type=HealthStatus),
)  # fmt: skip


async def list_answers(request: RouteRequest[NoPayload, NoPayload]) -> list[LastingAnswer]:
    approvals = await archive_of(request.engine).lasting_approvals()
    return [add_lasting_view(approval) for approval in approvals if await request.access_to(approval.session_id)]


async def revoke_answer(request: RouteRequest[NoPayload, NoPayload]) -> None:
    await request.engine.approval_queue.revoke(request.path["approval_id"])


STORED_ANSWER_ROUTES = (
    ApiEndpoint(method="GET", path="/api/answers", name="list_answers",
                summary="List stored approvals that last longer than one call", handler=list_answers,
                response_type=list[LastingAnswer]),
    ApiEndpoint(method="DELETE", path="/api/answers/{approval_id}", name="revoke_answer",
                summary="Revoke a stored approval", handler=revoke_answer, status=204),
)  # fmt: skip


_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class PeerCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of an agent on another server.

    - `parts`: the message, as parts in their stored form.
    - `id`: chosen by the client; a repeated request is started once.
    - `agent`: the agent that answers; "" for the default.
    - `session_id`: the session of an earlier response; "" for a new one.
    - `mode`: the mode of the session.
    - `depth`: how many levels of child sessions may be opened.
    - `turns`, `seconds`, `tokens`, `cost`: the caller's remaining limits.
    - `ask`, `deny`: rules of the caller that apply to calls.
    - `resume`: the session already has this request.
    """

    parts: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(max_length=100)] = ""
    agent: str = ""
    session_id: str = ""
    mode: Mode = "agent"
    depth: NonNegativeInt = 0
    turns: NonNegativeInt | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tokens: NonNegativeInt | None = None
    cost: Decimal | None = None
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    resume: bool = False

    def delegated_limits(self) -> DelegatedLimits:
        limits = Limits(turns=self.turns, seconds=self.seconds, tokens=self.tokens, cost=self.cost, depth=self.depth)
        return DelegatedLimits(limits, self.ask, self.deny)


async def ask_agent(request: RouteRequest[NoPayload, PeerCall]) -> SseResponse:
    call = request.body
    # Parts that cannot be stored are rejected before the stream starts.
    Message("user", [load_part(part) for part in call.parts]).join(call.session_id or new_id())
    content = [load_part(part) for part in call.parts]
    turn = await request.peers.start_turn(call.id, call.session_id, call.agent, call.mode, resume=call.resume)
    return SseResponse(_encode_frames(request.peers.stream_answer(turn, content, call.delegated_limits())))


async def _encode_frames(answer: AsyncGenerator[Delta | FailedTurn, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            name = b"Failed" if isinstance(delta, FailedTurn) else delta_tag(delta).encode()
            yield b"event: %b\ndata: %b\n\n" % (name, _encode(delta))


PEER_ROUTES = (
    ApiEndpoint(method="POST", path="/api/peer", name="ask_agent", summary="Run a turn for an agent of another server",
                starts_work=True, access="admin", handler=ask_agent, body=PeerCall, response_type="text/event-stream"),
)  # fmt: skip
