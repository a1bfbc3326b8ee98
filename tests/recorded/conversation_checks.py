"""Compares the requests and answers of a repeated conversation with the recorded ones."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from outrider import Message, ReasoningPart, TextPart, ToolPart
from outrider.agents.stop_policy import FIRST_WARNING
from outrider.context.lower import OPENING
from outrider.permissions.redaction.redactor import Redactor
from outrider.testing.simulator_answers import SIMULATED_APIS
from outrider.types.tool_state import NO_OUTPUT
from tests.recorded.api_adapters import SPOKEN, Spoken, answered_in
from tests.recorded.conversation_driver import Driven
from tests.recorded.exchanges import Exchange, differences
from tests.recorded.request_chains import Conversation

Body = dict[str, Any]


class Verdict(msgspec.Struct):
    """`excuse` is the reason, from the structure of the conversation, why requests are not compared with the recorded
    ones. `settings` is whether settings were compared in addition to messages."""

    problems: list[str]
    excuse: str | None = None
    settings: bool = True


def cannot_be_driven(conversation: Conversation) -> str | None:
    """Returns the reason why our engine cannot produce this conversation, None if it can."""
    spoken = SPOKEN[conversation.api]
    for exchange in conversation.exchanges:
        if reason := spoken.beyond_us(exchange):
            return reason
    if len({exchange["streaming"] for exchange in conversation.exchanges}) > 1:
        return "some requests are streamed and some are not: an agent does one or the other"
    return None


def judge(conversation: Conversation, driven: Driven, sent: list[Body]) -> Verdict:
    spoken = SPOKEN[conversation.api]
    circles = in_circles(conversation, spoken)
    if circles is not None:
        # The model is warned, so the following requests differ from the recorded ones.
        reached = len(sent) >= circles
        return Verdict([] if reached else [f"{len(sent)} requests"], "the same call with the same result, three times")
    problems = answer_problems(conversation, driven) + broken_rules(spoken, sent)
    if len(sent) != len(conversation.exchanges):
        return Verdict([*problems, f"{len(sent)} requests for {len(conversation.exchanges)}"])
    steady = settings_are_steady(conversation, spoken)
    if wrong := request_problems(conversation, sent, spoken, settings=steady):
        excuse = next(excuses(conversation, spoken), None)
        return Verdict(problems if excuse else [*problems, *wrong], excuse)
    return Verdict(problems, settings=steady)


def broken_rules(spoken: Spoken, sent: list[Body]) -> list[str]:
    """Checks that our requests pair calls and results as the vendor requires."""
    found = [SIMULATED_APIS[spoken.kind].problem(body) for body in sent]
    return [f"request {number} would be refused: {why}" for number, why in enumerate(found) if why]


def request_problems(conversation: Conversation, sent: list[Body], spoken: Spoken, *, settings: bool) -> list[str]:
    problems: list[str] = []
    for number, (ours, exchange) in enumerate(zip(sent, conversation.exchanges, strict=True)):
        body = _as_recorded(ours)
        found = spoken.problems(body, exchange, conversation.exchanges[:number])
        if settings:
            found += differences(*_both(spoken.settings(body), spoken.settings(exchange["request"]["body"])))
        problems += [f"request {number}: {problem}" for problem in found]
    return problems


def excuses(conversation: Conversation, spoken: Spoken) -> Iterator[str]:
    offered = {spec.name for exchange in conversation.exchanges for spec in spoken.request(exchange).tools}
    if any(spoken.request(exchange).prompt[-1].role == "assistant" for exchange in conversation.exchanges):
        yield "a request that ends with the assistant: ours ends with the user, as most vendors require"
    for before, after in conversation.steps():
        calls = before["expected"]["tool_calls"]
        if any(call["name"] not in offered for call in calls):
            yield "a call of a tool that was not offered as a function: it is answered in words of the client's own"
        if any(call.get("arguments_invalid_json") for call in calls):
            yield "a call whose arguments are no JSON: it is answered in words of the client's own"
        if not answered_in(list(spoken.request(after).prompt))[0]:
            yield "the client put an answer of its own after the results"
        if reason := spoken.rewritten(before, after):
            yield f"rewritten: {reason}"


def in_circles(conversation: Conversation, spoken: Spoken) -> int | None:
    """After how many requests the engine warns an agent that makes the same call over and over."""
    before = 0
    for turn in conversation.turns:
        shapes = [_shape(one, other, spoken) for one, other in pairwise(turn)]
        for at in range(len(shapes) - FIRST_WARNING + 1):
            if shapes[at] is not None and len(set(shapes[at : at + FIRST_WARNING])) == 1:
                return before + at + FIRST_WARNING
        before += len(turn)
    return None


def settings_are_steady(conversation: Conversation, spoken: Spoken) -> bool:
    """An agent's tools, system prompt and settings stay as they are; some recorded clients changed theirs."""
    bodies = [exchange["request"]["body"] for exchange in conversation.exchanges]
    return all(spoken.settings(body) == spoken.settings(bodies[0]) for body in bodies)


def answer_problems(conversation: Conversation, driven: Driven) -> list[str]:
    last = conversation.exchanges[-1]["expected"]
    if last["error"]:
        message = driven.error.message if driven.error else "no error"
        return [] if message == last["error"]["message"] else [f"ended with {message!r}"]
    if driven.error:
        return [f"ended with {driven.error!r}"]
    problems: list[str] = []
    for number, (answer, exchange) in enumerate(zip(driven.answers, conversation.exchanges, strict=False)):
        problems += [f"answer {number}: {problem}" for problem in _answer_problems(answer, exchange)]
    if len(driven.answers) != len(conversation.exchanges):
        problems.append(f"{len(driven.answers)} answers for {len(conversation.exchanges)}")
    # What a turn returns is redacted; the recorded texts contain invented passwords.
    redact = Redactor().redact_text
    if redact(driven.outputs[-1]) != redact(driven.answers[-1].join_text()):
        problems.append(f"the output is {driven.outputs[-1]!r}")
    return problems


def _answer_problems(answer: Message, exchange: Exchange) -> list[str]:
    expected = exchange["expected"]
    texts = [part for part in answer.get_parts_by_type(TextPart) if not _is_refusal(part)]
    calls = answer.get_parts_by_type(ToolPart)
    found = {
        "text": "".join(part.text for part in texts),
        "calls": [call.tool for call in calls],
        "reasons": bool("".join(part.text for part in answer.get_parts_by_type(ReasoningPart)).strip()),
    }
    wanted = {
        "text": expected["text"],
        "calls": [call["name"] for call in expected["tool_calls"]],
        "reasons": bool((expected["reasoning_text"] or "").strip()),
    }
    if "" in wanted["calls"]:
        wanted["calls"] = found["calls"]  # an empty call beside the others, judged with the reading of answers
    if found["text"] != wanted["text"] and "<" in wanted["text"]:
        wanted["text"], wanted["reasons"] = found["text"], found["reasons"]  # tags of thought, judged on their own
    return differences(found, wanted)


def _as_recorded(ours: Body) -> Body:
    """Nothing is sent empty here: a missing output or question is sent as a text."""
    text = json.dumps(ours)
    for marker in (NO_OUTPUT, OPENING):
        text = text.replace(f'"{marker}"', '""')
    return json.loads(text)


def _is_refusal(part: TextPart) -> bool:
    return any(isinstance(own, dict) and own.get("refusal") for own in part.metadata.values())


def _shape(before: Exchange, after: Exchange, spoken: Spoken) -> str | None:
    calls = [(call["name"], call["arguments"]) for call in before["expected"]["tool_calls"]]
    results = [result.content for result in answered_in(list(spoken.request(after).prompt))[0]]
    return json.dumps([calls, results], sort_keys=True) if calls else None


def _both(found: Body, wanted: Body) -> tuple[Body, Body]:
    names = found.keys() | wanted.keys()
    return {name: found.get(name) for name in names}, {name: wanted.get(name) for name in names}
