"""Splits the text of one simple command into assignments, words and redirects, here-documents included."""

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from outrider.permissions.shell.parser import (
    METACHARACTERS,
    LiteralText,
    NotProvenSafe,
    ShellSource,
    Word,
    WordReader,
    decode_bytes,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_REDIRECT = re.compile(r"(?P<fd>[0-9]{0,4})(?P<op><<<|<<-|<<|<>|<&|>>|>&|>\||<|>)|(?P<both>&>>|&>)")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<op>\+?=)")
_ARRAY_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[^\]]*\]\+?=")
_NAMED_DESCRIPTOR = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}[<>]")
_HERE_DOCUMENT_START = re.compile(r"<<[ \t]*(?P<quote>['\"]?)(?P<name>[A-Za-z0-9_]+)(?P=quote)(?=[ \t\n|&;<>()]|$)")


class VariableAssignment(Struct, frozen=True):
    """An assignment `name=value`, or `name+=value` if `appends` is true."""

    name: str
    appends: bool
    value: Word


class IoRedirect(Struct, frozen=True):
    """A redirect with its operator and target; for a here-document the target is its body."""

    operator: str
    target: Word
    source_text: str = ""


class ParsedCommand(Struct, frozen=True):
    """A parsed simple command. Each word has its parts and its source string."""

    assignments: tuple[VariableAssignment, ...]
    words: tuple[tuple[Word, str], ...]
    redirects: tuple[IoRedirect, ...]


def parse_simple_command(source: ShellSource, start: int, stop: int) -> ParsedCommand:
    """Parses the text between two offsets as exactly one simple command."""
    lexer = _CommandLexer(source, start, stop)
    lexer.run()
    return ParsedCommand(tuple(lexer.assignments), tuple(lexer.words), tuple(lexer.redirects))


def parse_words(source: ShellSource, start: int, stop: int) -> tuple[tuple[Word, str], ...]:
    """Parses the text between two offsets as words only, such as the values of a `for` loop."""
    simple = parse_simple_command(source, start, stop)
    if simple.assignments or simple.redirects:
        raise NotProvenSafe("it contains an assignment or redirect where words are expected")
    return simple.words


class _CommandLexer:
    """Splits the text of a simple command into assignments, words and redirects."""

    def __init__(self, source: ShellSource, start: int, stop: int) -> None:
        self.source, self.reader = source, WordReader(source, start, stop)
        self.assignments: list[VariableAssignment] = []
        self.words: list[tuple[Word, str]] = []
        self.redirects: list[IoRedirect] = []

    def run(self) -> None:
        reader = self.reader
        reader.skip_blanks()
        while reader.at < reader.stop:
            text, at = reader.text, reader.at
            redirect = _REDIRECT.match(text, at, reader.stop)
            if redirect and text[redirect.end() : redirect.end() + 1] != "(":
                self._read_redirect(redirect)
            elif not self.words and (match := _ASSIGNMENT.match(text, at, reader.stop)):
                self._read_assignment(match)
            else:
                self._read_word()
            reader.skip_blanks()

    def _read_word(self) -> None:
        reader, start = self.reader, self.reader.at
        if _NAMED_DESCRIPTOR.match(reader.text, start) or (not self.words and _ARRAY_ELEMENT.match(reader.text, start)):
            raise NotProvenSafe("it uses a named file descriptor or an array element")
        word = reader.read_word()
        if start not in self.source.node_starts or reader.at not in self.source.node_ends:
            raise NotProvenSafe("its words are not understood: two parsers disagree about them")
        self.words.append((word, decode_bytes(reader.text[start : reader.at])))

    def _read_assignment(self, match: re.Match[str]) -> None:
        reader = self.reader
        reader.at = match.end()
        value: Word = (LiteralText(""),)
        if reader.peek() == "(":
            raise NotProvenSafe("it assigns an array, which is not analysed")
        if reader.peek() and reader.peek() not in METACHARACTERS:
            value = reader.read_word()
        if ":~" in reader.text[match.end() : reader.at]:
            raise NotProvenSafe("it contains a ~ inside an assigned value")
        self.assignments.append(VariableAssignment(match["name"], match["op"] == "+=", value))

    def _read_redirect(self, match: re.Match[str]) -> None:
        reader, operator = self.reader, match["op"] or match["both"]
        reader.at = match.end()
        if operator in {"<<", "<<-"}:
            self._read_here_document(match.start("op"), operator)
            return
        reader.skip_blanks()
        start = reader.at
        target = reader.read_word()
        self.redirects.append(IoRedirect(operator, target, decode_bytes(reader.text[start : reader.at])))

    def _read_here_document(self, at: int, operator: str) -> None:
        """Reads a here-document whose first line has nothing behind the delimiter."""
        reader = self.reader
        node = self.source.nested_nodes.get(at) or self.source.nested_nodes.get(at - 1)
        document = read_here_document(self.source, node, at)
        if document.operator != operator or self.source.text[document.rest : document.line_end].strip(" \t"):
            raise NotProvenSafe("it continues on the line that starts a here-document")
        self.redirects.append(IoRedirect(operator, document.body))
        reader.at = min(document.end, reader.stop)


class HereDocument(Struct, frozen=True):
    """A here-document: its body, and the offsets behind its delimiter, of that line's end and of its end."""

    operator: str
    body: Word
    rest: int
    line_end: int
    end: int


def read_here_document(source: ShellSource, node: "Node | None", at: int) -> HereDocument:
    """Reads the here-document whose operator is at an offset; the end in the syntax tree must agree with the text."""
    text = source.text
    start = _HERE_DOCUMENT_START.match(text, at)
    if node is None or not start:
        raise NotProvenSafe("it contains a here-document in an unusual form")
    line_end = text.find("\n", start.end())
    if line_end < 0:
        raise NotProvenSafe("it contains a here-document without an end")
    body, end = split_here_document(text, line_end + 1, start["name"])
    if node.end_byte not in {end, end - 1, end + 1}:
        raise NotProvenSafe("the end of its here-document is not understood")
    if not start["quote"] and "\\\n" in body:
        raise NotProvenSafe("its here-document joins lines with a backslash, which could hide the end")
    word = (
        (LiteralText(decode_bytes(body), quoted=True),)
        if start["quote"]
        else WordReader(source, line_end + 1, line_end + 1 + len(body)).read_here_document()
    )
    return HereDocument("<<", word, start.end(), line_end, end)


def split_here_document(text: str, start: int, delimiter: str) -> tuple[str, int]:
    """Returns the body of a here-document and the offset of the end of its delimiter line."""
    at = start
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if text[at:end] == delimiter:
            return text[start:at], end
        at = end + 1
    raise NotProvenSafe("it contains a here-document without an end")
