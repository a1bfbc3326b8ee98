"""A table of cases is one test, and every case that fails is reported."""

import pytest

from tests.fixtures.cases import for_each


def test_every_failing_case_is_reported_and_the_others_run():
    seen: list[int] = []

    @for_each("number", [1, 2, 3, 4])
    def check(number: int, limit: int) -> None:
        seen.append(number)
        assert number % limit, "no remainder"

    with pytest.raises(AssertionError, match="2 of 4 cases failed") as failed:
        check(limit=2)
    assert seen == [1, 2, 3, 4]
    assert "{'number': 2}: AssertionError: no remainder" in str(failed.value)
    assert "{'number': 4}" in str(failed.value)
    check(limit=5)
