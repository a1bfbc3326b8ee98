"""Values: encoding and decoding a long list of stored parts, compared with the same types in pydantic."""

import gc
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic

from benchmarks.figure import Figure
from outrider import (
    AgentPart,
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    RetryPart,
    RetryTime,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    Tokens,
    ToolPart,
    ToolPending,
    decode_parts,
    encode_parts,
    new_id,
)
from outrider.types.parts import PartBase

COUNT = 100_000
ROUNDS = 3
TEXT = "lorem ipsum dolor sit amet " * 4


class PTime(pydantic.BaseModel):
    start: int
    end: int | None = None
    compacted: int | None = None


class PCache(pydantic.BaseModel):
    read: int = 0
    write: int = 0


class PTokens(pydantic.BaseModel):
    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: PCache = PCache()


class PBase(pydantic.BaseModel):
    id: str
    session_id: str = ""
    message_id: str = ""


class PText(PBase):
    type: Literal["text"]
    text: str
    synthetic: bool = False
    ignored: bool = False
    time: PTime | None = None
    metadata: dict[str, Any] = {}


class PReasoning(PBase):
    type: Literal["reasoning"]
    text: str
    time: PTime | None = None
    metadata: dict[str, Any] = {}
    provider_state: dict[str, Any] = {}


class PPending(pydantic.BaseModel):
    status: Literal["pending"]
    input: dict[str, Any] = {}
    raw: str = ""
    phase: str = "streaming"


class PRunning(pydantic.BaseModel):
    status: Literal["running"]
    input: dict[str, Any]
    time: PTime
    title: str = ""
    metadata: dict[str, Any] = {}


class PCompleted(PRunning):
    status: Literal["completed"]  # pyright: ignore[reportIncompatibleVariableOverride]
    output: str
    attachments: tuple[dict[str, Any], ...] = ()


class PError(pydantic.BaseModel):
    status: Literal["error"]
    input: dict[str, Any]
    error: str
    time: PTime
    reason: str = "failed"
    metadata: dict[str, Any] = {}


class PTool(PBase):
    type: Literal["tool"]
    call_id: str
    tool: str
    state: Annotated[PPending | PRunning | PCompleted | PError, pydantic.Field(discriminator="status")]
    metadata: dict[str, Any] = {}


class PFile(PBase):
    type: Literal["file"]
    mime: str
    url: str
    filename: str | None = None
    source: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}


class PStepStart(PBase):
    type: Literal["step-start"]
    snapshot: str | None = None


class PStepFinish(PBase):
    type: Literal["step-finish"]
    reason: str
    snapshot: str | None = None
    cost: Decimal | None = None
    tokens: PTokens = PTokens()


class PSnapshot(PBase):
    type: Literal["snapshot"]
    snapshot: str


class PPatch(PBase):
    type: Literal["patch"]
    hash: str
    files: tuple[str, ...] = ()


class PAgent(PBase):
    type: Literal["agent"]
    name: str
    source: dict[str, Any] | None = None


class PSubtask(PBase):
    type: Literal["subtask"]
    agent: str
    description: str = ""
    prompt: str = ""
    model: dict[str, str] | None = None
    child_session_id: str | None = None


class PRetryTime(pydantic.BaseModel):
    created: int


class PRetry(PBase):
    type: Literal["retry"]
    attempt: int
    error: str
    time: PRetryTime


class PCompaction(PBase):
    type: Literal["compaction"]
    auto: bool = False
    overflow: bool = False
    summary: str = ""
    tail_start_id: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


PPart = Annotated[
    PText | PReasoning | PTool | PFile | PStepStart | PStepFinish | PSnapshot | PPatch | PAgent | PSubtask | PRetry
    | PCompaction,
    pydantic.Field(discriminator="type"),
]  # fmt: skip


def sample(count: int) -> list[PartBase]:
    """Returns the mix of a coding session: mostly text, calls and steps."""
    running = ToolPending({"path": "src/a.py", "offset": 10}, phase="ready").start(1_700_000_000_000)
    makers: list[Callable[[dict[str, str]], PartBase]] = [
        *[lambda ids: TextPart(TEXT, **ids)] * 6,
        *[lambda ids: ToolPart("call_1", "read", running.complete(TEXT, 1_700_000_000_900), **ids)] * 8,
        *[lambda ids: ReasoningPart(TEXT, provider_state={"family": "x", "signature": TEXT}, **ids)] * 2,
        *[
            lambda ids: StepStartPart(**ids),
            lambda ids: StepFinishPart("stop", cost=Decimal("0.0123"), tokens=Tokens(9, 8, 7), **ids),
        ]
        * 2,
        lambda ids: FilePart("image/png", "https://example.org/a.png", **ids),
        lambda ids: PatchPart("0f3a", ("a.py", "b.py"), **ids),
        lambda ids: SnapshotPart("0f3a", **ids),
        lambda ids: AgentPart("reviewer", **ids),
        lambda ids: SubtaskPart("reviewer", TEXT, TEXT, **ids),
        lambda ids: RetryPart(1, "overloaded", RetryTime(1_700_000_000_000), **ids),
        lambda ids: CompactionPart(summary=TEXT, **ids),
    ]
    owners = {"session_id": new_id(), "message_id": new_id()}
    return [makers[number % len(makers)]({"id": f"{number:032x}", **owners}) for number in range(count)]


def bench() -> list[Figure]:
    parts = sample(COUNT)
    data = encode_parts(parts)
    adapter = pydantic.TypeAdapter(list[PPart])
    models = adapter.validate_json(data)
    ours, theirs = [1e9, 1e9], [1e9, 1e9]
    for _ in range(ROUNDS):
        ours = [min(ours[0], seconds(lambda: encode_parts(parts))), min(ours[1], seconds(lambda: decode_parts(data)))]
        theirs = [
            min(theirs[0], seconds(lambda: adapter.dump_json(models))),
            min(theirs[1], seconds(lambda: adapter.validate_json(data))),
        ]
    ratio = sum(theirs) / sum(ours)
    return [
        Figure("encode 100,000 parts", ours[0] * 1e3, "ms", theirs[0] / ours[0], "(pydantic / ours)"),
        Figure("decode 100,000 parts", ours[1] * 1e3, "ms", theirs[1] / ours[1], "(pydantic / ours)"),
        Figure("encode and decode, pydantic / ours", sum(ours) * 1e3, "ms", ratio, ">= 5x", ratio >= 5),
    ]


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    start = time.process_time()
    work()
    spent = time.process_time() - start
    gc.enable()
    return spent
