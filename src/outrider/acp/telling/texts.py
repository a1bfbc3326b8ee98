"""Text and values that the protocol can carry: valid Unicode, and only numbers that JSON has."""

import math
import re
from typing import Any

LONGEST_LINE = 200


def valid(text: str) -> str:
    """Half a surrogate pair, which a model may write, is no text."""
    return text.encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """A value of any depth as JSON can write it."""
    match value:
        case str():
            return valid(value)
        case dict():
            return {valid(str(name)): plain(one) for name, one in value.items()}  # pyright: ignore
        case list() | tuple():
            return [plain(one) for one in value]  # pyright: ignore
        case float() if not math.isfinite(value):
            return str(value)
        case bool() | int() | float() | None:
            return value
        case _:
            return valid(str(value))


def one_line(text: str) -> str:
    line = " ".join(valid(text).split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def fenced(text: str) -> str:
    """Text that is no Markdown, for clients that read everything as such; nothing in it can end the fence."""
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{valid(text)}\n{fence}"
