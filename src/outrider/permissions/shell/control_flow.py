"""Branches, loops and functions: what holds whichever way a script goes."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.command import refuse_special
from outrider.permissions.shell.expansion import Known, Scope
from outrider.permissions.shell.parser import Source, Unclear

if TYPE_CHECKING:
    from tree_sitter import Node


SEPARATORS = frozenset({";", "\n", "&", ";;"})
KEYWORDS = names("if then elif else fi for in do done while until case esac function { } ( ) [ ] [[ ]] $( ` <(")
_PATTERNS = re.compile(r"^[\w*?./|\-+:@%,= \"'\[\]\\]*$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class Walker(Protocol):
    """What flow needs from the walk."""

    source: Source

    def statement(self, node: "Node", scope: Scope) -> object: ...
    def sequence(self, node: "Node", scope: Scope, *, among: Sequence["Node"] | None = None) -> None: ...
    def tiled(self, node: "Node") -> list["Node"]: ...
    def words(self, start: int, stop: int, scope: Scope) -> list[Known]: ...
    def is_known(self, name: str) -> bool: ...


class Flow:
    def __init__(self, walk: Walker) -> None:
        self.walk = walk
        self.functions: dict[str, Node] = {}
        self.active: list[str] = []

    def branches(self, node: "Node", scope: Scope) -> None:
        """Every branch may have run, or none."""
        before = scope.copy()
        for child in self.walk.tiled(node):
            if child.type in {"elif_clause", "else_clause", "case_item"}:
                # A branch comes after every condition before it, and may come after none of the other branches.
                join(scope, before)
                branch = scope.copy()
                self.clause(child, branch)
                join(scope, branch)
            elif child.is_named and node.type == "if_statement":
                self.walk.statement(child, scope)
            elif child.is_named:
                self.walk.words(child.start_byte, child.end_byte, scope)
            elif child.type not in SEPARATORS | KEYWORDS:
                raise Unclear(f"{child.type!r} is not expected there")
        join(scope, before)

    def clause(self, node: "Node", scope: Scope) -> None:
        children = self.walk.tiled(node)
        if node.type == "case_item":
            children = children[self._after_patterns(node, children) :]
        self.walk.sequence(node, scope, among=children)

    def _after_patterns(self, node: "Node", children: list["Node"]) -> int:
        close = next((place for place, child in enumerate(children) if child.type == ")"), None)
        if close is None:
            raise Unclear("a case without a pattern")
        if not _PATTERNS.match(self.walk.source.text[node.start_byte : children[close].start_byte]):
            raise Unclear("a pattern of case that is unusual")
        return close + 1

    def loop(self, node: "Node", scope: Scope) -> None:
        """The body is judged once, for every value that it can see in any round."""
        before = scope.copy()
        changing = assigned(self.walk.source, node)
        for name in changing:
            scope.variables[name] = None
        for child in self.walk.tiled(node):
            if child.type == "do_group":
                self.body(node, child, scope)
            elif child.is_named and node.type == "while_statement":
                self.walk.statement(child, scope)
            elif not child.is_named and child.type not in SEPARATORS | KEYWORDS:
                raise Unclear(f"{child.type!r} is not expected there")
        if scope.cwds != before.cwds:
            raise Unclear("a loop that changes the folder")
        # A loop can be left in its middle, so nothing is certain about what it assigns.
        for name in changing:
            scope.variables[name] = None

    def body(self, node: "Node", group: "Node", scope: Scope) -> None:
        if node.type == "for_statement":
            name, values = self.loop_values(node, scope)
            scope.variables[name] = values
        self.walk.sequence(group, scope)

    def loop_values(self, node: "Node", scope: Scope) -> tuple[str, Known]:
        children = node.children
        name = self.walk.source.text[children[1].start_byte : children[1].end_byte]
        refuse_special(name)
        if children[0].type != "for" or not _NAME.match(name):
            raise Unclear("a loop of an unusual kind")
        words = [child for child in children[2:] if child.is_named and child.type not in {"do_group", "comment"}]
        if children[2].type != "in" or not words:
            return name, None
        values: list[str] = []
        for arg in self.walk.words(words[0].start_byte, words[-1].end_byte, scope):
            if arg is None:
                return name, None
            values += arg
        return name, tuple(values)

    def define(self, node: "Node", *, alone: bool) -> None:
        children = self.walk.tiled(node)
        if alone or node.parent is None or node.parent.type != "program":
            raise Unclear("a function that may not be there when its name is used")
        named = [child for child in children if child.is_named]
        if len(named) != 2 or named[1].type != "compound_statement":
            raise Unclear("a function of an unusual form")
        name = self.walk.source.text[named[0].start_byte : named[0].end_byte]
        if not _NAME.match(name) or self.walk.is_known(name) or name in self.functions:
            raise Unclear(f"a function that takes the name {name}")
        self.functions[name] = named[1]

    def call(self, name: str, args: Sequence[Known], scope: Scope) -> None:
        """A function is judged where it is called, with what it is called with."""
        if name in self.active:
            raise Unclear("a function that calls itself")
        inner = scope.copy()
        for number in range(10):
            inner.variables[str(number)] = args[number - 1] if 0 < number <= len(args) else None
        self.active.append(name)
        self.walk.sequence(self.functions[name], inner)
        self.active.pop()
        if inner.cwds != scope.cwds:
            raise Unclear("a function that changes the folder")
        for changed in assigned(self.walk.source, self.functions[name]):
            scope.variables[changed] = None


def with_background(children: Sequence["Node"]) -> Iterator[tuple["Node", bool]]:
    """Each with whether an `&` after it sends it to the background; comments may stand in between."""
    following = ""
    marked: list[tuple[Node, bool]] = []
    for child in reversed(children):
        marked.append((child, following == "&"))
        if child.type != "comment":
            following = child.type
    return reversed(marked)


def assigned(source: Source, node: "Node") -> set[str]:
    """Names that change somewhere below."""
    found: set[str] = set()
    for child in node.children:
        if child.type == "variable_name":
            found.add(source.text[child.start_byte : child.end_byte])
        elif child.type == "word":
            found.add(source.text[child.start_byte : child.end_byte].partition("=")[0])
        found |= assigned(source, child)
    return found


def join(scope: Scope, other: Scope) -> None:
    """What holds whichever way was taken."""
    scope.cwds = tuple(dict.fromkeys((*scope.cwds, *other.cwds)))
    for name in {*scope.variables, *other.variables}:
        mine, theirs = scope.variables.get(name), other.variables.get(name)
        scope.variables[name] = None if mine is None or theirs is None else tuple(dict.fromkeys((*mine, *theirs)))
