"""The steps of a transcript: one answer each, with the calls it made and how they ended."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec

from outrider.app.replay.differences import (
    AnswerDiffers,
    CallsDiffer,
    Difference,
    ResultDiffers,
    StepDiffers,
)
from outrider.types.messages import Message
from outrider.types.parts import ReasoningPart, ToolPart, tool_result


def steps_of(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "assistant"]


def calls_of(step: Message) -> list[ToolPart]:
    return step.get_parts_by_type(ToolPart)


def call_words(call: ToolPart) -> str:
    """A call as a person would write it, whatever the order of its fields."""
    return f"{call.tool}({msgspec.json.encode(call.state.input, order='sorted').decode()})"


def result_words(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return "no result"
    return f"error: {result.content}" if result.is_error else result.content


def compare_steps(recorded: Message | None, now: Message | None) -> Iterator[Difference]:
    """How one step came out otherwise."""
    if recorded is None or now is None:
        yield StepDiffers("now" if recorded is None else "recorded")
        return
    yield from _answers(recorded, now)
    before, after = calls_of(recorded), calls_of(now)
    words = tuple(map(call_words, before)), tuple(map(call_words, after))
    if words[0] != words[1]:
        yield CallsDiffer(*words)
        return
    for old, new in zip_longest(before, after):
        if result_words(old) != result_words(new):
            yield ResultDiffers(old.call_id, old.tool, result_words(old), result_words(new))


def _answers(recorded: Message, now: Message) -> Iterator[Difference]:
    texts = recorded.get_text_content(), now.get_text_content()
    if texts[0] != texts[1]:
        yield AnswerDiffers("text", *texts)
    thoughts = _reasoning(recorded), _reasoning(now)
    if thoughts[0] != thoughts[1]:
        yield AnswerDiffers("reasoning", *thoughts)
    if recorded.error is not None and recorded.error.type == "aborted" and now.error is not None:
        return  # it ends where its reader had let it go
    ends = recorded.finish or "", now.finish or ""
    if ends[0] != ends[1]:
        yield AnswerDiffers("finish", *ends)
    errors = _error(recorded), _error(now)
    if errors[0] != errors[1]:
        yield AnswerDiffers("error", *errors)


def _reasoning(step: Message) -> str:
    return "".join(part.text for part in step.get_parts_by_type(ReasoningPart))


def _error(step: Message) -> str:
    return f"{step.error.type}: {step.error.message}" if step.error else ""
