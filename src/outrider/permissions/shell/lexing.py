"""Takes a simple command apart: assignments, words, redirects."""

import re

from msgspec import Struct

from outrider.permissions.shell.source import Source, Unclear, decoded
from outrider.permissions.shell.words import METACHARACTERS, Reader, Text, Word

_REDIRECT = re.compile(r"(?P<fd>[0-9]{0,4})(?P<op><<<|<<-|<<|<>|<&|>>|>&|>\||<|>)|(?P<both>&>>|&>)")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<op>\+?=)")
_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[^\]]*\]\+?=")
_NAMED_DESCRIPTOR = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}[<>]")
_DELIMITER = re.compile(r"(?P<quote>['\"]?)(?P<name>[A-Za-z0-9_]+)(?P=quote)")


class Assignment(Struct, frozen=True):
    name: str
    adds: bool
    value: Word


class Redirect(Struct, frozen=True):
    operator: str
    target: Word
    shown: str = ""


class Simple(Struct, frozen=True):
    assignments: tuple[Assignment, ...]
    words: tuple[tuple[Word, str], ...]
    redirects: tuple[Redirect, ...]


def read_simple(source: Source, start: int, stop: int) -> Simple:
    """The command between two places, which must hold nothing but one."""
    lexing = _Lexing(source, start, stop)
    lexing.run()
    return Simple(tuple(lexing.assignments), tuple(lexing.words), tuple(lexing.redirects))


def read_words(source: Source, start: int, stop: int) -> tuple[tuple[Word, str], ...]:
    """Words alone, such as those that a loop goes through."""
    simple = read_simple(source, start, stop)
    if simple.assignments or simple.redirects:
        raise Unclear("words are expected there")
    return simple.words


class _Lexing:
    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source, self.reader = source, Reader(source, start, stop)
        self.assignments: list[Assignment] = []
        self.words: list[tuple[Word, str]] = []
        self.redirects: list[Redirect] = []

    def run(self) -> None:
        reader = self.reader
        reader.skip_blanks()
        while reader.at < reader.stop:
            text, at = reader.text, reader.at
            redirect = _REDIRECT.match(text, at, reader.stop)
            if redirect and text[redirect.end() : redirect.end() + 1] != "(":
                self._redirect(redirect)
            elif not self.words and (found := _ASSIGNMENT.match(text, at, reader.stop)):
                self._assign(found)
            else:
                self._word()
            reader.skip_blanks()

    def _word(self) -> None:
        reader, start = self.reader, self.reader.at
        if _NAMED_DESCRIPTOR.match(reader.text, start) or (not self.words and _ELEMENT.match(reader.text, start)):
            raise Unclear("a descriptor or an array by name")
        word = reader.word()
        if start not in self.source.starts or reader.at not in self.source.ends:
            raise Unclear("the grammar sees other words there")
        self.words.append((word, decoded(reader.text[start : reader.at])))

    def _assign(self, found: re.Match[str]) -> None:
        reader = self.reader
        reader.at = found.end()
        value: Word = (Text(""),)
        if reader.peek() == "(":
            raise Unclear("an array")
        if reader.peek() and reader.peek() not in METACHARACTERS:
            value = reader.word()
        if ":~" in reader.text[found.end() : reader.at]:
            raise Unclear("a home inside a value")
        self.assignments.append(Assignment(found["name"], found["op"] == "+=", value))

    def _redirect(self, found: re.Match[str]) -> None:
        reader, operator = self.reader, found["op"] or found["both"]
        reader.at = found.end()
        if operator in {"<<", "<<-"}:
            self._here_document(found.start("op"), operator)
            return
        reader.skip_blanks()
        start = reader.at
        target = reader.word()
        self.redirects.append(Redirect(operator, target, decoded(reader.text[start : reader.at])))

    def _here_document(self, at: int, operator: str) -> None:
        """The grammar says where the body lies; the lines of the text must say the same."""
        reader, text = self.reader, self.source.text
        reader.skip_blanks()
        node = self.source.nested.get(at) or self.source.nested.get(at - 1)
        delimiter = _DELIMITER.match(text, reader.at)
        if node is None or operator == "<<-" or not delimiter:
            raise Unclear("a here-document of an unusual kind")
        line_end = text.find("\n", delimiter.end())
        if line_end < 0 or text[delimiter.end() : line_end].strip(" \t"):
            raise Unclear("something follows a here-document on its line")
        body, end = _body(text, line_end + 1, delimiter["name"])
        if node.end_byte not in {end, end - 1, end + 1}:
            raise Unclear("the grammar sees another end of the here-document")
        if not delimiter["quote"] and "\\\n" in body:
            raise Unclear("a here-document with joined lines, one of which could be its end")
        word = (Text(decoded(body), quoted=True),) if delimiter["quote"] else self._expanded(line_end + 1, len(body))
        self.redirects.append(Redirect(operator, word))
        reader.at = min(end, reader.stop)

    def _expanded(self, start: int, length: int) -> Word:
        return Reader(self.source, start, start + length).here_text()


def _body(text: str, start: int, delimiter: str) -> tuple[str, int]:
    """The body of a here-document and the place behind its closing line."""
    at = start
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if text[at:end] == delimiter:
            return text[start:at], end
        at = end + 1
    raise Unclear("a here-document without an end")
