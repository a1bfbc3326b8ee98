"""A roulette wheel: the winning number is a dependency, the answer is a boolean, and the runs are streamed."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from outrider import Agent, Provider, Tool, ToolContext, async_run_stream
from outrider.testing import call, scripted_model


@dataclass
class Deps:
    winning_number: int


@Tool
def roulette_wheel(context: ToolContext[Deps], square: int) -> Literal["winner", "loser"]:
    """Check if the bet square is a winner.

    Args:
        square: The number the player bet on.
    """
    return "winner" if square == context.deps.winning_number else "loser"


croupier = Agent("croupier", "Use `roulette_wheel` to see if the customer has won with their number.", "demo", "demo")


async def play(bet: str, deps: Deps, model: Provider) -> bool:
    stream = async_run_stream(croupier, bet, tools=[roulette_wheel], providers=[model], deps=deps, output_type=bool)
    async for event in stream:
        print(event.type, event.data)
    return stream.result.output


if __name__ == "__main__":
    for question, number, answer in (
        ("Put my money on square eighteen", 18, "true"),
        ("I bet five is the winner", 5, "false"),
    ):
        demo = scripted_model([call("roulette_wheel", square=number)], answer)
        print(f"{question}: {asyncio.run(play(question, Deps(18), demo))}")
