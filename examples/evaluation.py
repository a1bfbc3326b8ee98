"""An evaluation: cases with checks, two prompts, repeated attempts, and the answer to "is the new prompt better?"."""

import asyncio
import random

from outrider import Agent, Provider, Request
from outrider.evals import AnswerCheck, EvalCase, EvalMatrix, EvalOutcome, EvalSuite, async_run_suite, compare_runs
from outrider.testing import scripted_model


def is_short(outcome: EvalOutcome) -> str | None:
    """A custom check: None if the attempt passes, else the reason."""
    words = len(outcome.answer.split())
    return None if words <= 3 else f"{words} words"


SUITE = EvalSuite(
    name="facts",
    cases=(
        EvalCase(name="sum", prompt="2 + 2?", checks=(AnswerCheck(matches=r"\b4\b"), is_short)),
        EvalCase(name="capital", prompt="The capital of France?", checks=(AnswerCheck(contains="Paris"), is_short)),
        EvalCase(name="sky", prompt="Is the sky blue?", checks=(AnswerCheck(matches="yes"), is_short)),
    ),
    matrix=EvalMatrix(prompts={"before": "You answer questions.", "after": "You answer questions in one word."}),
    repeat=8,
    concurrency=1,
)


def make_model(seed: int) -> Provider:
    """A model for demonstration: it talks a lot unless its instructions ask for one word."""
    chance = random.Random(seed)
    answers = {"2 + 2?": "4", "The capital of France?": "Paris", "Is the sky blue?": "Yes"}

    def answer(request: Request) -> str:
        text = next(text for question, text in answers.items() if question in str(request.prompt[0].content))
        talks = chance.random() < (0.05 if "one word" in (request.system or "") else 0.7)
        return f"Well, I would say that it is {text}." if talks else text

    return scripted_model(answer)


async def main() -> None:
    agent = Agent("candidate", "", model="demo", provider="demo")
    run = await async_run_suite(SUITE, [agent], [make_model(1)])
    for variant in run.variants:
        print(f"{variant.name}: {run.pass_rate(variant=variant.name)}")
    print(f"before -> after: {compare_runs(run, run, variants=('before', 'after')).verdict}")
    again = await async_run_suite(SUITE, [agent], [make_model(2)])
    print(f"after, twice: {compare_runs(run, again, variants=('after', 'after')).verdict}")


if __name__ == "__main__":
    asyncio.run(main())
