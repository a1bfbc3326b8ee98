"""The specification language for known programs, and a getopt-like parser that checks arguments against it."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct

from outrider.permissions.paths.containment import (
    Containment,
    contain,
    find_escaping_link,
    find_unsafe_name,
)
from outrider.permissions.shell.expansion import ExpandedArg, literal_arg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.types.tool_declaration import FileOperation

_HARMLESS_DEVICES = re.compile(r"^/dev/(?:null|zero|full|u?random|stdin|fd/[0-9]+)$")


class PathChecker:
    """Checks paths against the workspace during one decision, and caches the results.

    `cwds` lists every folder in which the command can run; a path must be allowed relative to each of them.
    """

    def __init__(self, root: str, cwds: tuple[str, ...], containments: dict[tuple[str, str, str], Containment]) -> None:
        self.root, self.cwds, self._containments = root, cwds, containments

    def with_cwds(self, cwds: tuple[str, ...]) -> "PathChecker":
        """Returns a checker for other working folders that shares the cache."""
        return PathChecker(self.root, cwds, self._containments)

    @cached_property
    def cwd(self) -> str:
        return self.cwds[0]

    def contain(self, path: str, cwd: str, op: FileOperation = "list") -> Containment:
        """Returns the cached containment of a path; `op` is the operation on it."""
        key = (path, cwd, op)
        if key not in self._containments:
            self._containments[key] = contain(path, root=self.root, cwd=cwd, op=op)
        return self._containments[key]

    def check_argument(self, arg: ExpandedArg, *, opens: bool = True) -> None:
        """Raises NotProvenSafe if an argument can name a file that needs approval.

        With `opens=False` the program only looks at the file's metadata, so protected files are allowed.
        """
        if arg.found_paths:
            return
        if arg.values is None:
            raise NotProvenSafe(f"which file {arg.source_text or 'an argument'} names is not known in advance")
        for choice in arg.values:
            self.check_path(choice, opens=opens)

    def reject_outside_links(self, starts: Iterable[str], names: Collection[str] = ()) -> None:
        """Raises NotProvenSafe if a symbolic link below these folders points out of the workspace."""
        for start in starts:
            for cwd in self.cwds:
                if reason := find_escaping_link(os.path.join(cwd, start), os.path.realpath(self.root), names):  # noqa: PTH118
                    raise NotProvenSafe(reason)

    def reject_ambiguous_names(self, starts: Iterable[str], *, globs: bool = False) -> None:
        """Raises NotProvenSafe if a file name below these folders contains blanks or quotes, at which xargs splits.

        With `globs`, characters that the shell expands as a glob are rejected too.
        """
        for start in starts:
            for cwd in self.cwds:
                if reason := find_unsafe_name(start, os.path.join(cwd, start), globs=globs):  # noqa: PTH118
                    raise NotProvenSafe(reason)

    def check_path(self, path: str, *, opens: bool = True) -> None:
        """Raises NotProvenSafe if a path needs approval; standard input and harmless devices are allowed."""
        if path in {"-", ""} or _HARMLESS_DEVICES.match(path):
            return
        for cwd in self.cwds:
            # The word expansion has already replaced a leading `~`; any remaining one is part of a file name.
            containment = self.contain(path if not path.startswith("~") else f"./{path}", cwd)
            if containment.kind != "inside" and (opens or containment.kind != "protected"):
                raise NotProvenSafe(f"{path}: {containment.reason}")


def is_number(text: str) -> bool:
    """Returns whether a string consists of ASCII digits only; `str.isdigit` also accepts digits of other scripts."""
    return text.isascii() and text.isdigit()


OptionValue = Literal["nothing", "value", "attached", "file"]
OperandKind = Literal["none", "text", "files", "pattern, files"]

_PATTERN_OPTIONS = frozenset({"-e", "--regexp"})
_TOKEN = re.compile(r"^(?P<dashes>--?)(?P<name>[A-Za-z0-9?#@%+:.,_-]+?)(?P<takes>=@|=|\[=\])?$")
_OPTION_VALUES: dict[str | None, OptionValue] = {None: "nothing", "=": "value", "[=]": "attached", "=@": "file"}


class ParsedArgs(Struct, frozen=True):
    """The arguments of a call, split into options with their values and operands."""

    options: tuple[tuple[str, ExpandedArg | None], ...]
    operands: tuple[ExpandedArg, ...]

    def has_option(self, *names: str) -> bool:
        """Returns whether one of the options is given."""
        return any(name in names for name, _ in self.options)

    def option_values(self, *names: str) -> list[ExpandedArg]:
        """Returns the values of the given options, in order."""
        return [value for name, value in self.options if name in names and value is not None]


class ProgramSpec(Struct, frozen=True, dict=True):
    """The options and operands with which a program only reads.

    - `notation`: the options, as `program_spec` describes them.
    - `operands`: what the operands are.
    - `inert`: no option of the program has an effect, so abbreviated options and file names that look like options are
      safe.
    - `numeric_options`: `-20` is an option.
    - `max_operands`: the number of operands after which a further one would be the output file.
    - `check`: raises NotProvenSafe for calls that the table alone does not exclude.
    - `whole_word_options`: words with a single dash that are one option, such as `-version`.
    - `options_first`: option parsing stops at the first operand.
    - `opens_files`: False if the program reads only the metadata of files.
    - `short_options`: with "getopt", letters can be joined, and the last one can be joined with its value. With
      "letters", a value is a separate word. With "separate", each option is a separate word. With "first", only the
      first letter of a word can take a value.
    - `bundled_options`: the first word contains options even without a dash, as in `tar tf`.
    """

    notation: str
    operands: OperandKind = "files"
    inert: bool = False
    numeric_options: bool = False
    max_operands: int | None = None
    check: Callable[[ParsedArgs, PathChecker], None] | None = None
    whole_word_options: frozenset[str] = frozenset()
    options_first: bool = False
    opens_files: bool = True
    short_options: Literal["getopt", "letters", "separate", "first"] = "getopt"
    bundled_options: bool = False

    @cached_property
    def options(self) -> dict[str, OptionValue]:
        """The options and their value types. Most commands of a session need the options of a few programs only."""
        return parse_option_table(self.notation)


def program_spec(
    options: str,
    operands: OperandKind = "files",
    *,
    inert: bool = False,
    numeric_options: bool = False,
    max_operands: int | None = None,
    check: Callable[[ParsedArgs, PathChecker], None] | None = None,
    options_first: bool = False,
) -> ProgramSpec:
    """Builds a ProgramSpec from a list of options.

    Notation: `-abc` (three options without a value), `-n=` (takes a value), `-f=@` (takes a file to read), `-U[=]` (an
    optional attached value). Long options use the same suffixes.
    """
    return ProgramSpec(options, operands, inert, numeric_options, max_operands, check, options_first=options_first)


def parse_option_table(options: str) -> dict[str, OptionValue]:
    """Parses the option notation of `program_spec` into a dict of option and value type."""
    table: dict[str, OptionValue] = {}
    for token in options.split():
        match = _TOKEN.match(token)
        if not match:
            raise ValueError(f"{token!r} is not an option")
        names = [match["name"]] if match["dashes"] == "--" else list(match["name"])
        table |= {match["dashes"] + name: _OPTION_VALUES[match["takes"]] for name in names}
    return table


def prove_read_only(spec: ProgramSpec, args: Sequence[ExpandedArg], paths: PathChecker) -> ParsedArgs:
    """Parses the arguments. Raises NotProvenSafe unless this call only reads files that need no approval."""
    parsed = parse_args(spec, args)
    if spec.max_operands is not None and (
        len(parsed.operands) > spec.max_operands or any(arg.multiple for arg in parsed.operands)
    ):
        raise NotProvenSafe("it would write to one of the files in its arguments")
    for name, value in parsed.options:
        if value is not None and spec.options.get(name) == "file":
            paths.check_argument(value)
    for arg in file_operands(spec, parsed):
        paths.check_argument(arg, opens=spec.opens_files)
    if spec.check:
        spec.check(parsed, paths)
    return parsed


def file_operands(spec: ProgramSpec, parsed: ParsedArgs) -> Sequence[ExpandedArg]:
    """Returns the operands that are files."""
    match spec.operands:
        case "none":
            if parsed.operands:
                raise NotProvenSafe(f"{parsed.operands[0].source_text} is an unexpected argument")
            return ()
        case "text":
            return ()
        case "files":
            return parsed.operands
        case "pattern, files":
            return (
                parsed.operands
                if parsed.has_option("-e", "-f", "--regexp", "--file", "--files")
                else parsed.operands[1:]
            )


def parse_args(spec: ProgramSpec, args: Sequence[ExpandedArg]) -> ParsedArgs:
    """Parses options and operands as getopt does. Raises NotProvenSafe for an unknown or uncertain option."""
    parser = _ArgumentParser(spec, _split_bundled_options(spec, args) if spec.bundled_options else list(args))
    while parser.remaining_args:
        parser.parse_next()
    return ParsedArgs(tuple(parser.options), tuple(parser.operands))


def _split_bundled_options(spec: ProgramSpec, args: Sequence[ExpandedArg]) -> list[ExpandedArg]:
    """Rewrites `tfv x` as `-tv -f x`: the values follow the word in the order of the letters that take one."""
    bundle = args[0].text if args else None
    if bundle is None or bundle.startswith("-"):
        return list(args)
    if not bundle.isascii() or not bundle.isalpha():
        raise NotProvenSafe(f"{bundle} could contain options in an unusual form")
    taking = [letter for letter in bundle if spec.options.get(f"-{letter}") in {"value", "file"}]
    plain = "".join(letter for letter in bundle if letter not in taking)
    if len(args) <= len(taking):
        raise NotProvenSafe(f"an option in {bundle} has no value")
    values = [
        arg for letter, value in zip(taking, args[1:], strict=False) for arg in (literal_arg(f"-{letter}"), value)
    ]
    return [*([literal_arg(f"-{plain}")] if plain else []), *values, *args[1 + len(taking) :]]


class _ArgumentParser:
    """Parses arguments by the rules of getopt_long."""

    def __init__(self, spec: ProgramSpec, args: list[ExpandedArg]) -> None:
        self.spec, self.remaining_args = spec, args
        self.options: list[tuple[str, ExpandedArg | None]] = []
        self.operands: list[ExpandedArg] = []

    def parse_next(self) -> None:
        arg = self.remaining_args.pop(0)
        text = arg.text
        if self.spec.options_first and self.operands:
            self.operands.append(arg)
        elif text == "--":
            self.operands += self.remaining_args
            self.remaining_args = []
        elif text is None or arg.from_glob or arg.found_paths:
            self._parse_uncertain(arg)
        elif text == "-" or not text.startswith("-"):
            self.operands.append(arg)
        elif text in self.spec.whole_word_options:
            self.options.append((text, None))
        elif text.startswith("--"):
            self._parse_long_option(text)
        elif self.spec.numeric_options and is_number(text[1:]):
            self.options.append(("-#", literal_arg(text[1:])))
        else:
            self._parse_short_options(text)

    def _parse_uncertain(self, arg: ExpandedArg) -> None:
        """Accepts an argument with uncertain value as an operand. Raises NotProvenSafe if it could be an option."""
        harmless = self.spec.inert and (arg.values is not None or arg.found_paths or self.spec.operands == "text")
        if arg.can_be_option() and not harmless:
            raise NotProvenSafe(f"{arg.source_text or 'an argument'} could become an option")
        if arg.values and any(choice.startswith("-") and choice != "-" for choice in arg.values):
            raise NotProvenSafe(f"{arg.source_text} matches a file whose name looks like an option")
        self.operands.append(arg)

    def _parse_long_option(self, text: str) -> None:
        name, equals, value = text.partition("=")
        takes = self.spec.options.get(name)
        if takes is None and self.spec.inert:
            name, takes = self._find_abbreviated(name)
        if takes is None or (takes == "nothing" and equals):
            raise NotProvenSafe(f"its option {name} is not known to only read")
        if takes in {"value", "file"}:
            self.options.append((name, literal_arg(value) if equals else self._take_value(name)))
        else:
            self.options.append((name, literal_arg(value) if equals else None))

    def _find_abbreviated(self, name: str) -> tuple[str, OptionValue | None]:
        """Returns the full name of an abbreviated option and what it takes; an ambiguous one is unknown."""
        candidates = [option for option in self.spec.options if option.startswith(name)]
        return (candidates[0], self.spec.options[candidates[0]]) if len(candidates) == 1 else (name, None)

    def _parse_short_options(self, text: str) -> None:
        cluster = text[1:]
        while cluster:
            name, cluster = "-" + cluster[0], cluster[1:]
            takes = self.spec.options.get(name)
            if takes is None:
                raise NotProvenSafe(f"its option {name} is not known to only read")
            if takes == "nothing":
                self.options.append((name, None))
                if cluster and self.spec.short_options == "separate":
                    raise NotProvenSafe(f"its options {text} are joined in an unusual form")
                continue
            if self.spec.short_options == "first":
                misplaced = text[1] != name[1]
            else:
                misplaced = bool(cluster) and self.spec.short_options != "getopt" and not is_number(cluster)
            if misplaced:
                raise NotProvenSafe(f"its options {text} are joined in an unusual form")
            value = literal_arg(cluster) if cluster else None
            self.options.append((name, value if value or takes == "attached" else self._take_value(name)))
            return

    def _take_value(self, name: str) -> ExpandedArg:
        if not self.remaining_args or self.remaining_args[0].multiple or self.remaining_args[0].from_glob:
            raise NotProvenSafe(f"the value of its option {name} is missing or not known in advance")
        value = self.remaining_args.pop(0)
        if not self.spec.inert and name not in _PATTERN_OPTIONS and value.can_be_option():
            # Versions of a program disagree whether an option takes the next word, above all one that looks like an
            # option.
            texts = value.values or ("--",)
            if not all(text == "-" or not text.startswith("-") or is_number(text[1:]) for text in texts):
                raise NotProvenSafe(f"the value of its option {name} could be another option")
        return value
