"""Requests that the real Messages API accepted: ours, built from the same conversation, mean the same."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import PartValidationError
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.provider import AnswerAssembler
from outrider.sessions.session import Session
from outrider.types.agents import Provider
from outrider.types.messages import Message
from tests.recorded.anthropic_requests import (
    Body,
    content,
    meaning,
    messages_meaning,
    next_session,
    request_from,
    results_after,
)
from tests.recorded.exchanges import Exchange, corpus, deltas, exchanges, load

APIS = ("anthropic-messages", "anthropic-compatible")
WIRE = AnthropicWire(Provider("anthropic", "anthropic", api_key="k"))
VERTEX_MODEL = "claude-3-7-sonnet@20250219"  # named in the address there


def model_of(body: Body) -> str:
    return body.get("model", VERTEX_MODEL)


def written(body: Body, session: Session) -> Body:
    return json.loads(WIRE.build_request(request_from(body, session, WIRE, model_of(body))).body)


def turns(shared: Path) -> Iterator[tuple[Exchange, Exchange]]:
    """An answer with calls, and the request that carried their results."""
    for api in APIS:
        yield from corpus(shared).tool_turns(api)


def answer_of(exchange: Exchange) -> Message:
    model = model_of(exchange["request"]["body"])
    assembler = AnswerAssembler(WIRE.model_family(model))
    for delta in deltas(WIRE.create_decoder(None), exchange["response"]["body"].encode(), 65536):  # type: ignore[arg-type]
        assembler.add(delta)
    return assembler.build_answer().message


def beyond_us(body: Body) -> str | None:
    """What a transcript of ours cannot hold, and why it is so."""
    roles = [message["role"] for message in body["messages"]]
    if "system" in roles:
        return "a system message in the middle: messages here are the user's or the assistant's"
    if roles[0] == "assistant":
        return "begins with the assistant: ours begin with the user, by a rule of other vendors"
    for first, second in zip(body["messages"], body["messages"][1:], strict=False):
        both_answer = first["role"] == second["role"] == "assistant"
        if both_answer and any(block["type"] == "tool_use" for block in content(first)):
            return "two answers in a row with the results after both: here every answer's results follow it"
    return None


def as_it_came(first: Exchange, second: Exchange) -> Body | None:
    """The second request if its client had sent back what it got; None if it did.

    Some clients left out or changed earlier content (text, thinking, a tool's name, the question). Then the
    recorded request is no judge of ours, but the API's answer is: the recorded answer is put in its place."""
    sent = second["request"]["body"]
    new = results_after(sent["messages"], {call["id"] for call in first["expected"]["tool_calls"]})
    before = sent["messages"][: len(sent["messages"]) - len(new)]
    came = [*first["request"]["body"]["messages"], {"role": "assistant", "content": blocks_of(first)}]
    faithful = messages_meaning(before) == messages_meaning(came)
    return None if faithful else sent | {"messages": [*came, *new]}


def blocks_of(exchange: Exchange) -> list[Body]:
    """The content of an answer, read without our decoder: a stream is added up in the plainest way."""
    body = exchange["response"]["body"]
    if not exchange["streaming"]:
        return json.loads(body)["content"]
    blocks: dict[int, Body] = {}
    for line in body.splitlines():
        event = json.loads(line[5:]) if line.startswith("data: {") else {}
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                blocks[index] = block | ({"input": ""} if "input" in block else {})
            case {"type": "content_block_delta", "index": index, "delta": {"type": "citations_delta", "citation": one}}:
                blocks[index]["citations"] = [*(blocks[index].get("citations") or []), one]
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                for name, value in delta.items():
                    field = "input" if name == "partial_json" else name
                    if name != "type" and value is not None:
                        blocks[index][field] = (blocks[index].get(field) or "") + value
            case _:
                pass
    return [
        block | ({"input": json.loads(block["input"] or "{}")} if "input" in block else {}) for block in blocks.values()
    ]


def test_the_next_request_of_a_tool_conversation_means_what_the_api_accepted(shared_dir: Path, difference: Any) -> None:
    wrong: dict[str, str] = {}
    count = {"same": 0, "same as it came": 0, "beyond us": 0}
    for first, second in turns(shared_dir):
        sent = second["request"]["body"]
        if beyond_us(sent):
            count["beyond us"] += 1
            continue
        ours = written(sent, next_session(first["request"]["body"], answer_of(first), sent))
        accepted = as_it_came(first, second)
        count["same" if accepted is None else "same as it came"] += 1
        found = difference(meaning(ours, like=sent), meaning(accepted or sent))
        if found:
            wrong[second["id"]] = found
    assert not wrong
    assert count["same"] > 100, count
    assert count["same"] > 9 * (count["same as it came"] + count["beyond us"]), count


def test_every_accepted_request_is_written_with_the_same_meaning(shared_dir: Path, difference: Any) -> None:
    wrong: dict[str, str] = {}
    same = beyond = 0
    for exchange in accepted_exchanges(shared_dir):
        body = exchange["request"]["body"]
        if beyond_us(body):
            beyond += 1
            continue
        session = Session()
        session.set_messages(body["messages"])
        found = difference(meaning(written(body, session), like=body), meaning(body))
        if found:
            wrong[exchange["id"]] = found
        same += not found
    assert not wrong
    assert same > 1000
    assert beyond < same // 50


def test_what_a_transcript_cannot_hold_is_refused_and_not_sent_otherwise(shared_dir: Path) -> None:
    for exchange in accepted_exchanges(shared_dir):
        body = exchange["request"]["body"]
        if any(message["role"] == "system" for message in body["messages"]):
            with pytest.raises(PartValidationError, match="role"):
                Session().set_messages(body["messages"])


def test_requests_are_valid_by_the_vendors_own_types(shared_dir: Path, request_type: Any) -> None:
    checked = 0
    for exchange in accepted_exchanges(shared_dir):
        body = exchange["request"]["body"]
        if beyond_us(body) or "model" not in body:
            continue
        session = Session()
        session.set_messages(body["messages"])
        ours = written(body, session)
        for name in ("temperature", "top_p", "top_k"):  # these types are of an API version that has none of them
            ours.pop(name, None)
        exhausted(request_type.validate_python(ours))
        checked += 1
    assert checked > 1000


def test_the_judge_of_types_finds_a_wrong_field(request_type: Any) -> None:
    wrong = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]}
    with pytest.raises(ValueError, match="txt"):
        exhausted(request_type.validate_python(wrong))


def accepted_exchanges(shared: Path) -> Iterator[Exchange]:
    for api in APIS:
        for exchange in exchanges(shared, api):
            if exchange["request"]["body"] is not None and exchange["response"]["status"] == 200:
                yield exchange


def exhausted(value: Any) -> Any:
    """The SDK's types have iterables, which are validated only while they are read."""
    if isinstance(value, dict):
        return {name: exhausted(item) for name, item in value.items()}
    if isinstance(value, list) or hasattr(value, "__next__"):
        return [exhausted(item) for item in value]
    return value


@pytest.fixture(scope="module")
def difference(shared_dir: Path) -> Any:
    return load(shared_dir, "replay_server").first_difference


@pytest.fixture(scope="module")
def request_type() -> Any:
    """The beta types hold the others too. Unknown fields are refused, as the API refuses them."""
    pydantic = pytest.importorskip("pydantic")
    pytest.importorskip("anthropic")
    from anthropic.types.beta.message_create_params import MessageCreateParams

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the SDK's types allows what it does not name
        return pydantic.TypeAdapter(MessageCreateParams, config=pydantic.ConfigDict(extra="forbid"))
