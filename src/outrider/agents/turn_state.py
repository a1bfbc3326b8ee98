"""The states of a turn, its termination reasons, and checks on where a transcript ended."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from outrider.context.lower import CONTINUE, PAUSED
from outrider.errors import OutriderError
from outrider.types.events import TurnCompletedEvent, TurnStartedEvent
from outrider.types.messages import Message, Role
from outrider.types.parts import CompactionPart, PatchPart, TextPart
from outrider.types.tool_state import ToolPending

TurnState = Literal[
    "idle", "calling_model", "awaiting_approval", "running_tools", "compacting", "done", "failed", "aborted"
]
TerminationReason = Literal[
    "completed", "limit", "repetition", "empty_answers", "refusal", "length", "error", "aborted"
]

NOTE = "note"


class TurnEnd(msgspec.Struct, frozen=True):
    """How a turn ended. `output` is the last text of the agent. Everything that was done is stored, and the session can
    be continued."""

    reason: TerminationReason
    output: str = ""
    error: OutriderError | None = None


def turn_start(messages: Sequence[Message]) -> int:
    """Return the index of the first user message of the current turn."""
    start = len(messages)
    while start and messages[start - 1].role == "user":
        start -= 1
    return start


class TurnOutcome(Protocol):
    """What `TurnEnd` and `RunResult` have in common: how a turn ended."""

    @property
    def reason(self) -> TerminationReason: ...

    @property
    def output(self) -> str: ...

    @property
    def error(self) -> OutriderError | None: ...


def last_text(messages: Sequence[Message], role: Role) -> str:
    """Return the text of the newest message of a role, "" without one."""
    return next((message.join_text() for message in reversed(messages) if message.role == role), "")


def is_note(message: Message) -> bool:
    """Return whether a user message only informs the model, for example about restored files or a refused plan. It
    starts no turn; the model reads it together with the next input."""
    return message.role == "user" and bool(message.metadata.get(NOTE) or message.get_parts_by_type(PatchPart))


def is_cut_off(history: Sequence[Message]) -> bool:
    """Return whether the last turn did not end: input without an answer, unread tool results, or an incomplete
    answer."""
    relevant = [m for m in history if not m.get_parts_by_type(CompactionPart) and not is_note(m)]
    if not relevant:
        return False
    last = relevant[-1]
    if last.role == "user" or last.error is not None or last.finish is None or is_paused(last):
        return True
    calls = last.get_calls()
    return bool(calls) and not any(call.tool == "finish" and call.state.status == "completed" for call in calls)


def note_before_request(history: Sequence[Message]) -> Message | None:
    """Return the note to add before a request that continues an incomplete answer: vendors reject a conversation that
    ends with the assistant. It is stored, so that later prompts have the same prefix."""
    last = next((m for m in reversed(history) if not m.get_parts_by_type(CompactionPart)), None)
    if last is None or last.role == "user" or is_paused(last) or last.get_calls():
        return None
    if not last.join_text().strip():
        return None
    return Message("user", [TextPart(CONTINUE, synthetic=True)], metadata={NOTE: True})


def is_paused(answer: Message) -> bool:
    """Return whether the provider must be requested again to continue this answer."""
    return bool(answer.metadata.get(PAUSED))


def has_pending_calls(message: Message) -> bool:
    """Return whether the message has calls that can still run. A call in state running is not run again."""
    return any(isinstance(call.state, ToolPending) for call in message.get_calls())


class StepReporter:
    """Publishes the start and the end of each step of a turn. Every step that starts also ends."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self._is_open = False
        self.number = 0

    def start(self, number: int, maximum: int | None) -> None:
        self.number, self._is_open = number, True
        self._emit(TurnStartedEvent, turn_number=number, max_turns=maximum)

    def end(self, calls: int) -> None:
        self._is_open = False
        self._emit(TurnCompletedEvent, turn_number=self.number, tool_calls_count=calls)

    def close(self) -> None:
        """End a step that an error or a cancellation interrupted."""
        if self._is_open:
            self.end(0)


def _ignore_change(old: TurnState, new: TurnState) -> None:
    """Default callback of a context that has no turn yet."""


class TurnStateTracker:
    """Tracks the state of a turn and reports each change to `on_change`."""

    def __init__(self, on_change: Callable[[TurnState, TurnState], None] = _ignore_change) -> None:
        self._on_change = on_change
        self._state: TurnState = "idle"
        self._waiting = 0

    def enter(self, state: TurnState) -> None:
        if state != self._state:
            old, self._state = self._state, state
            self._on_change(old, state)

    @contextmanager
    def awaiting_approval(self) -> Generator[None, None, None]:
        """Context manager around the wait for an approval. The turn is in this state while at least one of its calls
        waits."""
        self._waiting += 1
        self.enter("awaiting_approval")
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.enter("running_tools")
