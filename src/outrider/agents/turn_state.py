"""The states of a turn, its termination reasons, and checks on where a transcript ended."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from outrider.context.lower import CONTINUE, PAUSED
from outrider.errors import OutriderError
from outrider.types.events import TurnCompletedEvent, TurnStartedEvent
from outrider.types.messages import Message, Role
from outrider.types.parts import CompactionPart, PatchPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending

TurnState = Literal[
    "idle", "calling_model", "awaiting_approval", "running_tools", "compacting", "done", "failed", "aborted"
]
TerminationReason = Literal[
    "completed", "limit", "repetition", "empty_answers", "refusal", "length", "error", "aborted"
]

NOTE = "note"
_TIMER_TOLERANCE = 0.01  # seconds
# Silence is unusual if it is this many times longer than what was observed, within shares of the longest limit.
_SLOWER = 4.0
_MIN_SILENCE = 1 / 6
_STREAM_SILENCE = 1 / 3


class TurnEnd(msgspec.Struct, frozen=True):
    """How a turn ended. `output` is the last text of the agent. All completed work is stored, and the session can be
    continued."""

    reason: TerminationReason
    output: str = ""
    error: OutriderError | None = None


def turn_start(messages: Sequence[Message]) -> int:
    """Returns the index of the first user message of the current turn."""
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
    """Returns the text of the newest message of a role, "" without one."""
    return next((message.join_text() for message in reversed(messages) if message.role == role), "")


def is_note(message: Message) -> bool:
    """Returns whether a user message only informs the model, for example about restored files or a refused plan. It
    starts no turn; the model reads it together with the next input."""
    return message.role == "user" and bool(message.metadata.get(NOTE) or message.get_parts_by_type(PatchPart))


def is_cut_off(history: Sequence[Message]) -> bool:
    """Returns whether the last turn did not end: input without an answer, unread tool results, or an incomplete
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
    """Returns the note to add before a request that continues an incomplete answer: vendors reject a conversation that
    ends with the assistant. It is stored, so that later prompts have the same prefix."""
    last = next((m for m in reversed(history) if not m.get_parts_by_type(CompactionPart)), None)
    if last is None or last.role == "user" or is_paused(last) or last.get_calls():
        return None
    if not last.join_text().strip():
        return None
    return Message("user", [TextPart(CONTINUE, synthetic=True)], metadata={NOTE: True})


def is_paused(answer: Message) -> bool:
    """Returns whether the provider must be requested again to continue this answer."""
    return bool(answer.metadata.get(PAUSED))


def has_pending_calls(message: Message) -> bool:
    """Returns whether the message has calls that can still run. A call in the state running is not run again."""
    for part in message.parts:  # noqa: SIM110  a generator costs more than the search; a withdrawn call has ended
        if isinstance(part, ToolPart) and isinstance(part.state, ToolPending):
            return True
    return False


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
        """Ends a step that an error or a cancellation interrupted."""
        if self._is_open:
            self.end(0)


class SilenceTimer:
    """Calls `report` when nothing arrives for longer than the model normally takes, then every `longest` seconds.

    `paces` has the longest time that each model took until its first delta, from earlier steps. After that, the limit
    follows from the longest gap between two deltas of this answer. A restart only stores numbers, since it happens for
    every delta. The steps of an agent share one timer of the event loop: `stop` leaves it running, and it ends when it
    is due between two steps."""

    def __init__(self) -> None:
        self.paces: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Callable[[float], None] | None = None
        self._longest, self._model = 0.0, ""
        self._since = self._gap = 0.0
        self._has_output = False
        self._reported = float("-inf")

    def start(self, longest: float, model: str, report: Callable[[float], None]) -> None:
        """Starts the measurement for a request to a model."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and (loop is not self._loop or longest != self._longest):
            self._timer.cancel()
            self._timer = None
        self._loop, self._longest, self._model, self._report = loop, longest, model, report
        self._since, self._gap, self._has_output, self._reported = loop.time(), 0.0, False, float("-inf")
        if self._timer is None:
            self._timer = loop.call_later(longest * _MIN_SILENCE, self._check, loop)

    def restart(self) -> None:
        """Restarts the measurement, because a delta has arrived."""
        assert self._loop is not None
        now = self._loop.time()
        gap, self._since = now - self._since, now
        if not self._has_output:
            self._has_output = True
            self.paces[self._model] = max(gap, self.paces.get(self._model, 0.0))
        elif gap > self._gap:
            self._gap = gap

    def wait_for_retry(self, delay: float) -> None:
        """Restarts the measurement after `delay`, when the request is sent again."""
        assert self._loop is not None
        self._since = self._loop.time() + delay
        self._has_output, self._gap = False, 0.0

    def stop(self) -> None:
        self._report = None

    @property
    def limit(self) -> float:
        """The seconds of silence that are unusual now: before the first delta, or between two."""
        if self._has_output:
            limit = max(self._gap * _SLOWER, self._longest * _STREAM_SILENCE)
        else:
            limit = self.paces.get(self._model, self._longest) * _SLOWER
        return min(max(limit, self._longest * _MIN_SILENCE), self._longest)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._report is None:
            return
        now, limit = loop.time(), self.limit
        silent = now - self._since
        if silent >= limit - _TIMER_TOLERANCE and now - max(self._reported, self._since) >= limit - _TIMER_TOLERANCE:
            self._reported = now
            self._report(silent)
        due = max(self._since + limit, self._reported + self._longest) - now
        # Output that starts meanwhile shortens the limit, so the timer never sleeps longer than the shortest one.
        wait = min(max(due, _TIMER_TOLERANCE), self._longest * _MIN_SILENCE)
        self._timer = loop.call_later(wait, self._check, loop)
