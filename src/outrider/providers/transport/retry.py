"""When to ask again, and how long to wait before it."""

import random

import msgspec

from outrider.errors import ProviderError
from outrider.types.stream import AnswerStart, Delta, PartStart, Retry, UsageReport

_GOLDEN = 0.6180339887498949
_UNSEEN = frozenset({AnswerStart, Retry, UsageReport})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waits are drawn from a window that doubles with each attempt; seconds everywhere.

    A provider that asks for more than `longest_wait` is not waited for: the error is raised with its request.
    """

    attempts: int = 4
    first_window: float = 1.0
    largest_window: float = 30.0
    longest_wait: float = 60.0


class Backoff:
    """Full jitter without clumps, for all who share one provider.

    Independent draws leave crowds and holes. Steps of the golden ratio from a random start are spread evenly
    however many wait, so sessions that were refused together do not return together.
    """

    def __init__(self, policy: RetryPolicy, start: float | None = None) -> None:
        self.policy = policy
        self._place = random.random() if start is None else start

    def wait(self, attempt: int, error: ProviderError) -> float | None:
        """Seconds to wait after this failed attempt (the first is 1); None when asking again cannot help."""
        policy = self.policy
        asked = error.retry_after or 0.0
        if not error.retryable or attempt >= policy.attempts or asked > policy.longest_wait:
            return None
        window = min(policy.first_window * 2 ** (attempt - 1), policy.largest_window)
        self._place = (self._place + _GOLDEN) % 1.0
        return asked + window * self._place


class Showing:
    """What a failed attempt may already have given out without its repetition being seen twice.

    The start of a text is held back until there is text: it shows nothing, but it cannot be taken back.
    """

    __slots__ = ("_held", "begun")

    def __init__(self) -> None:
        self.begun = False
        self._held: list[Delta] = []

    def pass_on(self, deltas: list[Delta]) -> list[Delta]:
        """What may be given out now, in order."""
        passed: list[Delta] = []
        for position, delta in enumerate(deltas):
            if type(delta) in _UNSEEN:
                passed.append(delta)
            elif type(delta) is PartStart and delta.kind in ("text", "reasoning"):
                self._held.append(delta)
            else:
                self.begun = True
                return [*passed, *self._held, *deltas[position:]]
        return passed
