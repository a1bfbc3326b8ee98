"""Asking again: when it helps, how long it waits, and what it must not show twice."""

from itertools import pairwise

import pytest

from outrider.errors import InvalidRequestError, OverloadedError, ProviderError, RateLimitError
from outrider.providers.client import JitterBackoff
from outrider.types.request import RetryPolicy

POLICY = RetryPolicy(attempts=4, first_window=1.0, largest_window=3.0, longest_wait=60.0)


def test_a_permanent_error_is_not_retried():
    assert JitterBackoff(POLICY).next_wait(1, InvalidRequestError("no")) is None


def test_the_last_attempt_is_the_last():
    backoff = JitterBackoff(POLICY)
    assert backoff.next_wait(3, OverloadedError("full")) is not None
    assert backoff.next_wait(4, OverloadedError("full")) is None


@pytest.mark.parametrize(("attempt", "window"), [(1, 1.0), (2, 2.0), (3, 3.0)])
def test_the_window_doubles_up_to_its_largest(attempt: int, window: float):
    backoff = JitterBackoff(POLICY)
    waits = [backoff.next_wait(attempt, OverloadedError("full")) or 0 for _ in range(200)]
    assert 0 <= min(waits) < 0.1 * window
    assert 0.9 * window < max(waits) < window


def test_what_the_provider_asks_for_is_the_least_wait():
    backoff = JitterBackoff(POLICY)
    waits = [backoff.next_wait(1, RateLimitError("slow", retry_after=1.5)) or 0 for _ in range(50)]
    assert min(waits) >= 1.5
    assert max(waits) <= 3.0


def test_a_provider_that_asks_for_a_day_is_not_waited_for():
    assert JitterBackoff(POLICY).next_wait(1, RateLimitError("slow", retry_after=86400)) is None


def test_an_error_may_forbid_what_its_kind_allows():
    error = OverloadedError("full")
    error.retryable = False
    assert JitterBackoff(POLICY).next_wait(1, error) is None


@pytest.mark.parametrize("start", [0.0, 0.3, 0.77])
def test_fifty_that_were_refused_together_return_apart(start: float):
    backoff = JitterBackoff(POLICY, start)
    waits = sorted(backoff.next_wait(1, RateLimitError("slow")) or 0 for _ in range(50))
    for first in waits:
        assert sum(first <= wait < first + 0.1 for wait in waits) <= 10
    assert max(later - earlier for earlier, later in pairwise(waits)) < 0.1


def test_errors_declare_whether_a_retry_may_help():
    assert [error.retryable for error in (ProviderError(""), RateLimitError(""), OverloadedError(""))] == [
        False,
        True,
        True,
    ]
