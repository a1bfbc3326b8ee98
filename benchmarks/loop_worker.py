"""One job of the shared peer benchmark, run with Outrider: the same jobs and measuring code as for every peer.

Started by bench_loop: python -m benchmarks.loop_worker JOB SERVER PARAMS
"""

import asyncio
import gc
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.mock_server import PEERBENCH

sys.path.insert(0, str(PEERBENCH))
base: Any = importlib.import_module("peers.base")
worker: Any = importlib.import_module("worker")

# The measured code is imported after the path is set, as in the workers of the peers.
from outrider import Agent, Engine, EventBus, Limits, Provider, Tool, async_run, async_run_stream  # noqa: E402
from outrider.sessions.sqlite.store import SqliteStore  # noqa: E402

LIMITS = Limits(turns=2_000)
IDLE_SECONDS = 12  # a lease is renewed every ten seconds
WRITING = {"write_file", "edit_file", "run_shell"}


class Built:
    """An agent with its provider and tools. Tools that only read are declared read-only: no fsync precedes their
    calls. With `careful`, no tool is declared read-only."""

    def __init__(self, base_url: str, tools: tuple[Callable[..., Any], ...], *, careful: bool = False) -> None:
        self.agent = Agent("bench", base.SYSTEM_PROMPT, base.MODEL, "mock", stream=False)
        self.provider = Provider("mock", "openai", base.API_KEY, base_url)
        self.tools = [Tool(function, read_only=not careful and function.__name__ not in WRITING) for function in tools]
        self.engine: Engine | None = None


class Running(base.Adapter):
    """Each prompt is a separate run, in memory, as with the peers."""

    name = dist = "outrider"
    imports = "from outrider import Agent, run"

    def build(self, base_url: str, tools: tuple[Callable[..., Any], ...]) -> Built:
        return Built(base_url, tools)

    async def run(self, agent: Built, prompt: str) -> str:
        result = await async_run(agent.agent, prompt, (), agent.tools, [agent.provider], limits=LIMITS)
        return result.output

    async def stream(self, agent: Built, prompt: str) -> int:
        """Streams through the engine and its bus to a listener."""
        entry = Agent("bench", base.SYSTEM_PROMPT, base.MODEL, "mock")
        events = async_run_stream(entry, prompt, (), agent.tools, [agent.provider])
        return sum([event.type == "token" async for event in events])


class Stored(Running):
    """Each prompt is a session of an engine: stored in SQLite, with a listener for every event."""

    def __init__(self, folder: str, *, careful: bool = False) -> None:
        self._folder = Path(folder)
        self._careful = careful
        self._engines: list[Engine] = []
        self._store: SqliteStore | None = None
        self.received = 0

    def build(self, base_url: str, tools: tuple[Callable[..., Any], ...]) -> Built:
        return Built(base_url, tools, careful=self._careful)

    async def run(self, agent: Built, prompt: str) -> str:
        engine = agent.engine or await self._open(agent)
        session = await engine.create(workspace=self._folder)
        end = await engine.prompt(session, prompt)
        await engine.close(session)
        return end.output

    async def close(self) -> None:
        for engine in self._engines:
            await engine.__aexit__(None, None, None)
        if self._store is not None:
            await self._store.close()

    async def _open(self, agent: Built) -> Engine:
        if self._store is None:
            self._store = SqliteStore(self._folder / "sessions.db")
            await self._store.__aenter__()
        bus = EventBus()
        bus.subscribe_all(self._receive)
        engine = Engine([agent.agent], [agent.provider], agent.tools, store=self._store, bus=bus, limits=LIMITS)
        self._engines.append(engine)
        agent.engine = await engine.__aenter__()
        return agent.engine

    def _receive(self, _: object) -> None:
        self.received += 1


class OurJobs:
    def __init__(self, server: str) -> None:
        self._server = server

    async def shared(self, job: str, *, stored: bool, careful: bool = False, **params: Any) -> dict[str, Any]:
        """A job of the shared benchmark."""
        with tempfile.TemporaryDirectory() as folder:
            adapter = Stored(folder, careful=careful) if stored else Running()
            measured = await getattr(worker.Jobs(adapter, self._server), job)(**params)
            if isinstance(adapter, Stored):
                assert adapter.received
                await adapter.close()
            return measured

    async def schemas(self, count: int = 50) -> dict[str, Any]:
        """Creates an agent and the schemas of its tools."""
        times: list[float] = []
        for _ in range(count):
            start = time.process_time_ns()
            [tool.spec() for tool in Built(self._server, base.TOOLS).tools]
            times.append((time.process_time_ns() - start) / 1e3)
        return {"median_us": sorted(times)[count // 2]}

    async def idle(self, sessions: int = 10_000) -> dict[str, Any]:
        """Opens sessions that stay idle."""
        built = Built(f"{self._server}/default/v1", base.TOOLS)
        with tempfile.TemporaryDirectory() as folder:
            async with (
                SqliteStore(Path(folder) / "sessions.db") as store,
                Engine([built.agent], [built.provider], built.tools, store=store) as engine,
            ):
                await engine.create(workspace=folder)
                gc.collect()
                before = worker.status_kb("VmRSS")
                for _ in range(sessions):
                    await engine.create(workspace=folder)
                start = time.process_time()
                await asyncio.sleep(IDLE_SECONDS)
                held = time.process_time() - start
                gc.collect()
                return {
                    "peak_kb": worker.status_kb("VmHWM"),
                    "kb_each": (worker.status_kb("VmRSS") - before) / sessions,
                    "idle_cpu": held / IDLE_SECONDS,
                }


def main() -> None:
    job, server, params = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    jobs = OurJobs(server)
    work: Callable[..., Coroutine[Any, Any, dict[str, Any]]] = getattr(jobs, job, None) or (
        lambda **given: jobs.shared(job, **given)
    )
    print("RESULT " + json.dumps(asyncio.run(work(**params))), flush=True)


if __name__ == "__main__":
    main()
