"""A worker's log has the time of each line, and no trace of what was ordered."""

import io
import logging

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from dbos import error

from outrider.background.database import is_unexpected_error
from outrider.background.local_worker import LOGGER_NAME, configure_worker_log


def record(raised: BaseException) -> logging.LogRecord:
    return logging.LogRecord("dbos", logging.ERROR, "", 1, "it failed", (), (type(raised), raised, None))


def test_a_run_that_was_canceled_leaves_no_trace_of_an_error_and_others_do():
    assert not is_unexpected_error(record(error.DBOSAwaitedWorkflowCancelledError("run-1")))
    assert is_unexpected_error(record(ValueError("broken")))
    assert is_unexpected_error(logging.LogRecord("dbos", logging.ERROR, "", 1, "it failed", (), None))


def test_each_line_has_its_time():
    log, handlers = logging.getLogger(LOGGER_NAME), logging.getLogger(LOGGER_NAME).handlers[:]
    level, propagates = log.level, log.propagate
    try:
        configure_worker_log(stream := io.StringIO())
        log.info("works on the run %s", "run-1")
        log.debug("of no interest")
    finally:
        log.handlers[:], log.level, log.propagate = handlers, level, propagates
    day, _, text = stream.getvalue().partition(" ")
    assert len(day.split("-")) == 3
    assert text.partition(" ")[2] == "works on the run run-1\n"
