"""An engine process that a test suspends while its model answers: `suspended_engine.py KIND URL STORE`."""

import asyncio
import sys

from outrider import Agent, Engine, Provider
from outrider.events import PartDeltaEvent
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing.simulator_answers import SIMULATED_APIS


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(kind: str, url: str, path: str) -> None:
    options = {"timeouts": {"idle": 0.5}, "retry": {"attempts": 1}}
    provider = Provider("vendor", kind, "key", url, options=options)  # type: ignore[arg-type]
    entry = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "vendor")
    shown: list[str] = []

    def receive(event: PartDeltaEvent) -> None:
        shown.append(event.delta)
        if "".join(shown) == "half an answer":
            say("half an answer")

    async with SqliteStore(path) as store, Engine([entry], [provider], store=store) as engine:
        session = await engine.create()
        say(session)
        engine.bus.subscribe(PartDeltaEvent, receive)
        say((await engine.prompt(session, "go")).reason)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
