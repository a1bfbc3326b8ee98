"""The rules of each API accept a valid conversation and name the error of an invalid one."""

import pytest

from outrider.errors import InvalidRequestError
from outrider.providers.scripted import MESSAGE_RULES, check_messages
from outrider.types.parts import ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage
from tests.fixtures.cases import for_each

KINDS = list(MESSAGE_RULES)


def user(*parts: object) -> ModelMessage:
    return ModelMessage("user", parts)


def assistant(*parts: object) -> ModelMessage:
    return ModelMessage("assistant", parts)


def use(call_id: str, name: str = "read_file") -> ToolUsePart:
    return ToolUsePart(tool_id=call_id, tool_name=name)


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(tool_use_id=call_id, content="x")


HI, OK = TextPart("Hi"), TextPart("OK")
GOOD = [
    user(HI),
    assistant(ReasoningPart("Hm."), OK, use("a"), use("b")),
    user(result("b"), result("a"), HI),
    assistant(use("c")),
    user(result("c")),
    assistant(OK),
    user(HI),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_conversation_is_accepted(kind: str):
    check_messages(kind, GOOD)


BAD = {
    "an unanswered call": ([user(HI), assistant(use("a")), user(HI)], "without `tool_result`", KINDS),
    "a call that nothing follows": ([user(HI), assistant(use("a"))], "without `tool_result`", KINDS),
    "one of two unanswered": ([user(HI), assistant(use("a"), use("b")), user(result("a"))], "after: b", KINDS),
    "an answer too late": (
        [user(HI), assistant(use("a")), user(HI), assistant(OK), user(result("a"))],
        "without `tool_result`",
        KINDS,
    ),
    "an orphan result": ([user(HI), assistant(OK), user(result("z"))], "unexpected `tool_use_id`", KINDS),
    "an orphan at the start": ([user(result("z"), HI)], "unexpected `tool_use_id`", KINDS),
    "two results": ([user(HI), assistant(use("a")), user(result("a"), result("a"))], "single result", KINDS),
    "an id twice": ([user(HI), assistant(use("a"), use("a")), user(result("a"))], "must be unique", KINDS),
    "an id again": (
        [user(HI), assistant(use("a")), user(result("a")), assistant(use("a")), user(result("a"))],
        "used before",
        KINDS,
    ),
    "a call by the user": ([user(HI, use("a")), assistant(OK)], "only be in assistant", KINDS),
    "a result by the assistant": ([user(HI), assistant(use("a")), assistant(result("a"))], "only be in user", KINDS),
    "an empty message": ([user(HI), assistant(), user(HI)], "non-empty content", KINDS),
    "a bad name": ([user(HI), assistant(use("a", "read file")), user(result("a"))], "tool name", KINDS),
    "a long name": ([user(HI), assistant(use("a", "x" * 65)), user(result("a"))], "1 to 64", ["openai", "google"]),
    "no message": ([], "at least one", ["anthropic", "google"]),
    "two users in a row": ([user(HI), user(HI)], "alternate", ["anthropic", "google"]),
    "the assistant first": ([assistant(OK), user(HI)], "first message", ["anthropic", "google"]),
    "a blank text": ([user(TextPart("  \n"))], "non-whitespace", ["anthropic"]),
    "text before a result": (
        [user(HI), assistant(use("a")), user(HI, result("a"))],
        "before anything",
        ["anthropic", "openai"],
    ),
    "an id that is no id": ([user(HI), assistant(use("a.b")), user(result("a.b"))], "must consist of", ["anthropic"]),
    "reasoning that led nowhere": (
        [user(HI), assistant(ReasoningPart("", provider_state={"block": {}})), user(HI)],
        "without the item",
        ["openai-responses"],
    ),
}


@for_each(("messages", "message", "kinds"), BAD.values())
def test_a_bad_conversation_is_refused_with_a_message(messages: list[ModelMessage], message: str, kinds: list[str]):
    for kind in kinds:
        with pytest.raises(InvalidRequestError) as caught:
            check_messages(kind, messages)
        assert message in " ".join(caught.value.details["problems"])
        assert (caught.value.status, caught.value.provider) == (400, kind)


@pytest.mark.parametrize(("kind", "allowed"), [("openai", [user(HI), user(HI)]), ("openai-responses", [assistant(OK)])])
def test_what_only_others_forbid_is_accepted(kind: str, allowed: list[ModelMessage]):
    check_messages(kind, allowed)
