"""A worker in a separate process, to be killed in the middle of its work: `worker_process.py DATABASE STORE EFFECTS`.

Its model is a function of what it is shown: a prompt "3 steps of x" gets three calls, one after the other, each with
an effect that is written down, and then an answer. "ask" in the prompt makes the last call one that asks; of "4 mixed
steps of x" every second one is safe to repeat. "delegate" has another agent make two calls, of which the
last one asks."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from outrider import Engine, Tool
from outrider.background.database import RunDatabase
from outrider.background.worker import Worker
from outrider.config.file import BackgroundTable
from outrider.providers.scripted import ScriptedClient, call
from outrider.sessions.postgres.store import PostgresStore
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.parts import ToolResultPart
from outrider.types.request import Delta, Request
from tests.fault.worker import say
from tests.scenario.scripted_runs import agent

PAUSE = float(os.environ.get("OUTRIDER_TEST_PAUSE", "0.15"))
REPEATABLE = "again:"  # before what is written down by the tool that is safe to repeat
OUTAGE_SECONDS = float(os.environ.get("OUTRIDER_TEST_OUTAGE", "0"))
HANGS = os.environ.get("OUTRIDER_TEST_HANGS", "")  # the name of an effect whose call never ends


def answer(request: Request) -> Any:
    """Numbers calls by the returned results, so that a run in another worker continues with the next call."""
    parts = [part for message in request.prompt for part in message.content]
    prompt = next(part.text for part in parts if getattr(part, "text", "").strip().startswith(tuple("0123456789")))
    steps, _, name = prompt.strip().partition(" steps of ")
    count, _, mixed = steps.partition(" ")
    given = sum(isinstance(part, ToolResultPart) for part in parts)
    if given >= int(count):
        return f"{name} is done after {given} calls"
    if name == "delegate":
        return call("call_agent", "delegate-0", agent_name="reviewer", message="2 steps of ask")
    tool = "risky" if given + 1 == int(count) and "ask" in name else "look" if mixed and given % 2 else "effect"
    return call(tool, f"{name}-{given}", name=f"{name}-{given}")


def tools(effects: Path) -> list[Tool]:
    def note(name: str) -> None:
        with effects.open("a") as file:
            file.write(f"{name}\n")

    async def effect(name: str) -> str:
        await asyncio.sleep(PAUSE)
        note(name)
        await asyncio.sleep(3600 if HANGS and name.endswith(HANGS) else PAUSE)
        return f"{name} has happened"

    async def look(name: str) -> str:
        return await effect(f"{REPEATABLE}{name}")

    def risky(name: str) -> str:
        note(name)
        return f"{name} has happened"

    return [Tool(effect), Tool(look, repeatable=True), Tool(risky, policy="ask")]


class ForgetfulModel(ScriptedClient):
    """A scripted model stores its requests; in a worker that works for long, their memory would hide other growth."""

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        async for delta in super().stream(request):
            yield delta
        self.requests.clear()


def store_at(place: str) -> Store:
    return (
        PostgresStore(place, outage_seconds=OUTAGE_SECONDS)
        if place.startswith("postgresql")
        else SqliteStore(Path(place))
    )


async def main(database: str, place: str, effects: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    terms = msgspec.json.decode(os.environ.get("OUTRIDER_TEST_TERMS", "{}"), type=BackgroundTable)
    async with (
        store_at(place) as store,
        Engine(
            [agent(), agent("reviewer", "You review.")],
            [ForgetfulModel(answer, rules="anthropic")],
            tools(Path(effects)),
            store=store,
        ) as engine,
        Worker(engine, RunDatabase(database), limits=terms, poll=0.1, heartbeat=0.5, dead_after=3) as worker,
    ):
        say(worker=worker.id)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
