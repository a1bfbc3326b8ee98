"""Hypothesis strategies for every value of the transcript."""

from decimal import Decimal

from hypothesis import strategies as st

from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageError, MessagePath, MessageTime
from outrider.types.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    FileSource,
    ModelRef,
    PartTime,
    PatchPart,
    ReasoningPart,
    ResourceSource,
    RetryPart,
    RetryTime,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    SymbolSource,
    TextPart,
    TextRange,
    ToolPart,
)
from outrider.types.tool_state import (
    Attachment,
    EndedTime,
    RunningTime,
    ToolCompleted,
    ToolError,
    ToolPending,
    ToolRunning,
)
from outrider.types.usage import CacheTokens, Tokens

text = st.text(max_size=30)
count = st.integers(0, 2**53)
moment = st.integers(0, 2**53)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(text, json_values, max_size=3)
tokens = st.builds(Tokens, count, count, count, st.builds(CacheTokens, count, count))
cost = st.none() | st.decimals(min_value=0, max_value=Decimal(10) ** 6, allow_nan=False, allow_infinity=False, places=9)
part_time = st.none() | st.builds(PartTime, moment, st.none() | moment)
ended_time = st.tuples(moment, st.integers(0, 10**6), st.none() | moment).map(
    lambda times: EndedTime(times[0], times[0] + times[1], times[2])
)
attachments = st.lists(
    st.builds(Attachment, mime_type=st.just("image/png"), data=st.just("QUJD"), name=st.none() | text)
    | st.builds(Attachment, mime_type=st.just("application/pdf"), url=st.just("https://example.org/a.pdf")),
    max_size=2,
).map(tuple)
text_range = st.none() | st.builds(TextRange, text, count, count)
sources = (
    st.none()
    | st.builds(FileSource, text, text_range)
    | st.builds(SymbolSource, text, text, count, objects, text_range)
    | st.builds(ResourceSource, text, text, text_range)
)
reasons = st.sampled_from(["failed", "denied", "rejected", "canceled", "timeout", "interrupted", "invalid_input"])
phases = st.sampled_from(["streaming", "ready", "awaiting_approval"])
tool_states = st.one_of(
    st.builds(ToolPending, objects, text, phases),
    st.builds(ToolRunning, objects, st.builds(RunningTime, moment), text, objects),
    st.builds(ToolCompleted, objects, text, ended_time, text, objects, attachments),
    st.builds(ToolError, objects, text, ended_time, reasons, objects),
)
families = st.sampled_from(["anthropic", "google", "openai-responses"])
provider_states = st.builds(lambda family, rest: {**rest, "family": family}, families, objects)
urls = st.sampled_from(["data:image/png;base64,QUJD", "https://example.org/x", "data:text/plain;charset=utf-8,a%20b"])

text_parts = st.builds(TextPart, text, st.booleans(), st.booleans(), part_time, objects)
reasoning_parts = st.builds(ReasoningPart, text, part_time, objects, provider_states)
tool_parts = st.builds(ToolPart, st.text("ab", max_size=2), text, tool_states, objects)
file_parts = st.builds(FilePart, st.sampled_from(["image/png", "text/plain"]), urls, st.none() | text, sources, objects)
model_ref = st.none() | st.builds(ModelRef, text, text)
parts = st.one_of(
    text_parts,
    reasoning_parts,
    tool_parts,
    file_parts,
    st.builds(StepStartPart, st.none() | text),
    st.builds(StepFinishPart, text, st.none() | text, cost, tokens),
    st.builds(SnapshotPart, text),
    st.builds(PatchPart, text, st.lists(text, max_size=3).map(tuple)),
    st.builds(AgentPart, text, text_range),
    st.builds(SubtaskPart, text, text, text, model_ref, st.none() | text),
    st.builds(RetryPart, count, text, st.builds(RetryTime, moment)),
    st.builds(CompactionPart, st.booleans(), st.booleans(), text, st.none() | text, st.none() | count),
)


@st.composite
def messages(draw: st.DrawFn, role: str | None = None) -> Message:
    return Message(
        draw(st.sampled_from(["user", "assistant"])) if role is None else role,  # pyright: ignore[reportArgumentType]
        draw(st.lists(parts, max_size=6)),
        id=new_id(),
        time=draw(st.none() | st.builds(MessageTime, moment, st.none() | moment)),
        metadata=draw(objects),
        agent=draw(text),
        model=draw(model_ref),
        tools=draw(st.none() | st.dictionaries(text, st.booleans(), max_size=2)),
        path=draw(st.none() | st.builds(MessagePath, text, text)),
        cost=draw(cost),
        tokens=draw(tokens),
        finish=draw(st.sampled_from([None, "stop", "tool_use", "length"])),
        error=draw(st.none() | st.builds(MessageError, text, text, st.none() | count)),
    )
