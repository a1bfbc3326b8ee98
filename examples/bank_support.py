"""A support agent of a bank: typed dependencies, instructions per customer, a tool and a typed answer."""

import sqlite3
from dataclasses import dataclass
from typing import Annotated

from outrider import Agent, Provider, SessionContext, Tool, ToolContext, run
from outrider.testing import call, scripted_model


@dataclass
class Customer:
    id: int
    bank: sqlite3.Connection

    def read(self, column: str) -> str | float:
        row: tuple[str | float] | None = self.bank.execute(
            f"SELECT {column} FROM customers WHERE id = ?", (self.id,)
        ).fetchone()
        if row is None:
            raise ValueError("Customer not found")
        return row[0]


@dataclass
class Advice:
    text: Annotated[str, "the advice to the customer"]
    block_card: Annotated[bool, "whether to block their card"]
    risk: Annotated[int, "the risk level of the query"]


def instruct(context: SessionContext[Customer]) -> str:
    name = context.deps.read("name")
    return f"You support the customers of our bank, and judge the risk of their queries. The customer is {name!r}."


@Tool(read_only=True)
def customer_balance(context: ToolContext[Customer]) -> str:
    """Return the customer's current account balance."""
    return f"${context.deps.read('balance'):.2f}"


support = Agent("support", instruct, model="demo", provider="demo")


def ask(question: str, customer: Customer, model: Provider) -> Advice:
    return run(support, question, tools=[customer_balance], providers=[model], deps=customer, output_type=Advice).output


if __name__ == "__main__":
    with sqlite3.connect(":memory:", check_same_thread=False) as bank:
        bank.execute("CREATE TABLE customers(id, name, balance)")
        bank.execute("INSERT INTO customers VALUES (123, 'John', 123.45)")
        balance = '{"text": "You have $123.45, John.", "block_card": false, "risk": 1}'
        print(ask("What is my balance?", Customer(123, bank), scripted_model([call("customer_balance")], balance)))
        block = '{"text": "I am sorry, John. We block your card.", "block_card": true, "risk": 8}'
        print(ask("I just lost my card!", Customer(123, bank), scripted_model(block)))
