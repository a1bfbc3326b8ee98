"""A support agent of a bank: typed dependencies, instructions per customer, a tool and a typed answer."""

from dataclasses import dataclass
from typing import Annotated

from outrider import Agent, Provider, SessionContext, Tool, ToolContext, run


@dataclass
class Bank:
    names: dict[int, str]
    balances: dict[int, float]


@dataclass
class Customer:
    id: int
    bank: Bank


@dataclass
class Advice:
    text: Annotated[str, "the answer to the customer"]
    block_card: Annotated[bool, "whether to block the card"]
    risk: Annotated[int, "risk of the request, 0 to 10"]


def instruct(context: SessionContext[Customer]) -> str:
    name = context.deps.bank.names[context.deps.id]
    return f"You support customers of our bank and judge the risk of their requests. The customer is {name}."


@Tool(read_only=True)
def balance(context: ToolContext[Customer]) -> str:
    """Return the customer's current balance."""
    return f"${context.deps.bank.balances[context.deps.id]:.2f}"


support = Agent("support", instruct, model="demo", provider="demo")


def ask(question: str, provider: Provider) -> Advice:
    customer = Customer(123, Bank({123: "John"}, {123: 123.45}))
    return run(support, question, tools=[balance], providers=[provider], deps=customer, output_type=Advice).output


if __name__ == "__main__":
    script = [{"tool": "balance"}, '{"text": "You have $123.45, John.", "block_card": false, "risk": 1}']
    print(ask("What is my balance?", Provider("demo", kind="scripted", options={"script": script})))
