"""A transcript in the Anthropic message format, in and out, without loss.

In the transcript a result is part of its call; in this format it stands in the user message that follows. A user
message that carried results keeps their order in `metadata["results"]`, so that reading and writing gives back an
equal list.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any

from outrider.errors import PartValidationError
from outrider.types.anthropic_blocks import as_dict, content_blocks, part_from_anthropic
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart, ToolResultPart, tool_result
from outrider.types.tool_state import ToolPending, ToolRunning

UNKNOWN_RESULT = "(The result of this call is not known.)"


def read_api_messages(api_messages: Iterable[Mapping[str, Any]], at: int) -> list[Message]:
    """One message each. A result ends its call; one whose call is missing is kept as text."""
    messages: list[Message] = []
    for position, api_message in enumerate(api_messages):
        if not isinstance(api_message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  data from outside
            raise PartValidationError(f"messages[{position}]: a message is an object with a role and content")
        role = api_message.get("role")
        if role not in ("user", "assistant"):
            raise PartValidationError(f"messages[{position}]: the role must be user or assistant, got {role!r}")
        try:
            messages.append(_read(role, api_message.get("content"), messages, at))
        except ValueError as error:
            raise PartValidationError(f"messages[{position}]: {error}") from error
    return messages


def write_api_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    due: dict[str, ToolPart] = {}
    for position, message in enumerate(messages):
        if message.role == "user":
            later = _carried(messages[position + 1 :])
            written.append(_with_results(message, {id: part for id, part in due.items() if id not in later}))
            due = {id: part for id, part in due.items() if id in later}
            continue
        later = _carried(dropwhile(_is_answer, messages[position:]))
        if now := {call_id: part for call_id, part in due.items() if call_id not in later}:
            written.append({"role": "user", "content": _results(now, [])})
        due = {call_id: part for call_id, part in due.items() if call_id in later}
        due |= {part.call_id: part for part in message.get_parts_by_type(ToolPart)}
        written.append(message.to_api_format())
    if any(part.ended for part in due.values()):
        written.append({"role": "user", "content": _results(due, [])})
    return written


def _with_results(message: Message, due: Mapping[str, ToolPart]) -> dict[str, Any]:
    api_message = message.to_api_format()
    order = message.metadata.get("results", [])
    if due or order:
        api_message["content"] = [*_results(due, order), *content_blocks(api_message["content"])]
    return api_message


def _carried(messages: Iterable[Message]) -> list[str]:
    """The calls whose results the user messages that come first are known to carry."""
    users = takewhile(lambda message: not _is_answer(message), messages)
    return [call_id for message in users for call_id in message.metadata.get("results", [])]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant"


def result_parts(results: Iterable[Any]) -> list[ToolResultPart]:
    """Tool results in any of the forms that people have them in."""
    parts: list[ToolResultPart] = []
    for result in results:
        part = result if isinstance(result, ToolResultPart) else part_from_anthropic(_as_result(result))
        if not isinstance(part, ToolResultPart):
            raise PartValidationError(f"expected a tool result, got {part.type}")
        parts.append(part)
    return parts


def settle(message: Message, call_id: str, result: ToolResultPart, at: int) -> None:
    """End an open call of this message with its result."""
    call = message.find_call(call_id)
    if call is not None:
        message.update_part(call.id, lambda part: _ended(part, result, at))


def _read(role: Any, content: Any, earlier: list[Message], at: int) -> Message:
    message = Message(role, metadata={"content": "string"} if isinstance(content, str) else {})
    results: list[str] = []
    for block in content_blocks(content):
        part = part_from_anthropic(block)
        if not isinstance(part, ToolResultPart):
            message.add_part(part)
        elif (answered := _asked_in(earlier, part.tool_use_id)) is not None:
            settle(answered, part.tool_use_id, part, at)
            results.append(part.tool_use_id)
        else:
            text = f"(result of a call that is no longer here)\n{part.content}"
            message.add_part(TextPart(text, synthetic=True))
    if results:
        message.metadata["results"] = results
    return message


def _asked_in(earlier: list[Message], call_id: str) -> Message | None:
    """The answer that asked for this call and has no result for it yet: one of those since the user spoke last.
    Results may come in several messages."""
    for message in reversed(earlier):
        if message.role == "user" and "results" not in message.metadata:
            return None
        call = message.find_call(call_id)
        if call is not None and not call.ended:
            return message
    return None


def _ended(part: ToolPart, result: ToolResultPart, at: int) -> ToolPart:
    kept = dict(result.metadata)
    if not result.content.strip() and "content" not in kept:
        kept["content"] = result.to_api_format().get("content")
    metadata = {"result": kept} if kept else {}
    running = part.state.start(at) if isinstance(part.state, ToolPending) else part.state
    if not isinstance(running, ToolRunning):
        return part
    if result.is_error:
        if result.attachments:
            kept = {"content": result.to_api_format().get("content")} | kept
        state = running.fail(result.content, at, metadata={"result": kept} if kept else {})
    else:
        state = running.complete(result.content, at, metadata=metadata, attachments=result.attachments)
    return part.with_state(running).with_state(state)


def _results(due: Mapping[str, ToolPart], order: Sequence[str]) -> list[dict[str, Any]]:
    """Result blocks: those that came in a known order first, then the rest; a call without a result gets one."""
    known = [call_id for call_id in order if call_id in due]
    rest = [call_id for call_id in due if call_id not in known]
    blocks: list[dict[str, Any]] = []
    for call_id in (*known, *rest):
        result = tool_result(due[call_id])
        if result is None:
            result = ToolResultPart(tool_use_id=call_id, content=UNKNOWN_RESULT, is_error=True)
        blocks.append(result.to_api_format())
    return blocks


def _as_result(result: Any) -> dict[str, Any]:
    fields = as_dict(result)
    return fields if "type" in fields else {"type": "tool_result", **fields}
