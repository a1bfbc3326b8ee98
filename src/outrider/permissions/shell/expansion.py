"""Expands shell words to the set of values they can have: braces, variables, arithmetic and globs."""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from msgspec import Struct, field

from outrider.permissions.shell.parser import (
    ArithmeticExpansion,
    CommandSubstitution,
    GlobCharacter,
    LiteralText,
    NotProvenSafe,
    TildeExpansion,
    VariableExpansion,
    Word,
    WordPart,
)

MAX_VALUES = 300  # possible values of one word
MAX_BRACES = 4
MAX_VALUES_LENGTH = 20_000  # total characters of all possible values of one word
MAX_GLOB_ENTRIES = 20_000  # directory entries read for all globs of one command line
_BRACES = re.compile(r"^(?P<before>[^{}]*)\{(?P<inside>[^{}]*)\}(?P<after>.*)$", re.DOTALL)
_NUMBERS = re.compile(r"-?[0-9]+")
_FIELD = re.compile(r"[^ \t\n]+")  # a field at the default IFS; other blanks are part of it
_ASSIGNS = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
# A bound with a leading zero pads every number with zeros, so it is not accepted.
_RANGE = re.compile(r"(-?[1-9][0-9]{0,3}|0)\.\.(-?[1-9][0-9]{0,3}|0)")
_ASSIGNMENT_WORD = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\+?=")
# Variables that the shell changes on its own, so that their value is never known.
_CHANGING_VARIABLES = frozenset({"_", "LINES", "COLUMNS"})

PossibleValues = tuple[str, ...] | None
"""Every value that a word or variable can have; None means that the value is unknown."""


class ExpandedArg(Struct, frozen=True):
    """One word of a command after expansion, with every value that it can have."""

    values: PossibleValues
    multiple: bool = False  # can expand to several words or to none
    from_glob: bool = False  # matches file names that may start with a dash
    found_paths: bool = False  # each value is a path that `find` printed, below a checked folder
    found_patterns: tuple[str, ...] | None = (
        None  # a pattern of each found path, if a command substitution printed them
    )
    is_number: bool = False  # an unknown number, or empty
    prefix: str = ""  # the literal start of a value whose rest is unknown
    source_text: str = ""

    @property
    def text(self) -> str | None:
        """Returns the value if there is exactly one, else None."""
        return self.values[0] if self.values and len(self.values) == 1 and not self.multiple else None

    def can_be_option(self) -> bool:
        """Returns whether a value of the argument may start with a dash."""
        if self.from_glob or self.found_paths:
            return True
        if self.values is None:  # of several words, only the first starts with the prefix
            return self.multiple or not self.prefix or self.prefix.startswith("-")
        return any(choice.startswith("-") for choice in self.values)


def literal_arg(text: str) -> ExpandedArg:
    """Returns an argument with exactly one value."""
    return ExpandedArg((text,), source_text=text)


class ShellState(Struct):
    """The shell state that the analysis tracks: possible working folders and variable values. A copy is a subshell."""

    cwds: tuple[str, ...]
    variables: dict[str, PossibleValues]
    cwds_on_success: tuple[str, ...] | None = None  # possible folders if the last `cd` succeeded
    glob_budget: list[int] = field(
        default_factory=lambda: [MAX_GLOB_ENTRIES]
    )  # shared by all states of one command line

    # Every name that was assigned in any state of one script, in order.
    assigned: list[str] = field(default_factory=list[str])
    numbers: frozenset[str] = frozenset()  # variables whose value is an unknown number, or empty
    is_posix: bool = False  # `sh` or `dash` runs the script instead of bash

    def copy(self) -> "ShellState":
        """Returns the state of a subshell: a separate list of variables and folders, the rest is shared."""
        return ShellState(
            self.cwds,
            dict(self.variables),
            self.cwds_on_success,
            self.glob_budget,
            self.assigned,
            self.numbers,
            self.is_posix,
        )

    def assign(self, name: str, values: PossibleValues, *, is_number: bool = False) -> None:
        """Stores the possible values of a variable and records that it was assigned."""
        self.variables[name] = values
        self.numbers = self.numbers | {name} if is_number else self.numbers - {name}
        self.assigned.append(name)

    def look_up(self, name: str) -> PossibleValues:
        """Returns the possible values of a variable, or None if they are unknown."""
        return None if name in _CHANGING_VARIABLES else self.variables.get(name)

    def is_number(self, name: str) -> bool:
        """Returns whether a variable can only be a plain number, or empty if that is not known in advance."""
        values = self.look_up(name)
        has_only_numbers = values is not None and all(_NUMBERS.fullmatch(value) for value in values)
        return has_only_numbers or (name in self.numbers and name not in _CHANGING_VARIABLES)


def expand_word(word: Word, state: ShellState, source_text: str = "") -> list[ExpandedArg]:
    """Returns the arguments that a word expands to."""
    if _needs_brace_expansion(word):
        written = "".join(part.text for part in word if isinstance(part, LiteralText | GlobCharacter))
        if written.count("{") > MAX_BRACES:
            raise NotProvenSafe(f"it contains a word with more than {MAX_BRACES} brace expansions")
        if _ASSIGNMENT_WORD.match(written):
            raise NotProvenSafe("it combines a brace expansion with a word that looks like an assignment")
        # An empty alternative produces no word.
        return [
            arg
            for text in _expand_braces(written)
            if text
            for arg in _expand_without_braces(_unquoted_word(text), state, text)
        ]
    return _expand_without_braces(word, state, source_text)


def _expand_without_braces(word: Word, state: ShellState, source_text: str) -> list[ExpandedArg]:
    """Expands a word without brace expansion to its possible values."""
    if any(isinstance(part, GlobCharacter) for part in word):
        return [_expand_glob(word, state, source_text)]
    if len(word) == 1 and (special := _expand_special(word[0], state, source_text)) is not None:
        return [special]
    if len(word) == 1 and isinstance(part := word[0], VariableExpansion) and not part.quoted:
        return _split_variable(part, state, source_text)
    values_of_parts = [_possible_values(part, state) for part in word]
    if any(value is None for value in values_of_parts):
        multiple = any(
            _is_unquoted_expansion(part) or (isinstance(part, VariableExpansion) and part.splits_in_quotes)
            for part in word
        )
        return [ExpandedArg(None, multiple=multiple, prefix=_literal_prefix(word), source_text=source_text)]
    values = tuple(
        dict.fromkeys(
            "".join(parts) for parts in _combine_values(value for value in values_of_parts if value is not None)
        )
    )
    if any(_may_split(part, state) for part in word):
        return [ExpandedArg(None, multiple=True, source_text=source_text)]
    return [ExpandedArg(values, source_text=source_text)]


def _expand_special(part: WordPart, state: ShellState, source_text: str) -> ExpandedArg | None:
    """Returns the argument for an unknown number or a list of found paths, or None if the part is neither."""
    if isinstance(part, CommandSubstitution) and part.found_patterns is not None and not part.quoted:
        return ExpandedArg(
            None, multiple=True, found_paths=True, found_patterns=part.found_patterns, source_text=source_text
        )
    match part:
        case VariableExpansion():
            is_unknown = part.is_modified or state.look_up(part.name) is None
            is_plain_number = is_unknown and (part.is_number or (not part.is_modified and state.is_number(part.name)))
        case ArithmeticExpansion():
            _check_arithmetic(part.text, state)
            is_plain_number = True
        case CommandSubstitution():
            is_plain_number = part.prints_number
        case _:
            return None
    quoted = part.quoted
    return ExpandedArg(None, multiple=not quoted, is_number=True, source_text=source_text) if is_plain_number else None


def _needs_brace_expansion(word: Word) -> bool:
    """Returns whether bash expands braces in the word. Raises NotProvenSafe unless the whole word is unquoted text."""
    plain = "".join(part.text for part in word if isinstance(part, LiteralText) and not part.quoted)
    if "{" not in plain or not ("," in plain or ".." in plain):
        return False
    if not all(isinstance(part, GlobCharacter) or (isinstance(part, LiteralText) and not part.quoted) for part in word):
        raise NotProvenSafe("it combines a brace expansion with quotes or variables")
    return True


def expand_assigned_value(word: Word, state: ShellState) -> ExpandedArg:
    """Returns the value of an assignment: bash does not expand braces in it."""
    if _needs_brace_expansion(word):
        return ExpandedArg(None)
    args = _expand_without_braces(word, state, "")
    return args[0] if len(args) == 1 else ExpandedArg(None)


def _unquoted_word(text: str) -> Word:
    """Returns the word that a brace expansion generates; bash expands a ~ in it afterwards."""
    if text.startswith("~") or "=~" in text or ":~" in text:
        return (TildeExpansion(), LiteralText(text))
    parts = re.split(r"([*?\[])", text)
    return tuple(GlobCharacter(part) if part in {"*", "?", "["} else LiteralText(part) for part in parts if part)


def _expand_braces(text: str) -> list[str]:
    """Returns the strings that a brace expression generates, in bash's order."""
    match = _BRACES.match(text)
    if not match:
        if "{" in text or "}" in text:
            raise NotProvenSafe("it contains nested or unbalanced braces")
        return [text]
    return [
        match["before"] + inside + suffix
        for inside in _brace_alternatives(match["inside"])
        for suffix in _expand_braces(match["after"])
    ]


def _brace_alternatives(inside: str) -> list[str]:
    if "," in inside:
        return _check_alternatives(inside.split(","))
    if bounds := _RANGE.fullmatch(inside):
        low, high = int(bounds[1]), int(bounds[2])
        step = 1 if high >= low else -1
        return _check_alternatives([str(number) for number in range(low, high + step, step)])
    if ".." in inside:
        raise NotProvenSafe("it contains a brace range of letters or with a step")
    return ["{" + inside + "}"]


def _check_alternatives(alternatives: list[str]) -> list[str]:
    if len(alternatives) > MAX_VALUES // 10:
        raise NotProvenSafe("it contains a brace expansion with too many alternatives to check")
    return alternatives


def _possible_values(part: WordPart, state: ShellState) -> PossibleValues:
    """Returns the possible values of one part of a word, or None if they are unknown."""
    match part:
        case LiteralText(text):
            return (text,)
        case VariableExpansion(name, _, changed):
            return None if changed else state.look_up(name)
        case ArithmeticExpansion(text):
            return _check_arithmetic(text, state)
        case TildeExpansion() | CommandSubstitution() | GlobCharacter():
            return None


def _check_arithmetic(text: str, state: ShellState) -> PossibleValues:
    """Checks an arithmetic expression; its value stays unknown.

    bash evaluates the value of a variable as an expression again, and an array index in it can run a command. So every
    variable must be known to contain a plain number.
    """
    if _ASSIGNS.search(text):
        raise NotProvenSafe("it assigns a variable inside an arithmetic expression")
    for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text):
        if not state.is_number(name):
            raise NotProvenSafe(f"it calculates with {name}, whose unknown value could run a command")
    return None


def _is_unquoted_expansion(part: WordPart) -> bool:
    return isinstance(part, VariableExpansion | CommandSubstitution | ArithmeticExpansion) and not part.quoted


def _may_split(part: WordPart, state: ShellState) -> bool:
    """Returns whether bash splits the value of an unquoted variable, or expands a glob in it."""
    if not isinstance(part, VariableExpansion) or part.quoted:
        return False
    values = state.look_up(part.name) or ()
    return any(not value or set(value) & set(" \t\n*?[\\") for value in values)


def _split_variable(part: VariableExpansion, state: ShellState, source_text: str) -> list[ExpandedArg]:
    """Splits the value of an unquoted variable at blanks. IFS has its default value: assigning it is rejected."""
    values = None if part.is_modified else state.look_up(part.name)
    if values is None or any(set(value) & set("*?[\\") for value in values):
        return [ExpandedArg(None, multiple=True, source_text=source_text)]
    fields = [_FIELD.findall(value) for value in values]
    if len(fields) == 1:
        return [ExpandedArg((text,), source_text=text) for text in fields[0]]
    if any(len(texts) != 1 for texts in fields):
        return [ExpandedArg(None, multiple=True, source_text=source_text)]
    return [ExpandedArg(tuple(texts[0] for texts in fields), source_text=source_text)]


def _literal_prefix(word: Word) -> str:
    first_part = word[0] if word else None
    return first_part.text if isinstance(first_part, LiteralText) else ""


def _combine_values(values: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Returns all combinations of the possible values. Raises NotProvenSafe if there are too many."""
    factors = list(values)
    size = 1
    for value in factors:
        size *= len(value)
    longest = sum(max(map(len, value), default=0) for value in factors)
    if size > MAX_VALUES or size * longest > MAX_VALUES_LENGTH:
        raise NotProvenSafe("it contains a word with too many possible values to check")
    return itertools.product(*factors)


def _expand_glob(word: Word, state: ShellState, source_text: str) -> ExpandedArg:
    """Expands a glob with the files that exist now.

    Files can appear between the check and the run, so `from_glob` does not depend on the present files.
    """
    prefix = _literal_prefix(word)
    parts = _glob_parts(word, state)
    pattern = "" if parts is None else "".join(escaped for escaped, _ in parts)
    if parts is None or any(mark in pattern for mark in ("[[:", "[[.", "[[=")):
        return ExpandedArg(None, multiple=True, prefix=prefix, source_text=source_text)
    unmatched = "".join(plain for _, plain in parts)
    if not any(isinstance(part, GlobCharacter) and part.text in "*?" for part in word) and "]" not in unmatched:
        return ExpandedArg((unmatched,), source_text=source_text)
    match = _match_files(pattern, state.cwds, state.glob_budget)
    if match == [] and prefix.startswith("-"):
        return ExpandedArg(
            (unmatched,), source_text=source_text
        )  # an option with a glob as its value; no file matches, so bash passes it unchanged
    if match is None:
        return ExpandedArg(None, multiple=True, prefix=prefix, source_text=source_text)
    return ExpandedArg(
        tuple(dict.fromkeys((unmatched, *match))), multiple=True, from_glob=not prefix, source_text=source_text
    )


def _match_files(pattern: str, cwds: Iterable[str], budget: list[int]) -> list[str] | None:
    """Returns the paths that match a glob now, or None if there are too many to check."""
    # bash accepts `[^…]` for `[!…]`; fnmatch does not.
    parts = pattern.replace("[^", "[!").split("/")
    start = "/" if pattern.startswith("/") else ""
    match: list[str] = []
    for cwd in cwds:
        for name in _match_below(start or cwd, start, parts, budget):
            match.append(name)
            if len(match) > MAX_VALUES:
                return None
    return match if budget[0] > 0 else None


def _match_below(folder: str, written: str, parts: list[str], budget: list[int]) -> Iterator[str]:
    """Yields the matching paths below a folder, as bash writes them in place of the glob."""
    part, remaining = parts[0], parts[1:]
    if not any(mark in part for mark in "*?["):
        path = os.path.join(folder, part) if part else folder  # noqa: PTH118
        if not remaining:
            yield from [written + part] if os.path.lexists(path) else []
        elif budget[0] > 0:
            yield from _match_below(path, f"{written}{part}/" if part or not written else written, remaining, budget)
        return
    for name in (*_list_folder(folder, budget), ".", ".."):  # older shells match these too
        if not _matches_segment(name, part) or (name.startswith(".") and not part.startswith(".")):
            continue
        if not remaining:
            yield written + name
        elif remaining == [""]:
            yield f"{written}{name}/"
        else:
            yield from _match_below(os.path.join(folder, name), f"{written}{name}/", remaining, budget)  # noqa: PTH118


def _matches_segment(name: str, part: str) -> bool:
    """Matches one path segment; in some locales a range such as [a-z] also matches capitals."""
    return fnmatchcase(name, part) or ("[" in part and fnmatchcase(name.casefold(), part.casefold()))


def _list_folder(folder: str, budget: list[int]) -> list[str]:
    """Lists a folder and charges its entries to the budget; returns an empty list on an error."""
    if budget[0] <= 0:
        return []
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except (OSError, ValueError):
        return []
    budget[0] -= len(names) + 1
    return names


def _glob_parts(word: Word, state: ShellState) -> list[tuple[str, str]] | None:
    """Returns each part of a word as glob syntax and as plain text, or None if a part has no single value."""
    parts: list[tuple[str, str]] = []
    for part in word:
        if isinstance(part, GlobCharacter):
            parts.append((part.text, part.text))
            continue
        values = _possible_values(part, state)
        if values is None or len(values) != 1 or _may_split(part, state):
            return None
        plain = isinstance(part, LiteralText) and not part.quoted
        parts.append((values[0] if plain else glob.escape(values[0]), values[0]))
    return parts
