"""Checks provider-neutral messages against the message rules of the four APIs.

    rule                                                       anthropic  openai  openai-responses  google
    the first message is the user's                                yes       –           –            yes
    roles alternate                                                yes       –           –            yes
    the last message is the user's, unless the API paused          yes       –           –            yes
    no message is empty, no text is blank                          yes      empty       empty        empty
    every call is answered                                    next message, all of them, in each of the four
    results come first in their message                            yes      yes         –             –
    every result answers a call                                    yes      yes         yes          yes
    a call's id is used once                                       yes      yes         yes          yes
    names of tools                                           1 to 128 of [A-Za-z0-9_-]; 64 at OpenAI and Google

`lower()` follows the strictest rules; tests and the scripted client use these functions to verify that.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from outrider.errors import InvalidRequestError
from outrider.types.parts import ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage

Messages = Sequence[ModelMessage]
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]+")


def anthropic_problems(messages: Messages) -> Iterator[str]:
    yield from _check_roles(messages)
    yield from _check_last_role(messages)
    yield from _check_content(messages)
    yield from _check_blank_texts(messages)
    yield from _check_call_pairs(messages)
    yield from _check_result_order(messages)
    yield from _check_tool_names(messages, 128)
    yield from _check_call_ids(messages)


def openai_problems(messages: Messages) -> Iterator[str]:
    """Chat Completions: results are separate messages that must directly follow the calls."""
    yield from _check_content(messages)
    yield from _check_call_pairs(messages)
    yield from _check_result_order(messages)
    yield from _check_tool_names(messages, 64)


def openai_responses_problems(messages: Messages) -> Iterator[str]:
    """Responses: calls and outputs are items paired by id; a reasoning item needs the item that follows it."""
    yield from _check_content(messages)
    yield from _check_call_pairs(messages)
    yield from _check_tool_names(messages, 64)
    for position, message in enumerate(messages):
        last = message.content[-1] if message.content else None
        if isinstance(last, ReasoningPart) and "block" in last.provider_state and position < len(messages) - 1:
            yield f"messages.{position}: reasoning was given without the item that followed it"


def google_problems(messages: Messages) -> Iterator[str]:
    """Google: calls follow a user message, and the next message has one result per call."""
    yield from _check_roles(messages)
    yield from _check_last_role(messages)
    yield from _check_content(messages)
    yield from _check_call_pairs(messages)
    yield from _check_tool_names(messages, 64)


MESSAGE_RULES: dict[str, Callable[[Messages], Iterator[str]]] = {
    "anthropic": anthropic_problems,
    "openai": openai_problems,
    "openai-responses": openai_responses_problems,
    "google": google_problems,
}


def check_messages(kind: str, messages: Messages) -> None:
    """Raises InvalidRequestError with the first problem, as the API would; `details["problems"]` lists all."""
    problems = list(MESSAGE_RULES[kind](messages))
    if problems:
        raise InvalidRequestError(
            problems[0], provider=kind, status=400, type="invalid_request_error", problems=problems
        )


def _check_roles(messages: Messages) -> Iterator[str]:
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0].role != "user":
        yield "messages.0: the first message must be the user's"
    for position in range(1, len(messages)):
        if messages[position].role == messages[position - 1].role:
            yield f"messages.{position}: roles must alternate, two in a row are {messages[position].role!r}"


def _check_last_role(messages: Messages) -> Iterator[str]:
    """An answer that the API paused ends with an opaque block and is sent back."""
    last = messages[-1] if messages else None
    if last is None or last.role == "user" or (last.content and isinstance(last.content[-1], ReasoningPart)):
        return
    yield f"messages.{len(messages) - 1}: the conversation must end with a user message"


def _check_content(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        if not message.content:
            yield f"messages.{position}: all messages must have non-empty content"


def _check_blank_texts(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        if any(isinstance(part, TextPart) and not part.text.strip() for part in message.content):
            yield f"messages.{position}: text content blocks must contain non-whitespace text"


def _check_call_pairs(messages: Messages) -> Iterator[str]:
    """Checks that the next message has exactly one result for every call, and no other results."""
    seen: set[str] = set()
    call_ids: list[str] = []
    for position, message in enumerate(messages):
        uses = [part.tool_id for part in message.content if isinstance(part, ToolUsePart)]
        results = [part.tool_use_id for part in message.content if isinstance(part, ToolResultPart)]
        yield from _check_block_roles(position, message, uses, results)
        yield from _find_unanswered(position - 1, call_ids, results)
        yield from _find_orphans(position, call_ids, results)
        yield from (f"messages.{position}: the id {use} was used before" for use in uses if use in seen)
        if len(set(uses)) < len(uses):
            yield f"messages.{position}: `tool_use` ids must be unique"
        seen.update(uses)
        call_ids = uses
    yield from _find_unanswered(len(messages) - 1, call_ids, [])


def _check_block_roles(position: int, message: ModelMessage, uses: list[str], results: list[str]) -> Iterator[str]:
    if uses and message.role != "assistant":
        yield f"messages.{position}: `tool_use` blocks can only be in assistant messages"
    if results and message.role != "user":
        yield f"messages.{position}: `tool_result` blocks can only be in user messages"


def _find_unanswered(position: int, call_ids: list[str], results: list[str]) -> Iterator[str]:
    missing = [use for use in call_ids if use not in results]
    if missing:
        yield (
            f"messages.{position}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}"
        )


def _find_orphans(position: int, call_ids: list[str], results: list[str]) -> Iterator[str]:
    for result in results:
        if result not in call_ids:
            yield f"messages.{position}: unexpected `tool_use_id` in a `tool_result`: {result}; no call before has it"
    if len(set(results)) < len(results):
        yield f"messages.{position}: each `tool_use` must have a single result"


def _check_result_order(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        kinds = [isinstance(part, ToolResultPart) for part in message.content]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{position}: `tool_result` blocks must come before anything else"


def _check_tool_names(messages: Messages, max_length: int) -> Iterator[str]:
    for position, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolUsePart) and not _is_tool_name(part.tool_name, max_length):
                name = part.tool_name
                yield f"messages.{position}: the tool name {name!r} must be 1 to {max_length} of [A-Za-z0-9_-]"


def _check_call_ids(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolUsePart) and not _IDENTIFIER.fullmatch(part.tool_id):
                yield f"messages.{position}: the id {part.tool_id!r} must consist of [A-Za-z0-9_-]"


def _is_tool_name(name: str, max_length: int) -> bool:
    return len(name) <= max_length and _IDENTIFIER.fullmatch(name) is not None
