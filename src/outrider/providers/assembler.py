"""Assembles streamed deltas into message parts; the parts received so far are available at any time."""

from collections.abc import Callable, Container
from decimal import Decimal
from typing import Any, ClassVar, assert_never

from outrider.types.deltas import (
    Answer,
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    InputDelta,
    PartEnd,
    PartKind,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import FilePart, PartTime, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending
from outrider.types.usage import Tokens

AnswerPart = TextPart | ReasoningPart | ToolPart | FilePart


class _PartDraft:
    """A message part that is still being streamed."""

    __slots__ = ("call_id", "chunks", "ended", "id", "kind", "mime", "state", "time", "tool", "url")

    def __init__(self, kind: PartKind, call_id: str = "", tool: str = "") -> None:
        self.kind: PartKind = kind
        self.id = new_id()
        self.call_id = call_id
        self.tool = tool
        self.chunks: list[str] = []
        self.state: dict[str, Any] = {}
        self.mime = self.url = ""
        self.ended = False
        self.time: PartTime | None = None

    @property
    def text(self) -> str:
        if len(self.chunks) > 1:
            self.chunks = ["".join(self.chunks)]
        return self.chunks[0] if self.chunks else ""

    def build_part(self, family: str) -> AnswerPart:
        private = {family: self.state} if self.state else {}
        match self.kind:
            case "text":
                return TextPart(self.text, id=self.id, time=self.time, metadata=private)
            case "reasoning":
                state = {"family": family, **self.state}
                return ReasoningPart(self.text, id=self.id, time=self.time, provider_state=state)
            case "file":
                return FilePart(mime=self.mime, url=self.url, id=self.id, metadata=private)
            case "tool":
                return self._build_tool_part(private)
            case _:
                assert_never(self.kind)

    def _build_tool_part(self, metadata: dict[str, Any]) -> ToolPart:
        raw = self.text
        if not self.ended:
            return ToolPart(self.call_id, self.tool, ToolPending(raw=raw), metadata, id=self.id)
        from outrider.providers.response_json import parse_tool_input  # lazy: loaded with the first call

        value, problem = parse_tool_input(raw)
        if problem:
            metadata = metadata | {"input_error": problem}
        return ToolPart(self.call_id, self.tool, ToolPending(value, raw, "ready"), metadata, id=self.id)


class AnswerAssembler:
    """Folds the deltas of one answer into parts, usage and a finish reason.

    `family` names the models that may receive the private state of this answer again (see `ModelClient.model_family`).
    With a `clock` the parts have the times of their first and last delta.
    """

    def __init__(self, family: str, clock: Callable[[], int] | None = None) -> None:
        self.family = family
        self._clock = clock
        self.response_id = ""
        self.model = ""
        self.tokens = Tokens()
        self.cost: Decimal | None = None
        self.turns = 1
        self.finish: FinishReason | None = None
        self.finish_raw = ""
        self.paused = False
        self.withdrawn: list[AnswerPart] = []
        self.withdrawn_tokens = Tokens()
        self.withdrawn_cost: Decimal | None = None
        self._drafts: dict[int, _PartDraft] = {}

    def add(self, delta: Delta) -> None:
        self._HANDLERS[type(delta)](self, delta)

    def get_part(self, index: int) -> AnswerPart:
        """Returns a part with the content received so far. Its id does not change until the part ends."""
        return self._drafts[index].build_part(self.family)

    def part_id(self, index: int) -> str:
        return self._drafts[index].id

    def tool_name(self, index: int) -> str:
        return self._drafts[index].tool

    def part_builder(self, index: int) -> Callable[[], AnswerPart]:
        """Returns a function that builds the part with the content received until then, also after a retry."""
        draft, family = self._drafts[index], self.family
        return lambda: draft.build_part(family)

    def list_parts(self, exclude_ids: Container[str] = ()) -> list[AnswerPart]:
        """Returns all parts in order, except those in `exclude_ids` and those without content."""
        drafts = [draft for draft in self._drafts.values() if draft.id not in exclude_ids]
        return [part for draft in drafts if _has_content(part := draft.build_part(self.family))]

    def build_answer(self, cost: Decimal | None = None) -> Answer:
        message = Message(
            "assistant",
            list(self.list_parts()),
            cost=cost,
            tokens=self.tokens,
            finish=self.finish or "other",
            metadata={"response_id": self.response_id} if self.response_id else {},
        )
        return Answer(message, self.finish or "other", self.finish_raw, self.tokens, cost)

    def _start_answer(self, start: AnswerStart) -> None:
        self.response_id, self.model = start.response_id or self.response_id, start.model or self.model

    def _start_part(self, start: PartStart) -> None:
        draft = _PartDraft(start.kind, start.call_id, start.tool)
        earlier = self._drafts.get(start.index)
        if earlier is not None:  # the part restarts; readers and the store know it by its first id
            draft.id = earlier.id
        if self._clock is not None:
            draft.time = PartTime(self._clock())
        self._drafts[start.index] = draft

    def _append_text(self, piece: TextDelta | ReasoningDelta | InputDelta) -> None:
        self._drafts[piece.index].chunks.append(piece.text)

    def _end_part(self, end: PartEnd) -> None:
        draft = self._drafts[end.index]
        draft.ended = True
        if self._clock is not None and draft.time is not None:
            draft.time = PartTime(draft.time.start, max(self._clock(), draft.time.start))
        draft.state = end.state
        draft.mime, draft.url = end.mime, end.url

    def _set_usage(self, report: UsageReport) -> None:
        self.tokens, self.cost, self.turns = report.tokens, report.cost, report.turns

    def _set_finish(self, end: Finish) -> None:
        self.finish, self.finish_raw, self.paused = end.reason, end.raw, end.paused

    def start_again(self, family: str) -> None:
        """Withdraws the answer so far: `withdrawn` has its parts, `withdrawn_tokens` and `withdrawn_cost` what was
        reported for it."""
        self.withdrawn, self.withdrawn_tokens, self.family = self.list_parts(), self.tokens, family
        self.withdrawn_cost = self.cost
        self._drafts, self.tokens, self.cost, self.finish = {}, Tokens(), None, None

    def _start_again(self, retry: Retry) -> None:
        self.start_again(self.family)

    def _ignore_delta(self, delta: RemoteEvent) -> None:
        """Ignores a delta that is not part of the answer."""

    # A dispatch table is faster than `match`, and this runs for every delta. A test checks that it has all types.
    _HANDLERS: ClassVar[dict[type[Delta], Callable[[Any, Any], None]]] = {
        AnswerStart: _start_answer,
        PartStart: _start_part,
        TextDelta: _append_text,
        ReasoningDelta: _append_text,
        InputDelta: _append_text,
        PartEnd: _end_part,
        UsageReport: _set_usage,
        Finish: _set_finish,
        Retry: _start_again,
        RemoteEvent: _ignore_delta,
    }


def _has_content(part: AnswerPart) -> bool:
    match part:
        case TextPart():
            return bool(part.text or part.metadata)
        case ReasoningPart():
            return bool(part.text or len(part.provider_state) > 1)
        case ToolPart() | FilePart():
            return True


def assemble_answer(deltas: "list[Delta]", family: str) -> Answer:
    """Folds a complete list of deltas into an answer."""
    assembler = AnswerAssembler(family)
    for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()
