"""Real exchanges with Chat Completions and the servers compatible with it: what they say is what we read, and what
they accepted is what we send."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ProviderError
from outrider.providers.client import WireClient
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.chat_encode import DIALECTS
from outrider.providers.provider import AnswerAssembler
from outrider.types.agents import Provider
from outrider.types.parts import ReasoningPart, TextPart, Tokens, ToolPart
from outrider.types.request import Answer, ModelMessage, Prompt, Request, RetryPolicy
from tests.recorded import chat_requests
from tests.recorded.exchanges import (
    Exchange,
    calls_of,
    corpus,
    deltas,
    differences,
    exchanges,
    load,
    read,
    reasoning_of,
    refusal_of,
    text_of,
)

APIS = ("openai-chat", "openai-compatible")
WIRE = ChatWire(Provider("openai", "openai", api_key="k"))
FAMILY = WIRE.model_family("m")
FINISHES = {"length": "length", "content_filter": "refusal"}
QUESTION: list[Any] = [{"role": "user", "content": "x"}]
ROWS = {"vercel-gateway": "vercel"}


def recorded(shared: Path, **choice: Any) -> list[Exchange]:
    return [exchange for api in APIS for exchange in exchanges(shared, api, **choice)]


def problems(exchange: Exchange, size: int | random.Random = 65536) -> list[str]:
    found, expected = read(WIRE, exchange, size), exchange["expected"]
    if expected["error"]:
        return error_problems(found, expected["error"])
    if isinstance(found, ProviderError):
        return [f"raised {found!r}"]
    result = {
        "text": text_of(found, FAMILY),
        "refusal": refusal_of(found, FAMILY),
        "reasoning_text": reasoning_of(found, ""),
        "tool_calls": [call_of(call) for call in calls_of(found)],
        "finish_reason": found.finish_raw,
        "usage": usage_of(found.tokens, expected["usage"]),
        "finish": found.finish,
    }
    wanted = {"refusal": None} | expected | {"finish_reason": expected["finish_reason"] or ""}
    wanted["tool_calls"] = [
        expected_call(*pair) for pair in zip(expected["tool_calls"], result["tool_calls"], strict=False)
    ]
    wanted["tool_calls"] += expected["tool_calls"][len(result["tool_calls"]) :]
    wanted["finish"] = expected_finish(wanted | {"no word": expected["finish_reason"] is None})
    return differences(result, wanted)


def expected_finish(expected: dict[str, Any]) -> str:
    if expected["refusal"]:
        return "refusal"
    if expected["tool_calls"] and expected["finish_reason"] not in FINISHES:
        return "tool_use"
    return "other" if expected["no word"] else FINISHES.get(expected["finish_reason"], "stop")


def error_problems(found: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(found, ProviderError):
        return ["no error"]
    result = {"message": found.message, "type": found.type if expected["type"] else None}
    if not expected.get("midstream"):
        result["status"] = found.status
    return differences(result, expected)


def call_of(call: ToolPart) -> dict[str, Any]:
    custom = call.metadata.get(FAMILY, {}).get("custom")
    return {
        "id": call.call_id,
        "name": call.tool,
        "arguments": None if custom or "input_error" in call.metadata else call.state.input,
        "raw": call.state.input["input"] if custom else call.state.raw,
    }


def expected_call(call: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A call without an id gets one of ours; arguments that are null are none."""
    unread = call.get("arguments_invalid_json") or call.get("type") == "custom"
    return {
        "id": call["id"] or found["id"],
        "name": call["name"],
        "arguments": None if unread else call["arguments"] or {},
        "raw": call["arguments_raw"],
    }


def usage_of(tokens: Tokens, expected: dict[str, Any] | None) -> dict[str, Any] | None:
    """Converts our token counts to the server's fields. A field that the response lacks is None there, and is left
    out here. Servers that report cached or reasoning tokens separately are detected by their totals."""
    if not expected:
        return None if tokens.total == 0 else {"total": tokens.total}
    apart = (expected["reasoning"] or 0) > expected["output"] or expected["output"] == tokens.output
    outside = (expected["cache_read"] or 0) > expected["input"]
    result = {
        "input": tokens.input if outside else tokens.prompt,
        "output": tokens.output if apart else tokens.output + tokens.reasoning,
        "reasoning": tokens.reasoning,
        "cache_read": tokens.cache.read,
        "cache_write": tokens.cache.write,
    }
    return {name: None if expected[name] is None and not result[name] else result[name] for name in expected}


def judged_otherwise(exchange: Exchange) -> str | None:
    """Where what is expected is not what the answer means; each kind is tested in tests/unit/providers/openai."""
    message = answered(exchange)
    if isinstance(message.get("content"), dict):
        return "the text is the JSON object itself, which the recordings take for no text"
    if (message.get("function_call") or {}).get("name") == "":
        return "an empty function_call beside the answer, which the recordings take for a call without a name"
    return None


def answered(exchange: Exchange) -> dict[str, Any]:
    if exchange["streaming"] or exchange["response"]["status"] != 200:
        return {}
    choices = json.loads(exchange["response"]["body"])["choices"]
    return choices[0].get("message") or {} if choices else {}


def failures(found: list[Exchange], size: Any) -> dict[str, list[str]]:
    return {exchange["id"]: wrong for exchange in found if (wrong := problems(exchange, size))}


def test_every_exchange_decodes_to_the_expected_result_at_random_chunking(shared_dir: Path):
    found = recorded(shared_dir)
    judged = [exchange for exchange in found if not judged_otherwise(exchange)]
    assert len(found) > 2800
    assert len(found) - len(judged) < len(found) / 200
    assert not failures(judged, random.Random(7))


def test_an_exchange_decodes_to_the_same_one_byte_at_a_time(shared_dir: Path):
    streamed = recorded(shared_dir, streaming=True)
    assert not failures(random.Random(11).sample(streamed, 200), 1)


def wire_for(exchange: Exchange) -> ChatWire:
    """The wire in the dialect of the server that answered."""
    names = {row.name for row in DIALECTS}
    vendor = ROWS.get(exchange["vendor"], exchange["vendor"])
    return ChatWire(Provider("p", "openai", options={"dialect": vendor if vendor in names else "compatible"}))


def decoded(wire: ChatWire, exchange: Exchange, model: str) -> Answer:
    assembler = AnswerAssembler(wire.model_family(model))
    request = Request(model, Prompt(), stream=exchange["streaming"])
    for delta in deltas(wire.create_decoder(request), exchange["response"]["body"].encode(), 65536):
        assembler.add(delta)
    return assembler.build_answer()


def replayed_message(answer: Answer) -> ModelMessage:
    parts = [part.use() if isinstance(part, ToolPart) else part for part in answer.message.parts]
    return ModelMessage("assistant", tuple(parts))


def turns(shared: Path) -> list[tuple[Exchange, Exchange]]:
    return [turn for api in APIS for turn in corpus(shared).tool_turns(api)]


def rewritten(first: Exchange, second: Exchange) -> str | None:
    """What a recorded client changed in the conversation; we send the original."""
    before, after = (chat_requests.meaning(exchange["request"]["body"]["messages"]) for exchange in (first, second))
    result = [message for message in before if message["role"] != "system"]
    again = [message for message in after if message["role"] != "system"]
    if again[: len(result)] != result:
        return "the earlier messages are others"
    answer, expected = again[len(result)], first["expected"]
    if len(answer.get("calls", ())) != len(expected["tool_calls"]):
        return "calls were left out"
    return "the model's text was changed" if answer.get("text", "") != expected["text"] else None


def next_request(first: Exchange, second: Exchange) -> list[dict[str, Any]]:
    """The messages of our request after the answer of `first`, with the results that `second` carries."""
    wire, model = wire_for(first), first["request"]["body"].get("model") or "m"
    family, answer = wire.model_family(model), decoded(wire, first, model)
    theirs = second["request"]["body"]["messages"]
    place = answer_place(theirs)
    before = chat_requests.model_messages(first["request"]["body"]["messages"], family)
    results = chat_requests.model_messages(
        with_ids(theirs[place + 1 :], theirs[place]["tool_calls"], calls_of(answer)), family
    )
    prompt = Prompt([*before, replayed_message(answer), *results])
    body = wire.build_request(Request(model, prompt, system=chat_requests.system_of(theirs))).body
    return json.loads(body)["messages"]


def answer_place(messages: list[dict[str, Any]]) -> int:
    return max(place for place, message in enumerate(messages) if message.get("tool_calls"))


def with_ids(results: list[dict[str, Any]], theirs: list[Any], ours: list[ToolPart]) -> list[dict[str, Any]]:
    """A call that came without an id got one from the recorded client, and another one from us."""
    ids = {their["id"]: our.call_id for their, our in zip(theirs, ours, strict=False)}
    return [
        message | {"tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"])}
        if "tool_call_id" in message
        else message
        for message in results
    ]


def test_the_next_request_of_every_tool_conversation_means_what_the_server_accepted(shared_dir: Path):
    judged = [(first, second) for first, second in turns(shared_dir) if not rewritten(first, second)]
    assert len(judged) > 380
    wrong = {
        second["id"]: [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
        for first, second in judged
        if (ours := chat_requests.meaning(next_request(first, second)))
        != (theirs := chat_requests.meaning(second["request"]["body"]["messages"]))
    }
    assert not wrong


def test_reasoning_goes_back_as_the_server_gave_it(shared_dir: Path):
    """Some recorded clients lost a piece of it, so all that they sent must be in what we send."""
    compared = 0
    for first, second in turns(shared_dir):
        theirs, ours = (
            chat_requests.reasoning_in(messages[answer_place(messages)])
            for messages in (second["request"]["body"]["messages"], next_request(first, second))
        )
        compared += bool(theirs["text"] or theirs["sealed"])
        assert theirs["text"] in ours["text"], second["id"]
        assert set(theirs["sealed"]) <= set(ours["sealed"]), second["id"]
    assert compared > 60


def test_the_next_request_starts_with_the_bytes_of_the_one_before(shared_dir: Path):
    compared = 0
    for first, second in turns(shared_dir):
        compared += 1
        wire, model = wire_for(first), first["request"]["body"].get("model") or "m"
        system = chat_requests.system_of(second["request"]["body"]["messages"])
        messages = chat_requests.model_messages(second["request"]["body"]["messages"], wire.model_family(model))
        prompt = Prompt(messages[:-1])
        before = wire.build_request(Request(model, prompt, system=system)).body
        prompt.append(messages[-1])
        assert wire.build_request(Request(model, prompt, system=system)).body.startswith(before.removesuffix(b"]}"))
    assert compared > 380


def test_requests_are_what_the_sdk_would_send(shared_dir: Path):
    """The SDK's types drop fields that they do not know, so nothing may be lost in the validation."""
    from openai.types.chat import CompletionCreateParams
    from pydantic import TypeAdapter

    judge, openai = TypeAdapter[Any](CompletionCreateParams), 0
    for first, second in turns(shared_dir):
        if first["vendor"] == "openai":
            body = {"model": "m", "messages": next_request(first, second)}
            assert plain(judge.validate_python(body)) == body, second["id"]
            openai += 1
    assert openai > 150


def plain(value: Any) -> Any:
    """The validator checks lists only while they are read."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [plain(inner) for inner in value]


@pytest.fixture(scope="module")
def server(shared_dir: Path) -> Iterator[Any]:
    with load(shared_dir, "replay_server").ReplayServer(corpus(shared_dir)).thread() as running:
        yield running


def sample(shared: Path, count: int, **choice: Any) -> list[Exchange]:
    known = [e for e in recorded(shared, **choice) if e["expected_checked_by_sdk"] and e["request"]["body"]]
    return random.Random(3).sample(known, count)


def test_we_read_what_the_sdk_reads(shared_dir: Path, server: Any):
    from openai import OpenAI
    from openai.lib.streaming.chat import ChatCompletionStreamState

    for exchange in sample(shared_dir, 60, streaming=True):
        client = OpenAI(base_url=f"{server.url(exchange['id'], 'x')}/v1", api_key="k", max_retries=0)
        fold = ChatCompletionStreamState()
        with client, client.chat.completions.create(model="m", messages=QUESTION, stream=True) as stream:
            for chunk in stream:
                fold.handle_chunk(chunk)
        theirs = fold.current_completion_snapshot.choices[0]
        ours = read(WIRE, exchange)
        assert isinstance(ours, Answer), exchange["id"]
        assert text_of(ours, FAMILY) == (theirs.message.content or ""), exchange["id"]
        assert (refusal_of(ours, FAMILY) or "") == (theirs.message.refusal or ""), exchange["id"]
        assert ours.finish_raw == theirs.finish_reason, exchange["id"]
        assert [(call.call_id, call.tool, call.state.raw) for call in calls_of(ours)] == [
            (call.id, call.function.name, call.function.arguments) for call in theirs.message.tool_calls or ()
        ], exchange["id"]


async def test_exchanges_over_a_real_connection_say_the_same(shared_dir: Path, server: Any):
    """Whole and streamed, in pieces that split events and characters."""
    for exchange in sample(shared_dir, 200) + [e for e in recorded(shared_dir) if e["expected"]["error"]][::2]:
        base_url = f"{server.url(exchange['id'], 'x', chunk='random:5:40')}/v1"
        client = WireClient("p", ChatWire(Provider("p", "openai", "k", base_url)), retry=RetryPolicy(attempts=1))
        request = Request("m", Prompt([ModelMessage("user", (TextPart("x"),))]), stream=exchange["streaming"])
        assembler = AnswerAssembler(client.model_family("m"))
        try:
            async for delta in client.stream(request):
                assembler.add(delta)
        except ProviderError as error:
            assert exchange["expected"]["error"]["message"] == error.message
        else:
            straight = read(WIRE, exchange)
            assert isinstance(straight, Answer), exchange["id"]
            over_the_wire = assembler.build_answer()
            assert sent_message(over_the_wire) == sent_message(straight), exchange["id"]
        await client.aclose()


def sent_message(answer: Answer) -> Any:
    parts = answer.message.parts
    texts = [(part.type, part.text) for part in parts if isinstance(part, TextPart | ReasoningPart)]
    calls = [(part.tool, part.state.raw) for part in parts if isinstance(part, ToolPart)]
    return texts, calls, answer.finish, answer.finish_raw, answer.tokens
