"""Checks that a sed call only prints: its script writes no file, reads no file and runs no command."""

import re
from collections.abc import Sequence

from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import PathChecker, parse_args, program_spec

SED_SPEC = program_spec(
    "-nErsuz -e= -l= --quiet --silent --regexp-extended --expression= --line-length= --separate --unbuffered "
    "--null-data --posix --sandbox --debug --help --version"
)
_PLAIN_COMMANDS = frozenset("dDgGhHnNpPxz=F")
_LABEL_COMMANDS = frozenset("btT:")
_NUMBER_COMMANDS = frozenset("qQlL")
_TEXT_COMMANDS = frozenset("aic")
_SUBSTITUTE_FLAGS = re.compile(r"[gpiImM0-9]*")
_NUMERIC_ADDRESS = re.compile(r"(?:[0-9]+|\$)(?:~[0-9]+)?|[+~][0-9]+")


def prove_sed(args: Sequence[ExpandedArg], paths: PathChecker) -> None:
    """Raises NotProvenSafe unless the sed call only reads files that need no approval."""
    try:
        parsed = parse_args(SED_SPEC, args)
    except NotProvenSafe as error:
        if any((arg.text or "").startswith(("-i", "--in-place")) for arg in args):
            raise NotProvenSafe("sed -i changes files in place") from error
        raise
    scripts = parsed.option_values("-e", "--expression")
    operands = list(parsed.operands)
    if not scripts and not parsed.has_option("--help", "--version"):
        if not operands:
            raise NotProvenSafe("sed has no script")
        scripts = [operands.pop(0)]
    for script in scripts:
        if script.text is None:
            raise NotProvenSafe("the sed script is not known in advance")
    _SedScriptChecker("\n".join(script.text or "" for script in scripts)).check()
    for file in operands:
        paths.check_argument(file)


class _SedScriptChecker:
    """A parser for the commands of sed that only print; every other command raises NotProvenSafe."""

    def __init__(self, text: str) -> None:
        if not text.isascii():
            raise NotProvenSafe("the sed script contains characters other than ASCII")
        self.text, self.at = text, 0

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, chars: str) -> None:
        while self._peek() and self._peek() in chars:
            self.at += 1

    def check(self) -> None:
        """Raises NotProvenSafe at the first command that is not known to only print."""
        while True:
            self._skip(" \t\n;}")
            if not self._peek():
                return
            if self._peek() == "#":
                self._read_line()
                continue
            self._read_addresses()
            self._check_command()

    def _read_line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        match, self.at = self.text[self.at : end], end
        return match

    def _read_addresses(self) -> None:
        if self._read_address():
            self._skip(" \t")
            if self._peek() == ",":
                self.at += 1
                self._skip(" \t")
                if not self._read_address():
                    raise NotProvenSafe("the sed script contains an address in an unusual form")
        self._skip(" \t!")

    def _read_address(self) -> bool:
        """Skips one address; returns whether there was one."""
        if match := _NUMERIC_ADDRESS.match(self.text, self.at):
            self.at = match.end()
            return True
        if self._peek() == "\\":
            self.at += 1
            self._read_pattern(self._take_delimiter())
        elif self._peek() == "/":
            self._read_pattern(self._take_delimiter())
        else:
            return False
        while self._peek() in {"I", "M"}:
            self.at += 1
        return True

    def _take_delimiter(self) -> str:
        char = self._peek()
        if not char or char in "\n\\":
            raise NotProvenSafe("the sed script ends in the middle of a command")
        self.at += 1
        return char

    def _read_pattern(self, mark: str) -> None:
        """Skips a pattern up to its delimiter.

        sed versions disagree about a delimiter inside a bracket expression, so that raises NotProvenSafe.
        """
        bracket = False
        while (char := self._peek()) != mark or bracket:
            if not char or char == "\n":
                raise NotProvenSafe("the sed script contains a pattern that is not closed")
            if char == "\\" and not bracket:
                self.at += 1
                if self._peek() in {"", "\n"}:
                    raise NotProvenSafe("the sed script contains an escaped line end")
            elif char == "[" and not bracket:
                bracket = True
                if self.text[self.at + 1 : self.at + 2] == "^":
                    self.at += 1
                if self.text[self.at + 1 : self.at + 2] == "]":
                    self.at += 1
            elif char == "]":
                bracket = False
            elif bracket and char == mark:
                raise NotProvenSafe("the sed script contains a delimiter inside brackets")
            self.at += 1
        self.at += 1

    def _check_command(self) -> None:
        name = self._peek()
        self.at += 1
        if name == "{":
            return
        if name in _PLAIN_COMMANDS:
            self._check_command_end()
        elif name in _LABEL_COMMANDS:
            self._read_label()
        elif name in _NUMBER_COMMANDS:
            self._skip(" \t0123456789")
            self._check_command_end()
        elif name in _TEXT_COMMANDS:
            self._check_text()
        elif name == "s":
            self._check_substitute()
        elif name == "y":
            self._read_pattern_and_replacement(self._take_delimiter())
            self._check_command_end()
        else:
            raise NotProvenSafe(f"the sed command {name!r} can write files or run commands")

    def _check_command_end(self) -> None:
        """Raises NotProvenSafe if a command is followed by anything but a separator."""
        self._skip(" \t")
        if self._peek() not in {"", ";", "\n", "}", "#"}:
            raise NotProvenSafe(
                "the sed script contains a command in an unusual form, or a flag that writes or runs something"
            )

    def _read_label(self) -> None:
        match = re.compile(r"[ \t]*[A-Za-z0-9_]*").match(self.text, self.at)
        self.at = match.end() if match else self.at
        self._check_command_end()

    def _check_text(self) -> None:
        """Skips the text of `a`, `i` or `c` up to the line end; a continued line raises NotProvenSafe."""
        if self._read_line().rstrip().endswith("\\"):
            raise NotProvenSafe("the sed script contains text over several lines")

    def _check_substitute(self) -> None:
        """Checks `s`. The list of accepted flags lacks `w` and `e`, which write a file or run a command."""
        mark = self._take_delimiter()
        if mark.isalnum() or mark in " ;}#[]{":
            raise NotProvenSafe("the sed script uses an unusual delimiter")
        self._read_pattern_and_replacement(mark)
        match = _SUBSTITUTE_FLAGS.match(self.text, self.at)
        self.at = match.end() if match else self.at
        self._check_command_end()

    def _read_pattern_and_replacement(self, mark: str) -> None:
        self._read_pattern(mark)
        self._read_replacement(mark)

    def _read_replacement(self, mark: str) -> None:
        while (char := self._peek()) != mark:
            if not char or char == "\n":
                raise NotProvenSafe("the sed script contains a replacement that is not closed")
            self.at += 2 if char == "\\" else 1
        self.at += 1
