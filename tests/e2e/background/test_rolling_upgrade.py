"""Workers are replaced one after the other, as in a rolling upgrade: no call is interrupted, and files move along."""

import asyncio
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")
pytest.importorskip("psycopg", reason="SKIPPED: no tests against Postgres, since psycopg is not installed")

from outrider.sessions.postgres.store import PostgresStore
from outrider.types.messages import Message
from tests.e2e.background.chaos import STEPS, Site, site
from tests.e2e.background.test_outages import server
from tests.unit.background.repositories import repository, run_git

__all__ = ["server"]
COUNT = 4


def details(there: Site, run_id: str) -> dict[str, Any]:
    return json.loads(there.run("jobs", "show", run_id, "--json"))


def wait_until_in_the_middle(there: Site) -> None:
    """Waits for a job that has executed its first command and asks for the next one."""
    deadline = time.monotonic() + 120
    while not there.model.waiting:
        assert time.monotonic() < deadline, "no run has started"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_new_worker_takes_over_without_an_interrupted_call_and_with_all_files(tmp_path: Path, server: Any):
    """The workers have different data folders, and so different worktrees. Nothing is committed before the end."""
    with site(tmp_path, server, pause=0.7) as there:
        there.model.continues.clear()
        there.start(0)
        folder = repository(there.work / "repo")
        for number in range(COUNT):
            there.run("jobs", "submit", f"job j{number}", folder=folder)
        run_ids = [json.loads(line)["id"] for line in there.run("jobs", "list", "--json").splitlines()]
        wait_until_in_the_middle(there)
        there.start(1)
        release = threading.Timer(1, there.model.continues.set)
        release.start()
        there.end(0, signal.SIGTERM)
        release.join()
        states = there.wait_for_end(COUNT, 120)
        assert states == {"done": COUNT}, [there.run("jobs", "show", run_id) for run_id in run_ids]
        moved = 0
        for run_id in run_ids:
            found = details(there, run_id)
            name = found["prompt"].removeprefix("job ")
            branch = found["worktree"]["branch"]
            assert run_git(folder, "show", f"{branch}:effects").split() == [f"{name}-{step}" for step in range(STEPS)]
            assert found["snapshot"] is None, "the branch has everything"
            transcript = asyncio.run(load_transcript(there, run_id))
            calls = [call for message in transcript for call in message.get_calls()]
            assert {call.state.status for call in calls} == {"completed"}
            moved += any("were restored" in message.get_text_content() for message in transcript)
        assert moved, "at least one run has moved in the middle"


async def load_transcript(there: Site, run_id: str) -> list[Message]:
    async with PostgresStore(there.url) as store:
        return (await store.load(run_id)).messages
