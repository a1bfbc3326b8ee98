"""What a word can become when the shell expands it: the possible texts, or anything."""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from msgspec import Struct, field

from outrider.permissions.shell.parser import (
    Arithmetic,
    Home,
    Piece,
    Substitution,
    Text,
    Unclear,
    Variable,
    Wildcard,
    Word,
)

MOST = 300  # possible texts of one word
MOST_BRACES = 4
LONGEST = 20_000  # characters of all possible texts of one word together
MOST_SEEN = 20_000  # names of files that are looked at for all patterns of one command line
_BRACES = re.compile(r"^(?P<before>[^{}]*)\{(?P<inside>[^{}]*)\}(?P<after>.*)$", re.DOTALL)
_NUMBERS = re.compile(r"^-?[0-9]+$")
_ASSIGNS = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
_RANGE = re.compile(r"^(-?[0-9]{1,4})\.\.(-?[0-9]{1,4})$")

Known = tuple[str, ...] | None
"""Every text that a variable can hold; None: anything."""


class Arg(Struct, frozen=True):
    """One word of a command after expansion."""

    choices: Known
    many: bool = False  # can become several words, or none
    loose: bool = False  # comes from file names that may begin with a dash
    paths: bool = False  # each is the name of a file below the working folder
    lead: str = ""  # how it begins, where the rest is unknown
    shown: str = ""

    @property
    def text(self) -> str | None:
        """The one text that it certainly is."""
        return self.choices[0] if self.choices and len(self.choices) == 1 and not self.many else None

    def can_be_option(self) -> bool:
        if self.loose or self.paths:
            return True
        if self.choices is None:
            return not self.lead or self.lead.startswith("-")
        return any(choice.startswith("-") for choice in self.choices)


def literal(text: str) -> Arg:
    return Arg((text,), shown=text)


class Scope(Struct):
    """What is known while a script is walked. A copy is a subshell."""

    cwds: tuple[str, ...]
    variables: dict[str, Known]
    entered: tuple[str, ...] | None = None  # the folders after a `cd` that worked
    unseen: list[int] = field(default_factory=lambda: [MOST_SEEN])  # shared by all scopes of one command line

    def copy(self) -> "Scope":
        return Scope(self.cwds, dict(self.variables), self.entered, self.unseen)


def expand(word: Word, scope: Scope, shown: str = "") -> list[Arg]:
    """The arguments that a word becomes."""
    if _has_braces(word):
        written = "".join(piece.text for piece in word if isinstance(piece, Text | Wildcard))
        if written.count("{") > MOST_BRACES:
            raise Unclear("too many braces")
        # An alternative that is empty leaves no word behind.
        return [arg for text in _braces(written) if text for arg in _plain(_unquoted_word(text), scope, text)]
    return _plain(word, scope, shown)


def _plain(word: Word, scope: Scope, shown: str) -> list[Arg]:
    if any(isinstance(piece, Wildcard) for piece in word):
        return [_matching(word, scope, shown)]
    if len(word) == 1 and isinstance(piece := word[0], Variable) and not piece.quoted:
        return _split(piece, scope, shown)
    known = [_known(piece, scope) for piece in word]
    if any(value is None for value in known):
        many = any(_unquoted(piece) or (isinstance(piece, Variable) and piece.spreads) for piece in word)
        return [Arg(None, many=many, lead=_lead(word), shown=shown)]
    choices = tuple(dict.fromkeys("".join(parts) for parts in _product(value for value in known if value is not None)))
    if any(_splits(piece, scope) for piece in word):
        return [Arg(None, many=True, shown=shown)]
    return [Arg(choices, shown=shown)]


def _has_braces(word: Word) -> bool:
    """Whether braces are expanded; only where the whole word is plain text is that followed."""
    plain = "".join(piece.text for piece in word if isinstance(piece, Text) and not piece.quoted)
    if "{" not in plain or not ("," in plain or ".." in plain):
        return False
    if not all(isinstance(piece, Wildcard) or (isinstance(piece, Text) and not piece.quoted) for piece in word):
        raise Unclear("braces together with quotes or expansions")
    return True


def _unquoted_word(text: str) -> Word:
    parts = re.split(r"([*?\[])", text)
    return tuple(Wildcard(part) if part in {"*", "?", "["} else Text(part) for part in parts if part)


def _braces(text: str) -> list[str]:
    found = _BRACES.match(text)
    if not found:
        if "{" in text or "}" in text:
            raise Unclear("nested braces")
        return [text]
    return [
        found["before"] + inside + after
        for inside in _alternatives(found["inside"])
        for after in _braces(found["after"])
    ]


def _alternatives(inside: str) -> list[str]:
    if "," in inside:
        return _few(inside.split(","))
    if bounds := _RANGE.match(inside):
        low, high = int(bounds[1]), int(bounds[2])
        step = 1 if high >= low else -1
        return _few([str(number) for number in range(low, high + step, step)])
    if ".." in inside:
        raise Unclear("a range of letters or steps")
    return ["{" + inside + "}"]


def _few(alternatives: list[str]) -> list[str]:
    if len(alternatives) > MOST // 10:
        raise Unclear("too many alternatives in braces")
    return alternatives


def _known(piece: Piece, scope: Scope) -> Known:
    match piece:
        case Text(text):
            return (text,)
        case Variable(name, _, changed):
            return None if changed else scope.variables.get(name)
        case Arithmetic(text):
            return _sum(text, scope)
        case Home() | Substitution() | Wildcard():
            return None


def _sum(text: str, scope: Scope) -> Known:
    """Arithmetic runs what a name holds, so every name must hold nothing but a number."""
    if _ASSIGNS.search(text):
        raise Unclear("arithmetic that assigns")
    for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text):
        values = scope.variables.get(name)
        if values is None or not all(_NUMBERS.match(value) for value in values):
            raise Unclear(f"arithmetic with {name}, whose value is unknown")
    return None


def _unquoted(piece: Piece) -> bool:
    return isinstance(piece, Variable | Substitution | Arithmetic) and not piece.quoted


def _splits(piece: Piece, scope: Scope) -> bool:
    if not isinstance(piece, Variable) or piece.quoted:
        return False
    values = scope.variables.get(piece.name) or ()
    return any(not value or set(value) & set(" \t\n*?[\\") for value in values)


def _split(piece: Variable, scope: Scope, shown: str) -> list[Arg]:
    """An unquoted variable on its own is split at blanks; the separators are never changed, since IFS is refused."""
    values = None if piece.changed else scope.variables.get(piece.name)
    if values is None or any(set(value) & set("*?[\\") for value in values):
        return [Arg(None, many=True, shown=shown)]
    if len(values) == 1:
        return [Arg((part,), shown=part) for part in values[0].split()]
    if any(len(value.split()) != 1 for value in values):
        return [Arg(None, many=True, shown=shown)]
    return [Arg(tuple(value.strip() for value in values), shown=shown)]


def _lead(word: Word) -> str:
    first = word[0] if word else None
    return first.text if isinstance(first, Text) else ""


def _product(values: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    listed = list(values)
    size = 1
    for value in listed:
        size *= len(value)
    longest = sum(max(map(len, value), default=0) for value in listed)
    if size > MOST or size * longest > LONGEST:
        raise Unclear("a word with too many possible values, or too long ones")
    return itertools.product(*listed)


def _matching(word: Word, scope: Scope, shown: str) -> Arg:
    """File names as they are now; whether they may begin with a dash does not depend on what is there now."""
    lead = _lead(word)
    parts = _pattern(word, scope)
    pattern = "" if parts is None else "".join(escaped for escaped, _ in parts)
    if parts is None or any(mark in pattern for mark in ("[[:", "[[.", "[[=")):
        return Arg(None, many=True, lead=lead, shown=shown)
    unmatched = "".join(plain for _, plain in parts)
    if not any(isinstance(piece, Wildcard) and piece.text in "*?" for piece in word) and "]" not in unmatched:
        return Arg((unmatched,), shown=shown)
    found = _names(pattern, scope.cwds, scope.unseen)
    if found == [] and lead.startswith("-"):
        return Arg((unmatched,), shown=shown)  # an option with a pattern as its value, which nothing matches
    if found is None:
        return Arg(None, many=True, lead=lead, shown=shown)
    return Arg(tuple(dict.fromkeys((unmatched, *found))), many=True, loose=not lead, shown=shown)


def _names(pattern: str, cwds: Iterable[str], budget: list[int]) -> list[str] | None:
    """What the pattern matches now; None: too much to look at."""
    # The shell takes `[^…]` for `[!…]`.
    parts = pattern.replace("[^", "[!").split("/")
    start = "/" if pattern.startswith("/") else ""
    found: list[str] = []
    for cwd in cwds:
        for name in _below(start or cwd, start, parts, budget):
            found.append(name)
            if len(found) > MOST:
                return None
    return found if budget[0] > 0 else None


def _below(folder: str, written: str, parts: list[str], budget: list[int]) -> Iterator[str]:
    """Names below a folder, as they are written in the pattern's place."""
    part, rest = parts[0], parts[1:]
    if not any(mark in part for mark in "*?["):
        path = os.path.join(folder, part) if part else folder  # noqa: PTH118
        if not rest:
            yield from [written + part] if os.path.lexists(path) else []
        elif budget[0] > 0:
            yield from _below(path, f"{written}{part}/" if part or not written else written, rest, budget)
        return
    for name in (*_entries(folder, budget), ".", ".."):  # older shells match the folder and the one above it too
        if not _matches(name, part) or (name.startswith(".") and not part.startswith(".")):
            continue
        if not rest:
            yield written + name
        elif rest == [""]:
            yield f"{written}{name}/"
        else:
            yield from _below(os.path.join(folder, name), f"{written}{name}/", rest, budget)  # noqa: PTH118


def _matches(name: str, part: str) -> bool:
    """In some languages a range of letters takes in capitals and small ones alike."""
    return fnmatchcase(name, part) or ("[" in part and fnmatchcase(name.casefold(), part.casefold()))


def _entries(folder: str, budget: list[int]) -> list[str]:
    if budget[0] <= 0:
        return []
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except (OSError, ValueError):
        return []
    budget[0] -= len(names) + 1
    return names


def _pattern(word: Word, scope: Scope) -> list[tuple[str, str]] | None:
    """Each piece as it stands in a pattern, and as it stands where nothing matches."""
    parts: list[tuple[str, str]] = []
    for piece in word:
        if isinstance(piece, Wildcard):
            parts.append((piece.text, piece.text))
            continue
        known = _known(piece, scope)
        if known is None or len(known) != 1 or _splits(piece, scope):
            return None
        plain = isinstance(piece, Text) and not piece.quoted
        parts.append((known[0] if plain else glob.escape(known[0]), known[0]))
    return parts
