"""An evaluation: cases run at the same time, a function scores each answer, and a table compares two models."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from outrider import Agent, Limits, Provider, async_run


@dataclass
class Case:
    question: str
    passes: Callable[[str], bool]


CASES = [
    Case("2 + 2?", lambda answer: "4" in answer),
    Case("The capital of France?", lambda answer: "Paris" in answer),
    Case("Answer in one word: is the sky blue?", lambda answer: len(answer.split()) == 1),
]


async def evaluate(agent: Agent, make_provider: Callable[[int], Provider]) -> list[bool]:
    """Run every case in its own session and return which of them passed."""
    async with asyncio.TaskGroup() as group:
        runs = [
            group.create_task(
                async_run(agent, case.question, providers=[make_provider(number)], limits=Limits(turns=5))
            )
            for number, case in enumerate(CASES)
        ]
    return [case.passes(run.result().text) for case, run in zip(CASES, runs, strict=True)]


async def main() -> None:
    answers = {"large": ["4", "Paris", "Yes."], "small": ["5", "Paris", "Yes, it is."]}
    for name, texts in answers.items():
        agent = Agent("candidate", "Answer briefly.", model=name, provider="demo")
        passed = await evaluate(
            agent, lambda number, texts=texts: Provider("demo", kind="scripted", options={"script": [texts[number]]})
        )
        print(f"{name}: {sum(passed)} of {len(CASES)}")
        for case, good in zip(CASES, passed, strict=True):
            print(f"  {'passed' if good else 'failed'}  {case.question}")


if __name__ == "__main__":
    asyncio.run(main())
