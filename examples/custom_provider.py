"""A provider of the program: any source of answers, with streamed text, a price, and errors that are retried."""

import asyncio
from collections.abc import AsyncGenerator

from outrider import Agent, Limits, OverloadedError, RetryPolicy, TextPart, async_run
from outrider.providers import (
    Delta,
    Finish,
    ModelDescription,
    PartEnd,
    PartStart,
    Request,
    TextDelta,
    Tokens,
    UsageReport,
)
from outrider.testing import check_provider


class Parrot:
    """Repeats the user's words. Its first request fails, as if a server were overloaded."""

    name = "parrot"

    def __init__(self) -> None:
        self.requests = 0

    async def stream(self, request: Request) -> AsyncGenerator[Delta]:
        self.requests += 1
        if self.requests == 1:
            raise OverloadedError("the parrot sleeps")
        last = request.prompt[-1].content[-1]
        yield PartStart(0, "text")
        for word in (last.text if isinstance(last, TextPart) else "?").split():
            yield TextDelta(0, f"{word} ")
        yield PartEnd(0)
        yield UsageReport(Tokens(input=1_000, output=500))
        yield Finish("stop")

    def describe_model(self, model: str) -> ModelDescription:
        """Optional: cost limits and the compaction of long conversations need it. Prices per million tokens."""
        return ModelDescription(context=100_000, input_price=1, output_price=2)


async def main() -> None:
    agent = Agent("bird", "You repeat.", model="grey", provider="parrot", retry=RetryPolicy(first_window=0.1))
    parrot = Parrot()
    result = await async_run(agent, "Pieces of eight!", providers=[parrot], limits=Limits(cost=1))
    print(result.output, result.cost, parrot.requests)
    await check_provider(parrot, "grey")  # checks the contract with a few requests


if __name__ == "__main__":
    asyncio.run(main())
