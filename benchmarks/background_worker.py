"""A worker for the figures of background runs: `python -m benchmarks.background_worker DATABASE STORE EFFECTS`.

The scripted model computes its answers from the prompt: for "20 steps of 0.25 s" it makes twenty calls, each of which
sleeps that long and then writes the time to a file. With FAR set, the worker treats other workers as processes on other
machines."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider import Agent, Engine, Limits, Provider, Tool
from outrider.background.database import RunDatabase
from outrider.background.heartbeat import FailureDetector
from outrider.background.worker import Worker
from outrider.config.file import BackgroundTable
from outrider.engine.factory import create_store
from outrider.providers.scripted import call
from outrider.sessions.store import Store
from outrider.types.parts import ToolResultPart
from outrider.types.request import Request


def answer(request: Request) -> Any:
    parts = [part for message in request.prompt for part in message.content]
    prompt = next(text for part in parts if " steps of " in (text := getattr(part, "text", "")))
    steps, _, rest = prompt.strip().partition(" steps of ")
    given = sum(isinstance(part, ToolResultPart) for part in parts)
    if given >= int(steps):
        return "done"
    return call("work", f"c{given}", seconds=float(rest.split()[0]), number=given)


def engine(store: Store | None, note: Callable[[int], None]) -> Engine:
    async def work(seconds: float, number: int) -> str:
        if seconds:
            await asyncio.sleep(seconds)
        note(number)
        return "worked"

    provider = Provider("scripted", "scripted", options={"script": answer})
    agent = Agent("worker", "You work.", "model-1", "scripted")
    return Engine([agent], [provider], [Tool(work)], store=store, limits=Limits(turns=None))


async def main(database: str, place: str, effects: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Path(effects).open("a", buffering=1) as file:  # noqa: ASYNC230  runs before the event loop has other work

        def note(number: int) -> None:
            file.write(f"{time.time()} {number}\n")

        server = place if place.startswith("postgresql") else None
        async with (
            create_store(Path(place), server, max_connections=3) as store,
            engine(store, note) as agents,
            Worker(
                agents, RunDatabase(database), limits=BackgroundTable(runs=int(os.environ.get("RUNS", "4")))
            ) as worker,
        ):
            if os.environ.get("FAR"):
                worker._failure_detector = FailureDetector(4.0, alive=lambda _: None)  # the identity of another host
            print(worker.id, flush=True)
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
