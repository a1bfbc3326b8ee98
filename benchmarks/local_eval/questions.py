"""Questions that the files of the workspace answer, and what a correct answer contains."""

import re

import msgspec


class Question(msgspec.Struct):
    said: str
    holds: str

    def accepts(self, answer: str) -> bool:
        return re.search(self.holds, answer, re.IGNORECASE) is not None


QUESTIONS = (
    Question("On which port does the server listen? It is in config/settings.toml.", "8420"),
    Question("Who is the maintainer according to the README?", "Ada Green"),
    Question("How many items fit into a cart? Look into shop/cart.py.", r"\b(40|forty)\b"),
    Question("From which amount is shipping free? See docs/shipping.md.", r"\b(60|sixty)\b"),
    Question("On which days do parcels leave?", "Tuesday.*Friday"),
    Question("Which city does Jonas live in? The customers are in data/customers.csv.", "Graz"),
    Question("What is the VAT rate in shop/prices.py?", r"0\.19|19 ?%|19 percent"),
    Question("In which file is the function with_vat defined?", r"prices\.py"),
    Question("Which Python version does this project need?", r"3\.11"),
    Question("What does greet('Mara') in shop/mail.py return?", "Dear Mara"),
)
