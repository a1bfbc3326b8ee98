"""A batch: many inputs, at most four at a time, each with its own limit; failures do not stop the others."""

import asyncio

from outrider import Agent, Limits, OutriderError, Provider, async_run

TICKETS = ["refund please", "where is my order", "you are great", "cancel my account"]


async def classify(ticket: str, gate: asyncio.Semaphore) -> str:
    label = "praise" if "great" in ticket else "request"
    model = Provider("demo", kind="scripted", options={"script": [label]})
    agent = Agent("sorter", "Answer with one word: praise or request.", model="demo", provider="demo")
    async with gate:
        try:
            return (await async_run(agent, ticket, providers=[model], limits=Limits(turns=2, seconds=30))).output
        except OutriderError as error:
            return f"failed: {error}"


async def main() -> None:
    gate = asyncio.Semaphore(4)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(classify(ticket, gate)) for ticket in TICKETS]
    for ticket, task in zip(TICKETS, tasks, strict=True):
        print(f"{task.result():8} {ticket}")


if __name__ == "__main__":
    asyncio.run(main())
