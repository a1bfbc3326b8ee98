"""Parses the expression of `find`: its tests, and the commands that `-exec` runs for the files it finds."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from outrider.permissions.paths.protected import pattern_matches_secret
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import PathChecker

_PLAIN_TESTS = split_names(
    """-print -print0 -ls -prune -quit -true -false -depth -d -mount -xdev -daystart -noleaf -empty -nouser
    -nogroup -readable -writable -executable -not -and -or -a -o ! ( ) , -noignore_readdir_race
    -ignore_readdir_race -warn -nowarn -help --help -version --version"""
)
_VALUE_TESTS = split_names(
    """-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname -type -xtype -size
    -maxdepth -mindepth -mtime -mmin -atime -amin -ctime -cmin -used -perm -user -group -uid -gid -links -inum
    -fstype -printf -context"""
)
_ALTERNATIVES = frozenset({"-o", "-or", ",", "("})
_NEGATIONS = frozenset({"!", "-not"})
_TIME_TESTS = re.compile(r"^-newer[aBcm]t$")
_FILE_TESTS = re.compile(r"^-(?:newer|anewer|cnewer|samefile|newer[aBcm][aBcm])$")
_BEFORE_PATHS = frozenset({"-H", "-P"})
_PRINT_FORMATS: dict[tuple[str, ...], Literal["whole", "lines"]] = {
    ("-print0",): "whole",
    ("-print",): "lines",
    (): "lines",
}
FOUND_PATHS = ExpandedArg(None, multiple=True, found_paths=True, source_text="{}")


class FindExpression(Struct, frozen=True):
    """A parsed `find` call: the commands that it runs and the names that it prints."""

    commands: tuple[tuple[ExpandedArg, ...], ...] = ()
    patterns: tuple[str, ...] = ()  # every found file matches one of these; empty: no restriction
    prints_names: Literal["", "whole", "lines"] = ""  # "whole": separated by NUL bytes; "": prints other text too
    search_folders: tuple[str, ...] = (".",)
    link_folders: tuple[str, ...] = ()  # folders below which it may also find symbolic links


def parse_find(args: Sequence[ExpandedArg], paths: PathChecker) -> FindExpression:
    """Parses the arguments of `find`. Raises NotProvenSafe for actions that change files and for unapproved paths."""
    rest = list(args)
    while rest and rest[0].text in _BEFORE_PATHS:
        rest.pop(0)
    starts: list[str] = []
    while rest and not _starts_expression(rest[0]):
        paths.check_argument(rest[0])
        starts += rest.pop(0).values or ()
    parser = _FindParser(rest, paths)
    parser.parse()
    names = () if parser.alternatives else tuple(parser.patterns)
    only_files = parser.only_files and not parser.alternatives
    below = tuple(starts) or (".",)
    return FindExpression(
        tuple(parser.commands), names, _PRINT_FORMATS.get(tuple(parser.prints), ""), below, () if only_files else below
    )


def _starts_expression(arg: ExpandedArg) -> bool:
    if arg.can_be_option() and arg.text is None:
        raise NotProvenSafe(f"{arg.source_text} could become an action of find")
    return arg.text is not None and (arg.text.startswith("-") or arg.text in {"!", "(", ")", ","})


class _FindParser:
    """Parses the expression after the search folders."""

    def __init__(self, rest: list[ExpandedArg], paths: PathChecker) -> None:
        self.rest, self.paths = rest, paths
        self.commands: list[tuple[ExpandedArg, ...]] = []
        self.patterns: list[str] = []
        self.prints: list[str] = []
        self.alternatives = False  # the expression can match a file that matches no pattern
        self.negated = False
        self.only_files = False

    def parse(self) -> None:
        while self.rest:
            arg = self.rest.pop(0)
            text = arg.text
            if text in _PLAIN_TESTS:
                self.alternatives = self.alternatives or text in _ALTERNATIVES
                self.negated = text in _NEGATIONS
                self.prints += [text] if text.startswith("-print") or text == "-ls" else []
            elif text is not None and (text in _VALUE_TESTS or _TIME_TESTS.match(text)):
                self._parse_value_test(text)
            elif text is not None and _FILE_TESTS.match(text):
                self.paths.check_argument(self._take_argument(text))
            elif text == "-exec":
                self.commands.append(tuple(self._parse_exec()))
            else:
                raise NotProvenSafe(
                    "find -delete deletes files"
                    if text == "-delete"
                    else f"find {arg.source_text} can change files or run commands"
                )

    def _take_argument(self, name: str) -> ExpandedArg:
        if not self.rest or self.rest[0].multiple:
            raise NotProvenSafe(f"the value of find {name} is missing or not known in advance")
        return self.rest.pop(0)

    def _parse_value_test(self, name: str) -> None:
        """Parses a test with a value; stores name patterns and whether `-type f` excludes symbolic links."""
        value = self._take_argument(name).text
        if name == "-printf":
            self.prints.append(name)
        if name == "-type" and value == "f" and not self.negated and not self.commands and not self.prints:
            self.only_files = True
        if name in {"-name", "-iname"} and value is not None:
            self.alternatives = self.alternatives or self.negated
            self.patterns.append(value)
        self.negated = False

    def _parse_exec(self) -> Iterator[ExpandedArg]:
        """Yields the arguments of `-exec` up to `;` or `{} +`, with `{}` replaced by FOUND_PATHS.

        A `+` that does not follow `{}` is an ordinary argument.
        """
        previous = ""
        while self.rest:
            arg = self.rest.pop(0)
            if arg.text == ";" or (arg.text == "+" and previous == "{}"):
                return
            if arg.values is None or arg.from_glob:
                raise NotProvenSafe("find -exec has an argument that is not known in advance and could be its end")
            if arg.text == "{}":
                yield FOUND_PATHS
            elif any("{}" in value or value in {";", "+"} for value in arg.values):
                raise NotProvenSafe("find -exec inserts a file name into another word, or has an uncertain end")
            else:
                yield arg
            previous = arg.text or ""
        raise NotProvenSafe("find -exec has no ; or + at its end")


# Programs that may run on any found file. Every other program shows file contents, so the patterns of the search must
# exclude secret files.
_SAFE_FOR_ANY_FILE = split_names(
    """grep egrep fgrep wc ls stat file du md5sum sha1sum sha256sum cksum basename dirname realpath readlink echo
    test ["""
)


_NOT_OPENING_FILES = split_names("ls stat file du basename dirname realpath readlink echo test [")


def check_found_files(name: str, names: Sequence[str], links_below: Iterable[str], paths: PathChecker) -> None:
    """Raises NotProvenSafe if a program run on found files could show secrets or follow links out of the workspace."""
    if name not in _NOT_OPENING_FILES:
        paths.reject_outside_links(links_below, names)
    if name in _SAFE_FOR_ANY_FILE:
        return
    if not names or any(pattern_matches_secret(pattern) or pattern in {"*", "*.*", ".*"} for pattern in names):
        raise NotProvenSafe(f"{name} could show protected files among those that are found")
