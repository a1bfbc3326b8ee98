"""What the four APIs ask of a conversation, checked on neutral messages: roles, contents, and a result for every call.

    rule                                                       anthropic  openai  openai-responses  google
    the first message is the user's                                yes       –           –            yes
    roles alternate                                                yes       –           –            yes
    no message is empty, no text is blank                          yes      empty       empty        empty
    every call is answered                                    next message, all of them, in each of the four
    results stand before anything else in their message            yes      yes         –             –
    every result answers a call                                    yes      yes         yes          yes
    a call's id is used once                                       yes      yes         yes          yes
    names of tools                                           1 to 128 of [A-Za-z0-9_-]; 64 at OpenAI and Google

`lower()` writes for the strictest of them; these functions say whether it did.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from outrider.errors import InvalidRequestError
from outrider.types.parts import ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage

Messages = Sequence[ModelMessage]
_ID = re.compile(r"[A-Za-z0-9_-]+")


def anthropic_problems(messages: Messages) -> Iterator[str]:
    yield from _roles(messages)
    yield from _contents(messages)
    yield from _blank_texts(messages)
    yield from _pairs(messages)
    yield from _results_first(messages)
    yield from _names(messages, 128)
    yield from _ids(messages)


def openai_problems(messages: Messages) -> Iterator[str]:
    """Chat Completions: results are messages of their own, which must follow the calls directly."""
    yield from _contents(messages)
    yield from _pairs(messages)
    yield from _results_first(messages)
    yield from _names(messages, 64)


def openai_responses_problems(messages: Messages) -> Iterator[str]:
    """Responses: calls and outputs are items, paired by id; a reasoning item needs the item that it led to."""
    yield from _contents(messages)
    yield from _pairs(messages)
    yield from _names(messages, 64)
    for position, message in enumerate(messages):
        last = message.content[-1] if message.content else None
        if isinstance(last, ReasoningPart) and "block" in last.provider_state and position < len(messages) - 1:
            yield f"messages.{position}: reasoning was given without the item that followed it"


def google_problems(messages: Messages) -> Iterator[str]:
    """Calls come after the user's turn; as many results follow as there were calls."""
    yield from _roles(messages)
    yield from _contents(messages)
    yield from _pairs(messages)
    yield from _names(messages, 64)


RULES: dict[str, Callable[[Messages], Iterator[str]]] = {
    "anthropic": anthropic_problems,
    "openai": openai_problems,
    "openai-responses": openai_responses_problems,
    "google": google_problems,
}


def check(kind: str, messages: Messages) -> None:
    """Raises InvalidRequestError, as the API would, with the first problem; `details["problems"]` has all."""
    problems = list(RULES[kind](messages))
    if problems:
        raise InvalidRequestError(
            problems[0], provider=kind, status=400, type="invalid_request_error", problems=problems
        )


def _roles(messages: Messages) -> Iterator[str]:
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0].role != "user":
        yield "messages.0: the first message must be the user's"
    for position in range(1, len(messages)):
        if messages[position].role == messages[position - 1].role:
            yield f"messages.{position}: roles must alternate, two in a row are {messages[position].role!r}"


def _contents(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        if not message.content:
            yield f"messages.{position}: all messages must have non-empty content"


def _blank_texts(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        if any(isinstance(part, TextPart) and not part.text.strip() for part in message.content):
            yield f"messages.{position}: text content blocks must contain non-whitespace text"


def _pairs(messages: Messages) -> Iterator[str]:
    """Every call is answered in the next message, once, and nothing else is answered."""
    seen: set[str] = set()
    asked: list[str] = []
    for position, message in enumerate(messages):
        uses = [part.tool_id for part in message.content if isinstance(part, ToolUsePart)]
        results = [part.tool_use_id for part in message.content if isinstance(part, ToolResultPart)]
        yield from _wrong_role(position, message, uses, results)
        yield from _unanswered(position - 1, asked, results)
        yield from _orphans(position, asked, results)
        yield from (f"messages.{position}: the id {use} was used before" for use in uses if use in seen)
        if len(set(uses)) < len(uses):
            yield f"messages.{position}: `tool_use` ids must be unique"
        seen.update(uses)
        asked = uses
    yield from _unanswered(len(messages) - 1, asked, [])


def _wrong_role(position: int, message: ModelMessage, uses: list[str], results: list[str]) -> Iterator[str]:
    if uses and message.role != "assistant":
        yield f"messages.{position}: `tool_use` blocks can only be in assistant messages"
    if results and message.role != "user":
        yield f"messages.{position}: `tool_result` blocks can only be in user messages"


def _unanswered(position: int, asked: list[str], results: list[str]) -> Iterator[str]:
    missing = [use for use in asked if use not in results]
    if missing:
        yield (
            f"messages.{position}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}"
        )


def _orphans(position: int, asked: list[str], results: list[str]) -> Iterator[str]:
    for result in results:
        if result not in asked:
            yield f"messages.{position}: unexpected `tool_use_id` in a `tool_result`: {result}; no call before has it"
    if len(set(results)) < len(results):
        yield f"messages.{position}: each `tool_use` must have a single result"


def _results_first(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        kinds = [isinstance(part, ToolResultPart) for part in message.content]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{position}: `tool_result` blocks must come before anything else"


def _names(messages: Messages, longest: int) -> Iterator[str]:
    for position, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolUsePart) and not _is_name(part.tool_name, longest):
                yield f"messages.{position}: the tool name {part.tool_name!r} must be 1 to {longest} of [A-Za-z0-9_-]"


def _ids(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolUsePart) and not _ID.fullmatch(part.tool_id):
                yield f"messages.{position}: the id {part.tool_id!r} must consist of [A-Za-z0-9_-]"


def _is_name(name: str, longest: int) -> bool:
    return len(name) <= longest and _ID.fullmatch(name) is not None
