"""What could be meant by the word at the cursor: a command after `/`, a file after `@`."""

from collections.abc import Iterable, Sequence

import msgspec

MOST = 8


class Choice(msgspec.Struct, frozen=True):
    """`text` takes the place of the word; `note` says what it is."""

    text: str
    note: str = ""


class Completion(msgspec.Struct, frozen=True):
    """Choices for the word that begins at column `start` of the line."""

    start: int
    choices: tuple[Choice, ...]


def word_before(line: str, column: int) -> tuple[int, str]:
    """The word that ends at the cursor, and where it begins."""
    head = line[:column]
    start = max(head.rfind(" "), head.rfind("\t")) + 1
    return start, head[start:]


def complete(
    line: str, column: int, *, first: bool, commands: Sequence[Choice], files: Sequence[str]
) -> Completion | None:
    """`first`: the line is the first one, where a command may stand."""
    start, word = word_before(line, column)
    if first and start == 0 and word.startswith("/"):
        found = tuple(choice for choice in commands if choice.text.startswith(word))
        return Completion(0, found) if found else None
    if word.startswith("@"):
        matches = matching(word[1:], files)
        return Completion(start, tuple(Choice(f"@{_quoted(name)}") for name in matches)) if matches else None
    return None


def matching(typed: str, names: Sequence[str]) -> list[str]:
    """Names that hold the letters in their order; a match in the file's own name goes before one in its folders."""
    typed = typed.strip('"').lower()
    if not typed:
        return list(names[:MOST])
    scored = ((score, name) for name in names if (score := _score(typed, name.lower())) is not None)
    return [name for _, name in sorted(scored)[:MOST]]


def _score(typed: str, name: str) -> tuple[int, int] | None:
    own = name.rpartition("/")[2]
    if own.startswith(typed):
        return 0, len(name)
    if typed in own:
        return 1, len(name)
    if typed in name:
        return 2, len(name)
    return (3, len(name)) if _holds(typed, name) else None


def _holds(typed: Iterable[str], name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in typed)


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name
