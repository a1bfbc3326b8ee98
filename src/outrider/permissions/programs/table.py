"""The language of the program tables: which options a program may be given, and what its operands are."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct

from outrider.permissions.paths.containment import Containment, contain, link_out, unruly_name
from outrider.permissions.shell.expansion import Arg, literal
from outrider.permissions.shell.parser import Unclear

_HARMLESS_DEVICES = re.compile(r"^/dev/(?:null|zero|full|u?random|stdin|fd/[0-9]+)$")


class Place:
    """One workspace during one decision; answers about paths are remembered that long."""

    def __init__(self, root: str, cwds: tuple[str, ...], known: dict[tuple[str, str, str], Containment]) -> None:
        self.root, self.cwds, self._known = root, cwds, known

    def at(self, cwds: tuple[str, ...]) -> "Place":
        return Place(self.root, cwds, self._known)

    @cached_property
    def cwd(self) -> str:
        return self.cwds[0]

    def contain(self, path: str, cwd: str, op: str = "list") -> Containment:
        key = (path, cwd, op)
        if key not in self._known:
            self._known[key] = contain(path, root=self.root, cwd=cwd, op=op)
        return self._known[key]

    def check(self, arg: Arg, *, opens: bool = True) -> None:
        """Refuses an argument that can name a file which may not be read unasked; a file that is not opened shows no
        secret."""
        if arg.paths:
            return
        if arg.choices is None:
            raise Unclear(f"which file {arg.shown or 'an argument'} names is unknown")
        for choice in arg.choices:
            self.check_text(choice, opens=opens)

    def refuse_links(self, starts: Iterable[str], names: Collection[str] = ()) -> None:
        """Refuses to open what is found below these folders where a link among it leads out of the workspace."""
        for start in starts:
            for cwd in self.cwds:
                if why := link_out(os.path.join(cwd, start), os.path.realpath(self.root), names):  # noqa: PTH118
                    raise Unclear(why)

    def refuse_unruly(self, starts: Iterable[str]) -> None:
        """Refuses to take names below these folders from a text, where one of them would be taken apart."""
        for start in starts:
            for cwd in self.cwds:
                if why := unruly_name(start, os.path.join(cwd, start)):  # noqa: PTH118
                    raise Unclear(why)

    def check_text(self, path: str, *, opens: bool = True) -> None:
        if path in {"-", ""} or _HARMLESS_DEVICES.match(path):
            return
        for cwd in self.cwds:
            # The shell has expanded every `~` that counts; one that is left is a name like any other.
            found = self.contain(path if not path.startswith("~") else f"./{path}", cwd)
            if found.kind != "inside" and (opens or found.kind != "protected"):
                raise Unclear(f"{path}: {found.reason}")


Takes = Literal["nothing", "value", "attached", "file"]
Operands = Literal["none", "text", "files", "pattern, files"]

_TOKEN = re.compile(r"^(?P<dashes>--?)(?P<name>[A-Za-z0-9?#@%+:.,_-]+?)(?P<takes>=@|=|\[=\])?$")
_TAKES: dict[str | None, Takes] = {None: "nothing", "=": "value", "[=]": "attached", "=@": "file"}


class Use(Struct, frozen=True):
    """One way a program is called, read by its own rules: options with their values, and operands."""

    options: tuple[tuple[str, Arg | None], ...]
    operands: tuple[Arg, ...]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)

    def values(self, *names: str) -> list[Arg]:
        return [value for name, value in self.options if name in names and value is not None]


class Program(Struct, frozen=True):
    """A program and the uses of it that only read.

    `inert` says that it has no option with an effect at all, so abbreviations and file names that look like
    options cannot hurt. `numbers` takes `-20` for an option. `options_first` says that nothing is an option after the
    first operand: it could be the file to write.
    """

    options: dict[str, Takes]
    operands: Operands = "files"
    inert: bool = False
    numbers: bool = False
    most: int | None = None
    check: Callable[[Use, Place], None] | None = None
    words: frozenset[str] = frozenset()  # words like -version that are one option
    options_first: bool = False
    opens: bool = True  # False: it tells about files without opening them
    bundled: bool = False  # the first word holds options even without a dash, as in `tar tf`


def program(
    options: str,
    operands: Operands = "files",
    *,
    inert: bool = False,
    numbers: bool = False,
    most: int | None = None,
    check: Callable[[Use, Place], None] | None = None,
    options_first: bool = False,
) -> Program:
    """Options as `-abc` (no value), `-n=` (a value), `-f=@` (a file), `-U[=]` (attached or none); long ones alike."""
    return Program(read_table(options), operands, inert, numbers, most, check, options_first=options_first)


def read_table(options: str) -> dict[str, Takes]:
    table: dict[str, Takes] = {}
    for token in options.split():
        found = _TOKEN.match(token)
        if not found:
            raise ValueError(f"{token!r} is no option")
        names = [found["name"]] if found["dashes"] == "--" else list(found["name"])
        table |= {found["dashes"] + name: _TAKES[found["takes"]] for name in names}
    return table


def prove(spec: Program, args: Sequence[Arg], place: Place) -> Use:
    """Reads the arguments; raises Unclear unless this use only reads what may be read unasked."""
    use = read_use(spec, args)
    if spec.most is not None and (len(use.operands) > spec.most or any(arg.many for arg in use.operands)):
        raise Unclear("one of its operands would be written to")
    for name, value in use.options:
        if value is not None and spec.options.get(name) == "file":
            place.check(value)
    for arg in files_of(spec, use):
        place.check(arg, opens=spec.opens)
    if spec.check:
        spec.check(use, place)
    return use


def files_of(spec: Program, use: Use) -> Sequence[Arg]:
    """The operands that are files."""
    match spec.operands:
        case "none":
            if use.operands:
                raise Unclear(f"{use.operands[0].shown} is not expected")
            return ()
        case "text":
            return ()
        case "files":
            return use.operands
        case "pattern, files":
            return use.operands if use.has("-e", "-f", "--regexp", "--file", "--files") else use.operands[1:]


def read_use(spec: Program, args: Sequence[Arg]) -> Use:
    """Options and operands, as getopt would read them; an unknown, abbreviated or uncertain option is unclear."""
    reading = _Reading(spec, _unbundled(spec, args) if spec.bundled else list(args))
    while reading.rest:
        reading.next()
    return Use(tuple(reading.options), tuple(reading.operands))


def _unbundled(spec: Program, args: Sequence[Arg]) -> list[Arg]:
    """`tfv x` as `-tv -f x`: the letters that take a value find theirs behind the word, in the same order."""
    first = args[0].text if args else None
    if first is None or not first.isalpha():
        return list(args)
    taking = [letter for letter in first if spec.options.get(f"-{letter}") in {"value", "file"}]
    plain = "".join(letter for letter in first if letter not in taking)
    if len(args) <= len(taking):
        raise Unclear(f"{first} lacks a value")
    values = [arg for letter, value in zip(taking, args[1:], strict=False) for arg in (literal(f"-{letter}"), value)]
    return [*([literal(f"-{plain}")] if plain else []), *values, *args[1 + len(taking) :]]


class _Reading:
    def __init__(self, spec: Program, rest: list[Arg]) -> None:
        self.spec, self.rest = spec, rest
        self.options: list[tuple[str, Arg | None]] = []
        self.operands: list[Arg] = []

    def next(self) -> None:
        arg = self.rest.pop(0)
        text = arg.text
        if self.spec.options_first and self.operands:
            self.operands.append(arg)
        elif text == "--":
            self.operands += self.rest
            self.rest = []
        elif text is None or arg.loose or arg.paths:
            self._uncertain(arg)
        elif text == "-" or not text.startswith("-"):
            self.operands.append(arg)
        elif text in self.spec.words:
            self.options.append((text, None))
        elif text.startswith("--"):
            self._long(text)
        elif self.spec.numbers and text[1:].isdigit():
            self.options.append(("-#", literal(text[1:])))
        else:
            self._short(text)

    def _uncertain(self, arg: Arg) -> None:
        harmless = self.spec.inert and (arg.choices is not None or arg.paths or self.spec.operands == "text")
        if arg.can_be_option() and not harmless:
            raise Unclear(f"{arg.shown or 'an argument'} could be an option")
        if arg.choices and any(choice.startswith("-") and choice != "-" for choice in arg.choices):
            raise Unclear(f"{arg.shown} is a file name that is taken for an option")
        self.operands.append(arg)

    def _long(self, text: str) -> None:
        name, given, value = text.partition("=")
        takes = self.spec.options.get(name)
        if takes is None and self.spec.inert:
            takes = self._abbreviated(name)
        if takes is None or (takes == "nothing" and given):
            raise Unclear(f"the option {name} is not known to be harmless")
        if takes in {"value", "file"}:
            self.options.append((name, literal(value) if given else self._value(name)))
        else:
            self.options.append((name, literal(value) if given else None))

    def _abbreviated(self, name: str) -> Takes | None:
        found: set[Takes] = {takes for option, takes in self.spec.options.items() if option.startswith(name)}
        return None if len(found) != 1 or "file" in found else found.pop()

    def _short(self, text: str) -> None:
        cluster = text[1:]
        while cluster:
            name, cluster = "-" + cluster[0], cluster[1:]
            takes = self.spec.options.get(name)
            if takes is None:
                raise Unclear(f"the option {name} is not known to be harmless")
            if takes == "nothing":
                self.options.append((name, None))
                continue
            value = literal(cluster) if cluster else None
            self.options.append((name, value if value or takes == "attached" else self._value(name)))
            return

    def _value(self, name: str) -> Arg:
        if not self.rest or self.rest[0].many or self.rest[0].loose:
            raise Unclear(f"the value of {name} is missing or unknown")
        return self.rest.pop(0)
