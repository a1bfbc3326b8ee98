"""Analyses branches, loops and functions: merges the shell states of all paths that a script can take."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.command import check_script_variable
from outrider.permissions.shell.expansion import PossibleValues, ShellState
from outrider.permissions.shell.parser import NotProvenSafe, ShellSource

if TYPE_CHECKING:
    from tree_sitter import Node


SEPARATORS = frozenset({";", "\n", "&", ";;"})
KEYWORDS = split_names("if then elif else fi for in do done while until case esac function { } ( ) [ ] [[ ]] $( ` <(")
_CASE_PATTERNS = re.compile(r"^[\w*?./|\-+:@%,= \"'\[\]\\]*$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ScriptVisitor(Protocol):
    """The part of ScriptAnalyzer that ControlFlowAnalyzer calls back."""

    source: ShellSource

    def analyse_statement(self, node: "Node", state: ShellState) -> object: ...
    def analyse_sequence(self, node: "Node", state: ShellState, *, among: Sequence["Node"] | None = None) -> object: ...
    def check_complete_children(self, node: "Node") -> list["Node"]: ...
    def expand_words(self, start: int, stop: int, state: ShellState) -> list[PossibleValues]: ...
    def is_known_name(self, name: str) -> bool: ...


class ControlFlowAnalyzer:
    """Analyses compound commands and stores the functions that a script defines."""

    def __init__(self, visitor: ScriptVisitor) -> None:
        self.visitor = visitor
        self.functions: dict[str, Node] = {}
        self.active_calls: list[str] = []

    def analyse_branches(self, node: "Node", state: ShellState) -> None:
        """Analyses `if` and `case`; afterwards any branch, or none, may have run."""
        state_before = state.copy()
        for child in self.visitor.check_complete_children(node):
            if child.type in {"elif_clause", "else_clause", "case_item"}:
                # A branch runs after all conditions before it, and after none of the other branches.
                merge_states(state, state_before)
                branch = state.copy()
                self._analyse_clause(child, branch)
                merge_states(state, branch)
            elif child.is_named and node.type == "if_statement":
                self.visitor.analyse_statement(child, state)
            elif child.is_named:
                self.visitor.expand_words(child.start_byte, child.end_byte, state)
            elif child.type not in SEPARATORS | KEYWORDS:
                raise NotProvenSafe(f"its syntax is not understood at {child.type!r}")
        merge_states(state, state_before)

    def _analyse_clause(self, node: "Node", state: ShellState) -> None:
        children = self.visitor.check_complete_children(node)
        if node.type == "case_item":
            children = children[self._after_patterns(node, children) :]
        self.visitor.analyse_sequence(node, state, among=children)

    def _after_patterns(self, node: "Node", children: list["Node"]) -> int:
        """Returns the index of the first child after the patterns of a `case` branch."""
        close = next((index for index, child in enumerate(children) if child.type == ")"), None)
        if close is None:
            raise NotProvenSafe("it contains a case branch without a pattern")
        if not _CASE_PATTERNS.match(self.visitor.source.text[node.start_byte : children[close].start_byte]):
            raise NotProvenSafe("it contains a case pattern in an unusual form")
        return close + 1

    def analyse_loop(self, node: "Node", state: ShellState) -> None:
        """Analyses a loop body once, with every value that a variable can have in any iteration."""
        state_before, start = state.copy(), len(state.assigned)
        changing = assigned_names(self.visitor.source, node)
        for name in changing:
            state.assign(name, None)
        for child in self.visitor.check_complete_children(node):
            if child.type == "do_group":
                self._analyse_loop_body(node, child, state)
            elif child.is_named and node.type == "while_statement":
                self.visitor.analyse_statement(child, state)
            elif not child.is_named and child.type not in SEPARATORS | KEYWORDS:
                raise NotProvenSafe(f"its syntax is not understood at {child.type!r}")
        if state.cwds != state_before.cwds:
            raise NotProvenSafe("it changes the working folder inside a loop")
        # The body was analysed with the values of its first run. A variable that it assigns by other means than the
        # names in its text (a function, `read "x"`) has another value in the second run.
        for name in set(state.assigned[start:]) - changing:
            if state_before.variables.get(name) is not None:
                raise NotProvenSafe(f"its loop assigns {name} in a form that is not analysed")
        # `break` can leave the loop at any point, so the values of assigned variables are unknown afterwards.
        for name in {*changing, *state.assigned[start:]}:
            state.assign(name, None)

    def _analyse_loop_body(self, node: "Node", group: "Node", state: ShellState) -> None:
        if node.type == "for_statement":
            name, values = self._loop_variable_values(node, state)
            state.assign(name, values)
        self.visitor.analyse_sequence(group, state)

    def _loop_variable_values(self, node: "Node", state: ShellState) -> tuple[str, PossibleValues]:
        """Returns the name of a `for` variable and its possible values."""
        children = node.children
        name = self.visitor.source.text[children[1].start_byte : children[1].end_byte]
        check_script_variable(name)
        if children[0].type != "for" or not _NAME.fullmatch(name):
            raise NotProvenSafe("it contains a loop in an unusual form")
        words = [child for child in children[2:] if child.is_named and child.type not in {"do_group", "comment"}]
        if children[2].type != "in" or not words:
            return name, None
        values: list[str] = []
        for arg in self.visitor.expand_words(words[0].start_byte, words[-1].end_byte, state):
            if arg is None:
                return name, None
            values += arg
        return name, tuple(values)

    def define_function(self, node: "Node", *, in_background: bool) -> None:
        """Stores a function. Only a definition at the top level is certain to exist when it is called."""
        children = self.visitor.check_complete_children(node)
        if in_background or node.parent is None or node.parent.type != "program":
            raise NotProvenSafe("it defines a function that may not exist when its name is used")
        named_children = [child for child in children if child.is_named]
        if len(named_children) != 2 or named_children[1].type != "compound_statement":
            raise NotProvenSafe("it defines a function in an unusual form")
        name = self.visitor.source.text[named_children[0].start_byte : named_children[0].end_byte]
        if not _NAME.fullmatch(name) or self.visitor.is_known_name(name) or name in self.functions:
            raise NotProvenSafe(f"it defines a function named {name}, which replaces a known command or function")
        self.functions[name] = named_children[1]

    def call_function(self, name: str, args: Sequence[PossibleValues], state: ShellState) -> None:
        """Analyses the body of a function at a call, with the call's arguments as positional parameters."""
        if name in self.active_calls:
            raise NotProvenSafe("it defines a function that calls itself")
        inner, start = state.copy(), len(state.assigned)
        for number in range(10):
            inner.variables[str(number)] = args[number - 1] if 0 < number <= len(args) else None
        self.active_calls.append(name)
        self.visitor.analyse_sequence(self.functions[name], inner)
        self.active_calls.pop()
        if inner.cwds != state.cwds:
            raise NotProvenSafe("it changes the working folder inside a function")
        for changed in {*assigned_names(self.visitor.source, self.functions[name]), *state.assigned[start:]}:
            state.assign(changed, None)


def mark_background(children: Sequence["Node"]) -> Iterator[tuple["Node", bool]]:
    """Yields each child with whether a following `&` runs it in the background; comments in between are skipped."""
    following = ""
    marked: list[tuple[Node, bool]] = []
    for child in reversed(children):
        marked.append((child, following == "&"))
        if child.type != "comment":
            following = child.type
    return reversed(marked)


def assigned_names(source: ShellSource, node: "Node") -> set[str]:
    """Returns the names of variables that are assigned anywhere below a node."""
    names: set[str] = set()
    for child in node.children:
        if child.type == "variable_name":
            names.add(source.text[child.start_byte : child.end_byte])
        elif child.type == "word":
            names.add(source.text[child.start_byte : child.end_byte].partition("=")[0])
        names |= assigned_names(source, child)
    return names


def merge_states(state: ShellState, other_state: ShellState) -> None:
    """Merges another path's state into `state`: the union of folders and values, unknown if either is unknown."""
    state.cwds = tuple(dict.fromkeys((*state.cwds, *other_state.cwds)))
    names = {*state.numbers, *other_state.numbers}
    state.numbers = frozenset(name for name in names if state.is_number(name) and other_state.is_number(name))
    for name in {*state.variables, *other_state.variables}:
        mine, theirs = state.variables.get(name), other_state.variables.get(name)
        state.variables[name] = None if mine is None or theirs is None else tuple(dict.fromkeys((*mine, *theirs)))
