"""What a run and all the agents in it may use: counted in one place, reserved before it is spent, never overshot."""

import asyncio
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from outrider.errors import LimitReachedError
from outrider.types.agents import Limits
from outrider.types.usage import Tokens, Usage

SMALLEST_ANSWER = 256  # tokens; less than this is not worth asking for


class Price(msgspec.Struct, frozen=True):
    """What a model charges, per token. Who is paid `by_bill`, as an agent of another process, says afterwards what it
    was, and until then has all that is left."""

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    by_bill: bool = False


class Reservation(msgspec.Struct, frozen=True):
    """Room for one request. `max_output_tokens` is what the answer may be so that no limit is overshot."""

    tokens: int
    cost: Decimal
    max_output_tokens: int | None


class Budget:
    """Shared by a whole tree of agents. Every request is reserved first and settled after, also when it failed."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.usage = Usage()
        self.turns = 0
        self._clock = clock
        self._start = clock()
        self._reserved_tokens = 0
        self._reserved_cost = Decimal(0)
        self.calls = asyncio.Semaphore(limits.parallel_calls)

    @property
    def seconds_left(self) -> float | None:
        if self.limits.seconds is None:
            return None
        return max(self.limits.seconds - (self._clock() - self._start), 0.0)

    def begin_turn(self) -> int:
        """Count one more request to a model; returns its number."""
        if self.limits.turns is not None and self.turns >= self.limits.turns:
            raise LimitReachedError("turns", self.limits.turns, self.turns)
        if self.seconds_left == 0:
            raise LimitReachedError("seconds", self.limits.seconds, round(self._clock() - self._start, 1))
        self.turns += 1
        return self.turns

    def as_limit(self, reached: LimitReachedError | TimeoutError) -> LimitReachedError:
        """A turn that ran out of time has reached a limit like any other."""
        if isinstance(reached, LimitReachedError):
            return reached
        return LimitReachedError("seconds", self.limits.seconds, round(self._clock() - self._start, 1))

    def check_depth(self, depth: int) -> None:
        if depth > self.limits.depth:
            raise LimitReachedError("levels of agents", self.limits.depth, depth)

    def reserve(self, prompt_tokens: int, max_output: int | None, price: Price | None) -> Reservation:
        """Room for a prompt of about this size. Raises LimitReachedError when not even a short answer fits."""
        output = self._output_for_tokens(prompt_tokens, max_output)
        cost = Decimal(0)
        if price is not None and price.by_bill:
            cost = self._all_that_is_left()
        elif self.limits.cost is not None:
            output = self._output_for_cost(prompt_tokens, output, price)
            if price is not None:
                cost = price.input * prompt_tokens + price.output * (output or 0)
        reserved = Reservation(prompt_tokens + (output or 0), cost, output)
        self._reserved_tokens += reserved.tokens
        self._reserved_cost += reserved.cost
        return reserved

    def left(self, depth: int, reservation: Reservation) -> dict[str, Any]:
        """What one that answers at this depth may use, as fields of an Allowance."""
        limits = self.limits
        return {
            "depth": max(limits.depth - depth, 0),
            "turns": None if limits.turns is None else limits.turns - self.turns + 1,
            "seconds": self.seconds_left,
            "tokens": None if limits.tokens is None else reservation.tokens,
            "cost": None if limits.cost is None else reservation.cost,
        }

    def settle(self, reservation: Reservation, tokens: Tokens, cost: Decimal | None, turns: int = 1) -> None:
        """What was really used takes the place of what was reserved; the first of the turns was counted before."""
        self.turns += turns - 1
        self._reserved_tokens -= reservation.tokens
        self._reserved_cost -= reservation.cost
        if tokens.total or cost is not None:
            self.usage = self.usage.plus(tokens, cost)

    def _all_that_is_left(self) -> Decimal:
        if self.limits.cost is None:
            return Decimal(0)
        spent = self.usage.total_cost
        left = Decimal(0) if spent is None else self.limits.cost - spent - self._reserved_cost
        if left <= 0:
            raise LimitReachedError("cost", self.limits.cost, "not known" if spent is None else spent)
        return left

    def _output_for_tokens(self, prompt_tokens: int, max_output: int | None) -> int | None:
        if self.limits.tokens is None:
            return max_output
        left = self.limits.tokens - self.usage.tokens.total - self._reserved_tokens - prompt_tokens
        if left < SMALLEST_ANSWER:
            raise LimitReachedError("tokens", self.limits.tokens, self.usage.tokens.total)
        return left if max_output is None else min(max_output, left)

    def _output_for_cost(self, prompt_tokens: int, max_output: int | None, price: Price | None) -> int | None:
        """An unknown price cannot be held to a limit, so such a request is not made."""
        spent = self.usage.total_cost
        if price is None or spent is None or self.limits.cost is None:
            raise LimitReachedError("cost", self.limits.cost, "the price of this model is not known")
        left = self.limits.cost - spent - self._reserved_cost - price.input * prompt_tokens
        affordable = int(left / price.output) if price.output and left > 0 else (0 if price.output else None)
        if left < 0 or (affordable is not None and affordable < SMALLEST_ANSWER):
            raise LimitReachedError("cost", self.limits.cost, spent)
        options = [value for value in (max_output, affordable) if value is not None]
        return min(options) if options else None
