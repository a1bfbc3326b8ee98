"""Reads one word of the shell: quotes, escapes, expansions; whatever is unusual is unclear."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from outrider.permissions.shell.source import Source, Unclear, decoded, misleading

if TYPE_CHECKING:
    from tree_sitter import Node

METACHARACTERS = frozenset(" \t\n|&;()<>")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
# Every form of ${…} that can run nothing: no nested expansion, no indirection, no arithmetic but plain numbers.
_BRACED = re.compile(
    r"\{(?P<length>#?)(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?])(?P<index>\[(?:[@*]|[0-9]+)\])?"
    r"(?P<change>:?[-+?][^$`\"'\\{}\n]*|(?:##?|%%?|//?|\^\^?|,,?)[^$`\"'\\{}\n]*|: ?-?[0-9]+(?::-?[0-9]+)?)?\}"
)
_ARITHMETIC = re.compile(r"\(\((?P<sum>[0-9A-Za-z_+\-*/%()<>=!&|^~?: \t]*?)\)\)")
_ANSI_ESCAPE = re.compile(
    r"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|u(?P<short>[0-9a-fA-F]{4})|(?P<octal>[0-7]{1,3})|(?P<one>[ntrabefv\\'\"?]))"
)
_ONE = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "?": "?"}


class Text(Struct, frozen=True):
    """Characters that stay what they are."""

    text: str
    quoted: bool = False


class Wildcard(Struct, frozen=True):
    """An unquoted character that file names are matched with."""

    text: str


class Variable(Struct, frozen=True):
    name: str
    quoted: bool
    changed: bool = False  # cut, replaced, defaulted or measured: its value is no longer that of the variable
    spreads: bool = False  # becomes any number of words, even in quotes


class Substitution(Struct, frozen=True):
    """A command inside the word; the walk judges it, the word only knows that its text is unknown."""

    node: "Node"
    kind: Literal["output", "file"]
    quoted: bool


class Arithmetic(Struct, frozen=True):
    text: str
    quoted: bool


class Home(Struct, frozen=True):
    """An unquoted `~` at the start."""


Piece = Text | Wildcard | Variable | Substitution | Arithmetic | Home
Word = tuple[Piece, ...]


class Reader:
    """Reads words from one place of a source onwards."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source, self.text, self.at, self.stop = source, source.text, start, stop

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.text[place] if place < self.stop else ""

    def skip_blanks(self) -> None:
        while self.at < self.stop:
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            else:
                return

    def word(self) -> Word:
        """The word that starts here; afterwards `at` stands behind it."""
        start = self.at
        pieces = list(self._pieces(start))
        if self.at == start:
            raise Unclear(f"{self.peek()!r} is not expected there")
        return tuple(_joined(pieces))

    def _pieces(self, start: int) -> Iterator[Piece]:
        while self.at < self.stop:
            char = self.peek()
            if char in "<>" and self.peek(1) == "(" and self.at == start:
                yield self._nested("file", quoted=False)
            elif char in METACHARACTERS:
                if char == "(":
                    raise Unclear("a parenthesis inside a word")
                return
            elif char == "#" and self.at == start:
                raise Unclear("a comment where a word is expected")
            else:
                yield from self._unquoted(char, start)

    def _unquoted(self, char: str, start: int) -> Iterator[Piece]:
        match char:
            case "\\":
                yield from self._escape()
            case "'":
                yield self._single()
            case '"':
                yield from self._double()
            case "$" | "`":
                yield self._dollar(quoted=False)
            case "*" | "?" | "[":
                self.at += 1
                yield Wildcard(char)
            case "~" if self.at == start:
                yield self._tilde()
            case _:
                self.at += 1
                yield Text(char)

    def _escape(self) -> Iterator[Piece]:
        char = self.peek(1)
        if not char:
            raise Unclear("a backslash at the end")
        self.at += 2
        if char != "\n":
            yield Text(char, quoted=True)

    def _single(self) -> Text:
        end = self.text.find("'", self.at + 1, self.stop)
        if end < 0:
            raise Unclear("a quote is not closed")
        found = Text(self.text[self.at + 1 : end], quoted=True)
        self.at = end + 1
        return found

    def _double(self) -> Iterator[Piece]:
        self.at += 1
        yield Text("", quoted=True)
        while (char := self.peek()) != '"':
            if not char:
                raise Unclear("a quote is not closed")
            yield from self._inside_double(char)
        self.at += 1

    def _inside_double(self, char: str, escapable: str = '$`"\\') -> Iterator[Piece]:
        following = self.peek(1)
        if char == "\\" and following and following in escapable + "\n":
            self.at += 2
            if following != "\n":
                yield Text(following, quoted=True)
        elif char in "$`":
            yield self._dollar(quoted=True)
        else:
            self.at += 1
            yield Text(char, quoted=True)

    def here_text(self) -> Word:
        """Everything up to the end as the body of a here-document, where only `$`, backquote and backslash count."""
        pieces: list[Piece] = []
        while char := self.peek():
            pieces += self._inside_double(char, escapable="$`\\")
        return tuple(_joined(pieces))

    def _tilde(self) -> Piece:
        self.at += 1
        if self.peek() and self.peek() not in "/ \t\n|&;<>":
            raise Unclear("the home of somebody else")
        return Home()

    def _dollar(self, *, quoted: bool) -> Piece:
        if self.peek() == "`" or (self.peek(1) == "(" and self.peek(2) != "("):
            return self._nested("output", quoted=quoted)
        self.at += 1
        match self.peek():
            case "(":
                return self._arithmetic(quoted=quoted)
            case "{":
                return self._braced(quoted=quoted)
            case "'" if not quoted:
                return self._ansi()
            case '"' if not quoted:
                raise Unclear("a translated string")
            case "[":
                raise Unclear("old arithmetic")
            case _:
                found = _NAME.match(self.text, self.at, self.stop)
                if not found:
                    return Text("$", quoted=True)
                self.at = found.end()
                return Variable(found[0], quoted, spreads=found[0] == "@")

    def _nested(self, kind: Literal["output", "file"], *, quoted: bool) -> Substitution:
        node = self.source.nested.get(self.at)
        if node is None or node.type == "heredoc_redirect" or node.end_byte > self.stop:
            raise Unclear("the grammar sees no substitution there")
        inside = self.text[self.at : node.end_byte]
        if inside[0] == ">" or (inside[0] == "`" and "\\" in inside):
            raise Unclear("a substitution of an unusual kind")
        self.at = node.end_byte
        return Substitution(node, kind, quoted)

    def _arithmetic(self, *, quoted: bool) -> Arithmetic:
        found = _ARITHMETIC.match(self.text, self.at, self.stop)
        if not found or found["sum"].count("(") != found["sum"].count(")"):
            raise Unclear("arithmetic beyond names and numbers")
        self.at = found.end()
        return Arithmetic(found["sum"], quoted)

    def _braced(self, *, quoted: bool) -> Variable:
        found = _BRACED.match(self.text, self.at, self.stop)
        if not found:
            raise Unclear("an expansion that could run something")
        self.at = found.end()
        changed = bool(found["length"] or found["index"] or found["change"])
        return Variable(found["name"], quoted, changed, found["name"] == "@" or found["index"] == "[@]")

    def _ansi(self) -> Text:
        end = self.at + 1
        while end < self.stop and self.text[end] != "'":
            end += 2 if self.text[end] == "\\" else 1
        if end >= self.stop:
            raise Unclear("a quote is not closed")
        found = Text(_ansi_text(self.text[self.at + 1 : end]), quoted=True)
        self.at = end + 1
        return found


def _ansi_text(body: str) -> str:
    if "\\" in _ANSI_ESCAPE.sub("", body):
        raise Unclear("an unknown escape")
    plain = _ANSI_ESCAPE.sub(_ansi_char, body)
    if any(misleading(char) for char in decoded(plain)):
        raise Unclear("an escape for a character that is not shown as it is")
    return plain


def _ansi_char(found: re.Match[str]) -> str:
    if one := found["one"]:
        return _ONE.get(one, "\x00")
    code = int(found["hex"] or found["short"], 16) if found["octal"] is None else int(found["octal"], 8)
    return chr(code).encode().decode("latin-1") if found["short"] else chr(code & 0xFF)


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    """Neighbouring texts as one, with their bytes decoded."""
    run: list[Text] = []
    for piece in pieces:
        if run and not (isinstance(piece, Text) and piece.quoted == run[0].quoted):
            yield _merged(run)
            run = []
        if isinstance(piece, Text):
            run.append(piece)
        else:
            yield piece
    if run:
        yield _merged(run)


def _merged(run: list[Text]) -> Text:
    return Text(decoded("".join(text.text for text in run)), run[0].quoted)
