"""Endpoints of two protocols between agents and applications: AG-UI (events of a run) and A2A (agent card and tasks).

An approval ends a run of AG-UI with an interrupt, and sets a task of A2A to `input required`; the next run or message
has the answer."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from outrider.engine.archive import Approval, SessionFilter
from outrider.engine.frontend import read_conversation, was_cut_off
from outrider.errors import OutriderError, SessionNotFoundError
from outrider.presentation.approvals import approval_fields, approval_view, question_text
from outrider.presentation.turn_updates import CallEnded, CallStarted
from outrider.server.endpoint import ApiEndpoint, NoPayload, RouteRequest, SseResponse
from outrider.server.routes.openai import (
    KEEPALIVE_FRAME,
    check_session,
    data_frame,
    find_agent,
    find_asking_session,
    open_turn_session,
    plain_text,
)
from outrider.server.routes.sessions import find_original
from outrider.server.turn_stream import (
    ApprovalReply,
    ApprovalsNeeded,
    StillRunning,
    TextChunk,
    TurnFinished,
    TurnInput,
    TurnItem,
)
from outrider.types.ids import new_id
from outrider.types.parts import FilePart, PartBase, TextPart
from outrider.types.tool_state import make_data_url

AGUI_SENDER, A2A_SENDER = "ag-ui", "a2a"
APPROVAL_REASON = "tool_approval"
APPROVAL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["approved"],
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
}
TOKEN_SCHEME: dict[str, Any] = {"token": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
Fields = dict[str, Any]


class ResumeEntry(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to an interrupt; `payload` is `{"approved": true}`, or false with a `reason` for the model."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AguiRun(msgspec.Struct, frozen=True, rename="camel"):
    """The input of a run. `thread_id` names the conversation: a session is created for a new one. `resume` answers the
    interrupts of the run before. Tools and state of the client have no effect."""

    thread_id: str
    run_id: str
    messages: tuple[dict[str, Any], ...] = ()
    context: tuple[dict[str, Any], ...] | None = None
    resume: tuple[ResumeEntry, ...] | None = None


class AguiInterrupt(msgspec.Struct, frozen=True, rename="camel"):
    """An approval; `message` is the complete question as text, and `metadata` has it as fields."""

    id: str
    message: str
    tool_call_id: str
    metadata: dict[str, Any]
    reason: str = APPROVAL_REASON
    response_schema: dict[str, Any] = msgspec.field(default_factory=lambda: APPROVAL_SCHEMA)


class AguiOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["success", "interrupt", "cancelled"]
    interrupts: list[AguiInterrupt] | None = None


class AguiEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An event of a run; `type` says which fields it has."""

    type: str
    thread_id: str | None = None
    run_id: str | None = None
    message_id: str | None = None
    role: str | None = None
    delta: str | None = None
    tool_call_id: str | None = None
    tool_call_name: str | None = None
    content: str | None = None
    outcome: AguiOutcome | None = None
    result: str | None = None
    message: str | None = None
    code: str | None = None


class AguiRunBuilder:
    """Converts the items of a turn into events of a run. `announced` are calls that the run before has shown."""

    def __init__(self, run: AguiRun, announced: set[str]) -> None:
        self._ids: Any = {"thread_id": run.thread_id, "run_id": run.run_id}
        self._announced = announced
        self._part: TextChunk | None = None  # the open message

    def start(self) -> AguiEvent:
        return AguiEvent(type="RUN_STARTED", **self._ids)

    def add(self, item: TurnItem) -> Iterator[AguiEvent]:
        match item:
            case TextChunk():
                yield from self._add_text(item)
            case CallStarted(part=call):
                yield from self._close_message()
                yield from self._announce_call(call.call_id, call.tool, call.state.input)
            case CallEnded(part=call, state=state):
                kind, message_id = "TOOL_CALL_RESULT", f"result-{call.call_id}"
                yield AguiEvent(
                    type=kind, message_id=message_id, tool_call_id=call.call_id, content=state.text, role="tool"
                )
            case ApprovalsNeeded():
                yield from self._close_message()
                for approval in item.approvals:
                    yield from self._announce_call(approval.call_id, approval.tool, approval.input)
                interrupts = [_interrupt(approval) for approval in item.approvals]
                yield AguiEvent(type="RUN_FINISHED", **self._ids, outcome=AguiOutcome("interrupt", interrupts))
            case TurnFinished():
                yield from self._close_message()
                yield self._end(item)
            case StillRunning():
                pass

    def fail(self, error: OutriderError) -> AguiEvent:
        return AguiEvent(type="RUN_ERROR", message=error.message, code=type(error).__name__)

    def _end(self, item: TurnFinished) -> AguiEvent:
        if item.reason == "aborted":
            return AguiEvent(type="RUN_FINISHED", **self._ids, outcome=AguiOutcome("cancelled"))
        if item.error is not None and item.reason in ("error", "limit"):
            return self.fail(item.error)
        return AguiEvent(type="RUN_FINISHED", **self._ids, outcome=AguiOutcome("success"), result=item.output)

    def _add_text(self, item: TextChunk) -> Iterator[AguiEvent]:
        kind = "REASONING_MESSAGE" if item.is_reasoning else "TEXT_MESSAGE"
        if self._part is None or self._part.part_id != item.part_id:
            yield from self._close_message()
            self._part = item
            if item.is_reasoning:
                yield AguiEvent(type="REASONING_START", message_id=item.part_id)
            role = "reasoning" if item.is_reasoning else "assistant"
            yield AguiEvent(type=f"{kind}_START", message_id=item.part_id, role=role)
        yield AguiEvent(type=f"{kind}_CONTENT", message_id=item.part_id, delta=item.text)

    def _close_message(self) -> Iterator[AguiEvent]:
        part, self._part = self._part, None
        if part is None:
            return
        kind = "REASONING_MESSAGE" if part.is_reasoning else "TEXT_MESSAGE"
        yield AguiEvent(type=f"{kind}_END", message_id=part.part_id)
        if part.is_reasoning:
            yield AguiEvent(type="REASONING_END", message_id=part.part_id)

    def _announce_call(self, call_id: str, tool: str, arguments: Fields) -> Iterator[AguiEvent]:
        if call_id in self._announced:
            return
        self._announced.add(call_id)
        yield AguiEvent(type="TOOL_CALL_START", tool_call_id=call_id, tool_call_name=tool)
        yield AguiEvent(type="TOOL_CALL_ARGS", tool_call_id=call_id, delta=msgspec.json.encode(arguments).decode())
        yield AguiEvent(type="TOOL_CALL_END", tool_call_id=call_id)


def _interrupt(approval: Approval) -> AguiInterrupt:
    view = approval_view(approval)
    return AguiInterrupt(approval.id, question_text(view), approval.call_id, approval_fields(view))


async def run_agui_agent(request: RouteRequest[NoPayload, AguiRun]) -> SseResponse:
    run, agent = request.body, find_agent(request.engine, request.path["agent"])
    announced: set[str] = set()
    if run.resume:
        replies = [_resume_reply(entry) for entry in run.resume]
        session_id = await find_asking_session(request, replies[0].approval_id)
        call_ids = {approval.id: approval.call_id for approval in await request.turns.open_approvals(session_id)}
        announced = {call_ids[reply.approval_id] for reply in replies if reply.approval_id in call_ids}

        async def begin() -> None:
            await request.turns.answer(session_id, replies, sender=request.requester.owner or AGUI_SENDER)
    else:
        session_id, is_new = await _thread_session(request, run.thread_id, agent)
        turn_input = _read_run(run, keeps_history=is_new)

        async def begin() -> None:
            await request.turns.start(
                session_id, turn_input, sender=request.requester.owner or AGUI_SENDER, input_id=run.run_id or None
            )

    items = request.turns.follow(session_id, begin)
    return SseResponse(_agui_frames(items, AguiRunBuilder(run, announced)), (session_id,))


async def _agui_frames(items: AsyncGenerator[TurnItem, None], builder: AguiRunBuilder) -> AsyncGenerator[bytes, None]:
    yield data_frame(builder.start())
    async with aclosing(items):
        try:
            async for item in items:
                yield b"".join([data_frame(event) for event in builder.add(item)]) or KEEPALIVE_FRAME
        except OutriderError as error:
            yield data_frame(builder.fail(error))


def _resume_reply(entry: ResumeEntry) -> ApprovalReply:
    payload = cast("Fields", entry.payload) if isinstance(entry.payload, dict) else {"approved": entry.payload}
    allow = entry.status == "resolved" and payload.get("approved") is True
    return ApprovalReply(entry.interrupt_id, allow, "" if allow else str(payload.get("reason") or ""))


async def _thread_session(request: RouteRequest[NoPayload, AguiRun], thread_id: str, agent: str) -> tuple[str, bool]:
    """Returns the session of a thread, and whether it is new. A thread id may also be the id of a session."""
    with suppress(SessionNotFoundError, ValueError):
        session_id = (await request.engine.store.get(thread_id)).id
        await check_session(request, session_id)
        await request.require_owner_budget(session_id)
        return session_id, False
    marks: Any = {"source": AGUI_SENDER, "thread_id": thread_id}
    threads = SessionFilter(metadata=marks, agent=agent, owner=request.requester.owner)
    async with request.turns.opening_lock(thread_id):  # the first runs of a thread may arrive at the same time
        if session := await find_original(request.engine, threads):
            return session.id, False
        return await open_turn_session(request, agent, **marks), True


def _read_run(run: AguiRun, *, keeps_history: bool) -> TurnInput:
    facts = [f"{entry.get('description', '')}: {entry.get('value', '')}" for entry in run.context or ()]
    systems = [
        plain_text(message.get("content")) for message in run.messages if message.get("role") in ("system", "developer")
    ]
    spoken = [_chat_message(message) for message in run.messages if message.get("role") in ("user", "assistant")]
    conversation = read_conversation([message for message in spoken if message["content"]], "openai")
    if not conversation or conversation[-1].role != "user":
        raise ValueError("the last message must be a user message")
    content = [replace(part, message_id="", session_id="") for part in conversation[-1].get_parts_by_type(PartBase)]
    history = conversation[:-1] if keeps_history else []
    return TurnInput(history=history, content=content, instructions="\n\n".join(filter(None, [*systems, *facts])))


def _chat_message(message: Fields) -> Fields:
    """Returns a message of AG-UI in the format of Chat Completions."""
    content = message.get("content")
    if isinstance(content, list):
        content = [_chat_block(cast("Fields", block)) for block in cast("list[Any]", content)]
    return {"role": message["role"], "content": content}


def _chat_block(block: Fields) -> Fields:
    source = block.get("source")
    if not isinstance(source, dict):
        return {"type": "text", "text": str(block.get("text", ""))}
    where = cast("Fields", source)
    url = where.get("value", "")
    if where.get("type") == "data":
        url = make_data_url(where.get("mimeType", "application/octet-stream"), url)
    return {"type": "image_url", "image_url": {"url": url}}


class A2aInterface(msgspec.Struct, frozen=True, rename="camel"):
    url: str
    protocol_binding: str = "JSONRPC"
    protocol_version: str = "1.0"


class A2aCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    streaming: bool = True
    push_notifications: bool = False


class A2aSkill(msgspec.Struct, frozen=True):
    id: str
    name: str
    description: str
    tags: list[str]


class A2aAgentCard(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The agent card of A2A."""

    name: str
    description: str
    version: str
    supported_interfaces: list[A2aInterface]
    skills: list[A2aSkill]
    capabilities: A2aCapabilities = A2aCapabilities()
    default_input_modes: tuple[str, ...] = ("text/plain", "image/png", "image/jpeg", "application/pdf")
    default_output_modes: tuple[str, ...] = ("text/plain",)
    security_schemes: dict[str, Any] = msgspec.field(default_factory=lambda: TOKEN_SCHEME)
    security_requirements: tuple[dict[str, Any], ...] = ({"schemes": {"token": {"list": []}}},)


async def get_default_card(request: RouteRequest[NoPayload, NoPayload]) -> A2aAgentCard:
    return _agent_card(request, next(iter(request.engine.runtime.spec.agents)))


async def get_agent_card(request: RouteRequest[NoPayload, NoPayload]) -> A2aAgentCard:
    return _agent_card(request, find_agent(request.engine, request.path["agent"]))


def _agent_card(request: RouteRequest[NoPayload, NoPayload], name: str) -> A2aAgentCard:
    agent = request.engine.runtime.spec.agents[name]
    about = agent.role or f"The agent {name}."
    return A2aAgentCard(
        name=name,
        description=about,
        version=request.version,
        supported_interfaces=[A2aInterface(f"{request.server_url}/a2a/{name}")],
        skills=[A2aSkill(name, name, about, [agent.mode])],
    )


class RpcRequest(msgspec.Struct, frozen=True):
    """A request of JSON-RPC: SendMessage, SendStreamingMessage, SubscribeToTask, GetTask or CancelTask."""

    method: str
    id: str | int | None = None
    params: dict[str, Any] = {}
    jsonrpc: Literal["2.0"] = "2.0"


class RpcError(msgspec.Struct, frozen=True):
    code: int
    message: str


class RpcReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a request, or its error."""

    jsonrpc: Literal["2.0"]
    id: str | int | None
    result: dict[str, Any] | None = None
    error: RpcError | None = None


class A2aMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message: with `task_id` an answer for that task, with `context_id` the next input of a session."""

    parts: tuple[dict[str, Any], ...]
    task_id: str = ""
    context_id: str = ""


class A2aSendOptions(msgspec.Struct, frozen=True, rename="camel"):
    return_immediately: bool = False


class A2aSend(msgspec.Struct, frozen=True):
    """The parameters of SendMessage."""

    message: A2aMessage
    configuration: A2aSendOptions | None = None


_TASK_STATES = {"error": "FAILED", "limit": "FAILED", "aborted": "CANCELED", "refusal": "REJECTED"}
NOT_FOUND, NOT_CANCELABLE, UNKNOWN_METHOD, WRONG_PARAMS = -32001, -32002, -32601, -32602


class _A2aTask:
    """A turn as a task, as its client sees it: one artifact for each text. The id of a task names its session, which is
    the context, and the input."""

    def __init__(self, session_id: str, task_id: str) -> None:
        self._ids = {"taskId": task_id, "contextId": session_id}
        self._task_id, self._session_id = task_id, session_id
        self._artifacts: dict[str, str] = {}
        self.status: Fields = self._status("WORKING")

    def value(self) -> Fields:
        artifacts = [_artifact(part_id, text) for part_id, text in self._artifacts.items()]
        return {"id": self._task_id, "contextId": self._session_id, "status": self.status, "artifacts": artifacts}

    def add(self, item: TurnItem) -> Fields | None:
        """Returns the update that a stream sends for an item."""
        match item:
            case TextChunk(is_reasoning=False):
                appends = item.part_id in self._artifacts
                self._artifacts[item.part_id] = self._artifacts.get(item.part_id, "") + item.text
                update = {**self._ids, "artifact": _artifact(item.part_id, item.text), "append": appends}
                return {"artifactUpdate": update}
            case ApprovalsNeeded():
                parts = [part for approval in item.approvals for part in _question_parts(approval)]
                return self._change_status("INPUT_REQUIRED", parts)
            case TurnFinished():
                parts = [{"text": item.error.message}] if item.error else []
                return self._change_status(_TASK_STATES.get(item.reason, "COMPLETED"), parts)
            case TextChunk() | CallStarted() | CallEnded() | StillRunning():
                return None

    def restore(self, state: str, text: str) -> None:
        self.status = self._status(state)
        if text:
            self._artifacts["answer"] = text

    def _change_status(self, state: str, parts: list[Fields]) -> Fields:
        self.status = self._status(state, parts)
        return {"statusUpdate": {**self._ids, "status": self.status}}

    def _status(self, state: str, parts: Sequence[Fields] = ()) -> Fields:
        timestamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        status_message = {"messageId": new_id(), "role": "ROLE_AGENT", "parts": list(parts), **self._ids}
        return {
            "state": f"TASK_STATE_{state}",
            "timestamp": timestamp,
            **({"message": status_message} if parts else {}),
        }


def _artifact(part_id: str, text: str) -> Fields:
    return {"artifactId": part_id, "name": "answer", "parts": [{"text": text}]}


def _question_parts(approval: Approval) -> Iterator[Fields]:
    view = approval_view(approval)
    yield {"text": question_text(view)}
    yield {"data": approval_fields(view)}


async def call_a2a(request: RouteRequest[NoPayload, RpcRequest]) -> RpcReply | SseResponse:
    call, agent = request.body, find_agent(request.engine, request.path["agent"])
    try:
        match call.method:
            case "SendMessage" | "SendStreamingMessage":
                return await _send_message(request, agent)
            case "SubscribeToTask":
                task = await _find_task(request)
                session_id = await _task_session(request, str(call.params.get("id")))
                items = request.turns.follow(session_id, _do_nothing, aborts=False)
                return SseResponse(_task_frames(items, task, call.id), (session_id,))
            case "GetTask":
                return RpcReply("2.0", call.id, (await _find_task(request)).value())
            case "CancelTask":
                return await _cancel_task(request)
            case _:
                return _rpc_error(call, UNKNOWN_METHOD, f"no method {call.method!r}")
    except SessionNotFoundError:
        return _rpc_error(call, NOT_FOUND, "no such task")
    except (LookupError, ValueError) as error:
        return _rpc_error(call, WRONG_PARAMS, str(error))


def _rpc_error(call: RpcRequest, code: int, message: str) -> RpcReply:
    return RpcReply("2.0", call.id, error=RpcError(code, message))


async def _do_nothing() -> None:
    pass


async def _send_message(request: RouteRequest[NoPayload, RpcRequest], agent: str) -> RpcReply | SseResponse:
    call = request.body
    params = msgspec.convert(call.params, A2aSend)
    task_id, parts = params.message.task_id, params.message.parts
    if task_id:
        session_id = await _task_session(request, task_id)
        await request.require_limited_run(session_id)
        replies = _read_replies(parts, await request.turns.open_approvals(session_id))

        async def begin() -> None:
            await request.turns.answer(session_id, replies, sender=request.requester.owner or A2A_SENDER)
    else:
        content = [_read_part(part) for part in parts]
        if not content:
            raise ValueError("a message needs parts")
        session_id = await open_turn_session(request, agent, params.message.context_id, source=A2A_SENDER)
        input_id = new_id()
        task_id = f"{session_id}.{input_id}"

        async def begin() -> None:
            turn_input = TurnInput(content=content)
            await request.turns.start(
                session_id, turn_input, sender=request.requester.owner or A2A_SENDER, input_id=input_id
            )

    task = _A2aTask(session_id, task_id)
    items = request.turns.follow(session_id, begin, aborts=False)
    if call.method == "SendStreamingMessage":
        return SseResponse(_task_frames(items, task, call.id), (session_id,))
    if params.configuration is not None and params.configuration.return_immediately:
        await begin()
        return RpcReply("2.0", call.id, {"task": task.value()})
    async with aclosing(items):
        async for item in items:
            task.add(item)
    return RpcReply("2.0", call.id, {"task": task.value()})


async def _task_frames(
    items: AsyncGenerator[TurnItem, None], task: _A2aTask, call_id: str | int | None
) -> AsyncGenerator[bytes, None]:
    yield data_frame(RpcReply("2.0", call_id, {"task": task.value()}))
    async with aclosing(items):
        try:
            async for item in items:
                update = task.add(item)
                yield data_frame(RpcReply("2.0", call_id, update)) if update else KEEPALIVE_FRAME
        except OutriderError as error:
            update = task.add(TurnFinished("error", "", error))
            yield data_frame(RpcReply("2.0", call_id, update))


async def _find_task(request: RouteRequest[NoPayload, RpcRequest]) -> _A2aTask:
    """Returns the latest turn of the session that the task names."""
    task_id = str(request.body.params.get("id") or "")
    session_id = await _task_session(request, task_id)
    messages = (await request.engine.store.load(session_id, limit=3)).messages
    task = _A2aTask(session_id, task_id)
    live = request.engine.live.get(session_id)
    if approvals := await request.turns.open_approvals(session_id):
        task.add(ApprovalsNeeded(approvals))
    elif live is None or not live.in_turn:
        text = messages[-1].get_text_content() if messages and messages[-1].role == "assistant" else ""
        failed = bool(messages) and messages[-1].error is not None
        cut_off = was_cut_off(messages)
        task.restore("FAILED" if failed and not cut_off else "CANCELED" if cut_off else "COMPLETED", text)
    return task


async def _cancel_task(request: RouteRequest[NoPayload, RpcRequest]) -> RpcReply:
    session_id = await _task_session(request, str(request.body.params.get("id") or ""))
    live = request.engine.live.get(session_id)
    if live is None or not live.in_turn:
        await request.engine.store.get(session_id)
        return _rpc_error(request.body, NOT_CANCELABLE, "the task has ended")
    await request.engine.abort(session_id)
    return RpcReply("2.0", request.body.id, (await _find_task(request)).value())


async def _task_session(request: RouteRequest[NoPayload, RpcRequest], task_id: str) -> str:
    session_id, separator, _ = task_id.partition(".")
    if not separator:
        raise SessionNotFoundError(f"no task {task_id!r}")
    await check_session(request, session_id)
    return session_id


def _read_replies(parts: Sequence[Fields], approvals: Sequence[Approval]) -> list[ApprovalReply]:
    """Reads answers. A data part `{"allow": true}` answers the approval with its `approval_id`, or all without one. The
    text `allow` allows; any other text denies, and is the reason for the model."""
    if not approvals:
        raise ValueError("the task waits for no answer; send a message with its contextId to continue")
    replies: list[ApprovalReply] = []
    for part in parts:
        data = part.get("data")
        fields = cast("Fields", data) if isinstance(data, dict) else {}
        text = str(part.get("text") or "").strip()
        allow = fields.get("allow") is True or text.lower() == "allow"
        comment = str(fields.get("words") or "") if fields else "" if allow or text.lower() == "deny" else text
        chosen = [approval for approval in approvals if fields.get("approval_id") in (None, approval.id)]
        replies += [ApprovalReply(approval.id, allow, comment) for approval in chosen]
    return replies


def _read_part(part: Fields) -> TextPart | FilePart:
    if "text" in part:
        return TextPart(str(part["text"]))
    if "data" in part:
        return TextPart(msgspec.json.encode(part["data"]).decode())
    media_type, name = str(part.get("mediaType") or "application/octet-stream"), part.get("filename")
    if "raw" in part:
        return FilePart(media_type, make_data_url(media_type, str(part["raw"])), name)
    if "url" in part and str(part["url"]).startswith("https://"):
        return FilePart(media_type, str(part["url"]), name)
    raise ValueError("a part needs text, data, raw or an https url")


PROTOCOL_ROUTES = (
    ApiEndpoint(method="POST", path="/agui/{agent}", name="run_agui_agent", summary="Run a turn (AG-UI)",
                starts_work=True, handler=run_agui_agent, body=AguiRun, response_type="text/event-stream",
                event_type=AguiEvent),
    ApiEndpoint(method="GET", path="/.well-known/agent-card.json", name="get_default_card",
                summary="Get the card of the first agent (A2A)", handler=get_default_card,
                response_type=A2aAgentCard),
    ApiEndpoint(method="GET", path="/a2a/{agent}/.well-known/agent-card.json", name="get_agent_card",
                summary="Get the card of an agent (A2A)", handler=get_agent_card, response_type=A2aAgentCard),
    ApiEndpoint(method="POST", path="/a2a/{agent}", name="call_a2a", summary="Send messages and manage tasks (A2A)",
                starts_work=True, handler=call_a2a, body=RpcRequest, response_type=RpcReply, event_type=RpcReply),
)  # fmt: skip
