"""The transcript, lowered to what a model gets: pure, and accepted by every vendor's rules for any transcript.

A call and its result are one part in the transcript and two in the prompt: the use in the assistant's message, the
result at the head of the user's message that follows. Roles alternate and begin with the user. Every use has exactly
one result.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from outrider.types.codec import AnyPart
from outrider.types.messages import Message
from outrider.types.parts import (
    CompactionPart,
    FilePart,
    ModelPart,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    ToolResultPart,
    ToolUsePart,
    tool_result,
)
from outrider.types.request import ModelMessage, Prompt
from outrider.types.tool_state import ToolCompleted

ORPHAN = "(result of a call that is not in this conversation)\n{content}"


class GivenResults:
    """Each is given to the first open call of its id that comes before it; what no call takes is told as text."""

    def __init__(self, history: Iterable[Message] = ()) -> None:
        self._given: dict[str, list[ToolResultPart]] = {}
        for message in history:
            for part in results_in(message):
                self._given.setdefault(part.tool_use_id, []).append(part)

    def take(self, call_id: str) -> ToolResultPart | None:
        waiting = self._given.get(call_id)
        return waiting.pop(0) if waiting else None

    def left(self, part: ToolResultPart) -> TextPart | None:
        """Words for a result that no call has taken."""
        waiting = self._given.get(part.tool_use_id, ())
        if not any(other is part for other in waiting):
            return None
        return TextPart(ORPHAN.format(content=part.content), synthetic=True, id=part.id)


def results_in(message: Message) -> Sequence[ToolResultPart]:
    return [part for part in message.parts if isinstance(part, ToolResultPart)] if message.role == "user" else ()


SUMMARY = "Summary of the conversation so far; the messages it stands for were removed:\n\n{summary}"
LARGE = 4_000  # characters of an old output that leave the prompt with a compaction


def current(history: Sequence[Message]) -> list[Message]:
    """The history with everything that a compaction stands for replaced by its summary."""
    for position in range(len(history) - 1, -1, -1):
        for part in history[position].parts:
            if isinstance(part, CompactionPart) and part.summary:
                return [_summary_message(part), *_tail(history, part, position), *history[position + 1 :]]
    return list(history)


def holds_compaction(message: Message) -> bool:
    return any([isinstance(part, CompactionPart) for part in message.parts])


def _summary_message(part: CompactionPart) -> Message:
    return Message("user", [TextPart(SUMMARY.format(summary=part.summary), synthetic=True, id=part.id)])


def _tail(history: Sequence[Message], part: CompactionPart, position: int) -> list[Message]:
    """What came before the compaction and is not in its summary: from the named message on. Large outputs leave the
    prompt too, but for those of the last answer, which the model may not have read yet."""
    start = next((at for at in range(position) if history[at].id == part.tail_start_id), position)
    last = max(start, position - 1)
    return [*map(_lightened, history[start:last]), *history[last:position]]


def _lightened(message: Message) -> Message:
    if not any(_is_large(part) for part in message.parts):
        return message
    parts = [_without_output(part) if _is_large(part) else part for part in message.parts]
    return replace(message, parts=parts)


def _is_large(part: object) -> bool:
    return isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted) and len(part.state.output) > LARGE


def _without_output(part: ToolPart) -> ToolPart:
    state = part.state
    return replace(part, state=state.compact(state.time.end)) if isinstance(state, ToolCompleted) else part


OPENING = "(The conversation begins with the assistant.)"
NOT_FINISHED = (
    "This call did not finish, and its result is unknown: it may or may not have had an effect. "
    "Check before you repeat it."
)
OUTPUT_REMOVED = "(The output of this old call was removed to save space. Call the tool again if you need it.)"
# Where vendors' own blocks, items and parts are kept word for word, and which of them are thoughts all the same.
_OPAQUE = ("block", "item", "part")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def lower(history: Sequence[Message], *, family: str) -> Prompt:
    """The prompt for a model of `family`: reasoning and other private state goes back only to those who wrote it."""
    seen = current(history)
    return Prompt(alternate(lowered_messages(seen, family, CallIds(GivenResults(seen)))))


def lowered_messages(history: Iterable[Message], family: str, call_ids: "CallIds") -> Iterator[ModelMessage]:
    """Each message as one or more model messages; neighbours may still share a role."""
    for message in history:
        if message.role == "user":
            if said := tuple(_user_parts(message, family, call_ids.results)):
                yield ModelMessage("user", said)
        else:
            yield from _assistant_messages(message, family, call_ids)


def alternate(messages: Iterable[ModelMessage], *, opening: bool = True) -> Iterator[ModelMessage]:
    """Neighbours of one role become one message, and the first of a conversation is the user's, even if no user has
    said anything."""
    waiting: ModelMessage | None = None
    for message in messages:
        if opening and waiting is None and message.role == "assistant":
            waiting = _opening()
        if waiting is not None and waiting.role == message.role:
            waiting = ModelMessage(message.role, _results_first(waiting.content + message.content))
            continue
        if waiting is not None:
            yield waiting
        waiting = message
    if waiting is not None:
        yield waiting
    elif opening:
        yield _opening()


def tool_name(name: str) -> str:
    """A name that every API takes back, also when a model made it up."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


class CallIds:
    """Call ids are unique in a prompt, whatever a provider or an import gave; `results` are those given by hand."""

    def __init__(self, results: GivenResults | None = None) -> None:
        self._seen: dict[str, int] = {}
        self.results = results or GivenResults()

    def unique(self, call: ToolPart) -> str:
        call_id = call.call_id or call.id
        count = self._seen[call_id] = self._seen.get(call_id, 0) + 1
        return call_id if count == 1 else self._another_name(call_id, count)

    def _another_name(self, call_id: str, count: int) -> str:
        name = f"{call_id}_{count}"
        while name in self._seen:
            count += 1
            name = f"{call_id}_{count}"
        self._seen[name] = 1
        return name


def _assistant_messages(message: Message, family: str, call_ids: CallIds) -> Iterator[ModelMessage]:
    """One pair of messages per step: what the model said and called, then the results."""
    for step in _steps(message.parts):
        said: list[ModelPart] = []
        results: list[ModelPart] = []
        for part in step:
            if isinstance(part, ToolPart):
                use, result = _split(part, call_ids.unique(part), call_ids.results)
                said.append(use)
                results.append(result)
            elif (visible := _visible(part, family)) is not None:
                said.append(visible)
        if said and isinstance(said[-1], ReasoningPart):
            said = _without_trailing_reasoning(said, broke_off=_broke_off(message))
        if said:
            yield ModelMessage("assistant", tuple(said))
        if results:
            yield ModelMessage("user", tuple(results))


def _steps(parts: Iterable[AnyPart]) -> list[list[AnyPart]]:
    """The parts of each model answer: what follows a call's result was said after it."""
    steps: list[list[AnyPart]] = []
    for part in parts:
        if not steps or isinstance(part, StepStartPart):
            steps.append([])
        steps[-1].append(part)
    return steps


def _split(part: ToolPart, call_id: str, results: GivenResults) -> tuple[ToolUsePart, ToolResultPart]:
    """Both halves have the id of the part that they come from."""
    state, name = part.state, tool_name(part.tool)
    use = ToolUsePart(tool_id=call_id, tool_name=name, tool_input=state.input, metadata=part.metadata, id=part.id)
    result = tool_result(part, call_id)
    if result is None and (given := results.take(part.call_id)) is not None:
        result = replace(given, tool_use_id=call_id, tool_name=name, id=part.id)
    if result is None:
        result = ToolResultPart(tool_use_id=call_id, content=NOT_FINISHED, is_error=True, tool_name=name, id=part.id)
    elif isinstance(state, ToolCompleted) and state.time.compacted is not None:
        result = ToolResultPart(tool_use_id=call_id, content=OUTPUT_REMOVED, tool_name=name, id=part.id)
    elif result.tool_name != name:
        result = replace(result, tool_name=name)
    return use, result


def _visible(part: AnyPart, family: str) -> ModelPart | None:
    match part:
        case TextPart() if not part.ignored and (part.text.strip() or family in part.metadata):
            return part
        case ReasoningPart() if part.provider_state.get("family") == family:
            return part
        case FilePart():
            named = f"(file: {part.filename or part.mime})"
            return part if family in part.metadata else TextPart(named, synthetic=True)
        case _:
            return None


def _user_parts(message: Message, family: str, results: GivenResults) -> Iterator[ModelPart]:
    for part in message.parts:
        match part:
            case TextPart() if not part.ignored and part.text.strip():
                yield part
            case FilePart():
                yield part
            case ReasoningPart(provider_state={"family": owner, "block": _}) if owner == family:  # a file of theirs
                yield part
            case ToolPart():  # a command that the user ran
                result = tool_result(part, part.call_id)
                yield TextPart(f"(ran {part.tool})\n{result.content if result else NOT_FINISHED}", synthetic=True)
            case ToolResultPart():
                yield from filter(None, [results.left(part)])
            case _:
                pass


def _broke_off(message: Message) -> bool:
    return message.error is not None or message.finish == "length"


def _without_trailing_reasoning(parts: list[ModelPart], *, broke_off: bool) -> list[ModelPart]:
    """Vendors refuse reasoning that nothing follows. What else they keep as reasoning, such as the work of their own
    tools, may stand at the end of an answer that is whole."""
    end = len(parts)
    while end and isinstance(last := parts[end - 1], ReasoningPart) and (broke_off or _is_thought(last)):
        end -= 1
    return parts[:end]


def _is_thought(part: ReasoningPart) -> bool:
    kept = next((part.provider_state[name] for name in _OPAQUE if name in part.provider_state), None)
    return kept is None or kept.get("type") in _THOUGHTS


def _opening() -> ModelMessage:
    return ModelMessage("user", (TextPart(OPENING, synthetic=True),))


def _results_first(content: tuple[ModelPart, ...]) -> tuple[ModelPart, ...]:
    return tuple(sorted(content, key=lambda part: not isinstance(part, ToolResultPart)))


class Projection:
    """Equal to `lower(history)` at every moment. It appends where it can and starts a new prefix where it must:
    after a compaction, or when the history is not a continuation of the one it has seen."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._prompt = Prompt()
        self._call_ids = CallIds()
        self._seen = 0
        self._last: tuple[str, int] = ("", 0)

    def prompt(self, history: Sequence[Message]) -> Prompt:
        """The prompt for the history so far; the same object grows from turn to turn."""
        added = self._added(history) if self._continues(history) else None
        if added is None:
            seen = current(history)
            self._call_ids = CallIds(GivenResults(seen))
            messages = lowered_messages(seen, self._family, self._call_ids)
            self._prompt = Prompt(alternate(messages))
        else:
            for message in added:
                self._prompt.append(message)
        self._remember(history)
        return self._prompt

    def _added(self, history: Sequence[Message]) -> list[ModelMessage] | None:
        """What the new messages append; None when appending is not enough."""
        new = history[self._seen :]
        if any(map(holds_compaction, new)) or any(map(results_in, new)):
            return None
        added = list(alternate(lowered_messages(new, self._family, self._call_ids), opening=not self._prompt))
        merges = added and self._prompt and added[0].role == self._prompt[-1].role
        return None if merges else added

    def _continues(self, history: Sequence[Message]) -> bool:
        return 0 < self._seen <= len(history) and _mark(history[self._seen - 1]) == self._last

    def _remember(self, history: Sequence[Message]) -> None:
        """A message with an open call is not settled: it is lowered again next time."""
        settled = bool(history) and all([part.ended for part in history[-1].parts if isinstance(part, ToolPart)])
        self._seen = len(history) if settled else 0
        self._last = _mark(history[-1]) if settled else ("", 0)


def _mark(message: Message) -> tuple[str, int]:
    return message.id, len(message.parts)
