"""What the context ledger costs: the CPU time of a stored turn and the size of the database, with and without it."""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import Figure
from outrider import Agent, Engine, Provider, Tool
from outrider.agents.step import ModelStep
from outrider.models.context_ledger import build_report
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.request import BodyLayout

ROUNDS = 8
SESSIONS, TURNS = 3, 6
INSTRUCTIONS = "You are a careful engineer. Read before you write, and run the tests. " * 60

SERVER = """
from outrider.testing import Simulator, call
from outrider.testing.simulator import SimulatedRequest
import time

def answer(request: SimulatedRequest):
    number = len(simulator.requests)
    if number % 5 == 0:
        return "That is done: " + "all of it. " * 20
    return ["I look at the next file. ", call("look_up", f"c{number}", name=f"file {number}")]

with Simulator(answer) as simulator:
    print(simulator.url("openai"), flush=True)
    while True:
        time.sleep(60)
"""


def look_up(name: str) -> str:
    """Look up a file and return its lines."""
    return f"{name}: a line of a file with some words in it\n" * 40


def make_tools() -> list[Tool]:
    described = "Does one thing of many, and describes at some length when to use it and when not. " * 6
    return [
        Tool(look_up, read_only=True),
        *(Tool(look_up, name=f"tool_{number}", description=described) for number in range(12)),
    ]


@contextmanager
def simulator() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def run_sessions(url: str, folder: Path) -> tuple[float, int]:
    """Returns the CPU seconds of all turns and the bytes of the database."""
    file = folder / "sessions.db"
    agent = Agent("bench", INSTRUCTIONS, "gpt-4.1", "mock")
    provider = Provider("mock", "openai", "key", url)
    async with SqliteStore(file) as store, Engine([agent], [provider], make_tools(), store=store) as engine:
        await engine.prompt(await engine.create(), "warm up")
        start = time.process_time()
        for _ in range(SESSIONS):
            session = await engine.create()
            for turn in range(TURNS):
                await engine.prompt(session, f"Question {turn}: what is in the next files?")
        spent = time.process_time() - start
    return spent, file.stat().st_size


def _skip_record(step: ModelStep, body: bytes, layout: BodyLayout) -> None:
    """Replaces the recording of requests, to measure turns without it."""


def bench() -> list[Figure]:
    """Alternates between turns with and without the ledger; each pair gives one ratio."""
    record = ModelStep._record_request
    cpu: dict[bool, list[float]] = {True: [], False: []}
    size: dict[bool, int] = {}
    with simulator() as url, tempfile.TemporaryDirectory() as folder:
        for number in range(2 * ROUNDS):
            recorded = number % 2 == 1
            ModelStep._record_request = record if recorded else _skip_record  # type: ignore[method-assign]
            place = Path(folder, str(number))
            place.mkdir()
            spent, size[recorded] = asyncio.run(run_sessions(url, place))
            cpu[recorded].append(spent)
        report_ms = asyncio.run(time_report(place))
    share = min(cpu[True]) / min(cpu[False]) - 1
    growth = size[True] / size[False] - 1
    turn = statistics.median(cpu[True]) / SESSIONS / TURNS * 1000
    return [
        Figure("context ledger: CPU of a stored turn", turn, "ms", 1 + share, "<= 1.03x", share <= 0.03),
        Figure("context ledger: size of the database", size[True] / 1e6, "MB", 1 + growth, "<= 1.1x", growth <= 0.1),
        Figure("context ledger: report of a session", report_ms, "ms", None, "<= 500", report_ms <= 500),
    ]


async def time_report(folder: Path) -> float:
    """Returns the milliseconds for the report of the last session."""
    async with SqliteStore(folder / "sessions.db") as store:
        session = (await store.list()).sessions[0]
        messages = (await store.load(session.id)).messages
    start = time.perf_counter()
    report = build_report(session.id, messages)
    assert report.steps
    assert all(step.exact for step in report.steps)
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    for figure in bench():
        print(figure)
