"""The checks that run after every test report leaked tasks and processes."""

import asyncio
import subprocess
import sys

import pytest

from tests.fixtures.leaks import child_processes, leaked_processes, leaked_tasks

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")


async def test_a_task_that_still_runs_is_found():
    before = asyncio.all_tasks()
    task = asyncio.create_task(asyncio.Event().wait())
    assert len(await leaked_tasks(before, grace=0.01)) == 1
    task.cancel()
    assert await leaked_tasks(before) == []


@needs_proc
def test_a_process_that_still_runs_is_found_and_killed():
    before = child_processes()
    child = subprocess.Popen(["sleep", "60"])
    assert leaked_processes(before, grace=0) == {child.pid: "sleep 60"}
    assert child.wait(timeout=30) is not None
    assert leaked_processes(before) == {}


@needs_proc
def test_a_process_that_outlives_its_parent_is_found_as_well():
    before = child_processes()
    subprocess.run(["sh", "-c", "sleep 61 >/dev/null 2>&1 &"], check=True)
    assert len(leaked_processes(before, grace=0)) == 1
