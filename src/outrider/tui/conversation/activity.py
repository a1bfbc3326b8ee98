"""What goes on in the session now: since when, with how many tokens, at what cost."""

from collections.abc import Callable, Sequence
from decimal import Decimal

from outrider.app.archive.archive import UsageRow
from outrider.types.events import (
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    PartDeltaEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolInputDeltaEvent,
)
from outrider.types.messages import Message

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
