"""Flight booking: one agent finds flights on a page, another one chooses; the user accepts or continues. All runs are
turns of two sessions, so every answer knows the earlier ones."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from outrider import Agent, Engine, Limits, Provider, SessionContext, Tool, ToolContext


@dataclass
class Flight:
    number: str
    price: int
    origin: str
    destination: str
    day: str


@dataclass
class Seat:
    row: int
    letter: str


@Tool(read_only=True)
def read_page(context: ToolContext[str]) -> str:
    """Return the web page with all flights."""
    return context.deps


def instruct(context: SessionContext[str]) -> str:
    return f"Find the cheapest flight of the page for the user's wish. The user is {context.owner}."


finder = Agent("finder", instruct, model="demo", provider="demo", tools=("read_page",))
clerk = Agent("clerk", "Extract the seat. A and F are window seats; row 1 has more leg room.", "demo", "demo", tools=())


async def book(wish: str, page: str, provider: Provider, answer: Callable[[str], str]) -> tuple[Flight, Seat] | str:
    limits = Limits(turns=10)
    async with Engine([finder, clerk], [provider], [read_page], deps=lambda _: page, limits=limits) as engine:
        search = await engine.create(owner="Ada")
        while True:
            found = (await engine.prompt(search, wish, output_type=Flight | None)).output
            if found is None:
                return "there is no such flight"
            if (wish := answer(f"{found.number} on {found.day} for ${found.price}? (yes, or another wish)")) == "yes":
                break
        seats = await engine.create(agent="clerk")
        seat = await engine.prompt(seats, answer("Which seat?"), output_type=Seat)
        return found, seat.output


if __name__ == "__main__":
    flights = [
        f'{{"number": "{number}", "price": {price}, "origin": "SFO", "destination": "ANC", "day": "2027-01-10"}}'
        for number, price in (("AK456", 180), ("DL789", 150))
    ]
    script = [{"tool": "read_page"}, flights[0], flights[1], '{"row": 1, "letter": "A"}']
    demo = Provider("demo", kind="scripted", options={"script": script})
    answers = iter(["is there a cheaper one?", "yes", "a window seat with leg room"])
    print(asyncio.run(book("SFO to ANC on 10 January", "AK456 $180; DL789 $150", demo, lambda _: next(answers))))
