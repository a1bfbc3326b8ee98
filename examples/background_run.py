"""Submits a background run, follows it while a worker executes it, and reads its report by id."""

import asyncio
import tempfile
from pathlib import Path

from outrider import Agent, Background, Engine, Limits, Provider, Tool
from outrider.providers.scripted import call
from outrider.stores import SqliteStore

# The model's answers are predefined, so no key is needed.
SCRIPT = [[call("count_words", "call_1", text="tea with milk")], "There are three words."]


@Tool
def count_words(text: str) -> str:
    """Count the words of a text."""
    return str(len(text.split()))


async def main() -> None:
    agent = Agent("counter", "You count.", "model-1", "scripted", mode="background")
    provider = Provider("scripted", "scripted", options={"script": SCRIPT})
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/runs.sqlite"
        async with (
            SqliteStore(Path(folder) / "sessions.db") as store,
            Engine([agent], [provider], [count_words], store=store) as engine,
            Background(engine, database) as background,
        ):
            handle = await engine.submit("How many words?", workspace=folder, limits=Limits(turns=5))
            async for news in handle.events():
                print(f"  {type(news).__name__:14}", getattr(news, "state", ""))
            report = await background.run(handle.id).result()
    print(f"\n{report.summary} ({report.outcome.reason} after {report.outcome.steps} steps)")


if __name__ == "__main__":
    asyncio.run(main())
