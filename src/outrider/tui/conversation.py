"""The model of the shown session, built from messages and events: transcript entries, turn activity, side activity."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from time import monotonic
from typing import Any, Literal

import msgspec

from outrider.engine.archive import UsageRow
from outrider.tui.entries import (
    AssistantEntry,
    NoticeEntry,
    ReasoningEntry,
    ToolCallEntry,
    TranscriptEntry,
    error_notice,
    message_entries,
    part_entry,
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
_STATE_LABELS = {
    "calling_model": "thinking",
    "running_tools": "working",
    "compacting": "summarising",
    "idle": "starting",
}


class TurnActivity:
    """Progress and cost of the current turn, from the events of the session and of its child sessions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.busy = False
        self.label = ""
        self.retrying = ""
        self.awaiting_answer = False  # a dialog waits for the user
        self.written_chars = 0  # characters of the streaming response
        self.turn_tokens = 0
        self.context_tokens = 0  # tokens of the last request and its response
        self.cost = Decimal(0)
        self.cost_known = True
        self.answers = 0
        self._since = 0.0

    @property
    def elapsed_seconds(self) -> float:
        return self._clock() - self._since if self.busy else 0.0

    @property
    def token_estimate(self) -> int:
        """Output tokens of this turn: reported ones plus an estimate for the streaming response."""
        return self.turn_tokens + self.written_chars // _CHARACTERS_PER_TOKEN

    @property
    def known_cost(self) -> Decimal | None:
        return self.cost if self.cost_known else None

    def apply_event(self, event: Event, *, own: bool) -> None:
        """Update from an event. `own`: the event belongs to the shown session, not to a child session."""
        match event:
            case LoopStartedEvent() if own:
                self.busy, self._since, self.turn_tokens, self.written_chars = True, self._clock(), 0, 0
                self.label = "starting"
            case LoopCompletedEvent() if own:
                self.busy, self.retrying = False, ""
            case StateChangedEvent() if own:
                self.label = _STATE_LABELS.get(event.new_state, self.label)
            case LLMRequestEvent():
                self.written_chars = 0
            case PartDeltaEvent() | ToolInputDeltaEvent():
                self._apply_delta(event, own=own)
            case RetryScheduledEvent():
                self.retrying = f"{event.error}; retry in {event.delay_ms / 1000:.0f}s"
            case LLMResponseEvent():
                self._count_response(event, own=own)
            case _:
                pass

    def count_messages(self, messages: list[Message]) -> None:
        """Set cost, responses and context size from stored messages."""
        answers = [message for message in messages if message.role == "assistant"]
        self.cost = sum((message.cost for message in answers if message.cost is not None), Decimal(0))
        self.cost_known = all(message.cost is not None for message in answers if message.tokens.total)
        self.answers = len(answers)
        used = next((message.tokens for message in reversed(answers) if message.tokens.total), None)
        self.context_tokens = used.total if used else 0

    def count_usage_rows(self, used: Sequence[UsageRow]) -> None:
        """Set cost and responses from usage rows of the complete session, when only its last messages are loaded."""
        self.cost = sum((row.cost for row in used), Decimal(0))
        self.cost_known = not any(row.unpriced for row in used)
        self.answers = sum(row.messages for row in used)

    def mark_running(self) -> None:
        """Show a turn that started before this screen opened the session."""
        self.busy, self.label, self._since = True, "working", self._clock()

    def _apply_delta(self, event: PartDeltaEvent | ToolInputDeltaEvent, *, own: bool) -> None:
        self.retrying = ""
        self.written_chars += len(event.delta)
        if own:
            thinks = isinstance(event, PartDeltaEvent) and event.field == "reasoning"
            self.label = "thinking" if thinks else "writing"

    def _count_response(self, event: LLMResponseEvent, *, own: bool) -> None:
        written = event.tokens.output + event.tokens.reasoning
        used = event.tokens.total
        self.turn_tokens += written
        self.written_chars = 0
        self.answers += 1
        if own and used:
            self.context_tokens = used
        if event.cost is not None:
            self.cost += Decimal(event.cost)
        elif used:
            self.cost_known = False


AgentState = Literal["working", "asking", "done", "failed"]
MAX_ENDED = 12  # ended agents and ended processes to keep, each


class ChildAgent(msgspec.Struct):
    """A called agent, with the id of its session and its current activity."""

    call_id: str
    name: str
    message: str
    session_id: str
    since: float
    state: AgentState = "working"
    doing: str = "starting"
    seconds: float = 0.0


class ChildProcess(msgspec.Struct):
    """A process started by a tool call; `ended` is empty while it runs."""

    id: str
    command: str
    since: float
    backgrounded: bool = False
    ended: str = ""


class TodoItem(msgspec.Struct, frozen=True):
    """One item of the todo list."""

    content: str
    status: str = "pending"


class SideActivity:
    """Todo list, called agents and background processes, from the events of the session and its child sessions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.agents: dict[str, ChildAgent] = {}  # by session id
        self.processes: dict[str, ChildProcess] = {}
        self.todos: tuple[TodoItem, ...] = ()

    def has_agent(self, session_id: str) -> bool:
        return session_id in self.agents

    def apply_event(self, event: Event) -> None:
        match event:
            case AgentCalledEvent():
                self.agents[event.child_session_id] = ChildAgent(
                    event.call_id, event.callee, event.message, event.child_session_id, self._clock()
                )
                _drop_oldest_ended(self.agents, lambda agent: agent.state in {"done", "failed"})
            case AgentReturnedEvent() if event.child_session_id in self.agents:
                agent = self.agents[event.child_session_id]
                agent.state = "done" if event.success else "failed"
                agent.doing, agent.seconds = "", self._clock() - agent.since
            case ProcessStartedEvent():
                self.processes[event.process_id] = ChildProcess(event.process_id, event.command, self._clock())
                _drop_oldest_ended(self.processes, lambda process: bool(process.ended))
            case ProcessExitedEvent() if event.process_id in self.processes:
                code = event.exit_code
                self.processes[event.process_id].ended = event.signal or ("exited" if code == 0 else f"exit {code}")
            case _:
                self._apply_child_event(event)

    def apply_call(self, part: ToolPart) -> None:
        """Take the todo list from a completed call, and mark a process that it left running."""
        state = part.state
        if not isinstance(state, ToolCompleted):
            return
        if isinstance(todos := state.metadata.get("todos"), list | tuple):
            self.todos = msgspec.convert(todos, tuple[TodoItem, ...], strict=False)
        process = self.processes.get(str(state.metadata.get("process_id", "")))
        if process is not None:
            process.backgrounded = bool(state.metadata.get("running"))

    def background_processes(self) -> list[ChildProcess]:
        """Return the processes in the background; foreground ones appear as tool calls in the transcript."""
        return [process for process in self.processes.values() if process.backgrounded]

    def _apply_child_event(self, event: Event) -> None:
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


def _drop_oldest_ended(known: dict[str, Any], ended: Callable[[Any], bool]) -> None:
    """Drop the oldest ended values, to bound memory."""
    over = [key for key, value in known.items() if ended(value)]
    for key in over[: max(len(over) - MAX_ENDED, 0)]:
        del known[key]


MessageOf = Callable[[str], Message | None]
_ERRORS_SHOWN_BY_MESSAGE = frozenset({"aborted"})


class ConversationModel:
    """Entries and activity of the shown session. `message_of` finds a message by id, since events carry only ids."""

    def __init__(
        self, session_id: str, message_of: MessageOf = lambda _: None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.session_id = session_id
        self.message_of = message_of
        self.entries: list[TranscriptEntry] = []
        self.activity = TurnActivity(clock)
        self.side_activity = SideActivity(clock)
        self._entries_by_id: dict[str, TranscriptEntry] = {}
        self._calls_by_id: dict[str, ToolCallEntry] = {}
        self._reasoning_started: dict[str, float] = {}
        self._clock = clock

    def load_messages(self, messages: Iterable[Message]) -> None:
        """Append the entries of messages, without the ones already present."""
        for message in messages:
            for entry in message_entries(message):
                self.add_entry(entry)

    def refresh_messages(self, messages: Iterable[Message]) -> None:
        """Update entries after opening the session, which ends calls that a crash left open."""
        for message in messages:
            for part in message.parts:
                if part.id in self._entries_by_id:
                    self._apply_part(part)

    def prepend_messages(self, messages: Iterable[Message]) -> int:
        """Insert older messages at the top; returns the number of added entries."""
        older = [
            entry for message in messages for entry in message_entries(message) if entry.id not in self._entries_by_id
        ]
        for entry in older:
            self._index_entry(entry)
        self.entries[:0] = older
        return len(older)

    def add_entry(self, entry: TranscriptEntry) -> None:
        if entry.id not in self._entries_by_id:
            self._index_entry(entry)
            self.entries.append(entry)

    def add_notice(self, text: str, kind: str = "quiet", body: str = "") -> None:
        self.add_entry(NoticeEntry(new_id(), text, kind, body))  # type: ignore[arg-type]

    def drop_first(self, number: int) -> None:
        """Drop entries at the top to bound memory; the store can load them again."""
        for entry in self.entries[:number]:
            self._entries_by_id.pop(entry.id, None)
            if isinstance(entry, ToolCallEntry):
                self._calls_by_id.pop(entry.part.call_id, None)
        del self.entries[:number]

    def includes_event(self, event: Event) -> bool:
        return event.session_id == self.session_id or self.side_activity.has_agent(event.session_id)

    def apply_event(self, event: Event) -> None:
        if not self.includes_event(event):
            return
        own = event.session_id == self.session_id
        self.activity.apply_event(event, own=own)
        self.side_activity.apply_event(event)
        if own:
            self._apply_own_event(event)
        elif (agent := self.side_activity.agents.get(event.session_id)) is not None:
            self._show_child_activity(agent)

    def _apply_own_event(self, event: Event) -> None:
        match event:
            case MessageAddedEvent():
                self._apply_message(event)
            case PartDeltaEvent():
                self._apply_delta(event)
            case ToolInputDeltaEvent() | ToolOutputEvent():
                self._apply_call_event(event)
            case PartUpdatedEvent():
                self._apply_part(event.part)
            case ErrorEvent() if event.error_type not in _ERRORS_SHOWN_BY_MESSAGE:
                self._apply_error(event)
            case BudgetExceededEvent():
                self.add_notice(f"stopped: the limit of {event.maximum} {event.limit} was reached", "warn")
            case LoopCompletedEvent():
                self._apply_turn_end(event)
            case _:
                pass

    def _show_child_activity(self, agent: ChildAgent) -> None:
        """Show a called agent's current activity in its tool call entry."""
        call = self._calls_by_id.get(agent.call_id)
        if call is not None and call.child_activity != agent.doing:
            call.child_activity = agent.doing
            call.mark_changed()

    def _apply_message(self, event: MessageAddedEvent) -> None:
        message = self.message_of(event.message_id) if event.role == "user" else None
        if message is not None:
            self.load_messages([message])

    def _apply_delta(self, event: PartDeltaEvent) -> None:
        entry = self._entries_by_id.get(event.part_id)
        if entry is None:
            kind = ReasoningEntry if event.field == "reasoning" else AssistantEntry
            entry = kind(event.part_id, event.message_id)
            self.add_entry(entry)
            if isinstance(entry, ReasoningEntry):
                self._reasoning_started[entry.id] = self._clock()
        if isinstance(entry, AssistantEntry):
            entry.append_text(event.delta)

    def _apply_call_event(self, event: ToolInputDeltaEvent | ToolOutputEvent) -> None:
        match event:
            case ToolInputDeltaEvent():
                if isinstance(call := self._entries_by_id.get(event.part_id), ToolCallEntry):
                    call.append_input(event.delta)
            case ToolOutputEvent():
                if (call := self._calls_by_id.get(event.call_id)) is not None:
                    call.append_output(event.output)

    def _apply_part(self, part: object) -> None:
        """Apply the complete value of a part, which also corrects missed deltas."""
        if isinstance(part, StepFinishPart):
            message = self.message_of(part.message_id)
            if message is not None and message.error is not None:
                self.add_entry(error_notice(message))
            return
        if isinstance(part, ToolPart):
            self.side_activity.apply_call(part)
        known = self._entries_by_id.get(getattr(part, "id", ""))
        if known is None:
            found = part_entry(part)
            if found is not None:
                self.add_entry(found)
        elif isinstance(known, AssistantEntry):
            self._finish_text(known, getattr(part, "text", known.text))
        elif isinstance(known, ToolCallEntry) and isinstance(part, ToolPart):
            known.update_part(part)

    def _finish_text(self, entry: AssistantEntry, text: str) -> None:
        entry.finish(text)
        if isinstance(entry, ReasoningEntry) and entry.id in self._reasoning_started:
            entry.seconds = self._clock() - self._reasoning_started.pop(entry.id)

    def _apply_error(self, event: ErrorEvent) -> None:
        """Add an error notice, unless the interrupted message has added the same one."""
        last = self.entries[-1] if self.entries else None
        text = f"{event.error_type}: {event.message}"
        if not (isinstance(last, NoticeEntry) and last.text == text):
            self.add_notice(text, "bad")

    def _apply_turn_end(self, event: LoopCompletedEvent) -> None:
        match event.termination_reason:
            case "length":
                self.add_notice("the response was cut off: the model's output limit was reached", "warn")
            case "repetition" | "empty_answers":
                self.add_notice(f"stopped: {event.output or 'the model returned empty responses'}", "warn")
            case "refusal":
                self.add_notice("the model refused to answer", "warn")
            case _:
                pass

    def _index_entry(self, entry: TranscriptEntry) -> None:
        """Index an entry by its id, and a call also by its call id, which output events use as key."""
        self._entries_by_id[entry.id] = entry
        if isinstance(entry, ToolCallEntry):
            self._calls_by_id[entry.part.call_id] = entry
            self.side_activity.apply_call(entry.part)
            state = entry.part.state
            if isinstance(state, ToolPending) and not entry.raw_input:
                entry.raw_input = state.raw
