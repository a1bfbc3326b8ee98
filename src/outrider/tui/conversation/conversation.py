"""A session as a list of entries, folded from stored messages and from events."""

from collections.abc import Callable, Iterable
from time import monotonic

from outrider.tui.conversation.activity import Activity
from outrider.tui.conversation.beside import Beside, ChildAgent
from outrider.tui.conversation.entries import Call, Entry, Note, Thought, Written
from outrider.tui.conversation.reading import entries_of, entry_of, error_note
from outrider.types.events import (
    BudgetExceededEvent,
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import StepFinishPart, ToolPart
from outrider.types.tool_state import ToolPending

MessageOf = Callable[[str], Message | None]
_TOLD_BY_MESSAGE = frozenset({"aborted"})


class Conversation:
    """`message_of` finds a message of the session by its id: events name messages and do not carry them."""

    def __init__(
        self, session_id: str, message_of: MessageOf = lambda _: None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.session_id = session_id
        self.message_of = message_of
        self.entries: list[Entry] = []
        self.activity = Activity(clock)
        self.beside = Beside(clock)
        self._known: dict[str, Entry] = {}
        self._calls: dict[str, Call] = {}
        self._thinking: dict[str, float] = {}
        self._clock = clock

    def load(self, messages: Iterable[Message]) -> None:
        """Messages at the end; what is known already is not shown twice."""
        for message in messages:
            for entry in entries_of(message):
                self.add(entry)

    def refresh(self, messages: Iterable[Message]) -> None:
        """What opening a session has changed: calls that a crash left open have ended."""
        for message in messages:
            for part in message.parts:
                if part.id in self._known:
                    self._hear_part(part)

    def prepend(self, messages: Iterable[Message]) -> int:
        """Older messages; says how many entries were added at the top."""
        older = [entry for message in messages for entry in entries_of(message) if entry.id not in self._known]
        for entry in older:
            self._index(entry)
        self.entries[:0] = older
        return len(older)

    def add(self, entry: Entry) -> None:
        if entry.id not in self._known:
            self._index(entry)
            self.entries.append(entry)

    def note(self, text: str, kind: str = "quiet", body: str = "") -> None:
        self.add(Note(new_id(), text, kind, body))  # type: ignore[arg-type]

    def forget_first(self, number: int) -> None:
        """Entries at the top that nobody looks at; the store has them."""
        for entry in self.entries[:number]:
            self._known.pop(entry.id, None)
            if isinstance(entry, Call):
                self._calls.pop(entry.part.call_id, None)
        del self.entries[:number]

    def concerns(self, event: Event) -> bool:
        return event.session_id == self.session_id or self.beside.knows(event.session_id)

    def hear(self, event: Event) -> None:
        if not self.concerns(event):
            return
        own = event.session_id == self.session_id
        self.activity.hear(event, own=own)
        self.beside.hear(event)
        if own:
            self._hear_own(event)
        elif (agent := self.beside.agents.get(event.session_id)) is not None:
            self._follow_child(agent)

    def _hear_own(self, event: Event) -> None:
        match event:
            case MessageAddedEvent():
                self._hear_message(event)
            case PartDeltaEvent():
                self._hear_delta(event)
            case ToolInputDeltaEvent() | ToolOutputEvent():
                self._hear_call(event)
            case PartUpdatedEvent():
                self._hear_part(event.part)
            case ErrorEvent() if event.error_type not in _TOLD_BY_MESSAGE:
                self._hear_error(event)
            case BudgetExceededEvent():
                self.note(f"stopped: the limit of {event.maximum} {event.limit} is reached", "warn")
            case LoopCompletedEvent():
                self._hear_end(event)
            case _:
                pass

    def _follow_child(self, agent: ChildAgent) -> None:
        """The call of an agent tells what that agent is doing."""
        call = self._calls.get(agent.call_id)
        if call is not None and call.child != agent.doing:
            call.child = agent.doing
            call.touch()

    def _hear_message(self, event: MessageAddedEvent) -> None:
        message = self.message_of(event.message_id) if event.role == "user" else None
        if message is not None:
            self.load([message])

    def _hear_delta(self, event: PartDeltaEvent) -> None:
        entry = self._known.get(event.part_id)
        if entry is None:
            kind = Thought if event.field == "reasoning" else Written
            entry = kind(event.part_id, event.message_id)
            self.add(entry)
            if isinstance(entry, Thought):
                self._thinking[entry.id] = self._clock()
        if isinstance(entry, Written):
            entry.add(event.delta)

    def _hear_call(self, event: ToolInputDeltaEvent | ToolOutputEvent) -> None:
        match event:
            case ToolInputDeltaEvent():
                if isinstance(call := self._known.get(event.part_id), Call):
                    call.write(event.delta)
            case ToolOutputEvent():
                if (call := self._calls.get(event.call_id)) is not None:
                    call.output(event.output)

    def _hear_part(self, part: object) -> None:
        """The full value counts, whatever deltas were missed."""
        if isinstance(part, StepFinishPart):
            message = self.message_of(part.message_id)
            if message is not None and message.error is not None:
                self.add(error_note(message))
            return
        if isinstance(part, ToolPart):
            self.beside.see(part)
        known = self._known.get(getattr(part, "id", ""))
        if known is None:
            found = entry_of(part)
            if found is not None:
                self.add(found)
        elif isinstance(known, Written):
            self._end_text(known, getattr(part, "text", known.text))
        elif isinstance(known, Call) and isinstance(part, ToolPart):
            known.update(part)

    def _end_text(self, entry: Written, text: str) -> None:
        entry.end(text)
        if isinstance(entry, Thought) and entry.id in self._thinking:
            entry.seconds = self._clock() - self._thinking.pop(entry.id)

    def _hear_error(self, event: ErrorEvent) -> None:
        """The message that broke off says it too; it is said once."""
        last = self.entries[-1] if self.entries else None
        text = f"{event.error_type}: {event.message}"
        if not (isinstance(last, Note) and last.text == text):
            self.note(text, "bad")

    def _hear_end(self, event: LoopCompletedEvent) -> None:
        match event.termination_reason:
            case "length":
                self.note("the answer was cut off: the model's output limit is reached", "warn")
            case "repetition" | "empty_answers":
                self.note(f"stopped: {event.output or 'the model answers with nothing'}", "warn")
            case "refusal":
                self.note("the model refused to answer", "warn")
            case _:
                pass

    def _index(self, entry: Entry) -> None:
        self._known[entry.id] = entry
        if isinstance(entry, Call):
            self._calls[entry.part.call_id] = entry
            self.beside.see(entry.part)
            state = entry.part.state
            if isinstance(state, ToolPending) and not entry.raw:
                entry.raw = state.raw
