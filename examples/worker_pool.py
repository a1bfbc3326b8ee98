"""Workers: one process submits, several execute. With OUTRIDER_DATABASE_URL=postgresql://… they run on any machine."""

import asyncio
import os
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from outrider import Agent, Background, Engine, Limits, Provider, Store, Tool
from outrider.stores import PostgresStore, SqliteStore

URL = os.environ.get("OUTRIDER_DATABASE_URL", "")


@Tool(repeatable=True)
def measure(text: str) -> int:
    """Return the length of a text."""
    return len(text)


def open_store(folder: str) -> AbstractAsyncContextManager[Store]:
    return PostgresStore(URL) if URL else SqliteStore(Path(folder) / "sessions.db")


async def submit_and_wait(folder: str) -> None:
    script = [{"tool": "measure", "input": {"text": "tea"}}, "It has 3 letters."]
    model = Provider("demo", kind="scripted", options={"script": script * 3})
    counter = Agent("counter", "You measure texts.", model="demo", provider="demo", mode="background")
    async with (
        open_store(folder) as store,
        Engine([counter], [model], [measure], store=store) as engine,
        Background(engine, URL or f"sqlite:///{folder}/runs.sqlite"),  # a worker; `works=False` only submits
    ):
        prompts = [f"Measure text {number}." for number in range(3)]
        runs = [await engine.submit(prompt, workspace=folder, limits=Limits(turns=5)) for prompt in prompts]
        for run in runs:
            report = await run.result()
            print(report.summary, report.outcome.reason)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(submit_and_wait(folder))
