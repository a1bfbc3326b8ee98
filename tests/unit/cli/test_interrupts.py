"""A second interrupt ends the program at once, even if something hangs."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HANGS = """
import asyncio, threading
from outrider.cli.commands.run import handle_interrupts

async def main():
    with handle_interrupts() as interrupts:
        print("begun", flush=True)
        await interrupts.requested.wait()
        print("heard", flush=True)
        {hang}

asyncio.run(main())
"""
WORKER = """
import asyncio, sys
from contextlib import asynccontextmanager
from types import SimpleNamespace
from outrider.background import factory as standard
from outrider.cli.main import main

@asynccontextmanager
async def endless(*_, **__):
    yield SimpleNamespace(id="worker-1", export_telemetry=lambda _: None, grace=30.0, drain=asyncio.Event().wait)
    await asyncio.Event().wait()

standard.standard_worker = endless
sys.stderr = sys.stdout
sys.exit(main(["worker"]))
"""

HANGING_TURN = """
import asyncio, contextlib, sys, time
from outrider.cli.main import main
from outrider.engine import factory
from outrider.providers.scripted import ScriptedClient

async def stream(self, request):
    print("begun", flush=True)
    end = time.monotonic() + 3.5
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)
    raise asyncio.CancelledError
    yield

factory.CALLBACK_SECONDS = 2.5
ScriptedClient.stream = stream
sys.stderr = sys.stdout
sys.exit(main(["run", "hello"]))
"""


def asked_twice(program: str, *signs: str, **environ: str) -> int:
    """The exit code, after an interrupt at each sign."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}) as child:
        assert child.stdout is not None
        for sign in signs:
            assert any(sign in line for line in iter(child.stdout.readline, "")), f"it ended without {sign!r}"
            child.send_signal(signal.SIGINT)
        return child.wait(60)


@pytest.mark.parametrize("hang", ["await asyncio.Event().wait()", "threading.Event().wait()"])
def test_a_second_signal_ends_what_hangs_be_it_the_loop_itself(hang: str):
    assert asked_twice(HANGS.format(hang=hang), "begun", "heard") == 130


@pytest.mark.slow
@pytest.mark.skipif(find_spec("dbos") is None, reason="SKIPPED: dbos is not installed")
def test_a_worker_whose_end_hangs_ends_at_once_when_it_is_asked_twice(tmp_path: Path):
    assert asked_twice(WORKER, "waiting for runs", "a second signal", OUTRIDER_HOME=str(tmp_path)) == 130


@pytest.mark.slow
def test_a_turn_that_ignores_the_interrupt_ends_without_a_traceback(tmp_path: Path):
    (tmp_path / "config.toml").write_text(
        'model = "script/demo"\n[providers.script]\nkind = "scripted"\n'
        '[providers.script.options]\nscript = ["unused"]\n'
    )
    command = [sys.executable, "-c", HANGING_TURN]
    environ = {**os.environ, "OUTRIDER_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path) as child:
        assert child.stdout is not None
        assert any("begun" in line for line in iter(child.stdout.readline, ""))
        child.send_signal(signal.SIGINT)
        text = child.communicate(timeout=60)[0]
    assert "Traceback" not in text
    assert "the turn stopped early: aborted" in text
    assert child.returncode == 130
