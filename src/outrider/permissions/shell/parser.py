"""The text of a command line and its syntax tree, refused where either could mislead."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


LONGEST = 10_000  # characters; nobody reads more than that before saying yes
DEEPEST = 60  # levels of the syntax tree
_PLAIN_CONTROLS = frozenset("\n\t")
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u2800\u3164\uffa0")
_MISLEADING = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution", "heredoc_redirect"})


class Unclear(Exception):
    """The text is not understood well enough to say what it does; its message says why."""


def misleading(char: str) -> bool:
    """Whether a character is invisible, moves the cursor or reorders what stands around it."""
    if char == " " or char in _PLAIN_CONTROLS:
        return False
    return unicodedata.category(char) in _MISLEADING or char in _INVISIBLE_LETTERS


class Source:
    """A parsed command line. `text` holds one character per byte, so that offsets of the tree are indices."""

    def __init__(self, command: str) -> None:
        _refuse_misleading(command)
        encoded = command.encode()
        self.text = encoded.decode("latin-1")
        self.root = _parser().parse(encoded).root_node
        self.nested: dict[int, Node] = {}
        self.starts: set[int] = set()
        self.ends: set[int] = set()
        self._index(self.root, 0)

    def _index(self, node: "Node", depth: int) -> None:
        if node.is_error or node.is_missing:
            raise Unclear("the shell grammar does not understand it")
        if depth > DEEPEST:
            raise Unclear("it is nested too deeply")
        self.starts.add(node.start_byte)
        self.ends.add(node.end_byte)
        if node.type in _SUBSTITUTIONS:
            self.nested[node.start_byte] = node
        for child in node.children:
            self._index(child, depth + 1)


def _refuse_misleading(command: str) -> None:
    if len(command) > LONGEST:
        raise Unclear(f"it is longer than {LONGEST} characters")
    if not command.isascii() or not command.isprintable():
        for char in command:
            if misleading(char):
                raise Unclear(f"it holds the character U+{ord(char):04X}, which is not shown as it is")


@cache
def _parser() -> "Parser":
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def decoded(text: str) -> str:
    """Bytes held as characters, as the text that they encode."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


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
