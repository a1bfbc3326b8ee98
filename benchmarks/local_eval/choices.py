"""Requests, some after earlier steps, and the correct tool and argument of the next step."""

import re
from typing import Any

import msgspec

from benchmarks.local_eval.shop import FILES


class Choice(msgspec.Struct):
    """`before` are earlier calls with their results. The call must be of `tool`; every pattern must be found in the
    argument of that name, ignoring case. `otherwise` lists equally good calls."""

    prompt: str
    tool: str
    fits: dict[str, str] = {}
    before: tuple[tuple[str, dict[str, Any], str], ...] = ()
    otherwise: "tuple[Choice, ...]" = ()

    def accepts(self, tool: str, arguments: dict[str, Any]) -> bool:
        own = tool == self.tool and all(
            re.search(pattern, str(arguments.get(name, "")), re.IGNORECASE) for name, pattern in self.fits.items()
        )
        return own or any(choice.accepts(tool, arguments) for choice in self.otherwise)


def read(path: str) -> tuple[str, dict[str, Any], str]:
    return "read", {"file_path": path}, FILES[path]


LISTING = ("list", {"path": "."}, "config/\ndata/\ndocs/\nshop/\ntests/\nREADME.md  120 B")
PASSED = ("shell", {"command": "python -m pytest -q"}, "1 passed in 0.02s")
FAILED = (
    "shell",
    {"command": "python -m pytest -q"},
    "E   AssertionError: assert 3.6 == 4.0\nshop/prices.py:8: AssertionError\n1 failed in 0.04s",
)
WROTE = ("write", {"file_path": "shop/prices.py", "content": "VAT = 0.2\n"}, "Overwrote shop/prices.py (12 lines).")

CHOICES = (
    # Looking around.
    Choice("What files are in this project?", "list"),
    Choice("Show me the contents of the tests folder.", "list", {"path": "tests"}),
    Choice("What's in docs?", "list", {"path": "docs"}, otherwise=(Choice("", "read", {"file_path": "docs/"}),)),
    Choice("Give me an overview of the directory structure.", "list"),
    Choice("List the python modules of the shop package.", "list", {"path": "shop"}),
    # Reading.
    Choice("Explain what shop/cart.py does.", "read", {"file_path": "^shop/cart.py$"}),
    Choice("Read the README and summarise it.", "read", {"file_path": "^README.md$"}),
    Choice("Show me settings.toml", "read", {"file_path": "^config/settings.toml$"}),
    Choice("Is there anything wrong in prices.py?", "read", {"file_path": "^shop/prices.py$"}),
    Choice("Print the customers file.", "read", {"file_path": "^data/customers.csv$"}),
    Choice("What do the shipping docs say?", "read", {"file_path": "^docs/shipping.md$"}),
    Choice("Please review the test of the cart.", "read", {"file_path": "^tests/test_cart.py$"}),
    Choice("Add a method remove(name) to the class Cart in shop/cart.py.", "read", {"file_path": "^shop/cart.py$"}),
    Choice("Change the VAT in shop/prices.py to 20 percent.", "read", {"file_path": "^shop/prices.py$"}),
    Choice("Look at the mail module.", "read", {"file_path": "^shop/mail.py$"}, before=(LISTING,)),
    Choice("Show me nothing.txt", "read", {"file_path": "nothing.txt"}),
    # Searching.
    Choice("Where is with_vat defined?", "grep", {"pattern": "with_vat"}),
    Choice("Find all TODO comments.", "grep", {"pattern": "TODO"}),
    Choice("Which files use the function discount?", "grep", {"pattern": "discount"}),
    Choice("Search the code for NotImplementedError.", "grep", {"pattern": "NotImplementedError"}),
    Choice("In which file does the word Bremen occur?", "grep", {"pattern": "Bremen"}),
    # Running.
    Choice("Run the tests.", "shell", {"command": "pytest|unittest"}),
    Choice("Which version of Python is installed here?", "shell", {"command": r"python3? +(--version|-V|-c)"}),
    Choice("Run the test suite and tell me whether it passes.", "shell", {"command": "pytest|unittest"}),
    Choice("What is the git status?", "shell", {"command": "git status"}),
    Choice("Install the package requests with pip.", "shell", {"command": "pip3? install requests"}),
    Choice("Execute `echo hello` in the shell.", "shell", {"command": "echo hello"}),
    # Writing.
    Choice("Create a file named VERSION that contains 1.2.0", "write", {"file_path": "^VERSION$", "content": "1.2.0"}),
    Choice(
        "Write a python script hello.py that prints Hello, world!",
        "write",
        {"file_path": "hello.py", "content": r"print\(.Hello, world!"},
    ),
    Choice(
        "Make a new file docs/todo.md with the line: buy stamps",
        "write",
        {"file_path": "docs/todo.md", "content": "stamps"},
    ),
    Choice(
        "Change VAT to 0.2 in shop/prices.py.",
        "write",
        {"file_path": "^shop/prices.py$", "content": r"VAT = 0\.20?\b"},
        before=(read("shop/prices.py"),),
    ),
    Choice(
        "Rename the function greet in shop/mail.py to salute.",
        "write",
        {"file_path": "^shop/mail.py$", "content": r"def salute"},
        before=(read("shop/mail.py"),),
    ),
    # Answering.
    Choice("Hi there!", "answer"),
    Choice("Thanks, that is all for today.", "answer"),
    Choice("What is the difference between a list and a tuple in Python?", "answer"),
    Choice("Who maintains this project?", "answer", {"text": "Ada Green"}, before=(read("README.md"),)),
    Choice("Which port does the server use?", "answer", {"text": "8420"}, before=(read("config/settings.toml"),)),
    Choice("Run the tests.", "answer", {"text": "pass"}, before=(PASSED,)),
    # Continuing after a step.
    Choice(
        "Change VAT to 0.2 and run the tests.",
        "shell",
        {"command": "pytest|unittest"},
        before=(read("shop/prices.py"), WROTE),
    ),
    Choice("The tests fail. Find out why.", "read", {"file_path": "prices|cart"}, before=(FAILED,)),
)  # fmt: skip
