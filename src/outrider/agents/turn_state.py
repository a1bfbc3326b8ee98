"""The states of a turn, and how it can end."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec

from outrider.errors import OutriderError
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, PatchPart, ToolPart
from outrider.types.tool_state import ToolPending

TurnState = Literal[
    "idle", "calling_model", "awaiting_approval", "running_tools", "compacting", "done", "failed", "aborted"
]
TerminationReason = Literal[
    "completed", "limit", "repetition", "empty_answers", "refusal", "length", "error", "aborted"
]

PAUSED = "paused"
NOTE = "note"


class TurnEnd(msgspec.Struct, frozen=True):
    """How a turn ended, and its last words. What was done is kept and can be continued."""

    reason: TerminationReason
    output: str = ""
    error: OutriderError | None = None


def is_note(message: Message) -> bool:
    """Whether a message only tells of what the user did (brought files back, refused a plan): nobody waits for an
    answer to it, and it is read with the next input."""
    return message.role == "user" and bool(message.metadata.get(NOTE) or message.get_parts_by_type(PatchPart))


def is_cut_off(history: Sequence[Message]) -> bool:
    """Whether the last turn has no end of its own: nobody answered, results wait to be read, or an answer broke off."""
    said = [message for message in history if not message.get_parts_by_type(CompactionPart) and not is_note(message)]
    if not said:
        return False
    last = said[-1]
    if last.role == "user" or last.error is not None or last.finish is None or is_paused(last):
        return True
    calls = last.get_parts_by_type(ToolPart)
    return bool(calls) and not any(call.tool == "finish" and call.state.status == "completed" for call in calls)


def is_paused(answer: Message) -> bool:
    """Whether the provider wants to be asked again before it goes on with this answer."""
    return bool(answer.metadata.get(PAUSED))


def has_pending_calls(message: Message) -> bool:
    """Calls that can still be run. One that runs, and whose end could not be kept, is not run again."""
    return any(isinstance(call.state, ToolPending) for call in message.get_parts_by_type(ToolPart))


def _tell_nobody(old: TurnState, new: TurnState) -> None:
    """For a seat that has no turn yet."""


class TurnStateTracker:
    def __init__(self, tell: Callable[[TurnState, TurnState], None] = _tell_nobody) -> None:
        self._tell = tell
        self._now: TurnState = "idle"
        self._waiting = 0

    def enter(self, state: TurnState) -> None:
        if state != self._now:
            old, self._now = self._now, state
            self._tell(old, state)

    @contextmanager
    def awaiting_approval(self) -> Generator[None, None, None]:
        """As long as a call waits for somebody's answer, the turn does, whatever its other calls do."""
        self._waiting += 1
        self.enter("awaiting_approval")
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.enter("running_tools")
