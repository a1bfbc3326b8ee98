"""The OpenAI-compatible endpoints: agents as models of Chat Completions and Responses.

An approval is an `mcp_approval_request` item of Responses, and a call of the function `outrider_approval` in Chat
Completions if the client offers that function; otherwise the answer waits until a user approves on the page."""

import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from outrider.engine.archive import Approval
from outrider.engine.engine import Engine
from outrider.engine.frontend import read_conversation
from outrider.errors import OutriderError, SessionNotFoundError
from outrider.presentation.approvals import approval_fields, approval_view
from outrider.presentation.turn_updates import CallEnded, CallStarted
from outrider.server.endpoint import ApiEndpoint, NoPayload, RouteRequest, SseResponse
from outrider.server.event_stream import find_root_session
from outrider.server.routes.sessions import choose_workspace
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
from outrider.types.parts import PartBase, Tokens

OPENAI_SENDER = "openai"
APPROVAL_FUNCTION = "outrider_approval"
SERVER_LABEL = "outrider"
KEEPALIVE_FRAME = b": waiting\n\n"
Fields = dict[str, Any]
_encode = msgspec.json.encode


class ModelCard(msgspec.Struct, frozen=True):
    """An agent, described as a model of the OpenAI API."""

    id: str
    created: int = 0
    owned_by: str = "outrider"
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


async def list_agent_models(request: RouteRequest[NoPayload, NoPayload]) -> ModelList:
    return ModelList([ModelCard(name) for name in request.engine.runtime.spec.agents])


async def get_agent_model(request: RouteRequest[NoPayload, NoPayload]) -> ModelCard:
    return ModelCard(find_agent(request.engine, request.path["model"]))


def find_agent(engine: Engine, name: str) -> str:
    if name not in engine.runtime.spec.agents:
        raise LookupError(f"no model {name!r}; the agents are {', '.join(engine.runtime.spec.agents)}")
    return name


async def open_turn_session(request: RouteRequest[Any, Any], agent: str, session_id: str = "", **marks: str) -> str:
    """Returns the given session, or a new one of the agent with `marks` as metadata. Raises SessionNotFoundError for a
    session that the requester may not change."""
    if session_id:
        await check_session(request, session_id)
        await request.require_owner_budget(session_id)
        await request.engine.open(session_id)
        return session_id
    workspace = await choose_workspace(request, None)
    return await request.engine.create(
        agent=agent, workspace=workspace, owner=request.requester.owner, metadata=dict(marks)
    )


async def check_session(request: RouteRequest[Any, Any], session_id: str) -> None:
    """Raises SessionNotFoundError for a session that the requester may not change."""
    if await request.access_to(session_id) != "write":
        raise SessionNotFoundError(f"there is no session {session_id}")
    await request.require_workspace(session_id)


async def find_asking_session(request: RouteRequest[Any, Any], approval_id: str) -> str:
    """Returns the session that the client of an approval follows. Raises LookupError for an unknown approval."""
    approvals = [*await request.engine.approvals(), *await request.engine.store.approvals()]
    approval = next((approval for approval in approvals if approval.id == approval_id), None)
    if approval is None or await request.access_to(approval.session_id) != "write":
        raise LookupError(f"no approval {approval_id}")
    await request.require_limited_run(approval.session_id)
    return await find_root_session(request.engine, approval.session_id)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True):
    """A request of Chat Completions; fields that are not listed have no effect. `model` is the name of an agent. The
    messages before the last one become the history of a new session, unless `session_id` names one that continues."""

    model: str
    messages: tuple[dict[str, Any], ...]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    session_id: str = ""


class ChatFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ChatToolCall(msgspec.Struct, frozen=True):
    index: int
    id: str
    function: ChatFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    content: str | None
    role: Literal["assistant"] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


ChatFinish = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatChoice(msgspec.Struct, frozen=True):
    message: ChatMessage
    finish_reason: ChatFinish
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """An answer; `session_id` continues the session."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    session_id: str
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunkChoice(msgspec.Struct, frozen=True):
    delta: ChatMessage
    finish_reason: ChatFinish | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """An event of a streamed answer. The last one is `[DONE]`."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    session_id: str
    usage: ChatUsage | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


_CHAT_FINISH: dict[str, ChatFinish] = {"length": "length", "limit": "length", "refusal": "content_filter"}


class _ChatAnswer:
    """Collects one answer of Chat Completions from the items of a turn."""

    def __init__(self, model: str, session_id: str) -> None:
        self.head: Fields = {
            "id": f"chatcmpl-{new_id()}",
            "created": int(time.time()),
            "model": model,
            "session_id": session_id,
        }
        self._part_id = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ChatToolCall] = []
        self._finish: ChatFinish = "stop"
        self._tokens = Tokens()

    def add(self, item: TurnItem) -> ChatMessage | None:
        """Returns what a stream sends for an item. Raises the error of a failed turn."""
        match item:
            case TextChunk(is_reasoning=True):
                self._reasoning.append(item.text)
                return ChatMessage(None, reasoning_content=item.text)
            case TextChunk():
                text = f"\n\n{item.text}" if self._part_id not in ("", item.part_id) else item.text
                self._part_id = item.part_id
                self._text.append(text)
                return ChatMessage(text)
            case ApprovalsNeeded():
                self._calls = [_approval_call(index, approval) for index, approval in enumerate(item.approvals)]
                self._finish = "tool_calls"
                return ChatMessage(None, tool_calls=self._calls)
            case TurnFinished():
                raise_turn_error(item)
                self._finish, self._tokens = _CHAT_FINISH.get(item.reason, "stop"), item.tokens
            case CallStarted() | CallEnded() | StillRunning():
                pass
        return None

    def chunk(self, delta: ChatMessage) -> ChatChunk:
        return ChatChunk(**self.head, choices=[ChatChunkChoice(delta)])

    def last_chunks(self, *, with_usage: bool) -> Iterator[ChatChunk]:
        yield ChatChunk(**self.head, choices=[ChatChunkChoice(ChatMessage(None), self._finish)])
        if with_usage:
            yield ChatChunk(**self.head, choices=[], usage=self._usage())

    def completion(self) -> ChatCompletion:
        text, reasoning = "".join(self._text), "".join(self._reasoning) or None
        message = ChatMessage(text or None, "assistant", reasoning, self._calls or None)
        return ChatCompletion(**self.head, choices=[ChatChoice(message, self._finish)], usage=self._usage())

    def _usage(self) -> ChatUsage:
        input_tokens = self._tokens.total - self._tokens.output - self._tokens.reasoning
        return ChatUsage(input_tokens, self._tokens.total - input_tokens, self._tokens.total)


def _approval_call(index: int, approval: Approval) -> ChatToolCall:
    return ChatToolCall(index, approval.id, ChatFunction(APPROVAL_FUNCTION, approval_arguments(approval)))


def approval_arguments(approval: Approval) -> str:
    """Returns the complete question as JSON: the tool and its input, what the answer is about, and the choices."""
    return _encode(approval_fields(approval_view(approval))).decode()


def raise_turn_error(end: TurnFinished) -> None:
    if end.error is not None and end.reason == "error":
        raise end.error
    if end.reason == "aborted":
        raise OutriderError("the turn was aborted")


async def create_chat_completion(request: RouteRequest[NoPayload, ChatRequest]) -> ChatCompletion | SseResponse:
    body = request.body
    agent, pauses = find_agent(request.engine, body.model), _offers_approvals(body.tools or ())
    sender = request.requester.owner or OPENAI_SENDER
    replies = [_read_reply(message) for message in _last_tool_messages(body.messages)]
    if replies:
        session_id = await find_asking_session(request, replies[0].approval_id)

        async def begin() -> None:
            await request.turns.answer(session_id, replies, sender=sender)
    else:
        turn_input = _read_chat(body.messages, keeps_history=not body.session_id)
        session_id = await open_turn_session(request, agent, body.session_id, source=OPENAI_SENDER)

        async def begin() -> None:
            await request.turns.start(session_id, turn_input, sender=sender)

    items = request.turns.follow(session_id, begin, pauses=pauses, aborts=bool(body.stream))
    answer = _ChatAnswer(agent, session_id)
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        return SseResponse(_chat_frames(items, answer, with_usage=with_usage), (session_id,))
    async with aclosing(items):
        async for item in items:
            answer.add(item)
    return answer.completion()


async def _chat_frames(
    items: AsyncGenerator[TurnItem, None], answer: _ChatAnswer, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    yield data_frame(answer.chunk(ChatMessage("", "assistant")))
    async with aclosing(items):
        try:
            async for item in items:
                delta = answer.add(item)
                yield KEEPALIVE_FRAME if delta is None else data_frame(answer.chunk(delta))
        except OutriderError as error:
            yield data_frame({"error": {"type": type(error).__name__, "message": error.message}})
            return
    for chunk in answer.last_chunks(with_usage=with_usage):
        yield data_frame(chunk)
    yield b"data: [DONE]\n\n"


def data_frame(value: Any, event: str = "") -> bytes:
    """Returns a server-sent event."""
    return (b"event: %b\n" % event.encode() if event else b"") + b"data: %b\n\n" % _encode(value)


def _offers_approvals(tools: Sequence[Fields]) -> bool:
    functions = [tool.get("function", tool) for tool in tools]
    names = [cast("Fields", function).get("name") if isinstance(function, dict) else None for function in functions]
    if any(name != APPROVAL_FUNCTION for name in names):
        raise ValueError(f"an agent has its own tools; only the function {APPROVAL_FUNCTION} can be offered")
    return bool(names)


def _last_tool_messages(messages: Sequence[Fields]) -> list[Fields]:
    tool_messages: list[Fields] = []
    for message in reversed(messages):
        if message.get("role") != "tool":
            break
        tool_messages.insert(0, message)
    return tool_messages


class ChatApproval(msgspec.Struct, frozen=True):
    """An answer to an approval in Chat Completions."""

    allow: bool
    words: str = ""


def _read_reply(message: Fields) -> ApprovalReply:
    """Reads an answer: the text `allow`, or an object with `allow` and `words`. Any other text denies, as a reason for
    the model."""
    text, approval_id = plain_text(message.get("content")), str(message.get("tool_call_id", ""))
    with suppress(msgspec.DecodeError):
        answer = msgspec.json.decode(text, type=ChatApproval)
        return ApprovalReply(approval_id, answer.allow, answer.words)
    is_allowed = text.strip().lower() == "allow"
    return ApprovalReply(approval_id, is_allowed, "" if is_allowed or text.strip().lower() == "deny" else text)


def plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [cast("Fields", block).get("text", "") for block in blocks if isinstance(block, dict)]
    return "".join(map(str, texts))


def _read_chat(messages: Sequence[Fields], *, keeps_history: bool) -> TurnInput:
    systems = [
        plain_text(message.get("content")) for message in messages if message.get("role") in ("system", "developer")
    ]
    spoken = [_without_calls(message) for message in messages if message.get("role") in ("user", "assistant")]
    return split_conversation(
        [message for message in spoken if message.get("content")], "openai", systems, keeps=keeps_history
    )


def _without_calls(message: Fields) -> Fields:
    """Returns a message without its calls, which are answered approvals that a model does not need to read."""
    return {name: message[name] for name in ("role", "content") if name in message}


def split_conversation(
    messages: Iterable[Fields],
    format: Literal["openai", "openai-responses"],
    systems: Iterable[str],
    *,
    keeps: bool,
) -> TurnInput:
    """Returns the last message as input and, with `keeps`, those before it as history. Raises ValueError if the
    last one is not a user message."""
    conversation = read_conversation(messages, format)
    if not conversation or conversation[-1].role != "user":
        raise ValueError("the last message must be a user message")
    history = conversation[:-1] if keeps else []
    content = [replace(part, message_id="", session_id="") for part in conversation[-1].get_parts_by_type(PartBase)]
    return TurnInput(history=history, content=content, instructions="\n\n".join(filter(None, systems)))


class ResponsesRequest(msgspec.Struct, frozen=True):
    """A request of the Responses API; fields that are not listed have no effect. `model` is the name of an agent.
    `previous_response_id` continues a session, and `mcp_approval_response` items answer its approvals."""

    model: str
    input: str | tuple[dict[str, Any], ...]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = False
    tools: tuple[dict[str, Any], ...] | None = None


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[str, ...] = ()


class OutputMessage(msgspec.Struct, frozen=True, tag="message"):
    id: str
    content: tuple[OutputText, ...]
    status: Literal["in_progress", "completed"] = "completed"
    role: Literal["assistant"] = "assistant"


class CallFailure(msgspec.Struct, frozen=True, tag="mcp_tool_execution_error"):
    content: str


class OutputCall(msgspec.Struct, frozen=True, tag="mcp_call"):
    """A call that the agent made on the server."""

    id: str
    name: str
    arguments: str
    output: str | None = None
    error: CallFailure | None = None
    status: Literal["in_progress", "completed", "failed"] = "completed"
    server_label: str = SERVER_LABEL


class OutputApproval(msgspec.Struct, frozen=True, tag="mcp_approval_request"):
    """A call that waits for an answer; `title` and `reason` say what it does and why it needs one. `heading` and the
    fields after it say what the answer is about: also for a command that has run, whose changes are the question."""

    id: str
    name: str
    arguments: str
    title: str
    reason: str
    server_label: str = SERVER_LABEL
    heading: str = ""
    effects: Sequence[Fields] = ()
    facts: Sequence[str] = ()
    diff: str | None = None
    files: Sequence[str] = ()
    choices: Sequence[Fields] = ()
    widths: Sequence[Fields] = ()


_QUESTION_FIELDS = tuple(
    name for name in OutputApproval.__struct_fields__ if name not in ("id", "name", "arguments", "server_label")
)


OutputItem = OutputMessage | OutputCall | OutputApproval


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ResponsesError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response; its id names the session and the turn."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "failed", "incomplete"]
    output: list[OutputItem]
    previous_response_id: str | None = None
    instructions: str | None = None
    usage: ResponsesUsage | None = None
    error: ResponsesError | None = None
    incomplete_details: IncompleteDetails | None = None
    object: Literal["response"] = "response"
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto"] = "auto"
    tools: tuple[str, ...] = ()


class ResponsesEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a streamed response; `type` says which fields it has."""

    type: str
    sequence_number: int
    response: ModelResponse | None = None
    output_index: int | None = None
    item: OutputItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: tuple[str, ...] | None = None


class ResponseBuilder:
    """Builds one response and its events from the items of a turn."""

    def __init__(self, head: Fields) -> None:
        self._head = head
        self._output: list[OutputItem] = []
        self._message: OutputMessage | None = None  # the open one
        self._calls: dict[str, int] = {}  # positions of open calls
        self._number = -1
        self.end: Fields = {"status": "completed"}

    def start(self) -> Iterator[ResponsesEvent]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=ModelResponse(**self._head, status="in_progress", output=[]))

    def add(self, item: TurnItem) -> Iterator[ResponsesEvent]:
        match item:
            case TextChunk(is_reasoning=False):
                yield from self._add_text(item)
            case CallStarted(part=part):
                yield from self._close_message()
                arguments = _encode(part.state.input).decode()
                self._calls[part.call_id] = len(self._output)
                yield from self._add_item(OutputCall(part.call_id, part.tool, arguments, status="in_progress"))
            case CallEnded():
                yield self._end_call(item)
            case ApprovalsNeeded():
                yield from self._close_message()
                for approval in item.approvals:
                    approval_item = _approval_item(approval)
                    yield from self._add_item(approval_item)
                    position = len(self._output) - 1
                    yield self._event("response.output_item.done", output_index=position, item=approval_item)
            case TurnFinished():
                yield from self._close_message()
                self.end = _response_end(item)
            case TextChunk() | StillRunning():
                pass

    def finish(self) -> ResponsesEvent:
        response = self.response()
        return self._event(f"response.{response.status}", response=response)

    def response(self) -> ModelResponse:
        return ModelResponse(**self._head, **self.end, output=self._output)

    def _add_text(self, item: TextChunk) -> Iterator[ResponsesEvent]:
        if self._message is None or self._message.id != f"msg_{item.part_id}":
            yield from self._close_message()
            self._message = OutputMessage(f"msg_{item.part_id}", (), "in_progress")
            yield from self._add_item(self._message)
            yield self._text_event("response.content_part.added", part=OutputText(""))
        text = (self._message.content[0].text if self._message.content else "") + item.text
        self._message = OutputMessage(self._message.id, (OutputText(text),), "in_progress")
        yield self._text_event("response.output_text.delta", delta=item.text, logprobs=())

    def _close_message(self) -> Iterator[ResponsesEvent]:
        if self._message is None:
            return
        message = OutputMessage(self._message.id, self._message.content)
        self._output[-1] = message
        part = message.content[0]
        yield self._text_event("response.output_text.done", text=part.text, logprobs=())
        yield self._text_event("response.content_part.done", part=part)
        self._message = None
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=message)

    def _add_item(self, item: OutputItem) -> Iterator[ResponsesEvent]:
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _end_call(self, item: CallEnded) -> ResponsesEvent:
        part, state = item.part, item.state
        position = self._calls.pop(part.call_id)
        arguments = _encode(state.input).decode()
        output, error = (None, CallFailure(state.text)) if item.result.is_error else (state.text, None)
        status = "failed" if item.result.is_error else "completed"
        call = OutputCall(part.call_id, part.tool, arguments, output, error, status)
        self._output[position] = call
        return self._event("response.output_item.done", output_index=position, item=call)

    def _text_event(self, kind: str, **fields: Any) -> ResponsesEvent:
        item_id = self._message.id if self._message else ""
        return self._event(kind, output_index=len(self._output) - 1, item_id=item_id, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> ResponsesEvent:
        self._number += 1
        return ResponsesEvent(type=kind, sequence_number=self._number, **fields)


def _approval_item(approval: Approval) -> OutputApproval:
    fields = approval_fields(approval_view(approval))
    return OutputApproval(
        id=fields["approval_id"],
        name=fields["tool"],
        arguments=_encode(fields["input"]).decode(),
        **{name: fields[name] for name in _QUESTION_FIELDS},
    )


def _response_end(item: TurnFinished) -> Fields:
    tokens = item.tokens
    input_tokens = tokens.total - tokens.output - tokens.reasoning
    usage = ResponsesUsage(
        input_tokens,
        tokens.total - input_tokens,
        tokens.total,
        InputTokensDetails(tokens.cache.read, tokens.cache.write),
        OutputTokensDetails(tokens.reasoning),
    )
    match item.reason:
        case "length" | "limit":
            return {
                "status": "incomplete",
                "usage": usage,
                "incomplete_details": IncompleteDetails("max_output_tokens"),
            }
        case "refusal":
            return {"status": "incomplete", "usage": usage, "incomplete_details": IncompleteDetails("content_filter")}
        case "error" | "aborted":
            message = item.error.message if item.error else "the turn was aborted"
            return {"status": "failed", "usage": usage, "error": ResponsesError("server_error", message)}
        case _:
            return {"status": "completed", "usage": usage}


async def create_response(request: RouteRequest[NoPayload, ResponsesRequest]) -> ModelResponse | SseResponse:
    body = request.body
    agent, sender = find_agent(request.engine, body.model), request.requester.owner or OPENAI_SENDER
    if any(tool.get("type") != "mcp" for tool in body.tools or ()):
        raise ValueError("an agent has its own tools; a client can offer none")
    previous = _parse_response_id(body.previous_response_id or "")
    input_items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else list(body.input)
    replies = [
        ApprovalReply(str(item.get("approval_request_id")), bool(item.get("approve")), str(item.get("reason") or ""))
        for item in input_items
        if item.get("type") == "mcp_approval_response"
    ]
    input_id = new_id()
    if replies:
        session_id = await find_asking_session(request, replies[0].approval_id)

        async def begin() -> None:
            await request.turns.answer(session_id, replies, sender=sender)
    else:
        turn = _read_items(input_items, body.instructions or "", keeps_history=not previous)
        session_id = await open_turn_session(request, agent, previous, source=OPENAI_SENDER)

        async def begin() -> None:
            await request.turns.start(session_id, turn, sender=sender, input_id=input_id)

    head = {
        "id": f"resp_{session_id}_{input_id}",
        "created_at": int(time.time()),
        "model": agent,
        "previous_response_id": body.previous_response_id,
        "instructions": body.instructions,
    }
    builder, items = ResponseBuilder(head), request.turns.follow(session_id, begin, aborts=bool(body.stream))
    if body.stream:
        return SseResponse(_response_frames(items, builder), (session_id,))
    async with aclosing(items):
        async for item in items:
            for _ in builder.add(item):
                pass
    return builder.response()


async def _response_frames(
    items: AsyncGenerator[TurnItem, None], builder: ResponseBuilder
) -> AsyncGenerator[bytes, None]:
    for event in builder.start():
        yield data_frame(event, event.type)
    async with aclosing(items):
        try:
            async for item in items:
                yield b"".join([data_frame(event, event.type) for event in builder.add(item)]) or KEEPALIVE_FRAME
        except OutriderError as error:
            builder.end = {"status": "failed", "error": ResponsesError("server_error", error.message)}
    event = builder.finish()
    yield data_frame(event, event.type)


def _parse_response_id(response_id: str) -> str:
    """Returns the session of a response; "" without one."""
    if not response_id:
        return ""
    kind, _, session_and_input = response_id.partition("_")
    session_id, separator, _ = session_and_input.partition("_")
    if kind != "resp" or not separator:
        raise ValueError(f"{response_id} is not the id of a response")
    return session_id


def _read_items(items: Sequence[Fields], instructions: str, *, keeps_history: bool) -> TurnInput:
    systems = [plain_text(item.get("content")) for item in items if item.get("role") in ("system", "developer")]
    spoken = [item for item in items if item.get("role") in ("user", "assistant")]
    return split_conversation(spoken, "openai-responses", [instructions, *systems], keeps=keeps_history)


OPENAI_ROUTES = (
    ApiEndpoint(method="GET", path="/v1/models", name="list_agent_models",
                summary="List the agents as models (OpenAI)", handler=list_agent_models, response_type=ModelList),
    ApiEndpoint(method="GET", path="/v1/models/{model}", name="get_agent_model",
                summary="Get an agent as a model (OpenAI)", handler=get_agent_model, response_type=ModelCard),
    ApiEndpoint(method="POST", path="/v1/chat/completions", name="create_chat_completion",
                summary="Run a turn (OpenAI Chat Completions)", starts_work=True,
                handler=create_chat_completion, body=ChatRequest,
                response_type=ChatCompletion, event_type=ChatChunk),
    ApiEndpoint(method="POST", path="/v1/responses", name="create_response",
                summary="Run a turn (OpenAI Responses)", starts_work=True, handler=create_response,
                body=ResponsesRequest, response_type=ModelResponse, event_type=ResponsesEvent),
)  # fmt: skip
