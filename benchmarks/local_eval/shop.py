"""The small workspace of the tasks for choosing and answering."""

from pathlib import Path
from textwrap import dedent

FILES = {
    "README.md": dedent(
        """\
        # Shop

        A little shop. Start it with `python -m shop`. It needs Python 3.11.
        Maintainer: Ada Green.
        """
    ),
    "config/settings.toml": dedent(
        """\
        [server]
        host = "127.0.0.1"
        port = 8420

        [mail]
        sender = "shop@example.org"
        """
    ),
    "shop/__init__.py": "",
    "shop/cart.py": dedent(
        '''\
        """The cart of a customer."""

        from shop.prices import discount

        MAX_ITEMS = 40


        class Cart:
            def __init__(self):
                self.items = []

            def add(self, name, price):
                if len(self.items) >= MAX_ITEMS:
                    raise ValueError("the cart is full")
                self.items.append((name, price))

            def total(self):
                return discount(sum(price for _, price in self.items))
        '''
    ),
    "shop/prices.py": dedent(
        '''\
        """Prices and discounts."""

        VAT = 0.19


        def discount(amount):
            # TODO: weekend prices
            return amount * 0.9 if amount >= 100 else amount


        def with_vat(amount):
            return amount * (1 + VAT)
        '''
    ),
    "shop/mail.py": dedent(
        '''\
        """Letters to customers."""


        def greet(name):
            return f"Dear {name},"


        def send(address, text):
            raise NotImplementedError  # TODO: a mail server
        '''
    ),
    "tests/test_cart.py": dedent(
        """\
        from shop.cart import Cart


        def test_total():
            cart = Cart()
            cart.add("tea", 4.0)
            assert cart.total() == 4.0
        """
    ),
    "docs/shipping.md": dedent(
        """\
        Parcels leave on Tuesdays and Fridays. Shipping is free from 60 euros, otherwise 4.90 euros.
        """
    ),
    "data/customers.csv": dedent(
        """\
        name,city,since
        Mara,Bremen,2019
        Jonas,Graz,2021
        Selma,Basel,2023
        """
    ),
}


def lay_out(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
