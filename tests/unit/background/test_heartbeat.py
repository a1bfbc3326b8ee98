"""A worker is dead if its heartbeat counter stops, measured with the clock of the observer only."""

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from pathlib import Path

from outrider.background.database import RunDatabase
from outrider.background.heartbeat import FailureDetector, WorkerHeartbeat, WorkerRegistry
from outrider.sessions.records import ProcessIdentity

HERE = ProcessIdentity("one", "a-host", 1)


def test_a_worker_whose_heartbeat_stops_is_dead_after_the_timeout():
    now = [0.0]
    watch = FailureDetector(4, clock=lambda: now[0], alive=lambda _: None)
    assert watch.find_dead_workers([WorkerHeartbeat("one", HERE, 7)]) == []
    for now[0] in (1.0, 2.0, 3.0, 4.0):
        assert watch.find_dead_workers([WorkerHeartbeat("one", HERE, 7)]) == []
    now[0] = 4.1
    assert watch.find_dead_workers([WorkerHeartbeat("one", HERE, 7)]) == ["one"]


def test_a_worker_whose_heartbeat_advances_is_alive_at_any_polling_interval():
    now = [0.0]
    watch = FailureDetector(4, clock=lambda: now[0], alive=lambda _: None)
    for count in range(3):
        now[0] += 100
        assert watch.find_dead_workers([WorkerHeartbeat("one", HERE, count)]) == []


def test_time_in_which_the_table_could_not_be_read_does_not_count():
    now = [0.0]
    watch = FailureDetector(4, clock=lambda: now[0], alive=lambda _: None)
    for now[0] in (0.0, 1.0, 61.0, 63.0, 65.0):
        assert watch.find_dead_workers([WorkerHeartbeat("one", HERE, 7)]) == []
    now[0] = 65.1
    assert watch.find_dead_workers([WorkerHeartbeat("one", HERE, 7)]) == ["one"]


def test_a_process_that_is_known_to_be_gone_is_dead_at_once():
    assert FailureDetector(4, alive=lambda _: False).find_dead_workers([WorkerHeartbeat("one", HERE, 1)]) == ["one"]


def test_a_worker_that_was_given_up_learns_of_it_with_its_next_beat(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.migrate()
    mine, other = WorkerRegistry(database), WorkerRegistry(database)
    assert [mine.record_heartbeat(), mine.record_heartbeat()] == [False, True]
    assert [beat.worker_id for beat in other.other_heartbeats()] == [mine.owner.id]
    other.remove_worker(mine.owner.id)
    assert [mine.record_heartbeat(), mine.record_heartbeat()] == [False, True]
    database.close()
