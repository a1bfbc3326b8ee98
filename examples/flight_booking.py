"""Flight booking: the search agent asks another agent for the flights of a page, and a validator checks its choice. The
user buys or searches on, and then chooses a seat. Limits apply to all agents; each session has its earlier messages."""

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from outrider import Agent, Engine, Limits, Provider, SessionContext
from outrider.testing import call, scripted_model


@dataclass
class Flight:
    """Details of the most suitable flight."""

    flight_number: str
    price: int
    origin: Annotated[str, "Three-letter airport code"]
    destination: Annotated[str, "Three-letter airport code"]
    date: datetime.date


@dataclass
class NoFlight:
    """No valid flight is found."""

    reason: str


@dataclass
class Wish:
    page: str
    origin: str
    destination: str
    date: datetime.date


@dataclass
class Seat:
    row: Annotated[int, Meta(ge=1, le=30)]
    seat: Literal["A", "B", "C", "D", "E", "F"]


@dataclass
class NoSeat:
    """The user's words name no seat."""

    reason: str


def extract(context: SessionContext[Wish]) -> str:
    return f"Extract all the flight details from this page:\n{context.deps.page}"


def check(context: SessionContext[Wish], flight: Flight | NoFlight) -> None:
    wish = context.deps
    wanted = (wish.origin, wish.destination, wish.date)
    if isinstance(flight, Flight) and (flight.origin, flight.destination, flight.date) != wanted:
        raise ValueError(f"The flight should be from {wish.origin} to {wish.destination} on {wish.date}.")


search = Agent("search", "Find the cheapest flight for the user on the given date. Ask the extractor.", "demo", "demo")
extractor = Agent("extractor", extract, "demo", "demo", role="returns the details of all flights")
clerk = Agent("clerk", "Extract the seat. A and F are window seats; rows 1, 14 and 20 have leg room.", "demo", "demo")


async def book(wish: Wish, model: Provider, ask: Callable[[str], str]) -> tuple[Flight, Seat] | NoFlight:
    limits, agents = Limits(turns=15), [search, extractor, clerk]
    async with Engine(agents, [model], deps=lambda _: wish, limits=limits) as engine:
        searching, choosing = await engine.create(), await engine.create(agent="clerk")
        text = f"Find me a flight from {wish.origin} to {wish.destination} on {wish.date}"
        while True:
            found = await engine.prompt(
                searching, text, output_type=Flight | NoFlight, output_validators=check, output_attempts=4
            )
            flight = found.output
            if isinstance(flight, NoFlight):
                return flight
            if ask(f"{flight}: buy, or search?") == "buy":
                break
            text = "Please suggest another flight"
        while True:
            seat = (await engine.prompt(choosing, ask("What seat would you like?"), output_type=Seat | NoSeat)).output
            if isinstance(seat, Seat):
                return flight, seat
            print("Could not understand seat preference. Please try again.")


if __name__ == "__main__":
    there = '"destination": "ANC", "date": "2027-01-10"'
    flights = [
        f'{{"flight_number": "{origin}{price}", "price": {price}, "origin": "{origin}", {there}}}'
        for origin, price in (("BOS", 120), ("SFO", 350), ("SFO", 250))
    ]
    ask_extractor = call("call_agent", agent_name="extractor", message="All flights, please.")
    seats = ['{"reason": "which one?"}', '{"row": 1, "seat": "A"}']
    demo = scripted_model([ask_extractor], f"[{', '.join(flights)}]", *flights, *seats)
    answers = iter(["search", "buy", "hm", "a window seat with leg room"])
    wish = Wish("1. Flight BOS120, $120 …", "SFO", "ANC", datetime.date(2027, 1, 10))
    print(asyncio.run(book(wish, demo, lambda question: next(answers))))
