"""Typed output: an invoice as nested dataclasses, checked by a validator; a wrong answer goes back to the model."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated

from outrider import Agent, Provider, run


@dataclass
class Line:
    text: str
    cents: int


@dataclass
class Invoice:
    number: str
    day: date
    lines: list[Line]
    total: Annotated[int, "the sum of all lines, in cents"]


def check_total(invoice: Invoice) -> Invoice:
    """Reject an invoice whose total is wrong; the model reads the message and answers again."""
    if invoice.total != sum(line.cents for line in invoice.lines):
        raise ValueError(f"the lines add up to {sum(line.cents for line in invoice.lines)}, not {invoice.total}")
    return invoice


reader = Agent("reader", "You read invoices.", model="demo", provider="demo")


def read_invoice(text: str, provider: Provider) -> Invoice:
    return run(reader, text, providers=[provider], output_type=Invoice, output_validators=check_total).output


if __name__ == "__main__":
    lines = '[{"text": "tea", "cents": 400}, {"text": "milk", "cents": 150}]'
    answers = [f'{{"number": "A-7", "day": "2027-01-10", "lines": {lines}, "total": {total}}}' for total in (500, 550)]
    demo = Provider("demo", kind="scripted", options={"script": answers})
    print(read_invoice("Invoice A-7 of 10 January 2027: tea 4.00, milk 1.50", demo))
