"""Plain code waits for async work, also where a loop runs already."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback

import pytest

from outrider._sync import ThreadPool, cancel_tasks, run_beside, run_sync

NOTEBOOK = """
import asyncio, signal
from outrider._sync import run_sync

async def work():
    print("begun", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("called off", flush=True)

async def cell():
    try:
        run_sync(work)
    except KeyboardInterrupt:
        print("interrupted", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel does while a cell runs
loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
loop.close()
"""


async def fails() -> None:
    raise ZeroDivisionError


def test_an_interrupt_in_a_notebook_ends_the_work():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", NOTEBOOK], stdout=subprocess.PIPE, text=True, env=environ) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "begun\n"
        notebook.send_signal(signal.SIGINT)
        try:
            output, _ = notebook.communicate(timeout=60)
        finally:
            notebook.kill()
        assert ("called off" in output, "interrupted" in output, notebook.returncode) == (True, True, 0)


def test_what_went_wrong_is_reported_without_how_it_was_called():
    with pytest.raises(ZeroDivisionError) as failed:
        run_sync(fails)
    assert failed.value.__context__ is None
    assert "no running event loop" not in "".join(traceback.format_exception(failed.value))


async def test_a_failure_next_to_a_running_loop_is_raised_in_the_caller():
    with pytest.raises(ZeroDivisionError):
        run_sync(fails)
    assert asyncio.get_running_loop().is_running()


async def test_cancelled_tasks_have_ended_and_their_errors_are_not_raised():
    ends: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ends.append(name)

    tasks = [asyncio.create_task(work("a")), asyncio.create_task(work("b")), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    await cancel_tasks(tasks)
    assert ends == ["a", "b"]
    assert all(task.done() for task in tasks)
    await cancel_tasks(tasks)
    await cancel_tasks([])


async def test_periodic_work_ends_with_its_block():
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    async with run_beside(work()):
        while rounds < 3:
            await asyncio.sleep(0)
    ended = rounds
    await asyncio.sleep(0.01)
    assert rounds == ended


async def test_a_thread_that_cannot_be_started_does_not_occupy_the_pool(monkeypatch: pytest.MonkeyPatch):
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = ThreadPool(limit=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            await pool.run(lambda: 1)
    async with asyncio.timeout(10):
        assert await pool.run(lambda: 2) == 2
    pool.close()
