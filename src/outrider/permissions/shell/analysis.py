"""Walks the syntax tree of a command line and analyses every simple command in it.

The walk follows lists, pipelines, loops, functions and substitutions. It tracks the possible working folders and
variable values. Every construct that it does not model raises NotProvenSafe, so an unknown construct needs approval.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from outrider.permissions.shell.builtins import check_double_bracket
from outrider.permissions.shell.command import (
    IoRedirect,
    ScriptAnalysis,
    keeps_output,
    parse_simple_command,
    parse_words,
    read_here_document,
    split_here_document,
)
from outrider.permissions.shell.control_flow import (
    KEYWORDS,
    SEPARATORS,
    ControlFlowAnalyzer,
    mark_background,
    merge_states,
)
from outrider.permissions.shell.expansion import ExpandedArg, PossibleValues, ShellState, expand_word
from outrider.permissions.shell.parser import (
    CommandSubstitution,
    LiteralText,
    NotProvenSafe,
    ShellSource,
    Word,
    WordReader,
    decode_bytes,
)
from outrider.permissions.shell.programs.git import reject_unsafe_index
from outrider.permissions.shell.programs.registry import PrintedNames
from outrider.permissions.shell.simple_command import SimpleCommandAnalyzer

if TYPE_CHECKING:
    from tree_sitter import Node


_CAT_HERE_DOCUMENT = re.compile(r"\$\([ \t\n]*cat[ \t]*<<[ \t]*(['\"])(?P<name>[A-Za-z0-9_]+)\1[ \t]*\n")
_SUBSTITUTION_END = re.compile(r"\n[ \t\n]*\)")
MAX_COMMANDS = 300
_GAP = re.compile(r"(?:[ \t\n]|\\\n)*")
_LIST_OPERATORS = frozenset({"&&", "||", "|", "|&", "!"})


class ScriptAnalyzer:
    """Walks one parsed source and passes its simple commands to a SimpleCommandAnalyzer."""

    def __init__(self, source: ShellSource, command_analyzer: SimpleCommandAnalyzer, state: ShellState) -> None:
        self.source, self.command_analyzer, self.state = source, command_analyzer, state
        self.control_flow = ControlFlowAnalyzer(self)
        self.is_known_name = command_analyzer.is_known_name

    def run(self) -> None:
        """Analyses the whole source. Raises NotProvenSafe at the first construct that is not understood."""
        self.analyse_sequence(self.source.root, self.state)

    def analyse_statement(self, node: "Node", state: ShellState) -> PrintedNames:
        """Analyses one statement and returns which file names it prints, for a following `xargs`."""
        if len(self.command_analyzer.commands) > MAX_COMMANDS:
            raise NotProvenSafe(f"it contains more than {MAX_COMMANDS} commands, too many to check")
        state.cwds_on_success = None
        match node.type:
            case "command" | "redirected_statement" | "test_command" | "declaration_command" | "unset_command":
                return self._analyse_redirected(node, state)
            case "variable_assignment" | "variable_assignments" | "file_redirect":
                return self._analyse_simple_command(node, state)
            case "pipeline":
                return self._analyse_pipeline(node, state)
            case "list":
                self._analyse_and_or_list(node, state)
            case _:
                self._analyse_compound(node, state)
        return PrintedNames()

    def _analyse_compound(self, node: "Node", state: ShellState) -> None:
        """Analyses a compound command; a subshell gets a copy of the state."""
        match node.type:
            case "negated_command" | "compound_statement":
                self.analyse_sequence(node, state)
            case "subshell":
                self.analyse_sequence(node, state.copy())
            case "if_statement" | "case_statement":
                self.control_flow.analyse_branches(node, state)
            case "while_statement" | "for_statement":
                self.control_flow.analyse_loop(node, state)
            case "comment":
                self._check_comment(node)
            case _:
                raise NotProvenSafe(f"it uses a shell construct that is not analysed ({node.type.replace('_', ' ')})")

    def analyse_sequence(
        self, node: "Node", state: ShellState, *, among: Sequence["Node"] | None = None
    ) -> PrintedNames:
        """Analyses statements in order; a background statement gets a copy of the state.

        Returns which file names the sequence prints if it consists of one statement.
        """
        printed: list[PrintedNames] = []
        children = self.check_complete_children(node) if among is None else among
        for child, in_background in mark_background(children):
            if child.type == "function_definition":
                self.control_flow.define_function(child, in_background=in_background)
            elif child.is_named:
                printed.append(self.analyse_statement(child, state.copy() if in_background else state))
            elif child.type not in SEPARATORS | _LIST_OPERATORS | KEYWORDS:
                raise NotProvenSafe(f"its syntax is not understood at {child.type!r}")
        state.cwds_on_success = None
        return printed[0] if len(printed) == 1 else PrintedNames()

    def check_complete_children(self, node: "Node") -> list["Node"]:
        """Returns the children of a node. Raises NotProvenSafe if text between them is not covered by any child.

        tree-sitter drops text that it cannot place; bash would still run that text.
        """
        children, position = node.children, node.start_byte
        for child in children:
            if _GAP.fullmatch(self.source.text, position, max(position, child.start_byte)) is None:
                raise NotProvenSafe("the shell grammar does not cover all of its text")
            position = max(position, child.end_byte)
        if _GAP.fullmatch(self.source.text, position, max(position, node.end_byte)) is None:
            raise NotProvenSafe("the shell grammar does not cover all of its text")
        return children

    def _check_comment(self, node: "Node") -> None:
        """Raises NotProvenSafe if bash might not parse the comment node as a comment."""
        text, start = self.source.text, node.start_byte
        comment = text[start : node.end_byte]
        if not comment.startswith("#") or "\n" in comment or (start and text[start - 1] not in " \t\n;&|()"):
            raise NotProvenSafe("it contains a # that bash may not treat as a comment")
        if text[node.end_byte : node.end_byte + 1] not in {"", "\n"}:
            raise NotProvenSafe("it contains a comment that ends before the end of its line")

    def _analyse_and_or_list(self, node: "Node", state: ShellState) -> None:
        """Analyses `a && b` or `a || b`; `b` may not run, so the states of both cases are merged."""
        children = self.check_complete_children(node)
        if len(children) != 3 or children[1].type not in {"&&", "||"}:
            raise NotProvenSafe("it contains a list of commands in an unusual form")
        left, operator, right = children
        self.analyse_statement(left, state)
        skipped = state.copy()
        if operator.type == "&&" and state.cwds_on_success is not None:
            state.cwds = state.cwds_on_success
        self.analyse_statement(right, state)
        succeeded = state.cwds_on_success or state.cwds
        merge_states(state, skipped)
        # If `a && b` succeeds, both commands succeeded. If `a || b` succeeds, either one may have failed.
        state.cwds_on_success = succeeded if operator.type == "&&" else None

    def _analyse_pipeline(self, node: "Node", state: ShellState) -> PrintedNames:
        """Analyses each command of a pipeline in its own subshell and passes on the printed file names."""
        printed = PrintedNames()
        for child in self.check_complete_children(node):
            if child.is_named:
                inner = state.copy()
                self.command_analyzer.stdin = printed
                printed = self.analyse_statement(child, inner)
                self.command_analyzer.stdin = PrintedNames()
            elif child.type not in {"|", "|&"}:
                raise NotProvenSafe(f"its pipeline contains {child.type!r}, which is not understood")
        return printed

    def expand_words(self, start: int, stop: int, state: ShellState) -> list[PossibleValues]:
        """Returns the possible values of each word between two offsets, after analysing the substitutions inside."""
        return [
            # "-" represents the file names that start with a dash: a glob may match such a file later.
            (*arg.values, "-") if arg.from_glob and arg.values else arg.values
            for word, source_text in parse_words(self.source, start, stop)
            for arg in expand_word(self.resolve_substitutions(word, state), state, source_text)
        ]

    def _analyse_redirected(self, node: "Node", state: ShellState) -> PrintedNames:
        """Analyses a command with its redirects. A compound command is analysed before the redirects that follow it."""
        if node.type == "test_command" and self.source.text.startswith("[[", node.start_byte):
            return self._analyse_double_bracket(node, state)
        if node.type != "redirected_statement":
            return self._analyse_simple_command(node, state)
        inner_command = node.children[0]
        if node.children[-1].type == "heredoc_redirect" and node.children[-1].children[2:3]:
            here_document = node.children[-1]
            if any(child.type == "pipeline" for child in here_document.children):
                return self._analyse_piped_here_document(node, here_document, state)
        if (
            inner_command.type in {"command", "declaration_command", "unset_command"}
            or "redirect" in inner_command.type
        ):
            return self._analyse_simple_command(node, state)
        trailing = parse_simple_command(self.source, inner_command.end_byte, node.end_byte)
        if trailing.words or trailing.assignments:
            raise NotProvenSafe("it has words after a compound command")
        self.check_complete_children(node)
        # The grammar attaches a redirect to the whole list, bash attaches it to the last command only. The check
        # therefore uses every folder and every variable value that is possible after the list.
        printed = self.analyse_statement(inner_command, state)
        self.command_analyzer.check_redirects(trailing.redirects, self.resolve_substitutions, state)
        return printed if keeps_output(trailing.redirects) else PrintedNames()

    def _analyse_piped_here_document(self, node: "Node", here_document: "Node", state: ShellState) -> PrintedNames:
        """Analyses `command <<NAME | other …`: the pipeline is on the line that starts the here-document."""
        text = self.source.text
        document = read_here_document(self.source, here_document, here_document.start_byte)
        pipeline = next(child for child in here_document.children if child.type == "pipeline")
        children = self.check_complete_children(pipeline)
        around = text[document.delimiter_end : pipeline.start_byte] + text[pipeline.end_byte : document.line_end]
        if (
            around.strip(" \t")
            or "<<" in text[pipeline.start_byte : pipeline.end_byte]
            or node.end_byte != here_document.end_byte
            or [child.type == "|" for child in children] != [True, False]
        ):
            raise NotProvenSafe("it continues in an unusual form on the line that starts a here-document")
        simple = parse_simple_command(self.source, node.start_byte, here_document.start_byte)
        first_state = state.copy()
        redirect = IoRedirect(document.operator, document.body)
        self.command_analyzer.check_redirects((redirect,), self.resolve_substitutions, first_state)
        self.command_analyzer.stdin = PrintedNames()
        self.command_analyzer.analyse_command(simple, self, first_state)
        return self.analyse_statement(children[1], state.copy())

    def _analyse_double_bracket(self, node: "Node", state: ShellState) -> PrintedNames:
        """Reads the words of `[[ … ]]` one by one, because its operators are not operators of the shell grammar."""
        text = self.source.text
        reader = WordReader(self.source, node.start_byte + 2, node.end_byte - 2)
        if text[reader.stop : node.end_byte] != "]]" or text[reader.position] not in " \t\n":
            raise NotProvenSafe("it contains a [[ ]] test in an unusual form")
        args: list[ExpandedArg] = []
        while reader.position < reader.stop:
            if reader.peek() in " \t\n" or text.startswith(("&&", "||"), reader.position):
                reader.position += 1 if reader.peek() in " \t\n" else 2
                continue
            start = reader.position
            word = reader.read_word()
            args += expand_word(self.resolve_substitutions(word, state), state, text[start : reader.position])
        check_double_bracket(args)
        return PrintedNames()

    def _analyse_simple_command(self, node: "Node", state: ShellState) -> PrintedNames:
        simple = parse_simple_command(self.source, node.start_byte, node.end_byte)
        return self.command_analyzer.analyse_command(simple, self, state)

    def resolve_substitutions(self, word: Word, state: ShellState) -> Word:
        """Analyses every command substitution in a word and replaces it with text if its output is certain."""
        return tuple(
            self._resolve_substitution(part, state) if isinstance(part, CommandSubstitution) else part for part in word
        )

    def _resolve_substitution(self, part: CommandSubstitution, state: ShellState) -> CommandSubstitution | LiteralText:
        """Analyses a substitution; returns its output as literal text if the value is certain."""
        text = self.source.text[part.node.start_byte : part.node.end_byte]
        printed = self.analyse_sequence(part.node, state.copy())
        if part.kind == "file":
            return LiteralText("/dev/fd/63", quoted=True)
        if text == "$(pwd)" and len(state.cwds) == 1 and part.quoted:
            return LiteralText(state.cwds[0], quoted=True)
        if part.quoted and (body := _read_cat_here_document(text)) is not None:
            return LiteralText(decode_bytes(body).rstrip("\n"), quoted=True)
        if printed.is_number:
            return structs.replace(part, prints_number=True)
        if printed.patterns is not None and printed.line_separated and not part.quoted:
            return self._mark_found_paths(part, printed, state)
        return part

    def _mark_found_paths(
        self, part: CommandSubstitution, printed: PrintedNames, state: ShellState
    ) -> CommandSubstitution:
        """Marks a substitution as a list of paths if no file name changes when the shell splits and expands it."""
        paths = self.command_analyzer.paths.with_cwds(state.cwds)
        try:
            paths.reject_ambiguous_names(printed.search_folders, globs=True)
            paths.reject_outside_links(printed.link_folders, printed.patterns or ())
            if printed.from_index:
                reject_unsafe_index(paths)
        except NotProvenSafe:
            return part
        return structs.replace(part, found_patterns=printed.patterns)


def _read_cat_here_document(text: str) -> str | None:
    """Returns the body of the here-document in `$(cat <<'NAME' …)`, or None if the text is anything else."""
    start = _CAT_HERE_DOCUMENT.match(text)
    if not start:
        return None
    body, end = split_here_document(text, start.end(), start["name"])
    return body if _SUBSTITUTION_END.fullmatch(text, end) else None


def analyse_script(command: str, *, root: str, cwd: str) -> ScriptAnalysis:
    """Analyses a command line without running it.

    `root` is the workspace, `cwd` the folder in which the command line would start.
    """
    command_analyzer = SimpleCommandAnalyzer(root, cwd, _analyse_nested_script)
    try:
        ScriptAnalyzer(ShellSource(command), command_analyzer, ShellState((cwd,), {})).run()
    except NotProvenSafe as error:
        command_analyzer.problems.append(str(error))
    except RecursionError:
        command_analyzer.problems.append("its commands are nested too deeply to check")
    return ScriptAnalysis(tuple(command_analyzer.commands), tuple(dict.fromkeys(command_analyzer.problems)))


def _analyse_nested_script(text: str, command_analyzer: SimpleCommandAnalyzer, state: ShellState) -> None:
    ScriptAnalyzer(ShellSource(text), command_analyzer, state).run()
