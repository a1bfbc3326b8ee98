"""The walk through a syntax tree: every list, pipeline, loop, function and substitution, down to simple commands."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.permissions.programs.registry import Found
from outrider.permissions.shell.command import Script
from outrider.permissions.shell.control_flow import KEYWORDS, SEPARATORS, Flow, join, with_background
from outrider.permissions.shell.expansion import Arg, Known, Scope, expand
from outrider.permissions.shell.parser import Reader, Source, Substitution, Text, Unclear, Word, read_simple, read_words
from outrider.permissions.shell.simple_command import SimpleCommandAnalyzer

if TYPE_CHECKING:
    from tree_sitter import Node


_CONSTANT = re.compile(
    r"^\$\(\s*cat\s*<<\s*(['\"])(?P<name>[A-Za-z0-9_]+)\1\n(?P<body>.*?)\n?(?P=name)\n\s*\)$", re.DOTALL
)
MOST_COMMANDS = 300
_GAP = re.compile(r"(?:[ \t\n]|\\\n)*")
_LOOSE = frozenset({"&&", "||", "|", "|&", "!"})


class ScriptAnalyzer:
    """One source, walked once."""

    def __init__(self, source: Source, judge: SimpleCommandAnalyzer, scope: Scope) -> None:
        self.source, self.judge, self.scope = source, judge, scope
        self.flow = Flow(self)
        self.is_known = judge.is_known

    def run(self) -> None:
        self.sequence(self.source.root, self.scope)

    def statement(self, node: "Node", scope: Scope) -> Found:
        """Walks one statement; the answer says what its output consists of."""
        if len(self.judge.commands) > MOST_COMMANDS:
            raise Unclear("it holds too many commands")
        scope.entered = None
        match node.type:
            case "command" | "redirected_statement" | "test_command" | "declaration_command" | "unset_command":
                return self.command(node, scope)
            case "variable_assignment" | "variable_assignments" | "file_redirect":
                return self.simple(node, scope)
            case "pipeline":
                return self.pipeline(node, scope)
            case "list":
                self.chain(node, scope)
            case _:
                self.compound(node, scope)
        return Found()

    def compound(self, node: "Node", scope: Scope) -> None:
        match node.type:
            case "negated_command" | "compound_statement":
                self.sequence(node, scope)
            case "subshell":
                self.sequence(node, scope.copy())
            case "if_statement" | "case_statement":
                self.flow.branches(node, scope)
            case "while_statement" | "for_statement":
                self.flow.loop(node, scope)
            case "comment":
                self.comment(node)
            case _:
                raise Unclear(f"{node.type.replace('_', ' ')} is not followed")

    def sequence(self, node: "Node", scope: Scope, *, among: Sequence["Node"] | None = None) -> None:
        children = self.tiled(node) if among is None else among
        for child, alone in with_background(children):
            if child.type == "function_definition":
                self.flow.define(child, alone=alone)
            elif child.is_named:
                self.statement(child, scope.copy() if alone else scope)
            elif child.type not in SEPARATORS | _LOOSE | KEYWORDS:
                raise Unclear(f"{child.type!r} is not expected there")
        scope.entered = None

    def tiled(self, node: "Node") -> list["Node"]:
        """The children, which must leave nothing of the text out."""
        children, at = node.children, node.start_byte
        for child in children:
            if _GAP.fullmatch(self.source.text, at, max(at, child.start_byte)) is None:
                raise Unclear("the grammar leaves a part of it out")
            at = max(at, child.end_byte)
        if _GAP.fullmatch(self.source.text, at, max(at, node.end_byte)) is None:
            raise Unclear("the grammar leaves a part of it out")
        return children

    def comment(self, node: "Node") -> None:
        text, start = self.source.text, node.start_byte
        whole = text[start : node.end_byte]
        if not whole.startswith("#") or "\n" in whole or (start and text[start - 1] not in " \t\n;&|()"):
            raise Unclear("a comment that the shell may not take for one")
        if text[node.end_byte : node.end_byte + 1] not in {"", "\n"}:
            raise Unclear("a comment that ends before its line")

    def chain(self, node: "Node", scope: Scope) -> None:
        children = self.tiled(node)
        if len(children) != 3 or children[1].type not in {"&&", "||"}:
            raise Unclear("a list of an unusual form")
        left, operator, right = children
        self.statement(left, scope)
        skipped = scope.copy()
        if operator.type == "&&" and scope.entered is not None:
            scope.cwds = scope.entered
        self.statement(right, scope)
        succeeded = scope.entered or scope.cwds
        join(scope, skipped)
        # Where `a && b` worked, both did; `a || b` says nothing about either.
        scope.entered = succeeded if operator.type == "&&" else None

    def pipeline(self, node: "Node", scope: Scope) -> Found:
        found = Found()
        for child in self.tiled(node):
            if child.is_named:
                inner = scope.copy()
                self.judge.stdin = found
                found = self.statement(child, inner)
                self.judge.stdin = Found()
            elif child.type not in {"|", "|&"}:
                raise Unclear(f"{child.type!r} in a pipeline")
        return found

    def words(self, start: int, stop: int, scope: Scope) -> list[Known]:
        """What each word between two places can be, after the commands inside it are walked."""
        return [
            # A lone dash stays in the place of names that may begin with one.
            (*arg.choices, "-") if arg.loose and arg.choices else arg.choices
            for word, shown in read_words(self.source, start, stop)
            for arg in expand(self.resolved(word, scope), scope, shown)
        ]

    def command(self, node: "Node", scope: Scope) -> Found:
        """A command with its redirects; where they stand behind a compound, that is walked first."""
        if node.type == "test_command" and self.source.text.startswith("[[", node.start_byte):
            return self.double_bracket(node, scope)
        if node.type != "redirected_statement":
            return self.simple(node, scope)
        first = node.children[0]
        if first.type in {"command", "declaration_command", "unset_command"} or "redirect" in first.type:
            return self.simple(node, scope)
        after = read_simple(self.source, first.end_byte, node.end_byte)
        if after.words or after.assignments:
            raise Unclear("words after a compound command")
        self.tiled(node)
        # The grammar hangs a redirect on a whole list where the shell means its last command: it is judged for every
        # folder and value that the list can leave behind.
        found = self.statement(first, scope)
        self.judge.redirected(after.redirects, self.resolved, scope)
        return found

    def double_bracket(self, node: "Node", scope: Scope) -> Found:
        """Its words are read one by one, since its operators are no operators of the shell."""
        text = self.source.text
        reader = Reader(self.source, node.start_byte + 2, node.end_byte - 2)
        if text[reader.stop : node.end_byte] != "]]" or text[reader.at] not in " \t\n":
            raise Unclear("a test of an unusual form")
        args: list[Arg] = []
        while reader.at < reader.stop:
            if reader.peek() in " \t\n" or text.startswith(("&&", "||"), reader.at):
                reader.at += 1 if reader.peek() in " \t\n" else 2
                continue
            start = reader.at
            word = reader.word()
            args += expand(self.resolved(word, scope), scope, text[start : reader.at])
        self.judge.double_bracket(args)
        return Found()

    def simple(self, node: "Node", scope: Scope) -> Found:
        simple = read_simple(self.source, node.start_byte, node.end_byte)
        return self.judge.simple(simple, self, scope)

    def resolved(self, word: Word, scope: Scope) -> Word:
        """Walks every command inside a word; the few whose output is certain become text."""
        return tuple(self.piece(piece, scope) if isinstance(piece, Substitution) else piece for piece in word)

    def piece(self, piece: Substitution, scope: Scope) -> Substitution | Text:
        text = self.source.text[piece.node.start_byte : piece.node.end_byte]
        self.sequence(piece.node, scope.copy())
        if piece.kind == "file":
            return Text("/dev/fd/63", quoted=True)
        if text == "$(pwd)" and len(scope.cwds) == 1 and piece.quoted:
            return Text(scope.cwds[0], quoted=True)
        if piece.quoted and (found := _CONSTANT.match(text)):
            return Text(found["body"].encode("latin-1").decode("utf-8", "replace").rstrip("\n"), quoted=True)
        return piece


def analyse(command: str, *, root: str, cwd: str) -> Script:
    """What a command line would do; it is never run for that."""
    judge = SimpleCommandAnalyzer(root, cwd, _nested)
    try:
        ScriptAnalyzer(Source(command), judge, Scope((cwd,), {})).run()
    except Unclear as unclear:
        judge.problems.append(str(unclear))
    except RecursionError:
        judge.problems.append("it is nested too deeply")
    return Script(tuple(judge.commands), tuple(dict.fromkeys(judge.problems)))


def _nested(text: str, judge: SimpleCommandAnalyzer, scope: Scope) -> None:
    ScriptAnalyzer(Source(text), judge, scope).run()
