"""The text of a command line and its syntax tree, refused where either could mislead."""

import unicodedata
from functools import cache
from typing import TYPE_CHECKING

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
