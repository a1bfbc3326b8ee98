"""A local server for the four model APIs that gives scripted answers and rejects what the vendors reject."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Self, cast

import msgspec

from outrider.errors import ConfigurationError
from outrider.testing.simulator_rules import (
    SIGNATURES,
    AnthropicRules,
    ApiRules,
    Body,
    ChatRules,
    GoogleRules,
    ResponsesRules,
)
from outrider.types.agents import Provider
from outrider.types.ids import new_id
from outrider.types.parts import ToolUsePart

ApiKind = Literal["anthropic", "openai", "openai-responses", "google"]


class SimulatedReasoning(msgspec.Struct, frozen=True):
    """Reasoning in an answer. The API signs it, and accepts it back only with its own signature."""

    text: str
    signature: str = ""


class MaxTokens(msgspec.Struct, frozen=True):
    """Ends an answer because the limit of output tokens is reached."""


class Refusal(MaxTokens, frozen=True):
    """Ends an answer because the model, or a filter of the vendor, refuses to continue."""


class ServerSearch(msgspec.Struct, frozen=True):
    """A search that Anthropic runs itself: the answer is paused before its result."""

    query: str


class BrokenConnection(msgspec.Struct, frozen=True):
    """Ends the connection at this point of a streamed answer."""


class SimulatedError(msgspec.Struct, frozen=True):
    """An error response in place of an answer. `type` is the vendor's word for it."""

    status: int
    message: str
    type: str = ""
    headers: dict[str, str] = {}


AnswerPiece = (
    str | SimulatedReasoning | ToolUsePart | ServerSearch | MaxTokens | BrokenConnection | asyncio.Event | float
)
"""Part of an answer. The server waits for an event, or this number of seconds, before it sends the rest."""
Frame = bytes | asyncio.Event | float | BrokenConnection
_Payloads = Iterator[tuple[str, Body] | asyncio.Event | float | BrokenConnection]
_WAITS = (asyncio.Event, float, int, BrokenConnection)


class SimulatedApi(msgspec.Struct, frozen=True):
    """One of the four APIs: its rules, the formats of its answers and its errors."""

    kind: ApiKind
    model: str
    path: str
    base: str
    rules: ApiRules
    body: Callable[[Sequence[AnswerPiece], str], Body]
    events: Callable[[Sequence[AnswerPiece], str], _Payloads]
    overloaded: SimulatedError
    overflow: SimulatedError
    too_large: SimulatedError
    max_bytes: int

    def problem(self, body: Body, model: str = "") -> str | None:
        """Returns why the API rejects the conversation of a request, in its own words; None if it accepts it."""
        return next(self.rules.conversation_problems(body, model or body.get("model", self.model)), None)

    def whole(self, pieces: Sequence[AnswerPiece]) -> Body:
        """Returns an answer as one JSON object."""
        return self.body(pieces, self.model)

    def stream(self, pieces: Sequence[AnswerPiece], model: str = "") -> Iterator[Frame]:
        """Yields an answer as server-sent events."""
        for payload in self.events(pieces, model or self.model):
            if isinstance(payload, tuple):
                head = f"event: {payload[0]}\n".encode() if payload[0] else b""
                yield head + b"data: " + msgspec.json.encode(payload[1]) + b"\n\n"
            else:
                yield payload
        if self.kind == "openai":
            yield b"data: [DONE]\n\n"

    def error_body(self, error: SimulatedError) -> Body:
        """Returns an error as the vendor writes it."""
        if self.kind == "anthropic":
            inner: Body = {"type": error.type or "invalid_request_error", "message": error.message}
            return {"type": "error", "error": inner, "request_id": "req_1"}
        if self.kind == "google":
            status = error.type or _GOOGLE_STATUS.get(error.status, "INTERNAL")
            return {"error": {"code": error.status, "message": error.message, "status": status}}
        kind = "invalid_request_error" if error.status < 500 else error.type or "server_error"
        code = error.type if error.status < 500 and error.type else None
        param = "messages" if self.kind == "openai" else "input"
        return {"error": {"message": error.message, "type": kind, "param": param, "code": code}}


class SimulatedRequest(msgspec.Struct, frozen=True):
    """A request that the simulator has received, as JSON and as the bytes of its `raw` body. The properties read it in
    the same way for every API."""

    kind: ApiKind
    model: str
    body: Body
    streaming: bool = True
    raw: bytes = b""

    @property
    def texts(self) -> list[str]:
        """Texts of the user in order, without the state of the workspace that the engine adds."""
        return self._rules.texts(self.body)

    @property
    def results(self) -> list[str]:
        """Texts of all tool results in order."""
        return self._rules.results(self.body)

    @property
    def system(self) -> str:
        """The system prompt."""
        return self._rules.system(self.body)

    @property
    def signatures(self) -> list[str]:
        """Signatures of the reasoning that is sent back."""
        return self._rules.signatures(self.body)

    @property
    def output_schema(self) -> Body | None:
        """JSON schema of the wanted output."""
        return self._rules.output_schema(self.body)

    @property
    def _rules(self) -> ApiRules:
        return SIMULATED_APIS[self.kind].rules


Answer = str | SimulatedError | Sequence[AnswerPiece] | AnswerPiece
AnswerFunction = Callable[[SimulatedRequest], Answer]
Script = Iterable[Answer | AnswerFunction] | AnswerFunction


class Simulator:
    """Local server for Anthropic Messages, OpenAI Chat Completions, OpenAI Responses and Gemini, streaming or not.

    `script` is a list of answers, used in order by all APIs, or a function that returns the answer to a request. An
    answer is a text, a list of pieces (texts, calls made with `call`, `SimulatedReasoning`, …), or a `SimulatedError`.
    A request that breaks a rule of its API gets the vendor's error and no answer. `requests` has the accepted
    requests, `rejected` the errors of the others. Use it with `with` (in a thread) or `async with` (in this loop).

    `delay` is the time between two events of a stream. `context_tokens` limits requests, at four characters a token.
    """

    def __init__(self, script: Script, *, delay: float = 0.0, context_tokens: int | None = None) -> None:
        self.requests: list[SimulatedRequest] = []
        self.rejected: list[str] = []
        self.disconnected = asyncio.Event()
        """Set when a client closes its connection in the middle of an answer."""
        if not callable(script) and not isinstance(script, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"the script of a simulator is a list of answers or a function, got {script!r}")
        self._script = script if callable(script) else list(script)
        self._delay = delay
        self._context_tokens = context_tokens
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread: _ServerThread | None = None

    def url(self, kind: ApiKind = "anthropic") -> str:
        """Returns the base URL of an API."""
        if kind not in SIMULATED_APIS:
            raise ConfigurationError(f"the simulator has no API {kind!r}; it has {', '.join(SIMULATED_APIS)}")
        return f"http://127.0.0.1:{self._port}{SIMULATED_APIS[kind].base}"

    def provider(self, kind: ApiKind = "anthropic", name: str = "simulator", **options: Any) -> Provider:
        """Returns a provider that sends its requests to this server."""
        if kind == "openai":
            options.setdefault("dialect", "openai")
        return Provider(name, kind, "key", self.url(kind), options=options)

    def check(self) -> None:
        """Raises AssertionError if a request was rejected."""
        assert not self.rejected, f"rejected requests: {self.rejected}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**20)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread = _ServerThread(self)
        self._thread.start()
        self._thread.started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.disconnected.set()  # a canceled handler would be reported as an error by asyncio
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the connection can take another request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return False  # the client has closed an idle connection
        first, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        connection = _HttpConnection(reader, writer)
        target = first.split()[1]
        api = next((api for api in SIMULATED_APIS.values() if api.path in target), None)
        if api is None:
            return await connection.send_json({"error": {"message": f"there is no {target}"}}, 404)
        answer = self._answer(api, target, headers, data)
        if isinstance(answer, SimulatedError):
            return await connection.send_json(api.error_body(answer), answer.status, answer.headers)
        request, pieces = answer
        if not request.streaming:
            for piece in pieces:
                if isinstance(piece, _WAITS):
                    await connection.wait_for(piece)
            return await connection.send_json(api.body(pieces, request.model))
        return await connection.send_stream(self._delayed(api.stream(pieces, request.model)))

    def _answer(
        self, api: SimulatedApi, target: str, headers: dict[str, str], data: bytes
    ) -> SimulatedError | tuple[SimulatedRequest, list[Any]]:
        error = _access_error(api, headers, data) or self._size_error(api, data)
        if error is None:
            request = msgspec.structs.replace(_read_request(api, target, msgspec.json.decode(data)), raw=data)
            rules = (api.rules.conversation_problems, api.rules.model_problems)
            problem = next((one for rule in rules for one in rule(request.body, request.model)), None)
            error = None if problem is None else SimulatedError(400, problem)
            if error is None:
                self.requests.append(request)
                answer = self._scripted(request)
                if isinstance(answer, SimulatedError):
                    return answer
                return request, list(cast("list[Any]", answer)) if isinstance(answer, list | tuple) else [answer]
        self.rejected.append(error.message)
        return error

    def _size_error(self, api: SimulatedApi, data: bytes) -> SimulatedError | None:
        if len(data) > api.max_bytes:
            return api.too_large
        return api.overflow if self._context_tokens is not None and len(data) > 4 * self._context_tokens else None

    def _next_answer(self, request: SimulatedRequest) -> Any:
        if callable(self._script):
            answer: Any = self._script(request)
        elif len(self.requests) <= len(self._script):
            answer = self._script[len(self.requests) - 1]
        else:
            answer = SimulatedError(400, f"the script has {len(self._script)} answers")
        return answer(request) if callable(answer) else answer

    def _scripted(self, request: SimulatedRequest) -> Any:
        """Returns the next answer. An error of the script is a rejection, because clients repeat failed requests."""
        try:
            return self._next_answer(request)
        except Exception as error:  # noqa: BLE001  a script is the code of a test and may raise anything
            self.rejected.append(f"the script raised {error!r}")
            return SimulatedError(400, self.rejected[-1])

    def _delayed(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            yield frame
            if self._delay and isinstance(frame, bytes):
                yield self._delay


def call(tool: str, call_id: str = "", /, **arguments: Any) -> ToolUsePart:
    """Returns a call of a tool, as a piece of an answer: `call("read_file", path="a.txt")`."""
    return ToolUsePart(tool_id=call_id or f"call_{new_id().replace('-', '')}", tool_name=tool, tool_input=arguments)


class _ServerThread(threading.Thread):
    """Event loop of a simulator that is used in synchronous code."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(name="simulator", daemon=True)
        self.started = threading.Event()
        self._simulator = simulator
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()

    def run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.join()

    async def _serve(self) -> None:
        async with self._simulator:
            self.started.set()
            await self._stopped.wait()


class _HttpConnection:
    """Writes responses to one client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send_json(self, body: Body, status: int = 200, headers: dict[str, str] | None = None) -> bool:
        data = msgspec.json.encode(body)
        fields = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        self._writer.write(_response_head(status, fields) + data)
        await self._writer.drain()
        return True

    async def send_stream(self, frames: Iterator[Frame]) -> bool:
        self._writer.write(_response_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        for frame in frames:
            if isinstance(frame, bytes):
                self._writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                await self._writer.drain()
            elif isinstance(frame, BrokenConnection):
                return False
            else:
                await self.wait_for(frame)
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return True

    async def wait_for(self, pause: asyncio.Event | float | BrokenConnection) -> None:
        """Waits, and raises ConnectionResetError when the client closes the connection."""
        if isinstance(pause, BrokenConnection):
            raise ConnectionResetError
        waited = 0.0
        while not (pause.is_set() if isinstance(pause, asyncio.Event) else waited >= pause):
            step = 0.005 if isinstance(pause, asyncio.Event) else min(0.02, pause - waited)
            await asyncio.sleep(step)
            waited += step
            if self._reader.at_eof() or self._writer.is_closing():
                raise ConnectionResetError


def _response_head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Simulated", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _access_error(api: SimulatedApi, headers: dict[str, str], data: bytes) -> SimulatedError | None:
    if api.kind == "anthropic" and "anthropic-version" not in headers:
        return SimulatedError(400, "anthropic-version: header is required")
    names = {"anthropic": ("x-api-key", "authorization"), "google": ("x-goog-api-key", "authorization")}
    if not any(headers.get(name) for name in names.get(api.kind, ("authorization",))):
        return SimulatedError(401, "invalid x-api-key", "authentication_error" if api.kind == "anthropic" else "")
    try:
        if isinstance(msgspec.json.decode(data), dict):
            return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return SimulatedError(400, "We could not parse the JSON body of your request.")


def _read_request(api: SimulatedApi, target: str, body: Body) -> SimulatedRequest:
    if api.kind != "google":
        return SimulatedRequest(api.kind, body.get("model", ""), body, bool(body.get("stream")))
    model, _, method = target.partition(api.path)[2].partition("?")[0].partition(":")
    return SimulatedRequest(api.kind, model, body, method == "streamGenerateContent")


def _split(text: str) -> tuple[str, ...]:
    """Splits a text, because every text of a stream comes in several pieces."""
    if len(text) > 2_048:
        return tuple(text[at : at + 1_024] for at in range(0, len(text), 1_024))
    return text[: len(text) // 2], text[len(text) // 2 :]


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _has(pieces: Sequence[AnswerPiece], kind: type) -> bool:
    return any(isinstance(piece, kind) for piece in pieces)


def _anthropic_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    blocks = [_anthropic_block(piece) for piece in pieces if not isinstance(piece, (*_WAITS, MaxTokens))]
    return _anthropic_message(model) | {"content": blocks, "stop_reason": _anthropic_stop(pieces), "usage": _USAGE}


_USAGE = {"input_tokens": 20, "output_tokens": 10}


def _anthropic_events(pieces: Sequence[AnswerPiece], model: str) -> _Payloads:
    yield _event("message_start", message=_anthropic_message(model) | {"content": [], "usage": _USAGE})
    yield _event("ping")
    index = -1
    for piece in pieces:
        if isinstance(piece, _WAITS):
            yield piece
        if isinstance(piece, (*_WAITS, MaxTokens)):
            continue
        index += 1
        block = _anthropic_block(piece)
        empty: Body = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        start = block | empty.get(block["type"], {"input": {}})
        yield _event("content_block_start", index=index, content_block=start)
        for delta in _anthropic_deltas(block):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": _anthropic_stop(pieces), "stop_sequence": None}
    yield _event("message_delta", delta=end, usage={"output_tokens": 10})
    yield _event("message_stop")


def _event(event_type: str, **fields: Any) -> tuple[str, Body]:
    return event_type, {"type": event_type, **fields}


def _anthropic_deltas(block: Body) -> Iterator[Body]:
    match block:
        case {"type": "text", "text": text}:
            yield from ({"type": "text_delta", "text": half} for half in _split(text))
        case {"type": "thinking", "thinking": text, "signature": signature}:
            yield from ({"type": "thinking_delta", "thinking": half} for half in _split(text))
            yield {"type": "signature_delta", "signature": signature}
        case {"input": given}:
            yield from ({"type": "input_json_delta", "partial_json": half} for half in _split(_as_json(given)))
        case _:
            pass


def _anthropic_block(piece: Any) -> Body:
    match piece:
        case str():
            return {"type": "text", "text": piece}
        case SimulatedReasoning(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature or SIGNATURES["anthropic"]}
        case ToolUsePart():
            return {"type": "tool_use", "id": piece.tool_id, "name": piece.tool_name, "input": piece.tool_input}
        case ServerSearch(query):
            return {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": query}}
        case _:
            raise TypeError(f"{piece!r} is no piece of an answer")


def _anthropic_message(model: str) -> Body:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}


def _anthropic_stop(pieces: Sequence[AnswerPiece]) -> str:
    if _has(pieces, Refusal):
        return "refusal"
    if _has(pieces, MaxTokens):
        return "max_tokens"
    if _has(pieces, ServerSearch):
        return "pause_turn"
    return "tool_use" if _has(pieces, ToolUsePart) else "end_turn"


def _chat_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    calls = [_chat_call(piece) for piece in pieces if isinstance(piece, ToolUsePart)]
    message: Body = {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(pieces)}
    return _chat_head("chat.completion", model) | {"choices": [choice], "usage": _CHAT_USAGE}


_CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def _chat_events(pieces: Sequence[AnswerPiece], model: str) -> _Payloads:
    def chunk(delta: Body, finish: str | None = None) -> tuple[str, Body]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", _chat_head("chat.completion.chunk", model) | {"choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for piece in pieces:
        match piece:
            case asyncio.Event() | float() | int() | BrokenConnection():
                yield piece
            case str():
                yield from (chunk({"content": half}) for half in _split(piece))
            case ToolUsePart():
                whole = _chat_call(piece)
                start = whole | {"index": calls, "function": whole["function"] | {"arguments": ""}}
                yield chunk({"tool_calls": [start]})
                for half in _split(whole["function"]["arguments"]):
                    yield chunk({"tool_calls": [{"index": calls, "function": {"arguments": half}}]})
                calls += 1
            case _:
                pass
    yield chunk({}, _chat_finish(pieces))
    yield "", _chat_head("chat.completion.chunk", model) | {"choices": [], "usage": _CHAT_USAGE}


def _chat_head(kind: str, model: str) -> Body:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model}


def _chat_call(use: ToolUsePart) -> Body:
    function = {"name": use.tool_name, "arguments": _as_json(use.tool_input)}
    return {"id": use.tool_id, "type": "function", "function": function}


def _chat_finish(pieces: Sequence[AnswerPiece]) -> str:
    if _has(pieces, Refusal):
        return "content_filter"
    return "length" if _has(pieces, MaxTokens) else "tool_calls" if _has(pieces, ToolUsePart) else "stop"


def _responses_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    given = [piece for piece in pieces if isinstance(piece, str | SimulatedReasoning | ToolUsePart)]
    return _response(pieces, [_response_item(piece) for piece in given], model)


def _response(pieces: Sequence[AnswerPiece], items: list[Body], model: str, status: str = "") -> Body:
    cut = _has(pieces, MaxTokens)
    why = "content_filter" if _has(pieces, Refusal) else "max_output_tokens"
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": model,
        "status": status or ("incomplete" if cut else "completed"),
        "error": None,
        "incomplete_details": {"reason": why} if cut else None,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if status else _RESPONSES_USAGE,
    }


_RESPONSES_USAGE = {
    "input_tokens": 20,
    "output_tokens": 10,
    "total_tokens": 30,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def _responses_events(pieces: Sequence[AnswerPiece], model: str) -> _Payloads:
    for number, payload in enumerate(_plain_responses_events(pieces, model)):
        yield (payload[0], payload[1] | {"sequence_number": number}) if isinstance(payload, tuple) else payload


def _plain_responses_events(pieces: Sequence[AnswerPiece], model: str) -> _Payloads:
    yield _event("response.created", response=_response([], [], model, "in_progress"))
    items: list[Body] = []
    for piece in pieces:
        if isinstance(piece, _WAITS):
            yield piece
        elif not isinstance(piece, MaxTokens):
            items.append(_response_item(piece))
            yield from _item_events(items[-1], len(items) - 1)
    done = "response.incomplete" if _has(pieces, MaxTokens) else "response.completed"
    yield _event(done, response=_response(pieces, items, model))


def _item_events(item: Body, at: int) -> Iterator[tuple[str, Body]]:
    place = {"output_index": at, "item_id": item["id"]}
    match item:
        case {"type": "message", "content": [{"text": text}]}:
            part: Body = {"type": "output_text", "text": "", "annotations": []}
            yield _event("response.output_item.added", output_index=at, item=item | {"content": []})
            yield _event("response.content_part.added", **place, content_index=0, part=part)
            for half in _split(text):
                yield _event("response.output_text.delta", **place, content_index=0, delta=half)
            yield _event("response.output_text.done", **place, content_index=0, text=text)
            yield _event("response.content_part.done", **place, content_index=0, part=part | {"text": text})
        case {"type": "function_call", "arguments": arguments}:
            yield _event("response.output_item.added", output_index=at, item=item | {"arguments": ""})
            for half in _split(arguments):
                yield _event("response.function_call_arguments.delta", **place, delta=half)
            yield _event("response.function_call_arguments.done", **place, arguments=arguments)
        case _:
            yield _event("response.output_item.added", output_index=at, item=item | {"summary": []})
            text = item["summary"][0]["text"]
            part = {"type": "summary_text", "text": ""}
            yield _event("response.reasoning_summary_part.added", **place, summary_index=0, part=part)
            for half in _split(text):
                yield _event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=half)
            yield _event("response.reasoning_summary_text.done", **place, summary_index=0, text=text)
            yield _event("response.reasoning_summary_part.done", **place, summary_index=0, part=part | {"text": text})
    yield _event("response.output_item.done", output_index=at, item=item)


def _response_item(piece: Any) -> Body:
    match piece:
        case str():
            content: list[Body] = [{"type": "output_text", "text": piece, "annotations": []}]
            status: Body = {"status": "completed", "role": "assistant", "content": content}
            return {"type": "message", "id": f"msg_{new_id()}", **status}
        case SimulatedReasoning(text, signature):
            summary = [{"type": "summary_text", "text": text}]
            sealed = signature or SIGNATURES["openai-responses"]
            return {"type": "reasoning", "id": f"rs_{new_id()}", "summary": summary, "encrypted_content": sealed}
        case ToolUsePart():
            named = {"call_id": piece.tool_id, "name": piece.tool_name, "arguments": _as_json(piece.tool_input)}
            return {"type": "function_call", "id": f"fc_{new_id()}", "status": "completed", **named}
        case _:
            raise TypeError(f"{piece!r} is no piece of an answer of the Responses API")


def _google_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    parts = [part for piece in pieces for part in _google_parts(piece)]
    return _google_chunk(_google_head(model), parts, _google_finish(pieces))


_GOOGLE_USAGE = {"promptTokenCount": 20, "candidatesTokenCount": 10, "totalTokenCount": 30}
_GOOGLE_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def _google_events(pieces: Sequence[AnswerPiece], model: str) -> _Payloads:
    head = _google_head(model)
    for piece in pieces:
        match piece:
            case asyncio.Event() | float() | int() | BrokenConnection():
                yield piece
            case str():
                yield from (("", _google_chunk(head, [{"text": half}])) for half in _split(piece))
            case _:
                yield "", _google_chunk(head, _google_parts(piece))
    yield "", _google_chunk(head, [], _google_finish(pieces))


def _google_parts(piece: Any) -> list[Body]:
    match piece:
        case str():
            return [{"text": piece}]
        case SimulatedReasoning(text, signature):
            signed = {"text": "", "thoughtSignature": signature or SIGNATURES["google"]}
            return [{"text": text, "thought": True}, signed]
        case ToolUsePart():
            return [{"functionCall": {"name": piece.tool_name, "args": piece.tool_input}}]
        case _:
            return []


def _google_head(model: str) -> Body:
    return {"usageMetadata": _GOOGLE_USAGE, "modelVersion": model, "responseId": new_id()}


def _google_chunk(head: Body, parts: list[Body], finish: str | None = None) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **head}


def _google_finish(pieces: Sequence[AnswerPiece]) -> str:
    if _has(pieces, Refusal):
        return "SAFETY"
    return "MAX_TOKENS" if _has(pieces, MaxTokens) else "STOP"


_APIS = (
    SimulatedApi(
        kind="anthropic",
        model="claude-sonnet-4-5",
        path="/v1/messages",
        base="",
        rules=AnthropicRules(),
        body=_anthropic_body,
        events=_anthropic_events,
        overloaded=SimulatedError(529, "Overloaded", "overloaded_error"),
        overflow=SimulatedError(400, "prompt is too long: 214112 tokens > 200000 maximum", "invalid_request_error"),
        too_large=SimulatedError(413, "Request exceeds the maximum size", "request_too_large"),
        max_bytes=32 * 2**20,
    ),
    SimulatedApi(
        kind="openai",
        model="gpt-4.1",
        path="/v1/chat/completions",
        base="/v1",
        rules=ChatRules(),
        body=_chat_body,
        events=_chat_events,
        overloaded=SimulatedError(503, "The engine is currently overloaded, please try again later", "server_error"),
        overflow=SimulatedError(
            400,
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 131415 tokens. "
            "Please reduce the length of the messages.",
            "context_length_exceeded",
        ),
        too_large=SimulatedError(413, "Request body is too large."),
        max_bytes=50 * 2**20,
    ),
    SimulatedApi(
        kind="openai-responses",
        model="gpt-5-mini",
        path="/v1/responses",
        base="/v1",
        rules=ResponsesRules(),
        body=_responses_body,
        events=_responses_events,
        overloaded=SimulatedError(503, "Our servers are currently overloaded. Please try again later.", "server_error"),
        overflow=SimulatedError(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "context_length_exceeded",
        ),
        too_large=SimulatedError(413, "Request body is too large."),
        max_bytes=50 * 2**20,
    ),
    SimulatedApi(
        kind="google",
        model="gemini-2.5-flash",
        path="/models/",
        base="",
        rules=GoogleRules(),
        body=_google_body,
        events=_google_events,
        overloaded=SimulatedError(503, "The model is overloaded. Please try again later."),
        overflow=SimulatedError(
            400, "The input token count (1234567) exceeds the maximum number of tokens allowed (1048576)."
        ),
        too_large=SimulatedError(400, "Request payload size exceeds the limit: 20971520 bytes."),
        max_bytes=20 * 2**20,
    ),
)
SIMULATED_APIS: dict[str, SimulatedApi] = {api.kind: api for api in _APIS}
