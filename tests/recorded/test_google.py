"""Recorded exchanges with Gemini, on the developer API and on Vertex, are decoded correctly."""

import json
import random
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outrider.errors import ProviderError
from outrider.providers.google.client import FAMILY, GoogleWire
from outrider.providers.google.decode import GENERATED_ID_PREFIX
from outrider.types.agents import Provider
from outrider.types.parts import ToolPart
from outrider.types.request import Answer, ModelMessage, Request
from tests.recorded.exchanges import (
    Exchange,
    calls_of,
    corpus,
    differences,
    exchanges,
    files_of,
    read,
    reasoning_of,
    text_of,
)
from tests.recorded.google_requests import Atom, Fields, atoms, camel, messages_of, request_of, settings_meaning

WIRE = GoogleWire(Provider("google", "google", api_key="k"))
FINISHES = {"STOP": "stop", "1": "stop", "MAX_TOKENS": "length", "2": "length", "SAFETY": "refusal"}


def problems(exchange: Exchange, found: Answer | ProviderError) -> list[str]:
    expected = exchange["expected"]
    if expected["error"]:
        return error_problems(found, expected["error"])
    if isinstance(found, ProviderError):
        return [f"raised {found!r}"]
    result = {
        "text": text_of(found, FAMILY),
        "reasoning_text": reasoning_of(found, ""),
        "tool_calls": [
            {
                "id": None if call.call_id.startswith(GENERATED_ID_PREFIX) else call.call_id,
                "name": call.tool,
                "arguments": call.state.input,
            }
            for call in calls_of(found)
        ],
        "finish_reason": found.finish_raw,
        "finish": found.finish,
        "usage": usage_of(found, expected["usage"]),
        "images_out": len(files_of(found)),
        "signatures": signatures_of(found),
    }
    wanted = {"images_out": 0, "signatures": 0} | expected
    wanted["finish_reason"] = str(expected["finish_reason"])
    wanted["finish"] = "tool_use" if expected["tool_calls"] else FINISHES[wanted["finish_reason"]]
    return differences(result, wanted)


def error_problems(found: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(found, ProviderError):
        return ["no error"]
    return differences({"message": found.message, "type": found.type, "status": found.status}, expected)


def usage_of(answer: Answer, expected: dict[str, Any]) -> dict[str, Any]:
    """Converts our token counts to Gemini's fields: the prompt includes cached tokens, but not what Google's tools
    read. A field that the response lacks is None there, and is left out here."""
    tokens = answer.tokens
    result = {
        "input": tokens.prompt - (expected.get("tool_use_prompt") or 0),
        "output": tokens.output,
        "reasoning": tokens.reasoning,
        "cache_read": tokens.cache.read,
        "cache_write": tokens.cache.write,
        "tool_use_prompt": expected.get("tool_use_prompt"),
    }
    return {name: None if expected[name] is None and not result[name] else result[name] for name in expected}


def signatures_of(answer: Answer) -> int:
    count = 0
    for part in answer.message.parts:
        state = getattr(part, "provider_state", None) or part.metadata.get(FAMILY, {})
        count += "thought_signature" in state or "thoughtSignature" in state.get("part", {})
    return count


def failures(found: list[Exchange], size: Any) -> dict[str, list[str]]:
    return {exchange["id"]: wrong for exchange in found if (wrong := problems(exchange, read(WIRE, exchange, size)))}


def test_every_exchange_decodes_to_the_expected_result_at_random_chunking(shared_dir: Path):
    found = list(exchanges(shared_dir, "gemini"))
    assert len(found) > 900
    assert not failures(found, random.Random(7))


def test_an_exchange_decodes_to_the_same_one_byte_at_a_time(shared_dir: Path):
    streamed = list(exchanges(shared_dir, "gemini", streaming=True))
    assert not failures(random.Random(11).sample(streamed, 40), 1)


def model_of(exchange: Exchange) -> str:
    found = re.search(r"/(?:models|publishers/google/models)/([^:]+):", exchange["request"]["path"])
    assert found
    return found[1]


def next_turn(before: Exchange, after: Exchange) -> tuple[Request, list[Fields]]:
    """Our request for the turn after `before`, and the recorded contents that it is compared with."""
    answer = read(WIRE, before)
    assert isinstance(answer, Answer)
    body = camel(after["request"]["body"])
    contents: list[Fields] = body["contents"]
    place = answer_place(contents, answer)
    sent = ModelMessage(
        "assistant", tuple(part.use() if isinstance(part, ToolPart) else part for part in answer.message.parts)
    )
    asked = camel(before["request"]["body"])["contents"]
    history = asked if atoms(asked) == atoms(contents[:place]) else contents[:place]
    messages = [*messages_of(history, FAMILY), sent, *messages_of(contents[place + 1 :], FAMILY)]
    return request_of(body, model_of(after), messages, stream=after["streaming"]), contents


def answer_place(contents: list[Fields], answer: Answer) -> int:
    """The last content of the model with the calls of this answer."""
    names = [call.tool for call in calls_of(answer)]
    for place in range(len(contents) - 1, -1, -1):
        calls = [part["functionCall"]["name"] for part in contents[place]["parts"] if "functionCall" in part]
        if calls == names:
            return place
    raise AssertionError("the answer is not in the request")


def turn_problems(before: Exchange, after: Exchange) -> list[str]:
    request, contents = next_turn(before, after)
    ours = json.loads(WIRE.build_request(request).body)
    found, wanted = lenient(atoms(ours["contents"]), atoms(contents))
    problems = [] if found == wanted else [f"contents: {first_difference(found, wanted)}"]
    return problems + differences(settings_meaning(ours), settings_meaning(camel(after["request"]["body"])))


def lenient(found: list[Atom], wanted: list[Atom]) -> tuple[list[Atom], list[Atom]]:
    """A client may have left out thoughts, empty signed texts and signatures, while we send back all that came; or it
    may have given the signature of the first of several calls to all of them."""
    wanted = [
        (*atom[:-1], None) if at and atom[1] == "call" and atom[-1] == wanted[at - 1][-1] else atom
        for at, atom in enumerate(wanted)
    ]
    signed = {atom[:-1] for atom in wanted if atom[0] == "model" and atom[-1]}
    preserved = [
        (*atom[:-1], None) if atom[0] == "model" and atom[:-1] not in signed else atom
        for atom in found
        if atom in wanted
        or (*atom[:-1], None) in wanted
        or not (atom[1] == "thought" or (atom[1] == "text" and not atom[2]))
    ]
    return preserved, wanted


def first_difference(found: list[Atom], wanted: list[Atom]) -> str:
    for at, (one, other) in enumerate(zip_longest(found, wanted)):
        if one != other:
            return f"at {at}: {one!r:.300} is not {other!r:.300}"
    return ""


def tool_turns(shared: Path) -> list[tuple[Exchange, Exchange]]:
    """Without those that continue from an answer of another API."""
    return [turn for turn in corpus(shared).tool_turns("gemini") if turn[0]["api"] == "gemini"]


def test_the_request_after_a_tool_call_means_what_the_recorded_one_did(shared_dir: Path):
    turns = tool_turns(shared_dir)
    assert len(turns) > 200
    wrong = {after["id"]: found for before, after in turns if (found := turn_problems(before, after))}
    assert not wrong
