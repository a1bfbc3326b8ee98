"""What an update of a part adds to what a front end has reported: the start and the result of a call, each once, and
the remaining part of a streamed text."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from outrider.types.parts import ToolPart, ToolResultPart, is_withdrawn, tool_result
from outrider.types.tool_state import ToolEnd, ToolPending


class CallStarted(msgspec.Struct, frozen=True):
    """The first report of a call."""

    part: ToolPart


class CallEnded(msgspec.Struct, frozen=True):
    """The last report of a call, with what a model reads of it."""

    part: ToolPart
    result: ToolResultPart
    state: ToolEnd


CallUpdate = CallStarted | CallEnded
StartPhase = Literal["ready", "running"]


class CallReporter:
    """Decides what to report of the calls of a turn, whose parts are published several times.

    A call starts when its input is complete ("ready"), or when it runs or ends without running ("running"). A call of a
    withdrawn answer never ran, so it is not reported; if its start was reported before, its end is too."""

    def __init__(self, starts: StartPhase = "ready") -> None:
        self._starts = starts
        self._started: set[str] = set()
        self._ended: set[str] = set()

    def call_updates(self, part: ToolPart) -> Iterator[CallUpdate]:
        """Yields what a new value of a call adds to what was reported."""
        if is_withdrawn(part) and part.id not in self._started:
            return
        if part.id not in self._started and self._has_started(part):
            self._started.add(part.id)
            yield CallStarted(part)
        result = tool_result(part)
        if result is not None and isinstance(part.state, ToolEnd) and part.id not in self._ended:
            self._ended.add(part.id)
            yield CallEnded(part, result, part.state)

    def _has_started(self, part: ToolPart) -> bool:
        if isinstance(part.state, ToolPending):
            return self._starts == "ready" and part.state.phase != "streaming"
        return True


def missing_text(sent: str, complete: str) -> str | None:
    """Returns what must be sent after `sent` so that a reader has the complete text; None if it does not begin with
    `sent`. The bus may drop text deltas, but never complete values."""
    return complete[len(sent) :] if complete.startswith(sent) else None
