"""Answers that differ from the API's description are decoded."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from outrider.errors import ContextOverflowError, NetworkError, OverloadedError, ProviderError, ServerError
from outrider.models.clients import model_client
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.client import WireClient
from outrider.providers.google.client import GoogleWire
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import AnswerAssembler, WireFormat
from outrider.types.agents import Provider, ProviderKind
from outrider.types.parts import TextPart, ToolPart
from outrider.types.request import RetryPolicy
from tests.contract.test_model_client import ANTHROPIC, CHAT, GOOGLE, REQUEST, RESPONSES, candidate, chat_delta
from tests.fixtures.cases import for_each
from tests.fixtures.http_server import Reply, serving
from tests.fixtures.memory_transport import Player

Fields = dict[str, Any]
WIRES: dict[str, Callable[[], WireFormat]] = {
    "anthropic": lambda: AnthropicWire(Provider("p", "anthropic", "k")),
    "openai": lambda: ChatWire(Provider("p", "openai", "k")),
    "openai-responses": lambda: ResponsesWire(Provider("p", "openai-responses", "k")),
    "google": lambda: GoogleWire(Provider("p", "google", "k")),
}
STREAMS = {"anthropic": ANTHROPIC, "openai": CHAT, "openai-responses": RESPONSES, "google": GOOGLE}


async def read(
    name: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[AnswerAssembler, Exception | None]:
    client = WireClient("p", WIRES[name](), Player([body], headers=headers), retry=RetryPolicy(attempts=1))
    assembler = AnswerAssembler(client.model_family("m"))
    try:
        async for delta in client.stream(REQUEST):
            assembler.add(delta)
    except ProviderError as error:
        return assembler, error
    return assembler, None


def text_of(assembler: AnswerAssembler) -> str:
    return "".join(part.text for part in assembler.list_parts() if isinstance(part, TextPart))


def calls_of(assembler: AnswerAssembler) -> list[tuple[str, Fields]]:
    return [(part.tool, part.state.input) for part in assembler.list_parts() if isinstance(part, ToolPart)]


def stream(*events: Fields | bytes) -> bytes:
    return b"".join(
        event if isinstance(event, bytes) else b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events
    )


def rewritten(*pairs: tuple[bytes, bytes]) -> Callable[[bytes], bytes]:
    def rewrite(whole: bytes) -> bytes:
        for old, new in pairs:
            whole = whole.replace(old, new)
        return whole

    return rewrite


REWRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "numbers that are none": lambda whole: whole.replace(b"data: {", b'data: {"odd":[NaN,-Infinity],'),
    "no blank lines": rewritten((b"\n\n", b"\n")),
    "bare JSON": rewritten((b"data: {", b"{")),
    "a heartbeat in plain words": lambda whole: b"data: still there\n\n" + whole,
}


@pytest.mark.parametrize("way", REWRITTEN)
@pytest.mark.parametrize("name", WIRES)
async def test_an_unusual_frame_changes_nothing(name: str, way: str):
    assembler, error = await read(name, REWRITTEN[way](b"".join(STREAMS[name])))
    assert error is None
    assert (text_of(assembler), calls_of(assembler)) == ("I will look.", [("read", {"path": "a.txt"})])
    assert (assembler.finish, assembler.tokens.total) == ("tool_use", 12)


@pytest.mark.parametrize("name", WIRES)
async def test_a_stream_that_calls_itself_a_web_page_is_a_stream(name: str):
    assembler, error = await read(name, b"".join(STREAMS[name]), {"content-type": "text/html"})
    assert (error, assembler.finish) == (None, "tool_use")


def anthropic(*events: Fields | bytes, stop: Any = "end_turn", usage: Any = None) -> bytes:
    ending = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}
    return stream(*events, ending, {"type": "message_stop"})


def a_delta(**delta: Any) -> Fields:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


A_CALL = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "x", "name": "read"}}
HI = {"type": "text_delta", "text": "Hi"}


def chat(*deltas: Fields, finish: Any = "stop", **rest: Any) -> bytes:
    chunks = [chat_delta(**delta) for delta in deltas]
    return stream(*chunks, chat_delta(finish) | rest, b"data: [DONE]\n\n")


def responses(*events: Fields | bytes, **response: Any) -> bytes:
    ending = {"type": "response.completed", "response": {"status": "completed", "output": []} | response}
    return stream(*events, ending)


def r_text(**fields: Any) -> Fields:
    return {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"} | fields


def r_item(**item: Any) -> Fields:
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


def google(*parts: Any, **rest: Any) -> bytes:
    return stream(candidate("STOP", *parts) | rest)


HI_ANSWERS = {
    "anthropic": [
        anthropic(a_delta(**HI), usage="unknown"),
        anthropic(a_delta(**HI), usage={"output_tokens": 7.5}),
        anthropic({"type": "message_start", "message": {"id": 5}}, a_delta(**HI)),
        anthropic(a_delta(**HI), stop=5),
        anthropic({"type": "content_block_start", "index": 0, "content_block": 7}, a_delta(**HI)),
        anthropic(a_delta(text="Hi")),
        anthropic({"type": "content_block_delta", "index": 0}, a_delta(**HI)),
        anthropic(b"event: ping\ndata: {oops\n\n", a_delta(**HI)),
        b'{"type":"message","content":"Hi","stop_reason":"end_turn","usage":[]}',
        b'{"type":"message","content":[null,{"type":"text","text":"Hi"}],"stop_reason":"end_turn"}',
    ],
    "openai": [
        chat({"content": "Hi"}, usage={"prompt_tokens": "many"}),
        chat({"content": "Hi"}, usage=[]),
        chat({"content": "Hi"}, finish="STOP"),
        chat({"content": "Hi", "tool_calls": [None], "reasoning_details": {"text": "x"}}),
        chat({"content": "Hi", "tool_calls": {}}, id=5, model=7),
        stream({"choices": [None]}, {"choices": {}}, {"choices": [{"delta": "x"}]}) + chat({"content": "Hi"}),
        stream(b"data: data: " + msgspec.json.encode(chat_delta(content="Hi")) + b"\n\n") + chat(),
        msgspec.json.encode({"choices": [{"message": {"content": "Hi"}}]}) + b"\n\ndata: [DONE]\n\n",
    ],
    "openai-responses": [
        responses(r_text(), usage="unknown"),
        responses(r_text(), output=[None]),
        responses({"type": "response.created", "response": {"id": 5}}, r_text()),
        responses({"type": "response.output_item.added", "output_index": 0, "item": []}, r_text()),
        responses({"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi"}),
        responses(r_item(type="message", id="i", content="Hi")),
        responses(r_item(type="message", id="i", content=[None, {"type": "output_text", "text": "Hi"}])),
        stream(r_text(), {"type": "response.done", "response": {"status": "completed"}}),
    ],
    "google": [
        google({"text": "Hi"}, usageMetadata="unknown", responseId=5),
        google(None, {}, {"text": None}, {"text": "Hi"}, {"functionCall": []}),
        stream({"candidates": [None]}, {"candidates": [{"content": []}]}) + google({"text": "Hi"}),
        msgspec.json.encode([None, candidate("STOP", {"text": "Hi"})]),
    ],
}


@pytest.mark.parametrize(
    ("name", "body"), [(name, body) for name, bodies in HI_ANSWERS.items() for body in bodies], ids=str
)
async def test_a_field_of_another_type_does_not_cost_the_answer(name: str, body: bytes):
    assembler, error = await read(name, body)
    assert error is None
    assert text_of(assembler) == "Hi"
    assert calls_of(assembler) == []


A, B = {"path": "a"}, {"path": "b"}


def c_call(index: int | None = 0, **fields: Any) -> Fields:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {"tool_calls": [{"index": index, "function": function, **fields}]}


@pytest.mark.parametrize(
    ("name", "body", "calls"),
    [
        ("anthropic", anthropic(A_CALL, a_delta(type="input_json_delta", partial_json=A)), [("read", A)]),
        ("openai", chat(c_call(id=7, name="read", arguments=A)), [("read", A)]),
        ("openai", chat(c_call(id="x", name="re"), c_call(name="ad"), c_call(arguments='{"path":"a"}')), [("read", A)]),
        ("openai", chat(c_call(id="x", name="re"), c_call(id="x", name="read", arguments=A)), [("read", A)]),
        ("openai", chat(c_call(name="read", arguments=""), c_call(name="list", arguments="")),
         [("read", {}), ("list", {})]),
        ("openai", chat(c_call(name="read", arguments=""), c_call(name="read", arguments=A)), [("read", A)]),
        ("openai-responses", responses(r_item(type="function_call", call_id="x", name="read", arguments=A),
                                       r_item(type="function_call", call_id="x", name="read", arguments=B) |
                                       {"output_index": 1}), [("read", A), ("read", B)]),
        ("openai-responses", responses({"type": "response.function_call_arguments.done", "output_index": 0,
                                        "item_id": "x", "name": "read", "arguments": '{"path":"a"}'}), [("read", A)]),
        ("google", google({"functionCall": {"id": "x", "name": "read", "args": A}},
                          {"functionCall": {"id": "x", "name": "read", "args": B}}), [("read", A), ("read", B)]),
        ("google", google({"functionCall": {"id": 5, "name": "read", "args": '{"path":"a"}'}}), [("read", A)]),
    ],
)  # fmt: skip
async def test_calls_of_any_shape_are_read_and_distinguished(name: str, body: bytes, calls: list[tuple[str, Fields]]):
    assembler, error = await read(name, body)
    assert error is None
    assert calls_of(assembler) == calls
    assert assembler.finish == "tool_use"
    ids = [part.call_id for part in assembler.list_parts() if isinstance(part, ToolPart)]
    assert len(set(ids)) == len(ids)


OVERLOADED = {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}
STARTED = {
    "anthropic": stream(a_delta(**HI)),
    "openai": stream(chat_delta(content="Hi")),
    "openai-responses": stream(r_text()),
    "google": stream(candidate(None, {"text": "Hi"})),
}


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("indent", [0, 2])
async def test_an_error_in_bare_json_is_understood_in_mid_stream(name: str, indent: int):
    bare = msgspec.json.format(msgspec.json.encode(OVERLOADED), indent=indent)
    assembler, error = await read(name, STARTED[name] + bare)
    assert isinstance(error, OverloadedError)
    assert text_of(assembler) == "Hi"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat(finish="error"), ServerError),
        (chat(finish="error", error={"code": 502, "message": "upstream"}), ServerError),
        (chat(finish="error", x_groq={"error": "over capacity"}), ServerError),
        (chat(finish="insufficient_system_resource"), OverloadedError),
        (chat(finish="network_error"), NetworkError),
        (b"data: [DONE]\n\n", NetworkError),
    ],
)
async def test_an_answer_that_a_server_gave_up_before_its_beginning_may_be_asked_for_again(
    body: bytes, kind: type[ProviderError]
):
    client = WireClient("p", WIRES["openai"](), Player([body]), retry=RetryPolicy(attempts=2, first_window=0.0))
    kinds: list[str] = []
    with pytest.raises(kind):
        async for delta in client.stream(REQUEST):
            kinds.append(type(delta).__name__)
    assert "Finish" not in kinds
    assert "Retry" in kinds


@for_each("name", WIRES)
@for_each(
    "body", [b"", b"null", b"[]", b'{"error":null}', b'{"error":5}', b'{"error":{"message":["a"],"type":5}}',
             b'{"error":{"message":"\xff"}}', b"{" * 3000, b'{"error":' * 5000, b'{"error":' * 600 + b"1" + b"}" * 600]
)  # fmt: skip
def test_a_refusal_of_any_shape_is_an_error_by_its_status(name: str, body: bytes):
    assert type(WIRES[name]().decode_error(500, {}, body)) is ServerError


@pytest.mark.parametrize("name", WIRES)
def test_a_refusal_may_come_as_an_event(name: str):
    error = WIRES[name]().decode_error(400, {}, b'event: error\ndata: {"error": {"message": "prompt is too long"}}\n\n')
    assert (type(error), error.message) == (ContextOverflowError, "prompt is too long")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("anthropic", anthropic(a_delta(**HI)).removesuffix(stream({"type": "message_stop"}))),
        ("openai", chat({"content": "Hi"}).removesuffix(b"data: [DONE]\n\n")),
        ("google", google({"text": "Hi"})),
    ],
)
async def test_a_stream_that_states_its_end_and_stays_open_is_not_waited_for(kind: ProviderKind, body: bytes):
    async with serving(Reply([body], after="keepalive_open")) as server, asyncio.timeout(30):  # idle is ten times that
        client = model_client(Provider("p", kind, "k", server.url, options={"timeouts": {"closing": 0.05}}))
        answer = AnswerAssembler("")
        async for delta in client.stream(REQUEST):
            answer.add(delta)
        await client.aclose()
    assert (text_of(answer), answer.finish) == ("Hi", "stop")
    assert len(server.requests) == 1


HALVES = b"\\ud83d", b"\\ude00"


def split_character(name: str) -> bytes:
    """An answer whose text and call have a character that is split over two deltas."""
    high, low = HALVES
    text = "%s"
    events = {
        "anthropic": anthropic(a_delta(type="text_delta", text=text), a_delta(type="text_delta", text=text)),
        "openai": chat({"content": text}, {"content": text}),
        "openai-responses": responses(r_text(delta=text), r_text(delta=text)),
        "google": stream(candidate(None, {"text": text})) + google({"text": text}),
    }[name]
    return events.replace(b"%s", b"a" + high, 1).replace(b"%s", low + b"b", 1)


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("name", WIRES)
async def test_a_character_that_is_split_over_two_deltas_is_one(name: str, size: int):
    body = split_character(name)
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    client = WireClient("p", WIRES[name](), Player(chunks), retry=RetryPolicy(attempts=1))
    assembler = AnswerAssembler(client.model_family("m"))
    async for delta in client.stream(REQUEST):
        assembler.add(delta)
    assert text_of(assembler) == "a😀b"


@pytest.mark.parametrize("name", WIRES)
async def test_half_a_character_is_replaced(name: str):
    assembler, error = await read(name, split_character(name).replace(HALVES[1], b""))
    assert error is None
    assert text_of(assembler) == "a\ufffdb"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("anthropic", anthropic(A_CALL, a_delta(type="input_json_delta", partial_json='{"path":"%s'),
                                a_delta(type="input_json_delta", partial_json='%s"}'), stop="tool_use")),
        ("openai", chat(c_call(id="x", name="read", arguments='{"path":"%s'), c_call(arguments='%s"}'))),
        ("openai-responses", responses(
            {"type": "response.output_item.added", "output_index": 0,
             "item": {"type": "function_call", "id": "i", "call_id": "x", "name": "read", "arguments": ""}},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"path":"%s'},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '%s"}'},
            r_item(type="function_call", id="i", call_id="x", name="read", arguments='{"path":"😀"}'))),
    ],
)  # fmt: skip
async def test_a_character_of_an_argument_that_is_split_is_one(name: str, body: bytes):
    assembler, error = await read(name, body.replace(b"%s", HALVES[0], 1).replace(b"%s", HALVES[1], 1))
    assert error is None
    assert calls_of(assembler) == [("read", {"path": "😀"})]
