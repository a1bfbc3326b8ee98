"""Usage limits of a run: one counter shared by all its agents; a request reserves tokens and cost before it is sent."""

import asyncio
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from outrider.errors import LimitReachedError
from outrider.types.agents import Limits
from outrider.types.parts import Tokens, Usage

MIN_OUTPUT_TOKENS = 256  # a shorter answer is not useful, so such a request is not sent


class ModelPrice(msgspec.Struct, frozen=True):
    """Price per token of a model. With `billed_afterwards` the cost is known only from the response, as for an agent in
    another process; such a request reserves the remaining cost."""

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    billed_afterwards: bool = False


class BudgetReservation(msgspec.Struct, frozen=True, eq=False):
    """Tokens and cost reserved for one request. `max_output_tokens` limits the response so that no limit is
    exceeded. Two reservations are never equal, so that each is released once."""

    tokens: int
    cost: Decimal
    max_output_tokens: int | None


class RunBudget:
    """Counts turns, tokens and cost for a tree of agents. Call `reserve` before each request and `settle` after it,
    also when it failed."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.usage = Usage()
        self.turns = 0
        self._clock = clock
        self._start = clock()
        self._reserved_tokens = 0
        self._reserved_cost = Decimal(0)
        self._open: set[BudgetReservation] = set()
        self._settled: asyncio.Event | None = None  # while a request waits for it
        self.calls = asyncio.Semaphore(limits.parallel_calls)

    @property
    def seconds_left(self) -> float | None:
        if self.limits.seconds is None:
            return None
        return max(self.limits.seconds - (self._clock() - self._start), 0.0)

    def begin_turn(self) -> int:
        """Counts a model request and returns its number. Raises LimitReachedError when the turn or time limit is
        reached."""
        if self.limits.turns is not None and self.turns >= self.limits.turns:
            raise LimitReachedError("turns", self.limits.turns, self.turns)
        if self.seconds_left == 0:
            raise LimitReachedError("seconds", self.limits.seconds, round(self._clock() - self._start, 1))
        self.turns += 1
        return self.turns

    def as_limit_error(self, reached: LimitReachedError | TimeoutError) -> LimitReachedError:
        """Converts the timeout of a turn into the error for the `seconds` limit; returns a LimitReachedError
        unchanged."""
        if isinstance(reached, LimitReachedError):
            return reached
        return LimitReachedError("seconds", self.limits.seconds, round(self._clock() - self._start, 1))

    def check_depth(self, depth: int) -> None:
        if depth > self.limits.depth:
            raise LimitReachedError("levels of agents", self.limits.depth, depth)

    def reserve(self, prompt_tokens: int, max_output: int | None, price: ModelPrice | None) -> BudgetReservation:
        """Reserves tokens and cost for a prompt of about this size. Raises LimitReachedError when the rest of a limit
        is too small for a response of `MIN_OUTPUT_TOKENS`."""
        reserved = self._plan_reservation(prompt_tokens, max_output, price)
        self._open.add(reserved)
        self._reserved_tokens += reserved.tokens
        self._reserved_cost += reserved.cost
        return reserved

    async def wait_for_reservations(self, prompt_tokens: int, price: ModelPrice | None) -> None:
        """Waits while requests of other agents have reserved what a prompt of about this size needs. Most responses use
        a small part of their reservation, so the rest becomes free when they end."""
        while self._open:
            try:
                self._plan_reservation(prompt_tokens, None, price)
            except LimitReachedError:
                self._settled = self._settled or asyncio.Event()
                await self._settled.wait()
            else:
                return

    def _plan_reservation(
        self, prompt_tokens: int, max_output: int | None, price: ModelPrice | None
    ) -> BudgetReservation:
        output = self._output_for_tokens(prompt_tokens, max_output)
        cost = Decimal(0)
        if price is not None and price.billed_afterwards:
            cost = self._remaining_cost()
        elif self.limits.cost is not None:
            output = self._output_for_cost(prompt_tokens, output, price)
            if price is not None:
                cost = price.input * prompt_tokens + price.output * (output or 0)
        return BudgetReservation(prompt_tokens + (output or 0), cost, output)

    def remaining_allowance(self, depth: int, reservation: BudgetReservation) -> dict[str, Any]:
        """Returns what an agent at this depth may still use, as keyword arguments for a RequestAllowance."""
        limits = self.limits
        return {
            "depth": max(limits.depth - depth, 0),
            "turns": None if limits.turns is None else limits.turns - self.turns + 1,
            "seconds": self.seconds_left,
            "tokens": None if limits.tokens is None else reservation.tokens,
            "cost": None if limits.cost is None else reservation.cost,
        }

    def settle(self, reservation: BudgetReservation, tokens: Tokens, cost: Decimal | None, turns: int = 1) -> None:
        """Replaces a reservation by the actual usage. `turns` includes the one that `begin_turn` has counted
        already."""
        self.turns += turns - 1
        self.release(reservation)
        if tokens.total or cost is not None:
            self.usage = self.usage.plus(tokens, cost)

    def release(self, reservation: BudgetReservation) -> None:
        """Releases what a request has reserved. Does nothing if the reservation is already released."""
        if reservation not in self._open:
            return
        self._open.remove(reservation)
        self._reserved_tokens -= reservation.tokens
        self._reserved_cost -= reservation.cost
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    def _remaining_cost(self) -> Decimal:
        if self.limits.cost is None:
            return Decimal(0)
        spent = self.usage.total_cost
        remaining = Decimal(0) if spent is None else self.limits.cost - spent - self._reserved_cost
        if remaining <= 0:
            raise LimitReachedError("cost", self.limits.cost, "not known" if spent is None else spent)
        return remaining

    def _output_for_tokens(self, prompt_tokens: int, max_output: int | None) -> int | None:
        if self.limits.tokens is None:
            return max_output
        remaining = self.limits.tokens - self.usage.tokens.total - self._reserved_tokens - prompt_tokens
        if remaining < MIN_OUTPUT_TOKENS:
            raise LimitReachedError("tokens", self.limits.tokens, self.usage.tokens.total)
        return remaining if max_output is None else min(max_output, remaining)

    def _output_for_cost(self, prompt_tokens: int, max_output: int | None, price: ModelPrice | None) -> int | None:
        """Returns the output tokens that the cost limit allows. Raises LimitReachedError for an unknown price, because
        a limit cannot be enforced without one."""
        spent = self.usage.total_cost
        if price is None or spent is None or self.limits.cost is None:
            raise LimitReachedError("cost", self.limits.cost, "the price of this model is not known")
        remaining = self.limits.cost - spent - self._reserved_cost - price.input * prompt_tokens
        affordable = int(remaining / price.output) if price.output and remaining > 0 else (0 if price.output else None)
        if remaining < 0 or (affordable is not None and affordable < MIN_OUTPUT_TOKENS):
            raise LimitReachedError("cost", self.limits.cost, spent)
        options = [value for value in (max_output, affordable) if value is not None]
        return min(options) if options else None
