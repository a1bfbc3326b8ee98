"""Output that is too long for a prompt: head and tail are kept, the whole goes to a file that the model can read."""

from collections.abc import Callable
from pathlib import Path

import msgspec

Save = Callable[[str], Path | None]


class OutputCap(msgspec.Struct, frozen=True):
    """How much of an output a model gets to see at once."""

    characters: int = 30_000
    lines: int = 2_000


class Truncated(msgspec.Struct, frozen=True):
    text: str
    path: Path | None = None
    characters: int = 0
    lines: int = 0


def truncate(text: str, cap: OutputCap, save: Save) -> Truncated | None:
    """None when the text fits. `save` keeps the whole text and says where, or None if it could not."""
    lines = text.count("\n") + 1
    if len(text) <= cap.characters and lines <= cap.lines:
        return None
    path = save(text)
    head, tail = _ends(text, cap)
    left_out = len(text) - len(head) - len(tail)
    where = f"the whole output is in {path}; read or search it there" if path else "the rest could not be kept"
    note = f"[… {left_out:,} of {len(text):,} characters ({lines:,} lines) left out: {where} …]"
    return Truncated(f"{head.rstrip()}\n\n{note}\n\n{tail.lstrip()}", path, len(text), lines)


def _ends(text: str, cap: OutputCap) -> tuple[str, str]:
    """Half of the room for each end, cut at line breaks where one is near."""
    room = cap.characters // 2
    head, tail = text[:room], text[-room:]
    head = "\n".join(head.split("\n")[: cap.lines // 2])
    tail = "\n".join(tail.split("\n")[-(cap.lines // 2) :])
    return _to_line_end(head), _from_line_start(tail)


def _to_line_end(text: str) -> str:
    cut = text.rfind("\n")
    return text[:cut] if cut > len(text) * 0.8 else text


def _from_line_start(text: str) -> str:
    cut = text.find("\n")
    return text[cut + 1 :] if 0 <= cut < len(text) * 0.2 else text
