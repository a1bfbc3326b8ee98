"""Background runs of a program of one's own: an engine whose `submit` keeps work, and handles to look at it."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Self, Unpack

from outrider.engine.engine import Engine

if TYPE_CHECKING:
    from outrider.background.follow import Called
    from outrider.background.jobs import Jobs, Order
    from outrider.background.records import Run
    from outrider.background.reports import Report
    from outrider.sessions.records import Change


class RunHandle:
    """One run, wherever it is worked on. It can be had again by its `id`, also by another program."""

    def __init__(self, run_id: str, jobs: "Jobs") -> None:
        self.id = run_id
        self._jobs = jobs

    async def show(self) -> "Run":
        """Where it stands now."""
        return await self._jobs.show(self.id)

    async def result(self) -> "Report":
        """What came of it, once it is over: `summary`, `outcome` (why it ended, tokens, cost) and `changes` (a diff).
        A run that waits for an answer is waited for."""
        async with aclosing(self.events()) as news:
            async for _ in news:
                pass
        return await self._jobs.report(self.id) or _without_report(await self.show())

    def events(self, *, after: int = 0, called: bool = False) -> "AsyncGenerator[Change | Called | Run, None]":
        """The `Run` whenever it stands somewhere else, and every change of its session newer than number `after`; with
        `called` also those of the agents that it calls."""
        from outrider.background.follow import follow

        return follow(self._jobs, self.id, after=after, called=called)

    async def cancel(self) -> None:
        """End it, with everything kept."""
        await self._jobs.cancel(self.id)


def _without_report(run: "Run") -> "Report":
    """Of a run that ended before anybody worked on it, or that no worker could carry to an end of its own."""
    from outrider.background.records import Outcome
    from outrider.background.reports import Report

    if run.outcome is None:
        return Report(outcome=Outcome(reason="aborted" if run.state == "canceled" else "error"))
    return Report(outcome=run.outcome)


class Background:
    """Keeps runs for an engine, and carries them on while it is open:

        async with Engine(agents, providers, store=store) as engine, Background(engine, "sqlite:////data/runs.sqlite"):
            handle = await engine.submit("look for dead links", workspace="/home/me/site")
            print((await handle.result()).summary)

    What is not finished when it closes goes on when one is open again, here or on another machine: that needs a `store`
    and a `database` that last, and that both share. With `works=False` it only submits and looks, and others work."""

    def __init__(self, engine: Engine, database: str, *, works: bool = True) -> None:
        self._engine = engine
        self._url = database
        self._works = works
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from outrider.background.database import Database
        from outrider.background.jobs import open_jobs
        from outrider.background.worker import Worker

        async with AsyncExitStack() as opening:
            database = Database(self._url)
            opening.callback(database.close)
            self._jobs = await opening.enter_async_context(open_jobs(database, self._engine.store))
            if self._works:
                await opening.enter_async_context(Worker(self._engine, database))
            self._engine.background = self
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._engine.background = None
        await self._opened.aclose()

    async def submit(self, prompt: str, **order: "Unpack[Order]") -> RunHandle:
        """Keep a run. `workspace` is the folder to work in, `agent` the one who begins, `limits` hold for the whole
        run; `place` says when it is its turn. The same `run_id` submits the same run once."""
        return RunHandle((await self._jobs.submit(prompt, **order)).id, self._jobs)

    def run(self, run_id: str) -> RunHandle:
        """One that was submitted before."""
        return RunHandle(run_id, self._jobs)
