"""Converts a transcript from and to the Anthropic message format without loss.

A transcript stores a tool result inside its call; this format has it in the next user message. A user message that
contained results stores their order in `metadata["results"]`, so that reading and writing returns an equal list.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any, cast

from outrider.errors import PartValidationError
from outrider.types.anthropic_blocks import as_dict, content_blocks, part_from_anthropic
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart, ToolResultPart, tool_result
from outrider.types.tool_state import ToolPending, ToolRunning

UNKNOWN_RESULT = "(The result of this call is not known.)"


def check_message_list(messages: object) -> None:
    """Raises PartValidationError for a value that is not a list of messages, such as a message or a string."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        got = type(cast("object", messages)).__name__
        raise PartValidationError(f"messages must be a list of messages, got {got}; write [message, …]")


def read_api_messages(api_messages: Iterable[Mapping[str, Any]], now: int) -> list[Message]:
    """Parses a list of API messages. A result ends its call; a result without a call becomes text.

    Raises PartValidationError with the index of an invalid message.
    """
    check_message_list(api_messages)
    messages: list[Message] = []
    for position, api_message in enumerate(api_messages):
        if not isinstance(api_message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  data from outside
            raise PartValidationError(f"messages[{position}]: a message is an object with a role and content")
        role = api_message.get("role")
        if role not in ("user", "assistant"):
            raise PartValidationError(f"messages[{position}]: the role must be user or assistant, got {role!r}")
        try:
            messages.append(_read_message(role, api_message.get("content"), messages, now))
        except ValueError as error:
            raise PartValidationError(f"messages[{position}]: {error}") from error
    return messages


def write_api_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    due_calls: dict[str, ToolPart] = {}
    for position, message in enumerate(messages):
        if message.role == "user":
            later = _carried_results(messages[position + 1 :])
            written.append(_with_results(message, {id: part for id, part in due_calls.items() if id not in later}))
            due_calls = {id: part for id, part in due_calls.items() if id in later}
            continue
        later = _carried_results(dropwhile(_is_answer, messages[position:]))
        if now := {call_id: part for call_id, part in due_calls.items() if call_id not in later}:
            written.append({"role": "user", "content": _result_blocks(now, [])})
        due_calls = {call_id: part for call_id, part in due_calls.items() if call_id in later}
        due_calls |= {part.call_id: part for part in message.get_calls()}
        written.append(message.to_api_format())
    if any(part.ended for part in due_calls.values()):
        written.append({"role": "user", "content": _result_blocks(due_calls, [])})
    return written


def _with_results(message: Message, due_calls: Mapping[str, ToolPart]) -> dict[str, Any]:
    api_message = message.to_api_format()
    order = message.metadata.get("results", [])
    if due_calls or order:
        api_message["content"] = [*_result_blocks(due_calls, order), *content_blocks(api_message["content"])]
    return api_message


def _carried_results(messages: Iterable[Message]) -> list[str]:
    """Returns the ids of the calls whose results the leading user messages carry."""
    users = takewhile(lambda message: not _is_answer(message), messages)
    return [call_id for message in users for call_id in message.metadata.get("results", [])]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant"


def result_parts(results: Iterable[Any]) -> list[ToolResultPart]:
    """Converts tool results to parts: ToolResultParts, tool_result blocks, or dicts without a type."""
    parts: list[ToolResultPart] = []
    for result in results:
        part = result if isinstance(result, ToolResultPart) else part_from_anthropic(_to_result_block(result))
        if not isinstance(part, ToolResultPart):
            raise PartValidationError(f"expected a tool result, got {part.type}")
        parts.append(part)
    return parts


def apply_tool_result(message: Message, call_id: str, result: ToolResultPart, now: int) -> None:
    """Ends an open call of this message with its result."""
    call = message.find_call(call_id)
    if call is not None:
        message.update_part(call.id, lambda part: _end_call(part, result, now))


def _read_message(role: Any, content: Any, earlier: list[Message], now: int) -> Message:
    message = Message(role, metadata={"content": "string"} if isinstance(content, str) else {})
    results: list[str] = []
    for block in content_blocks(content):
        part = part_from_anthropic(block)
        if not isinstance(part, ToolResultPart):
            message.add_part(part)
        elif (call_message := _find_call_message(earlier, part.tool_use_id)) is not None:
            apply_tool_result(call_message, part.tool_use_id, part, now)
            results.append(part.tool_use_id)
        else:
            text = f"(result of a call that is no longer here)\n{part.content}"
            message.add_part(TextPart(text, synthetic=True))
    if results:
        message.metadata["results"] = results
    return message


def _find_call_message(earlier: list[Message], call_id: str) -> Message | None:
    """Returns the response with this open call, if it is newer than the last user input.

    Several user messages may carry the results of one response."""
    for message in reversed(earlier):
        if message.role == "user" and "results" not in message.metadata:
            return None
        call = message.find_call(call_id)
        if call is not None and not call.ended:
            return message
    return None


def _end_call(part: ToolPart, result: ToolResultPart, now: int) -> ToolPart:
    retained = dict(result.metadata)
    if not result.content.strip() and "content" not in retained:
        retained["content"] = result.to_api_format().get("content")
    metadata = {"result": retained} if retained else {}
    running = part.state.start(now) if isinstance(part.state, ToolPending) else part.state
    if not isinstance(running, ToolRunning):
        return part
    if result.is_error:
        if result.attachments:
            retained = {"content": result.to_api_format().get("content")} | retained
        state = running.fail(result.content, now, metadata={"result": retained} if retained else {})
    else:
        state = running.complete(result.content, now, metadata=metadata, attachments=result.attachments)
    return part.with_state(running).with_state(state)


def _result_blocks(due_calls: Mapping[str, ToolPart], order: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the result blocks of the calls in `order`, then those of the other calls. A call without a result gets an
    error block, because the API requires a result for every call."""
    ordered = [call_id for call_id in order if call_id in due_calls]
    unordered = [call_id for call_id in due_calls if call_id not in ordered]
    blocks: list[dict[str, Any]] = []
    for call_id in (*ordered, *unordered):
        result = tool_result(due_calls[call_id])
        if result is None:
            result = ToolResultPart(tool_use_id=call_id, content=UNKNOWN_RESULT, is_error=True)
        blocks.append(result.to_api_format())
    return blocks


def _to_result_block(result: Any) -> dict[str, Any]:
    fields = as_dict(result)
    return fields if "type" in fields else {"type": "tool_result", **fields}
