"""What happens in a session, told to the process that waits for its answer: one answer, however many steps it takes."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from outrider.agents.ends import TurnEnd
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    Event,
    LLMRequestEvent,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolOutputEvent,
)
from outrider.types.parts import ReasoningPart, TextPart, ToolPart
from outrider.types.stream import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    Happened,
    PartEnd,
    PartStart,
    ReasoningDelta,
    TextDelta,
)

_ENDS: dict[str, FinishReason] = {"completed": "stop", "refusal": "refusal", "length": "length"}


class _Told:
    """A part of the answer, and what was said of it."""

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.text = ""

    def more(self, text: str) -> Delta:
        self.text += text
        return TextDelta(self.index, text) if self.kind == "text" else ReasoningDelta(self.index, text)


class Telling:
    """An answer is what the last step said; what was said on the way to it turns out to be reasoning."""

    def __init__(self, session_id: str, agent: str) -> None:
        self._session_id = session_id
        self._agent = agent
        self._tree = {session_id}
        self._asked: set[str] = set()  # messages of the one who asks
        self._parts: dict[str, _Told] = {}  # of the step under way
        self._count = 0

    def hears(self, event: Event) -> bool:
        """Whether it happened in the session or below it."""
        if event.session_id not in self._tree:
            return False
        if isinstance(event, AgentCalledEvent):
            self._tree.add(event.child_session_id)
        return True

    def begin(self) -> Iterator[Delta]:
        """Which session this is stands in the answer from its first moment on."""
        yield AnswerStart(self._session_id, self._agent)
        told = self._part("", "reasoning")
        yield PartStart(told.index, "reasoning")
        yield self._ended(self._parts.pop(""))

    def tell(self, event: Event) -> Iterator[Delta]:
        own = event.session_id == self._session_id
        match event:
            case MessageAddedEvent(role="user") if own:
                self._asked.add(event.message_id)
            case PartDeltaEvent() if own:
                yield from self._more(event.part_id, event.field, event.delta)
            case PartUpdatedEvent(part=TextPart() | ReasoningPart() as part) if own:
                yield from self._whole(part)
            case LLMRequestEvent() if own:
                yield from self._on_the_way()
            case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
                yield Happened(_without_place(event))
            case SessionUpdatedEvent(changes={"question": _} | {"settled": _}):
                yield Happened(_without_place(event))
            case PartDeltaEvent() | LoopCompletedEvent() if not own:
                yield Happened(event)
            case (
                PartUpdatedEvent(part=ToolPart())
                | ToolExecutionStartedEvent()
                | ToolExecutionCompletedEvent()
                | ToolOutputEvent()
                | AgentCalledEvent()
                | AgentReturnedEvent()
            ):
                yield Happened(_without_place(event) if own else event)
            case _:
                pass

    def end(self, end: TurnEnd) -> Iterator[Delta]:
        """The parts that are still open, the answer's own words if they were not among them, and the end if there is a
        good one."""
        if end.reason not in _ENDS:
            yield from map(self._ended, self._parts.values())
            return
        if end.output != "".join(told.text for told in self._parts.values() if told.kind == "text"):
            yield from self._on_the_way()
            yield from self._more("answer", "text", end.output)
        yield from map(self._ended, self._parts.values())
        yield Finish(_ENDS[end.reason], end.reason)

    def _more(self, part_id: str, kind: str, text: str) -> Iterator[Delta]:
        if part_id not in self._parts:
            told = self._part(part_id, kind)
            yield PartStart(told.index, "text" if kind == "text" else "reasoning")
        yield self._parts[part_id].more(text)

    def _whole(self, part: TextPart | ReasoningPart) -> Iterator[Delta]:
        """What was lost on the way, if anything was: pieces may be dropped, whole values never are."""
        if part.message_id in self._asked:
            return
        told = self._parts.get(part.id)
        said = told.text if told else ""
        if part.text.startswith(said):
            if part.text != said:
                yield from self._more(part.id, part.part_type, part.text[len(said) :])
            return
        yield from self._anew(self._parts[part.id], part.part_type, part.text)

    def _on_the_way(self) -> Iterator[Delta]:
        parts, self._parts = self._parts, {}
        for told in parts.values():
            if told.kind == "text":
                yield from self._anew(told, "reasoning", told.text)
            yield self._ended(told)

    def _anew(self, told: _Told, kind: str, text: str) -> Iterable[Delta]:
        told.kind, told.text = kind, ""
        return PartStart(told.index, "text" if kind == "text" else "reasoning"), told.more(text)

    def _part(self, part_id: str, kind: str) -> _Told:
        told = self._parts[part_id] = _Told(self._count, kind)
        self._count += 1
        return told

    def _ended(self, told: _Told) -> PartEnd:
        return PartEnd(told.index, {"session_id": self._session_id})


def _without_place(event: Event) -> Event:
    """It happens in the session over there that waits for this one."""
    return replace(event, session_id="", agent_name="", parent_call_id="")
