"""Answers of the four model APIs: their pieces, and how each API writes them, streamed or not."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from outrider.errors import ConfigurationError
from outrider.providers.cassettes.cassette import Cassette, join_chunks
from outrider.testing.simulator_rules import (
    SIGNATURES,
    AnthropicRules,
    ApiRules,
    Body,
    ChatRules,
    GoogleRules,
    ResponsesRules,
)
from outrider.types.ids import new_id
from outrider.types.parts import ToolUsePart
from outrider.types.validate import ArgumentsMeta

ApiKind = Literal["anthropic", "openai", "openai-responses", "google"]


class SimulatedReasoning(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """Reasoning in an answer. The API signs it, and accepts it back only with its own signature."""

    text: str
    signature: str = ""


class MaxTokens(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """Ends an answer because the limit of output tokens is reached."""


class Refusal(MaxTokens, frozen=True):
    """Ends an answer because the model, or a filter of the vendor, refuses to continue."""


class ServerSearch(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """A search that Anthropic runs itself: the answer is paused before its result."""

    query: str


class BrokenConnection(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """Ends the connection at this point of a streamed answer."""


class MalformedCall(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """A call whose arguments are a string that may not be valid JSON. Gemini ends such an answer without the call."""

    tool: str
    arguments: str
    call_id: str = ""


class RecordedAnswer(msgspec.Struct, frozen=True):
    """A recorded response, which is sent as it is; the connection of one that was `cut` ends after it."""

    status: int
    headers: dict[str, str]
    content: bytes
    cut: bool = False


class SimulatedError(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """An error response in place of an answer. `type` is the vendor's word for it."""

    status: int
    message: str
    type: str = ""
    headers: dict[str, str] = {}


AnswerPiece = (
    str
    | SimulatedReasoning
    | ToolUsePart
    | MalformedCall
    | ServerSearch
    | MaxTokens
    | BrokenConnection
    | asyncio.Event
    | float
)
"""Part of an answer. The server waits for an event, or this number of seconds, before it sends the rest."""
Frame = bytes | asyncio.Event | float | BrokenConnection
_Payloads = Iterator[tuple[str, Body] | asyncio.Event | float | BrokenConnection]
WAITS = (asyncio.Event, float, int, BrokenConnection)
CALLS = (ToolUsePart, MalformedCall)
PayloadChange = Callable[[Body], Body]


class SimulatedApi(msgspec.Struct, frozen=True):
    """One of the four APIs: its rules, the formats of its answers and its errors."""

    kind: ApiKind
    model: str
    path: str
    base: str
    rules: ApiRules
    body: Callable[[Sequence[AnswerPiece], str], Body]
    events: Callable[[Sequence[AnswerPiece], str, int], _Payloads]
    overloaded: SimulatedError
    overflow: SimulatedError
    too_large: SimulatedError
    max_bytes: int

    def problem(self, body: Body, model: str = "") -> str | None:
        """Returns why the API rejects the conversation of a request, in its own words; None if it accepts it."""
        return next(self.rules.conversation_problems(body, model or body.get("model", self.model)), None)

    def stream(
        self, pieces: Sequence[AnswerPiece], model: str = "", *, size: int = 0, change: PayloadChange | None = None
    ) -> Iterator[Frame]:
        """Yields an answer as server-sent events, with texts of `size` characters, or two for each text."""
        for payload in self.events(pieces, model or self.model, size):
            if isinstance(payload, tuple):
                head = f"event: {payload[0]}\n".encode() if payload[0] else b""
                yield head + b"data: " + msgspec.json.encode(change(payload[1]) if change else payload[1]) + b"\n\n"
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


def call(tool: str, call_id: str = "", /, **arguments: Any) -> ToolUsePart:
    """Returns a call of a tool, as a piece of an answer: `call("read_file", path="a.txt")`."""
    if not isinstance(tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"call() takes the name of a tool, got {tool!r}; write call('add', a=1, b=2)")
    return ToolUsePart(tool_id=call_id or f"call_{new_id().replace('-', '')}", tool_name=tool, tool_input=arguments)


def _split(text: str, size: int = 0) -> tuple[str, ...]:
    """Splits a string, because all text of a stream comes in several chunks."""
    if size or len(text) > 2_048:
        size = size or 1_024
        return tuple(text[start : start + size] for start in range(0, len(text), size))
    return text[: len(text) // 2], text[len(text) // 2 :]


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _has(pieces: Sequence[AnswerPiece], kind: type | tuple[type, ...]) -> bool:
    return any(isinstance(piece, kind) for piece in pieces)


def _anthropic_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    blocks = [_anthropic_block(piece) for piece in pieces if not isinstance(piece, (*WAITS, MaxTokens))]
    return _anthropic_message(model) | {"content": blocks, "stop_reason": _anthropic_stop(pieces), "usage": _USAGE}


_USAGE = {"input_tokens": 20, "output_tokens": 10}


def _anthropic_events(pieces: Sequence[AnswerPiece], model: str, size: int) -> _Payloads:
    yield _event("message_start", message=_anthropic_message(model) | {"content": [], "usage": _USAGE})
    yield _event("ping")
    index = -1
    for piece in pieces:
        if isinstance(piece, WAITS):
            yield piece
        if isinstance(piece, (*WAITS, MaxTokens)):
            continue
        index += 1
        block = _anthropic_block(piece)
        empty: Body = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        start = block | empty.get(block["type"], {"input": {}})
        yield _event("content_block_start", index=index, content_block=start)
        for delta in _anthropic_deltas(block, size):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": _anthropic_stop(pieces), "stop_sequence": None}
    yield _event("message_delta", delta=end, usage={"output_tokens": 10})
    yield _event("message_stop")


def _event(event_type: str, **fields: Any) -> tuple[str, Body]:
    return event_type, {"type": event_type, **fields}


def _anthropic_deltas(block: Body, size: int) -> Iterator[Body]:
    match block:
        case {"type": "text", "text": text}:
            yield from ({"type": "text_delta", "text": half} for half in _split(text, size))
        case {"type": "thinking", "thinking": text, "signature": signature}:
            yield from ({"type": "thinking_delta", "thinking": half} for half in _split(text, size))
            yield {"type": "signature_delta", "signature": signature}
        case {"input": arguments}:
            encoded = arguments if isinstance(arguments, str) else _as_json(arguments)
            yield from ({"type": "input_json_delta", "partial_json": half} for half in _split(encoded, size))
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
        case MalformedCall(tool, arguments, call_id):
            return {"type": "tool_use", "id": call_id or "toolu_1", "name": tool, "input": arguments}
        case ServerSearch(query):
            return {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": query}}
        case _:
            raise TypeError(f"{piece!r} is not a piece of an answer")


def _anthropic_message(model: str) -> Body:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}


def _anthropic_stop(pieces: Sequence[AnswerPiece]) -> str:
    if _has(pieces, Refusal):
        return "refusal"
    if _has(pieces, MaxTokens):
        return "max_tokens"
    if _has(pieces, ServerSearch):
        return "pause_turn"
    return "tool_use" if _has(pieces, CALLS) else "end_turn"


def _chat_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    calls = [_chat_call(piece) for piece in pieces if isinstance(piece, CALLS)]
    message: Body = {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(pieces)}
    return _chat_head("chat.completion", model) | {"choices": [choice], "usage": _CHAT_USAGE}


_CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def _chat_events(pieces: Sequence[AnswerPiece], model: str, size: int) -> _Payloads:
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
                yield from (chunk({"content": half}) for half in _split(piece, size))
            case ToolUsePart() | MalformedCall():
                chat_call = _chat_call(piece)
                start = chat_call | {"index": calls, "function": chat_call["function"] | {"arguments": ""}}
                yield chunk({"tool_calls": [start]})
                for half in _split(chat_call["function"]["arguments"], size):
                    yield chunk({"tool_calls": [{"index": calls, "function": {"arguments": half}}]})
                calls += 1
            case _:
                pass
    yield chunk({}, _chat_finish(pieces))
    yield "", _chat_head("chat.completion.chunk", model) | {"choices": [], "usage": _CHAT_USAGE}


def _chat_head(kind: str, model: str) -> Body:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model}


def _chat_call(use: ToolUsePart | MalformedCall) -> Body:
    if isinstance(use, MalformedCall):
        return {
            "id": use.call_id or "call_1",
            "type": "function",
            "function": {"name": use.tool, "arguments": use.arguments},
        }
    function = {"name": use.tool_name, "arguments": _as_json(use.tool_input)}
    return {"id": use.tool_id, "type": "function", "function": function}


def _chat_finish(pieces: Sequence[AnswerPiece]) -> str:
    if _has(pieces, Refusal):
        return "content_filter"
    return "length" if _has(pieces, MaxTokens) else "tool_calls" if _has(pieces, CALLS) else "stop"


def _responses_body(pieces: Sequence[AnswerPiece], model: str) -> Body:
    items = [piece for piece in pieces if isinstance(piece, (str, SimulatedReasoning, *CALLS))]
    return _response(pieces, [_response_item(piece) for piece in items], model)


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


def _responses_events(pieces: Sequence[AnswerPiece], model: str, size: int) -> _Payloads:
    for number, payload in enumerate(_plain_responses_events(pieces, model, size)):
        yield (payload[0], payload[1] | {"sequence_number": number}) if isinstance(payload, tuple) else payload


def _plain_responses_events(pieces: Sequence[AnswerPiece], model: str, size: int) -> _Payloads:
    yield _event("response.created", response=_response([], [], model, "in_progress"))
    items: list[Body] = []
    for piece in pieces:
        if isinstance(piece, WAITS):
            yield piece
        elif not isinstance(piece, MaxTokens):
            items.append(_response_item(piece))
            yield from _item_events(items[-1], len(items) - 1, size)
    event_type = "response.incomplete" if _has(pieces, MaxTokens) else "response.completed"
    yield _event(event_type, response=_response(pieces, items, model))


def _item_events(item: Body, index: int, size: int) -> Iterator[tuple[str, Body]]:
    position = {"output_index": index, "item_id": item["id"]}
    match item:
        case {"type": "message", "content": [{"text": text}]}:
            part: Body = {"type": "output_text", "text": "", "annotations": []}
            yield _event("response.output_item.added", output_index=index, item=item | {"content": []})
            yield _event("response.content_part.added", **position, content_index=0, part=part)
            for half in _split(text, size):
                yield _event("response.output_text.delta", **position, content_index=0, delta=half)
            yield _event("response.output_text.done", **position, content_index=0, text=text)
            yield _event("response.content_part.done", **position, content_index=0, part=part | {"text": text})
        case {"type": "function_call", "arguments": arguments}:
            yield _event("response.output_item.added", output_index=index, item=item | {"arguments": ""})
            for half in _split(arguments, size):
                yield _event("response.function_call_arguments.delta", **position, delta=half)
            yield _event("response.function_call_arguments.done", **position, arguments=arguments)
        case _:
            yield _event("response.output_item.added", output_index=index, item=item | {"summary": []})
            text = item["summary"][0]["text"]
            part = {"type": "summary_text", "text": ""}
            yield _event("response.reasoning_summary_part.added", **position, summary_index=0, part=part)
            for half in _split(text, size):
                yield _event("response.reasoning_summary_text.delta", **position, summary_index=0, delta=half)
            yield _event("response.reasoning_summary_text.done", **position, summary_index=0, text=text)
            yield _event(
                "response.reasoning_summary_part.done", **position, summary_index=0, part=part | {"text": text}
            )
    yield _event("response.output_item.done", output_index=index, item=item)


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
        case MalformedCall(tool, arguments, call_id):
            named = {"call_id": call_id or "call_1", "name": tool, "arguments": arguments}
            return {"type": "function_call", "id": f"fc_{new_id()}", "status": "completed", **named}
        case _:
            raise TypeError(f"{piece!r} is not a piece of an answer of the Responses API")


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


def _google_events(pieces: Sequence[AnswerPiece], model: str, size: int) -> _Payloads:
    head = _google_head(model)
    for piece in pieces:
        match piece:
            case asyncio.Event() | float() | int() | BrokenConnection():
                yield piece
            case str():
                yield from (("", _google_chunk(head, [{"text": half}])) for half in _split(piece, size))
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
    if _has(pieces, MalformedCall):
        return "MALFORMED_FUNCTION_CALL"
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


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call in a script file. `raw` replaces the arguments by a string that may not be valid JSON."""

    tool: str
    arguments: dict[str, Any] = {}
    id: str = ""
    raw: str | None = None


class ScriptedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer in a script file. One with `when` is given whenever the last text or result contains that text; the
    others are given in order, each `times` times."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    error: SimulatedError | None = None
    end: Literal["", "max_tokens", "refusal", "cut"] = ""
    wait: float = 0.0
    when: str = ""
    times: int = 1

    def to_answer(self) -> SimulatedError | list[AnswerPiece]:
        """Returns the answer as the simulator sends it."""
        if self.error is not None:
            return self.error
        pieces: list[AnswerPiece] = [self.wait] if self.wait else []
        pieces += [SimulatedReasoning(self.reasoning)] if self.reasoning else []
        pieces += [self.text] if self.text else []
        for scripted in self.calls:
            if scripted.raw is None:
                pieces.append(call(scripted.tool, scripted.id, **scripted.arguments))
            else:
                pieces.append(MalformedCall(scripted.tool, scripted.raw, scripted.id))
        ends: dict[str, AnswerPiece] = {"max_tokens": MaxTokens(), "refusal": Refusal(), "cut": BrokenConnection()}
        return [*pieces, ends[self.end]] if self.end else pieces


class ScriptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answers of a script file (TOML or JSON). With `repeat`, they start again after the last."""

    answers: tuple[ScriptedAnswer, ...]
    repeat: bool = False


def read_script_file(path: Path) -> ScriptFile:
    """Reads a script file. Raises ConfigurationError with the position of a mistake."""
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        return decode(path.read_bytes(), type=ScriptFile)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no script {path}") from None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def read_cassette_answers(path: Path) -> list[RecordedAnswer]:
    """Returns the recorded responses of a cassette, in order."""
    return [
        RecordedAnswer(
            exchange.status or 200, exchange.headers, join_chunks(exchange.chunks), exchange.failure is not None
        )
        for exchange in Cassette(path).read_exchanges()
    ]


def sample_arguments(schema: Any) -> Any:
    """Returns the smallest value that a JSON schema accepts, as arguments of a call."""
    schema_table = cast("Body", schema) if isinstance(schema, dict) else {}
    for word in ("const", "default", "example"):
        if word in schema_table:
            return schema_table[word]
    if schema_table.get("enum"):
        return schema_table["enum"][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if schema_table.get(word):
            return sample_arguments(schema_table[word][0])
    named: Any = schema_table.get("type", "object" if "properties" in schema_table else "string")
    kind = str(cast("list[Any]", named)[0] if isinstance(named, list) else named).lower()
    if kind == "object":
        fields: Body = schema_table.get("properties") or {}
        return {name: sample_arguments(fields[name]) for name in schema_table.get("required") or () if name in fields}
    plain: Body = {"integer": 1, "number": 1, "boolean": False, "array": [], "null": None}
    return plain.get(kind, "text")
