"""Parses a command line: the tree-sitter syntax tree, and a lexer for words, assignments and redirects.

The lexer reads words itself and compares their boundaries with the syntax tree. Where the two disagree, or where the
text contains characters that mislead a reader, parsing raises NotProvenSafe.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


MAX_COMMAND_LENGTH = 10_000  # characters; a person does not read more than that before approving
MAX_TREE_DEPTH = 60  # levels of the syntax tree
_PLAIN_CONTROLS = frozenset("\n\t")
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u2800\u3164\uffa0")
_MISLEADING_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_NESTED_NODE_TYPES = frozenset({"command_substitution", "process_substitution", "heredoc_redirect"})


class NotProvenSafe(Exception):
    """The analysis cannot prove that a command only reads. The message is the approval reason that a person reads."""


def is_misleading_character(char: str) -> bool:
    """Returns whether a character is invisible, moves the cursor or reorders the text around it."""
    if char == " " or char in _PLAIN_CONTROLS:
        return False
    return unicodedata.category(char) in _MISLEADING_CATEGORIES or char in _INVISIBLE_LETTERS


class ShellSource:
    """A parsed command line. `text` has one character per byte, so that tree-sitter's byte offsets are its indices."""

    def __init__(self, command: str) -> None:
        _check_characters(command)
        encoded = command.encode()
        self.text = encoded.decode("latin-1")
        self.root = _load_parser().parse(encoded).root_node
        self.nested_nodes: dict[int, Node] = {}
        self.node_starts: set[int] = set()
        self.node_ends: set[int] = set()
        self._index_nodes(self.root, 0)

    def _index_nodes(self, node: "Node", depth: int) -> None:
        """Stores node boundaries and nested nodes. Raises NotProvenSafe for error nodes and deep nesting."""
        if node.is_error or node.is_missing:
            raise NotProvenSafe("its syntax is not understood")
        if depth > MAX_TREE_DEPTH:
            raise NotProvenSafe("its commands are nested too deeply to check")
        self.node_starts.add(node.start_byte)
        self.node_ends.add(node.end_byte)
        if node.type in _NESTED_NODE_TYPES:
            self.nested_nodes[node.start_byte] = node
        for child in node.children:
            self._index_nodes(child, depth + 1)


def _check_characters(command: str) -> None:
    """Raises NotProvenSafe for text that is too long or contains misleading characters."""
    if len(command) > MAX_COMMAND_LENGTH:
        raise NotProvenSafe(f"it is longer than {MAX_COMMAND_LENGTH} characters, too long to check")
    if not command.isascii() or not command.isprintable():
        for char in command:
            if is_misleading_character(char):
                raise NotProvenSafe(f"it contains the invisible or misleading character U+{ord(char):04X}")


@cache
def _load_parser() -> "Parser":
    """Returns a cached parser. The import is late because most commands of the CLI need no parser."""
    from tree_sitter import Language, Parser

    return Parser(Language(_load_grammar()))


def _load_grammar() -> object:
    """Returns the grammar of bash. It is read from the extension module of tree_sitter_bash without importing the
    package, which imports importlib.resources and with it tempfile, shutil and lzma: half a megabyte. A version without
    that module is imported."""
    package = find_spec("tree_sitter_bash")
    folders = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("_binding", folders)
    if spec is None or spec.loader is None:
        return import_module("tree_sitter_bash").language()
    binding = module_from_spec(spec)
    spec.loader.exec_module(binding)
    return binding.language()


def decode_bytes(text: str) -> str:
    """Decodes text that has one character per byte from UTF-8."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


METACHARACTERS = frozenset(" \t\n|&;()<>")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_NUMERIC_PARAMETERS = frozenset({"#", "?", "$", "!"})
# The forms of ${…} that cannot run a command: no nested expansion, no process substitution, no indirection, no
# arithmetic except plain numbers.
_BRACED = re.compile(
    r"\{(?P<length>#?)(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?])(?P<index>\[(?:[@*]|[0-9]+)\])?"
    r"(?P<change>:?[-+?][^$`\"'\\{}()<>\n]*|(?:##?|%%?|//?|\^\^?|,,?)[^$`\"'\\{}()<>\n]*|: ?-?[0-9]+(?::-?[0-9]+)?)?\}"
)
# bash also expands ~ behind `name=` and behind a colon in such a word, in assignments and in arguments alike.
_ASSIGNMENT_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^\]]*\])?\+?=")
_ARITHMETIC = re.compile(r"\(\((?P<sum>[0-9A-Za-z_+\-*/%()<>=!&|^~?: \t]*?)\)\)")
_ANSI_ESCAPE = re.compile(
    r"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|u(?P<short>[0-9a-fA-F]{4})|(?P<octal>[0-7]{1,3})|(?P<one>[ntrabefv\\'\"?]))"
)
_SINGLE_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "?": "?"}


class LiteralText(Struct, frozen=True):
    """Literal characters of a word."""

    text: str
    quoted: bool = False


class GlobCharacter(Struct, frozen=True):
    """An unquoted `*`, `?` or `[`, which bash expands to matching file names."""

    text: str


class VariableExpansion(Struct, frozen=True):
    """A variable such as `$name` or `${name%suffix}`."""

    name: str
    quoted: bool
    is_modified: bool = False  # ${x%…}, ${x:-…}, ${#x}: the result differs from the variable's value
    splits_in_quotes: bool = False  # "$@" expands to any number of words
    is_number: bool = False  # $#, $?, ${#x}: a plain number


class CommandSubstitution(Struct, frozen=True):
    """A command or process substitution. The script analysis checks its commands; its output is unknown."""

    node: "Node"
    kind: Literal["output", "file"]
    quoted: bool
    prints_number: bool = False
    # Its output is a list of paths below a checked folder; each path matches one of these patterns (empty: any path).
    found_patterns: tuple[str, ...] | None = None


class ArithmeticExpansion(Struct, frozen=True):
    """An arithmetic expression `$(( … ))`."""

    text: str
    quoted: bool


class TildeExpansion(Struct, frozen=True):
    """An unquoted `~` at the start of a word."""


WordPart = LiteralText | GlobCharacter | VariableExpansion | CommandSubstitution | ArithmeticExpansion | TildeExpansion
Word = tuple[WordPart, ...]


class WordReader:
    """Reads words of a source between two offsets."""

    def __init__(self, source: ShellSource, start: int, stop: int) -> None:
        self.source, self.text, self.position, self.stop = source, source.text, start, stop

    def peek(self, ahead: int = 0) -> str:
        """Returns the character at the offset, or an empty string at the end."""
        index = self.position + ahead
        return self.text[index] if index < self.stop else ""

    def skip_blanks(self) -> None:
        while self.position < self.stop:
            if self.text[self.position] in " \t":
                self.position += 1
            elif self.text.startswith("\\\n", self.position):
                self.position += 2
            else:
                return

    def read_word(self) -> Word:
        """Reads the word at the current offset and moves the offset to its end."""
        start = self.position
        parts = list(self._read_parts(start))
        if self.position == start:
            raise NotProvenSafe(f"its syntax is not understood at {self.peek()!r}")
        return tuple(_join_literals(parts))

    def _read_parts(self, start: int) -> Iterator[WordPart]:
        while self.position < self.stop:
            char = self.peek()
            if char in "<>" and self.peek(1) == "(" and self.position == start:
                yield self._read_substitution("file", quoted=False)
            elif char in METACHARACTERS:
                if char == "(":
                    raise NotProvenSafe("it contains a parenthesis inside a word")
                return
            elif char == "#" and self.position == start:
                raise NotProvenSafe("it contains a # where a word is expected")
            else:
                yield from self._read_unquoted(char, start)

    def _read_unquoted(self, char: str, start: int) -> Iterator[WordPart]:
        match char:
            case "\\":
                yield from self._read_escape()
            case "'":
                yield self._read_single_quoted()
            case '"':
                yield from self._read_double_quoted()
            case "$" | "`":
                yield self._read_expansion(quoted=False)
            case "*" | "?" | "[":
                self.position += 1
                yield GlobCharacter(char)
            case "~" if self.position == start:
                yield self._read_tilde()
            case "~" if self.text[self.position - 1] in "=:" and _ASSIGNMENT_WORD.match(self.text, start, self.stop):
                self.position += 1
                yield TildeExpansion()
            case _:
                self.position += 1
                yield LiteralText(char)

    def _read_escape(self) -> Iterator[WordPart]:
        char = self.peek(1)
        if not char:
            raise NotProvenSafe("it ends with a backslash")
        self.position += 2
        if char != "\n":
            yield LiteralText(char, quoted=True)

    def _read_single_quoted(self) -> LiteralText:
        end = self.text.find("'", self.position + 1, self.stop)
        if end < 0:
            raise NotProvenSafe("it contains a quote that is not closed")
        match = LiteralText(self.text[self.position + 1 : end], quoted=True)
        self.position = end + 1
        return match

    def _read_double_quoted(self) -> Iterator[WordPart]:
        self.position += 1
        yield LiteralText("", quoted=True)
        while (char := self.peek()) != '"':
            if not char:
                raise NotProvenSafe("it contains a quote that is not closed")
            yield from self._read_inside_double(char)
        self.position += 1

    def _read_inside_double(self, char: str, escapable: str = '$`"\\') -> Iterator[WordPart]:
        following = self.peek(1)
        if char == "\\" and following and following in escapable + "\n":
            self.position += 2
            if following != "\n":
                yield LiteralText(following, quoted=True)
        elif char in "$`":
            yield self._read_expansion(quoted=True)
        else:
            self.position += 1
            yield LiteralText(char, quoted=True)

    def read_here_document(self) -> Word:
        """Reads the rest as the body of a here-document, in which only `$`, backquote and backslash are special."""
        parts: list[WordPart] = []
        while char := self.peek():
            parts += self._read_inside_double(char, escapable="$`\\")
        return tuple(_join_literals(parts))

    def _read_tilde(self) -> WordPart:
        """Reads `~`. Raises NotProvenSafe for `~user`, whose value is not known here."""
        self.position += 1
        if self.peek() and self.peek() not in "/ \t\n|&;<>":
            raise NotProvenSafe("it names another user's home folder (~user)")
        return TildeExpansion()

    def _read_expansion(self, *, quoted: bool) -> WordPart:
        """Reads what follows a `$` or backquote: a substitution, arithmetic, a variable or a quoted string."""
        if self.peek() == "`" or (self.peek(1) == "(" and self.peek(2) != "("):
            return self._read_substitution("output", quoted=quoted)
        self.position += 1
        match self.peek():
            case "(":
                return self._read_arithmetic(quoted=quoted)
            case "{":
                return self._read_braced_variable(quoted=quoted)
            case "'" if not quoted:
                return self._read_ansi_quoted()
            case '"' if not quoted:
                raise NotProvenSafe('it contains a translated string ($"…")')
            case "[":
                raise NotProvenSafe("it contains an arithmetic expression in the old form ($[…])")
            case _:
                match = _NAME.match(self.text, self.position, self.stop)
                if not match:
                    return LiteralText("$", quoted=True)
                self.position = match.end()
                return VariableExpansion(
                    match[0], quoted, splits_in_quotes=match[0] == "@", is_number=match[0] in _NUMERIC_PARAMETERS
                )

    def _read_substitution(self, kind: Literal["output", "file"], *, quoted: bool) -> CommandSubstitution:
        node = self.source.nested_nodes.get(self.position)
        if node is None or node.type == "heredoc_redirect" or node.end_byte > self.stop:
            raise NotProvenSafe("its command substitution is not understood")
        inside = self.text[self.position : node.end_byte]
        if inside[0] == ">" or (inside[0] == "`" and "\\" in inside):
            raise NotProvenSafe("it contains a command substitution in an unusual form")
        self.position = node.end_byte
        return CommandSubstitution(node, kind, quoted)

    def _read_arithmetic(self, *, quoted: bool) -> ArithmeticExpansion:
        match = _ARITHMETIC.match(self.text, self.position, self.stop)
        if not match or match["sum"].count("(") != match["sum"].count(")"):
            raise NotProvenSafe("it contains an arithmetic expression that could run a command")
        self.position = match.end()
        return ArithmeticExpansion(match["sum"], quoted)

    def _read_braced_variable(self, *, quoted: bool) -> VariableExpansion:
        match = _BRACED.match(self.text, self.position, self.stop)
        if not match:
            raise NotProvenSafe("it contains a ${…} expansion that could run a command")
        self.position = match.end()
        changed = bool(match["length"] or match["index"] or match["change"])
        is_length = bool(match["length"]) and not match["change"]
        is_number = is_length or (not changed and match["name"] in _NUMERIC_PARAMETERS)
        splits = (match["name"] == "@" or match["index"] == "[@]") and not match["length"]
        return VariableExpansion(match["name"], quoted, changed, splits, is_number)

    def _read_ansi_quoted(self) -> LiteralText:
        end = self.position + 1
        while end < self.stop and self.text[end] != "'":
            end += 2 if self.text[end] == "\\" else 1
        if end >= self.stop:
            raise NotProvenSafe("it contains a quote that is not closed")
        match = LiteralText(_decode_ansi_text(self.text[self.position + 1 : end]), quoted=True)
        self.position = end + 1
        return match


def _decode_ansi_text(body: str) -> str:
    """Decodes the escapes of a `$'…'` string."""
    if "\\" in _ANSI_ESCAPE.sub("", body):
        raise NotProvenSafe("it contains an unknown escape in $'…'")
    plain = _ANSI_ESCAPE.sub(_decode_ansi_escape, body)
    if any(is_misleading_character(char) for char in decode_bytes(plain)):
        raise NotProvenSafe("it contains an escape for an invisible or misleading character")
    return plain


def _decode_ansi_escape(match: re.Match[str]) -> str:
    if char := match["one"]:
        return _SINGLE_ESCAPES.get(char, "\x00")
    code = int(match["hex"] or match["short"], 16) if match["octal"] is None else int(match["octal"], 8)
    return chr(code).encode().decode("latin-1") if match["short"] else chr(code & 0xFF)


def _join_literals(parts: list[WordPart]) -> Iterator[WordPart]:
    """Joins adjacent literals and decodes their bytes."""
    run: list[LiteralText] = []
    for part in parts:
        if run and not (isinstance(part, LiteralText) and part.quoted == run[0].quoted):
            yield _merge_literals(run)
            run = []
        if isinstance(part, LiteralText):
            run.append(part)
        else:
            yield part
    if run:
        yield _merge_literals(run)


def _merge_literals(run: list[LiteralText]) -> LiteralText:
    return LiteralText(decode_bytes("".join(text.text for text in run)), run[0].quoted)
