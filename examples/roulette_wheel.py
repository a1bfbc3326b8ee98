"""A roulette wheel: the winning number is a dependency, and the answer is a boolean."""

from outrider import Agent, Provider, Tool, ToolContext, run


@Tool
def spin(context: ToolContext[int], square: int) -> str:
    """Check whether the square is a winner."""
    return "winner" if square == context.deps else "loser"


croupier = Agent("croupier", "Use `spin` to see if the customer has won with their number.", "demo", "demo")


def play(bet: str, winning: int, provider: Provider) -> bool:
    return run(croupier, bet, tools=[spin], providers=[provider], deps=winning, output_type=bool).output


if __name__ == "__main__":
    script = [{"tool": "spin", "input": {"square": 18}}, "true"]
    print(play("Put my money on 18", 18, Provider("demo", kind="scripted", options={"script": script})))
