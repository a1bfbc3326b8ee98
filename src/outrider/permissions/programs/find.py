"""The expression language of find: tests that only look, and commands that it runs for what it finds."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from outrider.permissions.paths.protected import matches_secret
from outrider.permissions.programs.table import Place
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.expansion import Arg
from outrider.permissions.shell.parser import Unclear

_PLAIN = names(
    """-print -print0 -ls -prune -quit -true -false -depth -d -mount -xdev -daystart -noleaf -empty -nouser
    -nogroup -readable -writable -executable -not -and -or -a -o ! ( ) , -noignore_readdir_race
    -ignore_readdir_race -warn -nowarn -help --help -version --version"""
)
_VALUED = names(
    """-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname -type -xtype -size
    -maxdepth -mindepth -mtime -mmin -atime -amin -ctime -cmin -used -perm -user -group -uid -gid -links -inum
    -fstype -printf -context"""
)
_ALTERNATIVES = frozenset({"-o", "-or", ",", "("})
_NEGATIONS = frozenset({"!", "-not"})
_TIMES = re.compile(r"^-newer[aBcm]t$")
_FILES = re.compile(r"^-(?:newer|anewer|cnewer|samefile|newer[aBcm][aBcm])$")
_BEFORE_PATHS = frozenset({"-H", "-P"})
_PRINTED: dict[tuple[str, ...], Literal["whole", "lines"]] = {
    ("-print0",): "whole",
    ("-print",): "lines",
    (): "lines",
}
FOUND = Arg(None, many=True, paths=True, shown="{}")


class FindExpression(Struct, frozen=True):
    """What a call of find does beyond looking."""

    runs: tuple[tuple[Arg, ...], ...] = ()
    names: tuple[str, ...] = ()  # patterns of which every found file matches one
    prints_names: Literal["", "whole", "lines"] = ""  # and nothing else; whole ones have NUL bytes in between
    starts: tuple[str, ...] = (".",)
    links_below: tuple[str, ...] = ()  # folders below which links may be found too


def read_find(args: Sequence[Arg], place: Place) -> FindExpression:
    rest = list(args)
    while rest and rest[0].text in _BEFORE_PATHS:
        rest.pop(0)
    starts: list[str] = []
    while rest and not _begins_expression(rest[0]):
        place.check(rest[0])
        starts += rest.pop(0).choices or ()
    expression = _Expression(rest, place)
    expression.read()
    names = () if expression.alternatives else tuple(expression.names)
    only_files = expression.only_files and not expression.alternatives
    below = tuple(starts) or (".",)
    return FindExpression(
        tuple(expression.runs), names, _PRINTED.get(tuple(expression.prints), ""), below, () if only_files else below
    )


def _begins_expression(arg: Arg) -> bool:
    if arg.can_be_option() and arg.text is None:
        raise Unclear(f"{arg.shown} could be an action of find")
    return arg.text is not None and (arg.text.startswith("-") or arg.text in {"!", "(", ")", ","})


class _Expression:
    def __init__(self, rest: list[Arg], place: Place) -> None:
        self.rest, self.place = rest, place
        self.runs: list[tuple[Arg, ...]] = []
        self.names: list[str] = []
        self.prints: list[str] = []
        self.alternatives = False  # a file may be found without matching the names
        self.negated = False
        self.only_files = False

    def read(self) -> None:
        while self.rest:
            arg = self.rest.pop(0)
            text = arg.text
            if text in _PLAIN:
                self.alternatives = self.alternatives or text in _ALTERNATIVES
                self.negated = text in _NEGATIONS
                self.prints += [text] if text.startswith("-print") or text == "-ls" else []
            elif text is not None and (text in _VALUED or _TIMES.match(text)):
                self._value(text)
            elif text is not None and _FILES.match(text):
                self.place.check(self._next(text))
            elif text == "-exec":
                self.runs.append(tuple(self._command()))
            else:
                raise Unclear(f"find {arg.shown} is not known to be harmless")

    def _next(self, name: str) -> Arg:
        if not self.rest or self.rest[0].many:
            raise Unclear(f"the value of {name} is missing or unknown")
        return self.rest.pop(0)

    def _value(self, name: str) -> None:
        value = self._next(name).text
        if name == "-printf":
            self.prints.append(name)
        if name == "-type" and value == "f" and not self.negated and not self.runs and not self.prints:
            self.only_files = True
        if name in {"-name", "-iname"} and value is not None:
            self.alternatives = self.alternatives or self.negated
            self.names.append(value)
        self.negated = False

    def _command(self) -> Iterator[Arg]:
        while self.rest:
            arg = self.rest.pop(0)
            if arg.text in {";", "+"}:
                return
            if arg.text is not None and "{}" in arg.text:
                if arg.text != "{}":
                    raise Unclear("a found name inside another word")
                yield FOUND
            else:
                yield arg
        raise Unclear("a command of find without an end")


# Searching and measuring everything is reading the workspace; showing a found file needs a name that is no secret's.
_LOOKING = names(
    """grep egrep fgrep wc ls stat file du md5sum sha1sum sha256sum cksum basename dirname realpath readlink echo
    test ["""
)


_NOT_OPENING = names("ls stat file du basename dirname realpath readlink echo test [")


def refuse_found(name: str, names: Sequence[str], links_below: Iterable[str], place: Place) -> None:
    """Refuses a program that would show secrets, or follow links out of the workspace, among what was found."""
    if name not in _NOT_OPENING:
        place.refuse_links(links_below, names)
    if name in _LOOKING:
        return
    if not names or any(matches_secret(pattern) or pattern in {"*", "*.*", ".*"} for pattern in names):
        raise Unclear("which files it would show is not limited to ordinary ones")
