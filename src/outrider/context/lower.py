"""Converts a transcript to a prompt that every vendor's rules accept, whatever the transcript contains.

A call and its result are one part in the transcript and two in the prompt: the tool use in the assistant message, the
result at the beginning of the next user message. Roles alternate and start with the user. Every tool use has exactly
one result. Texts that are inserted here are part of the prompts of stored sessions: changing one invalidates their
cache."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeGuard, assert_never, cast

from msgspec.structs import replace

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError
from outrider.types.codec import AnyPart
from outrider.types.messages import Message
from outrider.types.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    ModelPart,
    Part,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    ToolResultPart,
    ToolUsePart,
    is_standard_part,
    is_withdrawn,
    tool_result,
)
from outrider.types.request import ModelMessage, Prompt
from outrider.types.tool_state import FORWARDED_BY, ToolCompleted

_log = logging.getLogger("outrider.prompt")

ORPHAN = "(result of a call that is not in this conversation)\n{content}"


class ImportedResults:
    """Results that are separate parts of user messages, as in imported conversations. Each belongs to the first earlier
    call with its id; a result without a call is sent as text."""

    def __init__(self, history: Iterable[Message] = ()) -> None:
        self._by_call_id: dict[str, list[ToolResultPart]] = {}
        for message in history:
            for part in results_in(message):
                self._by_call_id.setdefault(part.tool_use_id, []).append(part)

    def take(self, call_id: str) -> ToolResultPart | None:
        results = self._by_call_id.get(call_id)
        return results.pop(0) if results else None

    def unclaimed_text(self, part: ToolResultPart) -> TextPart | None:
        """Returns the text for a result that belongs to no call; None if a call has taken it."""
        results = self._by_call_id.get(part.tool_use_id, ())
        if not any(result is part for result in results):
            return None
        return TextPart(ORPHAN.format(content=part.content), synthetic=True, id=part.id)


def results_in(message: Message) -> Sequence[ToolResultPart]:
    return [part for part in message.parts if isinstance(part, ToolResultPart)] if message.role == "user" else ()


SUMMARY = "Summary of the conversation so far; the messages it stands for were removed:\n\n{summary}"
LARGE_OUTPUT = 4_000  # characters of an old output that leave the prompt with a compaction


def apply_compaction(history: Sequence[Message]) -> list[Message]:
    """Returns the history with the messages that the last compaction covers replaced by its summary."""
    for position in range(len(history) - 1, -1, -1):
        for part in history[position].parts:
            if isinstance(part, CompactionPart) and part.summary:
                return [
                    _summary_message(part),
                    *_messages_after_summary(history, part, position),
                    *history[position + 1 :],
                ]
    return list(history)


def has_compaction(message: Message) -> bool:
    return any([isinstance(part, CompactionPart) and bool(part.summary) for part in message.parts])


def _summary_message(part: CompactionPart) -> Message:
    return Message("user", [TextPart(SUMMARY.format(summary=part.summary), synthetic=True, id=part.id)])


def _messages_after_summary(history: Sequence[Message], part: CompactionPart, position: int) -> list[Message]:
    """Returns the messages before the compaction that its summary does not cover. Their large outputs are removed,
    except those of the last answer, which the model may not have processed yet."""
    start = next((index for index in range(position - 1, -1, -1) if history[index].id == part.tail_start_id), position)
    last_answer = max(start, position - 1)
    return [*map(_without_large_outputs, history[start:last_answer]), *history[last_answer:position]]


def _without_large_outputs(message: Message) -> Message:
    if not any(_is_large(part) for part in message.parts):
        return message
    parts = [_without_output(part) if _is_large(part) else part for part in message.parts]
    return replace(message, parts=parts)


def _is_large(part: object) -> TypeGuard[ToolPart]:
    return (
        isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted) and len(part.state.output) > LARGE_OUTPUT
    )


def _without_output(part: ToolPart) -> ToolPart:
    state = part.state
    return replace(part, state=state.compact(state.time.end)) if isinstance(state, ToolCompleted) else part


OPENING = "(The conversation begins with the assistant.)"
CONTINUE = "(Your last answer was cut off. Continue from where it stopped, without repeating it.)"
PAUSED = "paused"
NOT_FINISHED = (
    "This call did not finish, and its result is unknown: it may or may not have had an effect. "
    "Check before you repeat it."
)
OUTPUT_REMOVED = "(The output of this old call was removed to save space. Call the tool again if you need it.)"
# Keys under which a vendor's opaque blocks are stored unchanged, and the block types that are reasoning.
_OPAQUE = ("block", "item", "part")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_NOT_IN_NAMES = lazy_pattern(r"[^A-Za-z0-9_-]")


def lower(history: Sequence[Message], *, family: str) -> Prompt:
    """Returns the prompt for a model of `family`. Reasoning and other vendor state is included only for the family that
    produced it."""
    for message in history:
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                "lower() takes a list of Message values, such as session.messages, "
                f"but the list contains a {type(message).__name__}"
            )
    visible = apply_compaction(history)
    return Prompt(alternate_roles(lowered_messages(visible, family, UniqueCallIds(ImportedResults(visible)))))


def end_with_user(prompt: Prompt, history: Sequence[Message]) -> Prompt:
    """Returns a prompt that can be sent: it ends with the user, as several vendors require. A turn stores CONTINUE
    before it continues an answer; this covers input that has nothing for the model. An answer that the vendor itself
    has paused is sent back."""
    if prompt[-1].role == "user" or history[-1].metadata.get(PAUSED):
        return prompt
    return Prompt([*prompt, ModelMessage("user", (TextPart(CONTINUE, synthetic=True),))])


def lowered_messages(history: Iterable[Message], family: str, call_ids: "UniqueCallIds") -> Iterator[ModelMessage]:
    """Converts each message to one or more model messages; adjacent ones may still have the same role."""
    messages = list(history)
    for message in messages:
        if message.role == "user":
            if content := tuple(_user_parts(message, family, call_ids.results)):
                yield ModelMessage("user", content)
        elif message.metadata.get(PAUSED) and message is not messages[-1]:
            yield from _assistant_messages(_without_open_uses(message, messages), family, call_ids)
        else:
            yield from _assistant_messages(message, family, call_ids)


def _without_open_uses(paused: Message, history: Sequence[Message]) -> Message:
    """Returns a paused answer without the uses of vendor tools whose result never arrived: vendors reject them once
    another message follows."""
    blocks = [_opaque_block(part) for message in history for part in message.parts if isinstance(part, ReasoningPart)]
    answered_ids = {block.get("tool_use_id") for block in blocks}
    parts = [part for part in paused.parts if not _is_open_use(part, answered_ids)]
    return paused if len(parts) == len(paused.parts) else replace(paused, parts=parts)


def _is_open_use(part: AnyPart, answered_ids: Collection[Any]) -> bool:
    block = _opaque_block(part) if isinstance(part, ReasoningPart) else {}
    return block.get("type") in ("server_tool_use", "mcp_tool_use") and block.get("id") not in answered_ids


def _opaque_block(part: ReasoningPart) -> dict[str, Any]:
    block: Any = part.provider_state.get("block")
    return cast("dict[str, Any]", block) if isinstance(block, dict) else {}


def alternate_roles(messages: Iterable[ModelMessage], *, opening: bool = True) -> Iterator[ModelMessage]:
    """Merges adjacent messages of one role. With `opening`, a conversation that starts with the assistant gets a
    synthetic user message, since every API requires one."""
    pending: ModelMessage | None = None
    for message in messages:
        if opening and pending is None and message.role == "assistant":
            pending = _opening_message()
        if pending is not None and pending.role == message.role:
            pending = ModelMessage(message.role, _results_first(pending.content + message.content))
            continue
        if pending is not None:
            yield pending
        pending = message
    if pending is not None:
        yield pending
    elif opening:
        yield _opening_message()


def tool_name(name: str) -> str:
    """Returns a tool name that every API accepts, also for a name that a model invented."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


class UniqueCallIds:
    """Makes call ids unique within a prompt, since providers and imports may repeat them. `results` are those of
    imported conversations."""

    def __init__(self, results: ImportedResults | None = None) -> None:
        self._seen: dict[str, int] = {}
        self.results = results or ImportedResults()

    def unique_id(self, call: ToolPart) -> str:
        call_id = call.call_id or call.id
        count = self._seen[call_id] = self._seen.get(call_id, 0) + 1
        return call_id if count == 1 else self._numbered_id(call_id, count)

    def _numbered_id(self, call_id: str, count: int) -> str:
        name = f"{call_id}_{count}"
        while name in self._seen:
            count += 1
            name = f"{call_id}_{count}"
        self._seen[name] = 1
        return name


def _assistant_messages(message: Message, family: str, call_ids: UniqueCallIds) -> Iterator[ModelMessage]:
    """Yields a pair of messages per step: the assistant's text and calls, then the results."""
    for step in _split_steps(message.parts):
        content: list[ModelPart] = []
        results: list[ModelPart] = []
        for part in step:
            if is_withdrawn(part):
                continue
            if isinstance(part, ToolPart):
                use, result = _split_call(part, call_ids.unique_id(part), call_ids.results)
                content.append(use)
                results.append(result)
            elif (visible := _visible_part(part, family)) is not None:
                content.append(visible)
        if content and isinstance(content[-1], ReasoningPart):
            content = _without_trailing_reasoning(content, broke_off=_is_incomplete(message))
        if content:
            yield ModelMessage("assistant", tuple(content))
        if results:
            yield ModelMessage("user", tuple(results))


def _split_steps(parts: Iterable[AnyPart]) -> list[list[AnyPart]]:
    """Groups parts by model answer, so that text after a result is sent after that result."""
    steps: list[list[AnyPart]] = []
    for part in parts:
        if not steps or isinstance(part, StepStartPart):
            steps.append([])
        steps[-1].append(part)
    return steps


def _split_call(part: ToolPart, call_id: str, results: ImportedResults) -> tuple[ToolUsePart, ToolResultPart]:
    """Splits a call into tool use and result; both have the id of the stored part."""
    state, name, tool_input = part.state, tool_name(part.tool), part.state.input
    if isinstance(forwarder := part.metadata.get(FORWARDED_BY), str):  # as the model called it
        name, tool_input = tool_name(forwarder), {"tool": part.tool, "arguments": state.input}
    use = ToolUsePart(tool_id=call_id, tool_name=name, tool_input=tool_input, metadata=part.metadata, id=part.id)
    result = tool_result(part, call_id)
    if result is None and (imported := results.take(part.call_id)) is not None:
        result = replace(imported, tool_use_id=call_id, tool_name=name, id=part.id)
    if result is None:
        result = ToolResultPart(tool_use_id=call_id, content=NOT_FINISHED, is_error=True, tool_name=name, id=part.id)
    elif isinstance(state, ToolCompleted) and state.time.compacted is not None:
        result = ToolResultPart(tool_use_id=call_id, content=OUTPUT_REMOVED, tool_name=name, id=part.id)
    elif result.tool_name != name:
        result = replace(result, tool_name=name)
    return use, result


def _visible_part(part: AnyPart, family: str) -> ModelPart | None:
    """Returns what a model sees of a part of an answer that is not a call."""
    if not is_standard_part(part):
        return convert_custom_part(part)
    match part:
        case TextPart():
            return part if not part.ignored and (part.text.strip() or family in part.metadata) else None
        case ReasoningPart():
            return part if part.provider_state.get("family") == family else None
        case FilePart():
            note = f"(file: {part.filename or part.mime})"
            return part if family in part.metadata else TextPart(note, synthetic=True)
        case ToolPart() | StepStartPart() | StepFinishPart() | SnapshotPart() | PatchPart() | AgentPart():
            return None
        case SubtaskPart() | RetryPart() | CompactionPart():
            return None
        case _:
            assert_never(part)


def convert_custom_part(part: AnyPart) -> TextPart | FilePart | None:
    """Returns what a model sees of a part of a registered kind, if it has `to_api_format`, which returns a content
    block in the form of the Messages API. A block that is invalid, or would be a call or its result, is not sent."""
    convert = getattr(part, "to_api_format", None)
    if convert is None:
        return None
    from outrider.types.anthropic_blocks import part_from_anthropic  # lazy: only for custom parts

    try:
        content = part_from_anthropic(convert())
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  user code may raise anything
        _log.exception("a part of the kind %s has no form for models", part.type)
        return None
    return content if isinstance(content, TextPart | FilePart) else None


def _user_parts(message: Message, family: str, results: ImportedResults) -> Iterator[ModelPart]:
    for part in message.parts:
        if is_standard_part(part):
            visible = _user_part(part, family)
        elif isinstance(part, ToolResultPart):
            visible = results.unclaimed_text(part)
        else:
            visible = convert_custom_part(part)
        if visible is not None:
            yield visible


def _user_part(part: Part, family: str) -> ModelPart | None:
    match part:
        case TextPart():
            return part if not part.ignored and part.text.strip() else None
        case FilePart():
            return part
        case ReasoningPart(provider_state=state):  # with a block: a file of the vendor
            return part if state.get("family") == family and "block" in state else None
        case ToolPart():  # a command that the user ran
            result = tool_result(part, part.call_id)
            return TextPart(f"(ran {part.tool})\n{result.content if result else NOT_FINISHED}", synthetic=True)
        case StepStartPart() | StepFinishPart() | SnapshotPart() | PatchPart() | AgentPart():
            return None
        case SubtaskPart() | RetryPart() | CompactionPart():
            return None
        case _:
            assert_never(part)


def _is_incomplete(message: Message) -> bool:
    return message.error is not None or message.finish == "length"


def _without_trailing_reasoning(parts: list[ModelPart], *, broke_off: bool) -> list[ModelPart]:
    """Removes reasoning at the end of a message, which vendors reject. Opaque blocks that are stored as reasoning, such
    as results of vendor tools, may be at the end of a complete answer."""
    end = len(parts)
    while end and isinstance(part := parts[end - 1], ReasoningPart) and (broke_off or _is_thought(part)):
        end -= 1
    return parts[:end]


def _is_thought(part: ReasoningPart) -> bool:
    block = next((part.provider_state[name] for name in _OPAQUE if name in part.provider_state), None)
    return block is None or block.get("type") in _THOUGHTS


def _opening_message() -> ModelMessage:
    return ModelMessage("user", (TextPart(OPENING, synthetic=True),))


def _results_first(content: tuple[ModelPart, ...]) -> tuple[ModelPart, ...]:
    return tuple(sorted(content, key=lambda part: not isinstance(part, ToolResultPart)))


class PromptProjection:
    """Incremental `lower()`: returns an equal prompt, but appends to the previous one where possible. It starts a new
    prefix after a compaction, or if the history is not a continuation of the previous one."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._prompt = Prompt()
        self._call_ids = UniqueCallIds()
        self._lowered_count = 0  # how many messages of the history the prompt contains
        self._last_fingerprint: tuple[str, int] = ("", 0)

    def prompt(self, history: Sequence[Message]) -> Prompt:
        """Returns the prompt for the history; the same object grows from turn to turn."""
        new_messages = self._new_messages(history) if self._is_continuation(history) else None
        if new_messages is None:
            visible = apply_compaction(history)
            self._call_ids = UniqueCallIds(ImportedResults(visible))
            messages = lowered_messages(visible, self.family, self._call_ids)
            self._prompt = Prompt(alternate_roles(messages))
        else:
            for message in new_messages:
                self._prompt.append(message)
        self._store_position(history)
        return self._prompt

    def _new_messages(self, history: Sequence[Message]) -> list[ModelMessage] | None:
        """Returns the messages to append; None if the prompt must be built again."""
        added = history[self._lowered_count :]
        if any(map(has_compaction, added)) or any(map(results_in, added)):
            return None
        if added and self._lowered_count and history[self._lowered_count - 1].metadata.get(PAUSED):
            return None  # what its tools returned decides how the paused answer is sent
        messages = list(alternate_roles(lowered_messages(added, self.family, self._call_ids), opening=not self._prompt))
        merges = messages and self._prompt and messages[0].role == self._prompt[-1].role
        return None if merges else messages

    def _is_continuation(self, history: Sequence[Message]) -> bool:
        count = self._lowered_count
        return 0 < count <= len(history) and _fingerprint(history[count - 1]) == self._last_fingerprint

    def _store_position(self, history: Sequence[Message]) -> None:
        """Stores how much of the history the prompt contains. A message with an open call may still change, so it is
        lowered again next time."""
        settled = bool(history) and all([part.ended for part in history[-1].parts if isinstance(part, ToolPart)])
        self._lowered_count = len(history) if settled else 0
        self._last_fingerprint = _fingerprint(history[-1]) if settled else ("", 0)


def _fingerprint(message: Message) -> tuple[str, int]:
    return message.id, len(message.parts)
