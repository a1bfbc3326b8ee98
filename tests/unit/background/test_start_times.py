"""The start time of a run: the forms of `--after`, which may also be the id of another run."""

from datetime import datetime, timedelta, timezone

import pytest

from outrider.cli.commands.jobs import delay_until

NOW = datetime(2026, 11, 15, 22, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("90", 90),
        ("2h", 7200),
        ("22:30", 1800),
        ("21:00", 23 * 3600),
        ("2026-11-15T22:10+01:00", 600),
        ("0f3a9c1e", None),
        ("later", None),
    ],
)
def test_a_time_is_reported_from_the_id_of_a_run(after: str, expected: float | None):
    assert delay_until(after, NOW) == expected
