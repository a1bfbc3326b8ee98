"""A budget holds over a whole tree of agents and is never overshot."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import LimitReachedError, Limits, Tokens
from outrider.agents.budget import MIN_OUTPUT_TOKENS, ModelPrice, RunBudget

CHEAP = ModelPrice(Decimal("0.000001"), Decimal("0.000005"))


def test_turns_are_counted_over_the_whole_tree():
    budget = RunBudget(Limits(turns=2))
    assert [budget.begin_turn(), budget.begin_turn()] == [1, 2]
    with pytest.raises(LimitReachedError) as caught:
        budget.begin_turn()
    assert caught.value.details == {"limit": "turns", "maximum": 2, "reached": 2}


def test_time_is_measured_by_a_clock_that_cannot_be_set():
    now = [100.0]
    budget = RunBudget(Limits(seconds=10), clock=lambda: now[0])
    budget.begin_turn()
    now[0] = 107.0
    assert budget.seconds_left == 3.0
    now[0] = 111.0
    with pytest.raises(LimitReachedError, match="seconds"):
        budget.begin_turn()


def test_depth_is_bounded():
    budget = RunBudget(Limits(depth=2))
    budget.check_depth(2)
    with pytest.raises(LimitReachedError, match="levels of agents"):
        budget.check_depth(3)


def test_without_limits_a_request_is_as_large_as_its_model_allows():
    budget = RunBudget(Limits())
    assert budget.reserve(1_000, None, None).max_output_tokens is None
    assert budget.reserve(1_000, 500, None).max_output_tokens == 500


def test_money_bounds_the_length_of_an_answer():
    budget = RunBudget(Limits(cost=Decimal("0.01")))
    reservation = budget.reserve(1_000, None, CHEAP)
    assert reservation.max_output_tokens == 1_800
    assert reservation.cost == Decimal("0.01")


def test_money_that_is_reserved_cannot_be_reserved_again_until_it_is_settled():
    budget = RunBudget(Limits(cost=Decimal("0.01")))
    first = budget.reserve(1_000, None, CHEAP)
    with pytest.raises(LimitReachedError, match="cost"):
        budget.reserve(1_000, None, CHEAP)
    budget.settle(first, Tokens(input=1_000, output=10), Decimal("0.00105"))
    assert budget.reserve(1_000, 300, CHEAP).max_output_tokens == 300


def test_a_model_without_a_price_cannot_be_held_to_a_money_limit():
    with pytest.raises(LimitReachedError, match="price of this model is not known"):
        RunBudget(Limits(cost=Decimal(1))).reserve(10, 10, None)
    budget = RunBudget(Limits())
    budget.settle(budget.reserve(10, 10, None), Tokens(1, 1), None)
    assert budget.usage.total_cost is None


def test_a_request_that_failed_gives_its_room_back():
    budget = RunBudget(Limits(tokens=2_000))
    budget.settle(budget.reserve(1_000, None, None), Tokens(), None)
    assert budget.reserve(1_000, None, None).max_output_tokens == 1_000


@given(
    st.lists(st.tuples(st.integers(1, 3_000), st.none() | st.integers(1, 3_000), st.floats(0, 1)), max_size=20),
    st.integers(0, 5),
)
def test_no_order_of_requests_overshoots_tokens_or_money(requests, at_once):
    limits = Limits(tokens=10_000, cost=Decimal("0.02"), turns=None)
    budget = RunBudget(limits)
    open_requests: list[tuple] = []

    def settle_one() -> None:
        reservation, prompt, share = open_requests.pop(0)
        output = int((reservation.max_output_tokens or 0) * share)
        cost = CHEAP.input * prompt + CHEAP.output * output
        budget.settle(reservation, Tokens(input=prompt, output=output), cost)

    for prompt, wanted, share in requests:
        try:
            open_requests.append((budget.reserve(prompt, wanted, CHEAP), prompt, share))
        except LimitReachedError:
            continue
        if len(open_requests) > at_once:
            settle_one()
    while open_requests:
        settle_one()
    assert budget.usage.tokens.total <= limits.tokens  # pyright: ignore[reportOperatorIssue]
    assert budget.usage.total_cost <= limits.cost  # pyright: ignore[reportOperatorIssue]


def test_less_than_a_short_answer_is_not_worth_asking_for():
    with pytest.raises(LimitReachedError, match="tokens"):
        RunBudget(Limits(tokens=1_000)).reserve(1_001 - MIN_OUTPUT_TOKENS, None, None)


async def test_a_request_waits_for_what_parallel_requests_have_reserved():
    budget = RunBudget(Limits(tokens=5_000))
    first = budget.reserve(1_000, None, None)  # reserves everything
    waiting = asyncio.create_task(budget.wait_for_reservations(1_000, None))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.settle(first, Tokens(input=1_000, output=50), None)
    await waiting
    assert budget.reserve(1_000, None, None).max_output_tokens == 2_950


async def test_a_request_does_not_wait_for_an_unreserved_amount():
    budget = RunBudget(Limits(tokens=5_000))
    budget.settle(budget.reserve(1_000, None, None), Tokens(input=1_000, output=3_900), None)
    await asyncio.wait_for(budget.wait_for_reservations(1_000, None), 1)
    with pytest.raises(LimitReachedError, match="tokens"):
        budget.reserve(1_000, None, None)


async def test_a_reservation_that_is_released_before_its_usage_is_known_is_freed_once():
    budget = RunBudget(Limits(tokens=10_000, cost=Decimal(1)))
    other, failed = budget.reserve(1_000, 1_000, CHEAP), budget.reserve(1_000, 1_000, CHEAP)
    budget.release(failed)
    budget.settle(failed, Tokens(input=1_000), Decimal("0.001"))
    assert budget.usage.tokens.total == 1_000
    assert budget.reserve(1_000, None, CHEAP).tokens == 10_000 - 1_000 - other.tokens
