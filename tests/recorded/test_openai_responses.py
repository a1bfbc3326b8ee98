"""Recorded exchanges with the Responses API and compatible servers are decoded correctly."""

import json
import random
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outrider.errors import ProviderError
from outrider.providers.openai.responses_client import FAMILY, ResponsesWire
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
    refusal_of,
    text_of,
)
from tests.recorded.responses_requests import (
    CALLS,
    Atom,
    Fields,
    atoms,
    is_answer,
    items_of,
    messages_of,
    request_of,
    settings_meaning,
)

APIS = ("openai-responses", "openai-responses-compatible")
WIRE = ResponsesWire(Provider("openai", "openai-responses", api_key="k"))
FINISHES = {
    "completed": ("stop", "tool_use", "refusal"),
    "incomplete:max_output_tokens": ("length",),
    "queued": ("other",),
}


def recorded(shared: Path) -> list[Exchange]:
    return [exchange for api in APIS for exchange in exchanges(shared, api)]


def problems(exchange: Exchange, found: Answer | ProviderError) -> list[str]:
    expected = exchange["expected"]
    if expected["error"]:
        return error_problems(found, expected["error"])
    if isinstance(found, ProviderError):
        return [f"raised {found!r}"]
    result = {
        "text": text_of(found, FAMILY),
        "refusal": refusal_of(found, FAMILY),
        "reasoning_text": reasoning_of(found, "\n\n"),
        "tool_calls": [call_of(call) for call in calls_of(found)],
        "finish_reason": found.finish_raw,
        "usage": usage_of(found, expected["usage"]),
        "images_out": len(files_of(found)),
    }
    wanted = {"refusal": None, "images_out": 0} | expected
    wanted["tool_calls"] = [expected_call(call) for call in expected["tool_calls"]]
    return differences(result, wanted) + finish_problems(found, wanted)


def error_problems(found: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(found, ProviderError):
        return ["no error"]
    result = {"message": found.message, "type": found.type if expected["type"] else None}
    if not expected.get("midstream"):
        result["status"] = found.status
    return differences(result, expected)


def finish_problems(found: Answer, expected: dict[str, Any]) -> list[str]:
    if expected["tool_calls"] and found.finish_raw == "completed":
        allowed: tuple[str, ...] = ("tool_use",)
    elif expected["refusal"]:
        allowed = ("refusal",)
    else:
        allowed = {"completed": ("stop",)}.get(found.finish_raw) or FINISHES[found.finish_raw]
    return [] if found.finish in allowed else [f"finish: {found.finish} is not {allowed}"]


def call_of(call: Any) -> dict[str, Any]:
    own = call.metadata.get(FAMILY, {})
    if own.get("custom"):
        return {"id": call.call_id, "name": call.tool, "input": call.state.input["input"], "type": "custom"}
    return {
        "id": call.call_id,
        "name": call.tool,
        "input": None if "input_error" in call.metadata else call.state.input,
        "raw": call.state.raw,
        "item_id": own.get("id"),
    }


def expected_call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type") == "custom":
        return {"id": call["id"], "name": call["name"], "input": call["arguments_raw"], "type": "custom"}
    named = {"id": call["id"], "name": call["name"], "item_id": call["item_id"]}
    return named | {"input": call["arguments"], "raw": call["arguments_raw"]}


def usage_of(answer: Answer, expected: dict[str, Any] | None) -> dict[str, Any] | None:
    """Converts our token counts to the fields of this API. A field that the response lacks is None there, and is left
    out here."""
    tokens = answer.tokens
    if not expected:
        return None if tokens.total == 0 else {"total": tokens.total}
    result = {
        "input": tokens.prompt,
        "output": tokens.output + tokens.reasoning,
        "reasoning": tokens.reasoning,
        "cache_read": tokens.cache.read,
        "cache_write": tokens.cache.write,
    }
    return {name: None if expected[name] is None and not result[name] else result[name] for name in expected}


def failures(found: list[Exchange], size: Any) -> dict[str, list[str]]:
    return {exchange["id"]: wrong for exchange in found if (wrong := problems(exchange, read(WIRE, exchange, size)))}


def test_every_exchange_decodes_to_the_expected_result_at_random_chunking(shared_dir: Path):
    found = recorded(shared_dir)
    assert len(found) > 1000
    assert not failures(found, random.Random(7))


def test_an_exchange_decodes_to_the_same_one_byte_at_a_time(shared_dir: Path):
    streamed = [exchange for exchange in recorded(shared_dir) if exchange["streaming"]]
    sample = random.Random(11).sample(streamed, 40)
    assert not failures(sample, 1)


def region(items: list[Fields], call_ids: set[str]) -> tuple[int, int]:
    """Returns the index of the answer with these calls."""
    places = [at for at, item in enumerate(items) if item.get("type") in CALLS and item["call_id"] in call_ids]
    start = places[0]
    while start and is_answer(items[start - 1]):
        start -= 1
    return start, places[-1] + 1


def renamed(items: list[Fields], answer: Answer) -> list[Fields]:
    """Some clients know a call by the id of its item; the API takes either."""
    names = {call.metadata[FAMILY]["id"]: call.call_id for call in calls_of(answer) if FAMILY in call.metadata}
    return [
        item | {"call_id": names.get(item["call_id"], item["call_id"])} if "call_id" in item else item for item in items
    ]


def next_turn(before: Exchange, after: Exchange) -> tuple[Request, list[Fields], list[Atom]]:
    """Our request for the turn after `before`; the recorded items that it is compared with; what our answer adds."""
    answer = read(WIRE, before)
    assert isinstance(answer, Answer)
    body = after["request"]["body"]
    items = renamed(items_of(body), answer)
    if "previous_response_id" in body or "conversation" in body:
        return request_of(body, messages_of(items, FAMILY)), items, []
    start, end = region(items, {call.call_id for call in calls_of(answer)})
    sent = ModelMessage(
        "assistant", tuple(part.use() if isinstance(part, ToolPart) else part for part in answer.message.parts)
    )
    asked = items_of(before["request"]["body"]) if "input" in before["request"]["body"] else items[:start]
    history = asked if atoms(asked) == atoms(items[:start]) else items[:start]
    results = [item for item in items[start:end] if not is_answer(item)] + items[end:]
    messages = [*messages_of(history, FAMILY), sent, *messages_of(results, FAMILY)]
    added = atoms(json.loads(WIRE.build_request(request_of(body, [sent])).body)["input"])
    return request_of(body, messages), items, [atom for atom in added if atom[0] not in ("call", "custom call")]


def changed_by_client(before: Exchange, after: Exchange) -> bool:
    """Whether the client sent back another call than it had received."""
    answer = read(WIRE, before)
    assert isinstance(answer, Answer)
    received = {call.call_id: (call.metadata[FAMILY].get("namespace"), call.state.input) for call in calls_of(answer)}
    sent = [item for item in items_of(after["request"]["body"]) if item.get("type") == "function_call"]
    result = [(item["call_id"], (item.get("namespace"), json.loads(item["arguments"]))) for item in sent]
    return any(received.get(call_id, call) != call for call_id, call in result)


def turn_problems(before: Exchange, after: Exchange) -> list[str]:
    request, items, added = next_turn(before, after)
    ours = json.loads(WIRE.build_request(request).body)
    found, wanted = atoms(ours["input"]), atoms(items)
    if surplus := without(found, wanted):
        # A client may have left out reasoning or text next to the calls; we never do.
        found = [atom for atom in found if atom not in surplus or atom not in added]
    problems = [] if found == wanted else [f"items: {first_difference(found, wanted)}"]
    return problems + differences(settings_meaning(ours), settings_meaning(after["request"]["body"]))


def without(found: list[Atom], wanted: list[Atom]) -> list[Atom]:
    return [atom for atom in found if atom not in wanted]


def first_difference(found: list[Atom], wanted: list[Atom]) -> str:
    for at, (one, other) in enumerate(zip_longest(found, wanted)):
        if one != other:
            return f"at {at}: {one!r:.300} is not {other!r:.300}"
    return ""


def tool_turns(shared: Path) -> list[tuple[Exchange, Exchange]]:
    """Without those that continue from an answer of another API, and those in which a client changed the call."""
    found = [turn for api in APIS for turn in corpus(shared).tool_turns(api)]
    return [
        (before, after)
        for before, after in found
        if before["api"].partition(":")[0] in APIS and not changed_by_client(before, after)
    ]


def test_the_request_after_a_tool_call_means_what_the_recorded_one_did(shared_dir: Path):
    turns = tool_turns(shared_dir)
    assert len(turns) > 200
    wrong = {after["id"]: found for before, after in turns if (found := turn_problems(before, after))}
    assert not wrong
