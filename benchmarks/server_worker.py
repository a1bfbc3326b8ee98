"""A server process with a scripted model that streams; it answers requests for its own figures on stdin."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from outrider import Agent, Engine, Provider
from outrider.server.app import create_app
from outrider.server.auth import ListenAddress, RequestGuard
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.server import OutriderServer, bind_socket
from outrider.sessions.sqlite.store import SqliteStore

TOKEN = "a-token-that-is-long-enough-for-a-server"


class Course(msgspec.Struct):
    """How the model streams: the number of chunks, their size in characters, and the seconds between them."""

    pieces: int
    characters: int = 12
    pause: float = 0.02

    def text(self) -> str:
        return "".join(f"{number:>{self.characters - 1}} " for number in range(self.pieces))


async def main(folder: Path, course: Course) -> None:
    script = {"script": lambda _: course.text(), "chunk": course.characters, "delay": course.pause}
    provider = Provider("scripted", "scripted", options=script)
    store = SqliteStore(folder / "sessions.db")
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(store)
        agent = Agent("writer", "You write.", "model-1", "scripted")
        engine = await opened.enter_async_context(Engine([agent], [provider], [], store=store))
        listening, address = bind_socket(ListenAddress())
        feeds = SessionFeedRegistry(engine)
        app = create_app(engine, feeds, address=address, token=TOKEN, version="0")
        server = OutriderServer(app, address, feeds)
        serving = asyncio.create_task(server.serve([listening]))
        say(address.port)
        await answer_questions({"cpu": cpu, "rss": rss, "engine": engine_calls(engine, app)})
        server.should_exit = True
        await serving


def say(value: Any) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


async def answer_questions(answers: dict[str, Callable[..., Awaitable[float]]]) -> None:
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        say(await answers[line[0]](*line[1:]))


async def cpu() -> float:
    return time.process_time()


async def rss() -> float:
    """Bytes of memory that only this process uses."""
    rollup = Path("/proc/self/smaps_rollup").read_text()  # noqa: ASYNC240 - no request is served meanwhile
    fields = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
    return (int(fields["Private_Dirty"].split()[0]) + int(fields["Private_Clean"].split()[0])) * 1024


def engine_calls(engine: Engine, _: RequestGuard) -> Callable[..., Awaitable[float]]:
    async def calls(session_id: str, count: str) -> float:
        """CPU seconds that one call of the engine takes."""
        start = time.process_time()
        for _ in range(int(count)):
            await engine.store.get(session_id)
        return (time.process_time() - start) / int(count)

    return calls


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Course)))
