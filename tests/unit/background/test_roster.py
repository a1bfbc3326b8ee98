"""Who is dead is told by counts that stand still, never by anybody's clock but one's own."""

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from pathlib import Path

from outrider.background.database import Database
from outrider.background.heartbeat import Heartbeat, Watch, WorkerRegistry
from outrider.sessions.records import Owner

HERE = Owner("one", "a-host", 1)


def test_a_worker_whose_count_stands_still_is_dead_once_patience_is_over():
    now = [0.0]
    watch = Watch(4, clock=lambda: now[0], alive=lambda _: None)
    assert watch.dead([Heartbeat("one", HERE, 7)]) == []
    now[0] = 4.0
    assert watch.dead([Heartbeat("one", HERE, 7)]) == []
    now[0] = 4.1
    assert watch.dead([Heartbeat("one", HERE, 7)]) == ["one"]


def test_a_worker_that_counts_on_is_alive_however_slowly_it_is_looked_at():
    now = [0.0]
    watch = Watch(4, clock=lambda: now[0], alive=lambda _: None)
    for count in range(3):
        now[0] += 100
        assert watch.dead([Heartbeat("one", HERE, count)]) == []


def test_a_process_that_is_known_to_be_gone_is_dead_at_once():
    assert Watch(4, alive=lambda _: False).dead([Heartbeat("one", HERE, 1)]) == ["one"]


def test_a_worker_that_was_given_up_hears_of_it_with_its_next_beat(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.prepare()
    mine, other = WorkerRegistry(database), WorkerRegistry(database)
    assert [mine.beat(), mine.beat()] == [False, True]
    assert [beat.worker_id for beat in other.others()] == [mine.me.id]
    other.strike(mine.me.id)
    assert [mine.beat(), mine.beat()] == [False, True]
    database.close()
