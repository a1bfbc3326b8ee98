"""Reads a script of sed and proves that it only prints: no file written, no file read, no command run."""

import re
from collections.abc import Sequence

from outrider.permissions.programs.table import Place, program, read_use
from outrider.permissions.shell.expansion import Arg
from outrider.permissions.shell.parser import Unclear

SED = program(
    "-nErsuz -e= -l= --quiet --silent --regexp-extended --expression= --line-length= --separate --unbuffered "
    "--null-data --posix --sandbox --debug --help --version"
)
_ALONE = frozenset("dDgGhHnNpPxz=F")
_WITH_LABEL = frozenset("btT:")
_WITH_NUMBER = frozenset("qQlL")
_WITH_TEXT = frozenset("aic")
_FLAGS = re.compile(r"[gpiImM0-9]*")
_STEP = re.compile(r"(?:[0-9]+|\$)(?:~[0-9]+)?|[+~][0-9]+")


def prove_sed(args: Sequence[Arg], place: Place) -> None:
    use = read_use(SED, args)
    scripts = use.values("-e", "--expression")
    operands = list(use.operands)
    if not scripts and not use.has("--help", "--version"):
        if not operands:
            raise Unclear("sed without a script")
        scripts = [operands.pop(0)]
    for script in scripts:
        if script.text is None:
            raise Unclear("a script of sed that is unknown")
    _Script("\n".join(script.text or "" for script in scripts)).prove()
    for file in operands:
        place.check(file)


class _Script:
    def __init__(self, text: str) -> None:
        if not text.isascii():
            raise Unclear("a script of sed beyond ASCII")
        self.text, self.at = text, 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, chars: str) -> None:
        while self.peek() and self.peek() in chars:
            self.at += 1

    def prove(self) -> None:
        while True:
            self.skip(" \t\n;}")
            if not self.peek():
                return
            if self.peek() == "#":
                self.line()
                continue
            self.addresses()
            self.command()

    def line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        found, self.at = self.text[self.at : end], end
        return found

    def addresses(self) -> None:
        if self.address():
            self.skip(" \t")
            if self.peek() == ",":
                self.at += 1
                self.skip(" \t")
                if not self.address():
                    raise Unclear("an address of sed that is unusual")
        self.skip(" \t!")

    def address(self) -> bool:
        if found := _STEP.match(self.text, self.at):
            self.at = found.end()
            return True
        if self.peek() == "\\":
            self.at += 1
            self.delimited(self.take())
        elif self.peek() == "/":
            self.delimited(self.take())
        else:
            return False
        while self.peek() in {"I", "M"}:
            self.at += 1
        return True

    def take(self) -> str:
        char = self.peek()
        if not char or char in "\n\\":
            raise Unclear("a script of sed that ends too early")
        self.at += 1
        return char

    def delimited(self, mark: str) -> None:
        """Up to the next mark; a class in brackets may hold it, and versions differ there, so that is unclear."""
        bracket = False
        while (char := self.peek()) != mark or bracket:
            if not char or char == "\n":
                raise Unclear("a pattern of sed that is not closed")
            if char == "\\" and not bracket:
                self.at += 1
                if self.peek() in {"", "\n"}:
                    raise Unclear("an escaped line end in sed")
            elif char == "[" and not bracket:
                bracket = True
                if self.text[self.at + 1 : self.at + 2] == "^":
                    self.at += 1
                if self.text[self.at + 1 : self.at + 2] == "]":
                    self.at += 1
            elif char == "]":
                bracket = False
            elif bracket and char == mark:
                raise Unclear("a mark inside brackets")
            self.at += 1
        self.at += 1

    def command(self) -> None:
        name = self.peek()
        self.at += 1
        if name == "{":
            return
        if name in _ALONE:
            self.end()
        elif name in _WITH_LABEL:
            self.label()
        elif name in _WITH_NUMBER:
            self.skip(" \t0123456789")
            self.end()
        elif name in _WITH_TEXT:
            self.text_lines()
        elif name == "s":
            self.substitute()
        elif name == "y":
            self.both(self.take())
            self.end()
        else:
            raise Unclear(f"the command {name!r} of sed is not known to be harmless")

    def end(self) -> None:
        self.skip(" \t")
        if self.peek() not in {"", ";", "\n", "}", "#"}:
            raise Unclear("a command of sed that goes on unexpectedly")

    def label(self) -> None:
        found = re.compile(r"[ \t]*[A-Za-z0-9_]*").match(self.text, self.at)
        self.at = found.end() if found else self.at
        self.end()

    def text_lines(self) -> None:
        """Text goes to the end of the line, and on while the line ends in a backslash: then it is unclear."""
        if self.line().rstrip().endswith("\\"):
            raise Unclear("text of sed over several lines")

    def substitute(self) -> None:
        mark = self.take()
        if mark.isalnum() or mark in " ;}#[]{":
            raise Unclear("an unusual mark in sed")
        self.both(mark)
        found = _FLAGS.match(self.text, self.at)
        self.at = found.end() if found else self.at
        self.end()

    def both(self, mark: str) -> None:
        self.delimited(mark)
        self.replacement(mark)

    def replacement(self, mark: str) -> None:
        while (char := self.peek()) != mark:
            if not char or char == "\n":
                raise Unclear("a replacement of sed that is not closed")
            self.at += 2 if char == "\\" else 1
        self.at += 1
