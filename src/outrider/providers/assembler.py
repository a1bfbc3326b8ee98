"""Deltas, folded into the parts of an answer; at any moment what has arrived so far can be taken and kept."""

from collections.abc import Callable, Container
from decimal import Decimal
from typing import Any, ClassVar, assert_never

from outrider.providers.response_json import read_tool_input
from outrider.types.deltas import (
    Answer,
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    Happened,
    InputDelta,
    PartEnd,
    PartKind,
    PartStart,
    ReasoningDelta,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending
from outrider.types.usage import Tokens

AnswerPart = TextPart | ReasoningPart | ToolPart | FilePart


class _Draft:
    """A part while it is being written."""

    __slots__ = ("call_id", "ended", "id", "kind", "mime", "pieces", "state", "tool", "url")

    def __init__(self, kind: PartKind, call_id: str = "", tool: str = "") -> None:
        self.kind: PartKind = kind
        self.id = new_id()
        self.call_id = call_id
        self.tool = tool
        self.pieces: list[str] = []
        self.state: dict[str, Any] = {}
        self.mime = self.url = ""
        self.ended = False

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def part(self, family: str) -> AnswerPart:
        private = {family: self.state} if self.state else {}
        match self.kind:
            case "text":
                return TextPart(self.text, id=self.id, metadata=private)
            case "reasoning":
                return ReasoningPart(self.text, id=self.id, provider_state={"family": family, **self.state})
            case "file":
                return FilePart(mime=self.mime, url=self.url, id=self.id, metadata=private)
            case "tool":
                return self._call(private)
            case _:
                assert_never(self.kind)

    def _call(self, metadata: dict[str, Any]) -> ToolPart:
        raw = self.text
        if not self.ended:
            return ToolPart(self.call_id, self.tool, ToolPending(raw=raw), metadata, id=self.id)
        value, problem = read_tool_input(raw)
        if problem:
            metadata = metadata | {"input_error": problem}
        return ToolPart(self.call_id, self.tool, ToolPending(value, raw, "ready"), metadata, id=self.id)


class Assembler:
    """The fold. `family` names the models that may see this answer's private state again."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.response_id = ""
        self.model = ""
        self.tokens = Tokens()
        self.cost: Decimal | None = None
        self.turns = 1
        self.finish: FinishReason | None = None
        self.finish_raw = ""
        self.paused = False
        self._drafts: dict[int, _Draft] = {}

    def add(self, delta: Delta) -> None:
        self._READERS[type(delta)](self, delta)

    def part(self, index: int) -> AnswerPart:
        """One part as it stands now; its id stays the same until its end."""
        return self._drafts[index].part(self.family)

    def part_id(self, index: int) -> str:
        return self._drafts[index].id

    def parts(self, besides: Container[str] = ()) -> list[AnswerPart]:
        """Everything that has arrived, in order, but for those with these ids. A reasoning part with neither text nor
        state says nothing."""
        drafts = [draft for draft in self._drafts.values() if draft.id not in besides]
        return [part for draft in drafts if _says_something(part := draft.part(self.family))]

    def answer(self, cost: Decimal | None = None) -> Answer:
        message = Message(
            "assistant",
            list(self.parts()),
            cost=cost,
            tokens=self.tokens,
            finish=self.finish or "other",
            metadata={"response_id": self.response_id} if self.response_id else {},
        )
        return Answer(message, self.finish or "other", self.finish_raw, self.tokens, cost)

    def _open(self, start: AnswerStart) -> None:
        self.response_id, self.model = start.response_id or self.response_id, start.model or self.model

    def _start(self, start: PartStart) -> None:
        draft = _Draft(start.kind, start.call_id, start.tool)
        earlier = self._drafts.get(start.index)
        if earlier is not None:  # it begins anew, and stays the same part for whoever has shown or stored it
            draft.id = earlier.id
        self._drafts[start.index] = draft

    def _piece(self, piece: TextDelta | ReasoningDelta | InputDelta) -> None:
        self._drafts[piece.index].pieces.append(piece.text)

    def _end(self, end: PartEnd) -> None:
        draft = self._drafts[end.index]
        draft.ended = True
        draft.state = end.state
        draft.mime, draft.url = end.mime, end.url

    def _count(self, report: UsageReport) -> None:
        self.tokens, self.cost, self.turns = report.tokens, report.cost, report.turns

    def _finish(self, end: Finish) -> None:
        self.finish, self.finish_raw, self.paused = end.reason, end.raw, end.paused

    def _pass(self, told: Retry | Happened) -> None:
        """It is nothing of the answer."""

    # By type, and not one after the other: this is asked of every delta. A test holds that none is missing.
    _READERS: ClassVar[dict[type[Delta], Callable[[Any, Any], None]]] = {
        AnswerStart: _open,
        PartStart: _start,
        TextDelta: _piece,
        ReasoningDelta: _piece,
        InputDelta: _piece,
        PartEnd: _end,
        UsageReport: _count,
        Finish: _finish,
        Retry: _pass,
        Happened: _pass,
    }


def _says_something(part: AnswerPart) -> bool:
    match part:
        case TextPart():
            return bool(part.text or part.metadata)
        case ReasoningPart():
            return bool(part.text or len(part.provider_state) > 1)
        case ToolPart() | FilePart():
            return True


def fold(deltas: "list[Delta]", family: str) -> Answer:
    assembler = Assembler(family)
    for delta in deltas:
        assembler.add(delta)
    return assembler.answer()
