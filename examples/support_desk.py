"""Product: a support desk. Agents answer customers; a refund waits for a person, who may answer hours later.

    python examples/support_desk.py ask ada 'My mug arrived broken.'
    python examples/support_desk.py open                    # the questions that wait
    python examples/support_desk.py answer NUMBER yes|no    # another process, another day
    python examples/support_desk.py                         # a demonstration of all three

Tickets are sessions in SUPPORT_DESK_HOME (default: a temporary folder). A refund above the limit is refused without a
question; nothing is refunded twice, because a call has exactly one end."""

import asyncio
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from example_model import choose_model

from outrider import Agent, Engine, Limits, SessionContext, SessionFilter, Tool, ToolContext, ToolFailure
from outrider.events import LoopCompletedEvent, ToolApprovalRequestedEvent
from outrider.stores import SqliteStore

HOME = Path(os.environ.get("SUPPORT_DESK_HOME") or tempfile.mkdtemp())
LIMIT = 5_000  # cents
ORDERS = {"ada": {"A-1": 1_900}, "bob": {"B-7": 9_900}}
ASKING = [
    {"tool": "list_orders"},
    {"tool": "refund", "input": {"order": "A-1", "cents": 1900, "reason": "arrived broken"}},
]
ANSWERED = ["I am sorry about the mug. 19.00 are on their way back to you."]


@dataclass
class Desk:
    customer: str


def instruct(context: SessionContext[Desk]) -> str:
    return f"You are the support of a shop. The customer is {context.deps.customer}. Be brief and friendly."


@Tool(read_only=True)
def list_orders(context: ToolContext[Desk]) -> str:
    """Return the customer's orders with their prices in cents."""
    return "\n".join(f"{order}: {cents}" for order, cents in ORDERS.get(context.deps.customer, {}).items())


@Tool(policy="ask")
def refund(context: ToolContext[Desk], order: str, cents: int, reason: str) -> str:
    """Pay money back for an order of the customer. A person decides about it."""
    price = ORDERS.get(context.deps.customer, {}).get(order)
    if price is None or cents > min(price, LIMIT):
        raise ToolFailure(f"{order} cannot be refunded with {cents}")
    with (HOME / "refunds.txt").open("a", encoding="utf-8") as file:
        file.write(f"{context.deps.customer} {order} {cents} {reason}\n")
    return f"refunded {cents}"


async def open_engine(stack: AsyncExitStack, script: list[Any]) -> Engine:
    provider, model = choose_model(script)
    agent = Agent("support", instruct, model=model, provider="model", limits=Limits(turns=10))
    store = await stack.enter_async_context(SqliteStore(HOME / "tickets.db"))
    engine = Engine(
        [agent],
        [provider],
        [list_orders, refund],
        store=store,
        attended=True,
        deps=lambda context: Desk(context.owner),
    )
    return await stack.enter_async_context(engine)


async def ask(customer: str, text: str) -> None:
    """Run until the ticket is answered or waits for a person."""
    async with AsyncExitStack() as stack:
        engine = await open_engine(stack, ASKING)
        found = (await engine.store.list(SessionFilter(owner=customer), limit=1)).sessions
        ticket = found[0].id if found else await engine.create(owner=customer)
        events = engine.events(ticket)
        await engine.enqueue(ticket, text)
        async for event in events:
            if isinstance(event, ToolApprovalRequestedEvent):
                print(f"{customer}: a refund waits for a person")
                return
            if isinstance(event, LoopCompletedEvent):
                return


async def show_open() -> int:
    async with AsyncExitStack() as stack:
        engine = await open_engine(stack, [])
        questions = await engine.approvals()
        for number, question in enumerate(questions):
            print(f"{number}: {question.tool} {question.input}")
        return len(questions)


async def answer(number: int, *, allow: bool) -> None:
    async with AsyncExitStack() as stack:
        engine = await open_engine(stack, ANSWERED)
        question = (await engine.approvals())[number]
        await engine.answer(question.id, allow=allow)
        print((await engine.resume(question.session_id)).text)


def main() -> None:
    match sys.argv[1:]:
        case ["ask", customer, text]:
            asyncio.run(ask(customer, text))
        case ["open"]:
            asyncio.run(show_open())
        case ["answer", number, choice]:
            asyncio.run(answer(int(number), allow=choice == "yes"))
        case _:
            asyncio.run(ask("ada", "My mug arrived broken."))
            asyncio.run(show_open())
            asyncio.run(answer(0, allow=True))
            print((HOME / "refunds.txt").read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    main()
