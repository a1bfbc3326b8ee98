"""Messages of the durable engine and of the worker to users."""

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import JsonSerializer, RunDatabase
from outrider.background.records import RunOutcome, derive_run_state
from outrider.errors import ConfigurationError
from tests.fixtures.cases import for_each


@for_each(
    ("status", "reason", "state"),
    [
        ("DELAYED", None, "delayed"),
        ("ENQUEUED", None, "queued"),
        ("PENDING", None, "running"),
        ("CANCELLED", None, "canceled"),
        ("SUCCESS", "completed", "done"),
        ("SUCCESS", "waiting", "waiting"),
        ("SUCCESS", "aborted", "canceled"),
        ("SUCCESS", "limit", "failed"),
        ("ERROR", None, "failed"),
        ("MAX_RECOVERY_ATTEMPTS_EXCEEDED", None, "failed"),
    ],
)
def test_every_status_has_one_word(status: str, reason: str | None, state: str):
    assert derive_run_state(status, RunOutcome(reason=reason) if reason else None) == state  # pyright: ignore[reportArgumentType]


def test_values_are_stored_as_json_and_errors_as_their_text():
    keeper = JsonSerializer()
    assert keeper.deserialize(keeper.serialize({"a": [1, None]})) == {"a": [1, None]}
    assert keeper.deserialize(keeper.serialize(ValueError("no"))) == {"error": "ValueError", "message": "no"}


def test_a_database_of_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match="must be sqlite"):
        RunDatabase("mysql://somewhere/else")
