"""There is one local worker for each data folder; it exits only when there is nothing to do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.local_worker import (
    MAX_LOG_BYTES,
    WorkerLock,
    collect_launch_values,
    truncate_log,
    wait_until_idle,
    was_launched_differently,
)

HOLD = """
import sys
from pathlib import Path
from outrider.background.local_worker import WorkerLock
post = WorkerLock(Path(sys.argv[1]))
print(post.acquire(), flush=True)
sys.stdin.read()
"""


class FewJobs:
    """Reports work as often as it was configured to."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    async def has_work(self) -> bool:
        return self.answers.pop(0) if self.answers else False


@pytest.mark.slow
def test_a_post_is_held_by_one_process_and_free_when_that_is_killed(tmp_path: Path):
    post = WorkerLock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"True\n"
        holder = post.holder()
        assert (holder and holder.pid, post.acquire()) == (child.pid, False)
        child.kill()
        if sys.platform == "linux":
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert post.holder() is None, "it has ended, also if nobody has asked how"
    assert (post.holder(), post.acquire()) == (None, True)
    post.release()
    assert post.holder() is None


def test_a_client_with_other_launch_values_notices_it_and_reads_no_key(tmp_path: Path):
    environ = {"OPENAI_API_KEY": "a secret", "OUTRIDER_HOME": "/here", "LANG": "C"}
    post = WorkerLock(tmp_path, collect_launch_values(environ, "1.0"))
    assert post.acquire()
    holding = post.holder()
    assert holding is not None
    assert not was_launched_differently(
        holding, collect_launch_values({**environ, "LANG": "de", "OUTRIDER_HOME": "~/here"}, "1.0")
    )
    assert was_launched_differently(holding, collect_launch_values({**environ, "OPENAI_API_KEY": "another"}, "1.0"))
    assert was_launched_differently(
        holding, collect_launch_values({**environ, "OPENAI_BASE_URL": "http://here"}, "1.0")
    )
    assert was_launched_differently(holding, collect_launch_values(environ, "1.1"))
    assert b"a secret" not in (tmp_path / "worker.lock").read_bytes()
    post.release()
    plain = WorkerLock(tmp_path)
    assert plain.acquire()
    assert not was_launched_differently(plain.holder() or holding, collect_launch_values({}, "2.0")), (
        "a worker that was started by hand is as wanted"
    )
    plain.release()


async def test_a_worker_leaves_its_post_before_it_looks_a_last_time_and_stays_if_there_is_something(tmp_path: Path):
    post = WorkerLock(tmp_path)
    assert post.acquire()
    jobs: Any = FewJobs(False, True)
    await wait_until_idle(jobs, post, seconds=0.01, poll=0.02)
    assert not jobs.answers
    assert post.holder() is None


def test_a_log_that_is_too_long_is_started_anew_and_written_on(tmp_path: Path):
    log = tmp_path / "worker.log"
    with log.open("ab", buffering=0) as file:
        file.write(b"x" * (MAX_LOG_BYTES + 1))
        truncate_log(log)
        file.write(b"later\n")
        truncate_log(log)
    assert log.read_bytes() == b"later\n"
    assert (tmp_path / "worker.log.old").stat().st_size == MAX_LOG_BYTES + 1
    truncate_log(tmp_path / "missing.log")


async def test_a_worker_whose_lock_was_acquired_meanwhile_exits(tmp_path: Path):
    post, next_one = WorkerLock(tmp_path), WorkerLock(tmp_path)
    assert post.acquire()

    class Meanwhile(FewJobs):
        async def has_work(self) -> bool:
            if post.holder() is None:
                assert next_one.acquire()
                return True
            return False

    jobs: Any = Meanwhile()
    await wait_until_idle(jobs, post, seconds=0.01, poll=0.02)
    assert not post.acquire()
    next_one.release()
