"""Small bugs, each with a test that fails because of it; a repair passes if the test passes."""

from textwrap import dedent

import msgspec


class Repair(msgspec.Struct):
    name: str
    said: str
    files: dict[str, str]


def repair(name: str, said: str, code: str, test: str) -> Repair:
    return Repair(name, said, {f"{name}.py": dedent(code), f"test_{name}.py": dedent(test)})


REPAIRS = (
    repair(
        "average",
        "average([]) in average.py raises ZeroDivisionError. It should return 0 for an empty list. Mend it "
        "and run the test.",
        """\
        def average(numbers):
            return sum(numbers) / len(numbers)
        """,
        """\
        from average import average


        def test_empty():
            assert average([]) == 0


        def test_usual():
            assert average([2, 4]) == 3
        """,
    ),
    repair(
        "stack",
        "The test in test_stack.py fails. Find the bug in stack.py, mend it and run the test.",
        """\
        class Stack:
            def __init__(self):
                self.items = []

            def push(self, item):
                self.items.append(item)

            def pop(self):
                return self.items.pop(0)
        """,
        """\
        from stack import Stack


        def test_last_in_first_out():
            stack = Stack()
            stack.push(1)
            stack.push(2)
            assert stack.pop() == 2
            assert stack.pop() == 1
        """,
    ),
    repair(
        "leap",
        "is_leap in leap.py says that 1900 is a leap year, which it is not: years divisible by 100 are leap "
        "years only if they are divisible by 400. Mend it.",
        """\
        def is_leap(year):
            return year % 4 == 0
        """,
        """\
        from leap import is_leap


        def test_years():
            assert not is_leap(1900)
            assert is_leap(2000)
            assert is_leap(2024)
            assert not is_leap(2023)
        """,
    ),
    repair(
        "ranges",
        "evens(10) in ranges.py leaves out 10, but the limit should be included. Please fix it.",
        """\
        def evens(limit):
            found = []
            for number in range(0, limit, 2):
                found.append(number)
            return found
        """,
        """\
        from ranges import evens


        def test_limit_is_included():
            assert evens(10) == [0, 2, 4, 6, 8, 10]
            assert evens(5) == [0, 2, 4]
        """,
    ),
    repair(
        "words",
        "count_words in words.py counts 'The' and 'the' as two words. It should not care about case. Fix it.",
        """\
        def count_words(text):
            counts = {}
            for word in text.split():
                counts[word] = counts.get(word, 0) + 1
            return counts
        """,
        """\
        from words import count_words


        def test_case_does_not_matter():
            assert count_words("The the cat") == {"the": 2, "cat": 1}
        """,
    ),
    repair(
        "account",
        "In account.py one can withdraw more than the balance. withdraw should raise ValueError then. Mend it.",
        """\
        class Account:
            def __init__(self, balance=0):
                self.balance = balance

            def deposit(self, amount):
                self.balance += amount

            def withdraw(self, amount):
                self.balance -= amount
                return self.balance
        """,
        """\
        import pytest

        from account import Account


        def test_withdraw():
            account = Account(10)
            assert account.withdraw(4) == 6
            with pytest.raises(ValueError):
                account.withdraw(7)
            assert account.balance == 6
        """,
    ),
    repair(
        "greeting",
        "greeting.py has a NameError when it is called. Find it and mend it.",
        """\
        def greeting(name, polite=True):
            word = "Good day" if polite else "Hi"
            return f"{wort}, {name}!"
        """,
        """\
        from greeting import greeting


        def test_greeting():
            assert greeting("Mara") == "Good day, Mara!"
            assert greeting("Mara", polite=False) == "Hi, Mara!"
        """,
    ),
    repair(
        "temperature",
        "to_celsius in temperature.py gives wrong results: 212 degrees Fahrenheit should be 100 degrees "
        "Celsius. Fix it.",
        """\
        def to_celsius(fahrenheit):
            return fahrenheit - 32 * 5 / 9


        def to_fahrenheit(celsius):
            return celsius * 9 / 5 + 32
        """,
        """\
        from temperature import to_celsius, to_fahrenheit


        def test_both_ways():
            assert to_celsius(212) == 100
            assert to_fahrenheit(100) == 212
        """,
    ),
    repair(
        "basket",
        "All baskets share their items, which is wrong. Look at basket.py, mend it, and run the test.",
        """\
        class Basket:
            def __init__(self, items=[]):
                self.items = items

            def add(self, item):
                self.items.append(item)
        """,
        """\
        from basket import Basket


        def test_baskets_are_their_own():
            one, other = Basket(), Basket()
            one.add("pear")
            assert other.items == []
            assert one.items == ["pear"]
        """,
    ),
    repair(
        "initials",
        "initials('ada  green') fails with an IndexError when there are two spaces. Mend initials.py.",
        """\
        def initials(name):
            return "".join(word[0].upper() for word in name.split(" "))
        """,
        """\
        from initials import initials


        def test_spaces():
            assert initials("ada  green") == "AG"
            assert initials("ada green") == "AG"
        """,
    ),
)
