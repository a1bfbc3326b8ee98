"""A session as a list of entries, folded from stored messages and from events."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from time import monotonic
from typing import Any, Literal

import msgspec

from outrider.engine.archive import UsageRow
from outrider.tui.entries import (
    AssistantEntry,
    Entry,
    NoticeEntry,
    ReasoningEntry,
    ToolCallEntry,
    entries_of,
    entry_of,
    error_note,
)
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import StepFinishPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolPending

_CHARACTERS_PER_TOKEN = 4
_WORDS = {
    "calling_model": "thinking",
    "running_tools": "working",
    "compacting": "summarising",
    "idle": "starting",
}


class Activity:
    """Fed with the events of one session and of those that its agents opened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.busy = False
        self.word = ""
        self.retrying = ""
        self.asking = False  # somebody is waited for
        self.written = 0  # characters of the answer under way
        self.turn_tokens = 0
        self.context = 0  # tokens of the last prompt and its answer
        self.cost = Decimal(0)
        self.cost_known = True
        self.answers = 0
        self._since = 0.0

    @property
    def seconds(self) -> float:
        return self._clock() - self._since if self.busy else 0.0

    @property
    def tokens(self) -> int:
        """Of this turn: what was reported, and an estimate of what is being written."""
        return self.turn_tokens + self.written // _CHARACTERS_PER_TOKEN

    @property
    def spent(self) -> Decimal | None:
        return self.cost if self.cost_known else None

    def hear(self, event: Event, *, own: bool) -> None:
        """`own`: the event is of the session that is shown, not of one that an agent of it opened."""
        match event:
            case LoopStartedEvent() if own:
                self.busy, self._since, self.turn_tokens, self.written = True, self._clock(), 0, 0
                self.word = "starting"
            case LoopCompletedEvent() if own:
                self.busy, self.retrying = False, ""
            case StateChangedEvent() if own:
                self.word = _WORDS.get(event.new_state, self.word)
            case LLMRequestEvent():
                self.written = 0
            case PartDeltaEvent() | ToolInputDeltaEvent():
                self._hear_delta(event, own=own)
            case RetryScheduledEvent():
                self.retrying = f"{event.error}; again in {event.delay_ms / 1000:.0f}s"
            case LLMResponseEvent():
                self._count(event, own=own)
            case _:
                pass

    def recount(self, messages: list[Message]) -> None:
        """From what is stored; a session that is shown for the first time."""
        answers = [message for message in messages if message.role == "assistant"]
        self.cost = sum((message.cost for message in answers if message.cost is not None), Decimal(0))
        self.cost_known = all(message.cost is not None for message in answers if message.tokens.total)
        self.answers = len(answers)
        used = next((message.tokens for message in reversed(answers) if message.tokens.total), None)
        self.context = used.total if used else 0

    def recount_all(self, used: Sequence[UsageRow]) -> None:
        """From what is known of a session as a whole, where only the last of its messages are here."""
        self.cost = sum((row.cost for row in used), Decimal(0))
        self.cost_known = not any(row.unpriced for row in used)
        self.answers = sum(row.messages for row in used)

    def resume(self) -> None:
        """A turn that began before anybody looked."""
        self.busy, self.word, self._since = True, "working", self._clock()

    def _hear_delta(self, event: PartDeltaEvent | ToolInputDeltaEvent, *, own: bool) -> None:
        self.retrying = ""
        self.written += len(event.delta)
        if own:
            thinks = isinstance(event, PartDeltaEvent) and event.field == "reasoning"
            self.word = "thinking" if thinks else "writing"

    def _count(self, event: LLMResponseEvent, *, own: bool) -> None:
        written = event.tokens.output + event.tokens.reasoning
        used = event.tokens.total
        self.turn_tokens += written
        self.written = 0
        self.answers += 1
        if own and used:
            self.context = used
        if event.cost is not None:
            self.cost += Decimal(event.cost)
        elif used:
            self.cost_known = False


AgentState = Literal["working", "asking", "done", "failed"]
MOST = 12  # of each kind that has ended


class ChildAgent(msgspec.Struct):
    call_id: str
    name: str
    message: str
    session_id: str
    since: float
    state: AgentState = "working"
    doing: str = "starting"
    seconds: float = 0.0


class ChildProcess(msgspec.Struct):
    id: str
    command: str
    since: float
    backgrounded: bool = False
    ended: str = ""


class Todo(msgspec.Struct, frozen=True):
    content: str
    status: str = "pending"


class SideActivity:
    """Fed with every event that concerns the session or a session that it opened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.agents: dict[str, ChildAgent] = {}  # by the id of their sessions
        self.processes: dict[str, ChildProcess] = {}
        self.todos: tuple[Todo, ...] = ()

    def knows(self, session_id: str) -> bool:
        return session_id in self.agents

    def hear(self, event: Event) -> None:
        match event:
            case AgentCalledEvent():
                self.agents[event.child_session_id] = ChildAgent(
                    event.call_id, event.callee, event.message, event.child_session_id, self._clock()
                )
                _forget(self.agents, lambda agent: agent.state in {"done", "failed"})
            case AgentReturnedEvent() if event.child_session_id in self.agents:
                agent = self.agents[event.child_session_id]
                agent.state = "done" if event.success else "failed"
                agent.doing, agent.seconds = "", self._clock() - agent.since
            case ProcessStartedEvent():
                self.processes[event.process_id] = ChildProcess(event.process_id, event.command, self._clock())
                _forget(self.processes, lambda process: bool(process.ended))
            case ProcessExitedEvent() if event.process_id in self.processes:
                code = event.exit_code
                self.processes[event.process_id].ended = event.signal or ("exited" if code == 0 else f"exit {code}")
            case _:
                self._hear_child(event)

    def see(self, part: ToolPart) -> None:
        """A todo list that a call has left, and commands that it left running."""
        state = part.state
        if not isinstance(state, ToolCompleted):
            return
        if isinstance(todos := state.metadata.get("todos"), list | tuple):
            self.todos = msgspec.convert(todos, tuple[Todo, ...], strict=False)
        process = self.processes.get(str(state.metadata.get("process_id", "")))
        if process is not None:
            process.backgrounded = bool(state.metadata.get("running"))

    def running(self) -> list[ChildProcess]:
        """Commands that nobody waits for; those in the foreground are seen in the conversation."""
        return [process for process in self.processes.values() if process.backgrounded]

    def _hear_child(self, event: Event) -> None:
        agent = self.agents.get(event.session_id)
        if agent is None or agent.state in {"done", "failed"}:
            return
        match event:
            case ToolExecutionStartedEvent():
                agent.state, agent.doing = "working", event.tool_name
            case ToolApprovalRequestedEvent():
                agent.state, agent.doing = "asking", event.tool_name
            case StateChangedEvent(new_state="calling_model"):
                agent.state, agent.doing = "working", "thinking"
            case _:
                pass


def _forget(known: dict[str, Any], ended: Callable[[Any], bool]) -> None:
    over = [key for key, value in known.items() if ended(value)]
    for key in over[: max(len(over) - MOST, 0)]:
        del known[key]


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
        self.beside = SideActivity(clock)
        self._known: dict[str, Entry] = {}
        self._calls: dict[str, ToolCallEntry] = {}
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
        self.add(NoticeEntry(new_id(), text, kind, body))  # type: ignore[arg-type]

    def forget_first(self, number: int) -> None:
        """Entries at the top that nobody looks at; the store has them."""
        for entry in self.entries[:number]:
            self._known.pop(entry.id, None)
            if isinstance(entry, ToolCallEntry):
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
            kind = ReasoningEntry if event.field == "reasoning" else AssistantEntry
            entry = kind(event.part_id, event.message_id)
            self.add(entry)
            if isinstance(entry, ReasoningEntry):
                self._thinking[entry.id] = self._clock()
        if isinstance(entry, AssistantEntry):
            entry.add(event.delta)

    def _hear_call(self, event: ToolInputDeltaEvent | ToolOutputEvent) -> None:
        match event:
            case ToolInputDeltaEvent():
                if isinstance(call := self._known.get(event.part_id), ToolCallEntry):
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
        elif isinstance(known, AssistantEntry):
            self._end_text(known, getattr(part, "text", known.text))
        elif isinstance(known, ToolCallEntry) and isinstance(part, ToolPart):
            known.update(part)

    def _end_text(self, entry: AssistantEntry, text: str) -> None:
        entry.end(text)
        if isinstance(entry, ReasoningEntry) and entry.id in self._thinking:
            entry.seconds = self._clock() - self._thinking.pop(entry.id)

    def _hear_error(self, event: ErrorEvent) -> None:
        """The message that broke off says it too; it is said once."""
        last = self.entries[-1] if self.entries else None
        text = f"{event.error_type}: {event.message}"
        if not (isinstance(last, NoticeEntry) and last.text == text):
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
        if isinstance(entry, ToolCallEntry):
            self._calls[entry.part.call_id] = entry
            self.beside.see(entry.part)
            state = entry.part.state
            if isinstance(state, ToolPending) and not entry.raw:
                entry.raw = state.raw
