"""The states that a turn goes through, told as it enters them."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from outrider.agents.ends import TurnState


def _tell_nobody(old: TurnState, new: TurnState) -> None:
    """For a seat that has no turn yet."""


class States:
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
