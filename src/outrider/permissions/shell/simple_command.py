"""Analyses one simple command: its assignments and redirects, its wrappers, and whether it only reads."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.permissions.shell.builtins import BASH_BUILTINS, BUILTIN_CHECKS, FUNCTION_BUILTINS, SHELL_NAMES
from outrider.permissions.shell.command import (
    AnalysedCommand,
    IoRedirect,
    ParsedCommand,
    check_exported_variable,
    check_redirect,
    check_script_variable,
    keeps_output,
)
from outrider.permissions.shell.control_flow import ControlFlowAnalyzer
from outrider.permissions.shell.expansion import (
    ExpandedArg,
    PossibleValues,
    ShellState,
    expand_assigned_value,
    expand_word,
)
from outrider.permissions.shell.parser import NotProvenSafe, Word
from outrider.permissions.shell.programs.coreutils import FOUND_PATHS, check_found_files, parse_find
from outrider.permissions.shell.programs.git import reject_unsafe_index
from outrider.permissions.shell.programs.registry import (
    PrintedNames,
    is_known_reader,
    names_after_filter,
    names_printed_by,
    prints_number,
    program_name,
    prove_program,
)
from outrider.permissions.shell.programs.table import PathChecker
from outrider.permissions.shell.wrappers import OPAQUE_WRAPPERS, SHELLS, WRAPPERS, parse_shell_script, unwrap_xargs

MAX_WRAPPERS = 8
MAX_FOLDERS = 12  # possible working folders; each `cd` can succeed or fail
MAX_WORDS = 500
_BUILTINS_WITH_PROGRAM = frozenset({"echo", "printf", "test", "["})
# Syntax that a POSIX shell parses differently from bash, so that the bash grammar does not show what would run.
_BASH_ONLY_SYNTAX = (
    "&>",
    ">&",
    "$'",
    '$"',
    "[[",
    "((",
    "<(",
    ">(",
    "<<<",
    "|&",
    "+=",
    "function",
    "{",
    "select",
    "$[",
    "coproc",
    "[^",
)
_DESCRIPTOR_DUPLICATE = re.compile(r"[0-9]>&[0-9]")
_SHELL_PREFIXES = frozenset({"command", "builtin"})


class WordResolver(Protocol):
    """The part of ScriptAnalyzer that SimpleCommandAnalyzer calls back."""

    control_flow: ControlFlowAnalyzer

    def resolve_substitutions(self, word: Word, state: ShellState) -> Word: ...


class SimpleCommandAnalyzer:
    """Collects the analysed commands of one command line and the problems of the line as a whole."""

    def __init__(self, root: str, cwd: str, nested: Callable[[str, "SimpleCommandAnalyzer", ShellState], None]) -> None:
        self.paths = PathChecker(root, (cwd,), {})
        self.analyse_nested = nested
        self.commands: list[AnalysedCommand] = []
        self.problems: list[str] = []
        self.stdin = PrintedNames()

    def is_known_name(self, name: str) -> bool:
        """Returns whether a function of this name would replace a known program, builtin or wrapper."""
        return (
            is_known_reader(name)
            or name in SHELL_NAMES
            or name in WRAPPERS
            or name in OPAQUE_WRAPPERS
            or name in SHELLS
        )

    def check_redirects(
        self, redirects: Sequence[IoRedirect], resolve: Callable[[Word, ShellState], Word], state: ShellState
    ) -> None:
        """Records unsafe redirects as problems of the whole line, which no allow rule covers."""
        for redirect in redirects:
            targets = expand_word(resolve(redirect.target, state), state, redirect.source_text)
            try:
                check_redirect(redirect, targets, self.paths.with_cwds(state.cwds))
            except NotProvenSafe as error:
                self.problems.append(str(error))

    def analyse_command(self, parsed: ParsedCommand, resolver: WordResolver, state: ShellState) -> PrintedNames:
        """Analyses a parsed command and returns the file names that it prints."""
        stdin, self.stdin = self.stdin, PrintedNames()
        redirect_state = state.copy()
        for assignment in parsed.assignments:  # shells disagree whether a redirect sees the assignments before it
            redirect_state.variables[assignment.name] = None
        self.check_redirects(parsed.redirects, resolver.resolve_substitutions, redirect_state)
        argv = [
            arg
            for word, source_text in parsed.words
            for arg in expand_word(resolver.resolve_substitutions(word, state), state, source_text)
        ]
        barriers = self._apply_assignments(parsed, resolver, state, exported=bool(argv))
        if not argv:
            return PrintedNames()
        if len(argv) > MAX_WORDS:
            raise NotProvenSafe(f"it contains a command with more than {MAX_WORDS} words, too many to check")
        source_text = " ".join(source_text for _, source_text in parsed.words)
        unwrapper = _CommandUnwrapper(self, resolver, state, source_text, stdin)
        printed = unwrapper.analyse(tuple(argv), (), tuple(barriers))
        return printed if keeps_output(parsed.redirects) else PrintedNames()

    def _apply_assignments(
        self, parsed: ParsedCommand, resolver: WordResolver, state: ShellState, *, exported: bool
    ) -> list[str]:
        """Applies `name=value` prefixes: exported to the command if there is one, else assigned in the script.

        Returns the reasons why an assignment is not safe.
        """
        barriers: list[str] = []
        for assignment in parsed.assignments:
            value = expand_assigned_value(resolver.resolve_substitutions(assignment.value, state), state)
            value = ExpandedArg(None) if assignment.appends else value
            try:
                if exported:
                    # A function sees the value, and some shells keep it after the command.
                    state.assign(assignment.name, None)
                    check_exported_variable(assignment.name, value)
                else:
                    check_script_variable(assignment.name)
                    values = None if value.multiple else value.values
                    state.assign(assignment.name, values, is_number=value.is_number and not assignment.appends)
            except NotProvenSafe as error:
                barriers.append(str(error))
        if not exported:
            self.problems += barriers
        return barriers


def _reject_bash_only_syntax(text: str) -> None:
    plain = _DESCRIPTOR_DUPLICATE.sub("", text)
    if syntax := next((syntax for syntax in _BASH_ONLY_SYNTAX if syntax in plain), None):
        raise NotProvenSafe(f"it uses {syntax}, which sh and bash treat differently")


def _positional_parameters(args: Sequence[ExpandedArg]) -> list[PossibleValues]:
    """Returns the values of `$1`, `$2`, …; all are unknown if an argument can expand to several."""
    return [] if any(arg.multiple for arg in args) else [arg.values for arg in args]


class _CommandUnwrapper:
    """Removes the wrappers of one command, analyses the inner command and records the result."""

    def __init__(
        self,
        analyzer: SimpleCommandAnalyzer,
        resolver: WordResolver,
        state: ShellState,
        source_text: str,
        stdin: PrintedNames,
    ) -> None:
        self.analyzer, self.resolver, self.state = analyzer, resolver, state
        self.source_text, self.stdin = source_text, stdin
        self.paths = analyzer.paths.with_cwds(state.cwds)

    def analyse(
        self, argv: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> PrintedNames:
        """Analyses an argv; records it as a command unless it is a wrapper around another one."""
        printed, reason = PrintedNames(), None
        try:
            name = self._check_program_name(argv[0], wrappers)
            if argv[0].text in self.resolver.control_flow.functions:
                self._call_function(argv[0].text, argv[1:], wrappers)
                self._record(argv, wrappers, barriers, None)
                return printed
            inner = self._analyse_inner_command(name, argv[1:], wrappers, barriers)
            if inner is not None:
                return inner
            printed = self._prove_read_only(name, argv[1:], wrappers)
        except NotProvenSafe as error:
            reason = str(error)
        self._record(argv, wrappers, barriers, reason)
        return printed

    def _check_program_name(self, program: ExpandedArg, wrappers: tuple[str, ...]) -> str:
        """Returns the name of the program. Raises NotProvenSafe if it is not certain."""
        if program.text is None or program.from_glob:
            raise NotProvenSafe(f"which program {program.source_text} runs is not known in advance")
        if len(wrappers) > MAX_WRAPPERS:
            raise NotProvenSafe("it nests too many wrapper programs")
        return program_name(program.text)

    def _record(
        self, argv: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...], reason: str | None
    ) -> None:
        command = AnalysedCommand(argv, self.state.cwds, self.source_text, wrappers, reason, barriers)
        self.analyzer.commands.append(command)

    def _analyse_inner_command(
        self, name: str, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> PrintedNames | None:
        """Analyses the command that a wrapper runs; returns None if the program is not a wrapper."""
        if name in WRAPPERS:
            return self._unwrap(name, args, wrappers, barriers)
        if name in OPAQUE_WRAPPERS:
            reason = f"{name} runs another program, possibly with other rights"
            self._record_opaque_arguments(name, args, wrappers, reason)
            raise NotProvenSafe(reason)
        if name == "xargs":
            return self._analyse_xargs(args, wrappers, barriers)
        if name == "find":
            return self._analyse_find(args, wrappers, barriers)
        if name in SHELLS and (script := parse_shell_script(args, self.paths.root)) is not None:
            return self._analyse_nested_shell(name, script, wrappers, barriers)
        return None

    def _unwrap(
        self, name: str, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> PrintedNames | None:
        wrapped = WRAPPERS[name](args)
        added = (wrapped.barrier,) if wrapped.barrier else ()
        if wrapped.argv:
            return self.analyse(wrapped.argv, (*wrappers, name), (*barriers, *added))
        self._record((ExpandedArg((name,)),), wrappers, (*barriers, *added), None)
        return PrintedNames()

    def _record_opaque_arguments(
        self, name: str, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], reason: str
    ) -> None:
        """Records every tail of an opaque wrapper's arguments, so that deny and ask rules match the inner command."""
        try:
            inner = OPAQUE_WRAPPERS[name](args).argv
        except NotProvenSafe:
            inner = args
        for start in range(len(inner)):
            self._record(inner[start:], (*wrappers, name), (), reason)

    def _analyse_xargs(
        self, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> PrintedNames:
        """Analyses the command of xargs with the file names of the previous pipeline command as arguments."""
        build_argv, separator = unwrap_xargs(args)
        contained = self.stdin.patterns is not None and separator == ("blank" if self.stdin.line_separated else "NUL")
        if contained and self.stdin.line_separated:
            self.paths.reject_ambiguous_names(self.stdin.search_folders)
        if contained and self.stdin.from_index:
            reject_unsafe_index(self.paths)
        # Names that the previous command is known to print are checked paths; any other input is an unknown argument.
        stdin_arg = FOUND_PATHS if contained else ExpandedArg(None, multiple=True, source_text="the input of xargs")
        argv = build_argv(stdin_arg)
        printed = self.analyse(argv, (*wrappers, "xargs"), barriers)
        if self.stdin.patterns is not None:
            check_found_files(argv[0].text or "", self.stdin.patterns, self.stdin.link_folders, self.paths)
        return printed

    def _analyse_find(
        self, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> PrintedNames:
        """Analyses `find` and the commands of its `-exec` actions."""
        expression = parse_find(args, self.paths)
        for argv in expression.commands:
            if not argv:
                raise NotProvenSafe("find -exec has no command")
            self.analyse(argv, (*wrappers, "find"), barriers)
            if FOUND_PATHS in argv[1:]:
                check_found_files(argv[0].text or "", expression.patterns, expression.link_folders, self.paths)
        self._record((ExpandedArg(("find",), source_text="find"), *args), wrappers, barriers, None)
        if expression.commands or not expression.prints_names:
            return PrintedNames()
        return PrintedNames(
            expression.patterns, expression.link_folders, expression.prints_names == "lines", expression.search_folders
        )

    def _analyse_nested_shell(
        self,
        name: str,
        script: tuple[str, tuple[ExpandedArg, ...]],
        wrappers: tuple[str, ...],
        barriers: tuple[str, ...],
    ) -> PrintedNames:
        """Analyses the script of `sh -c`. Its commands get the shell as a wrapper, so no allow rule covers them."""
        text, args = script
        if name != "bash":
            _reject_bash_only_syntax(text)
        # After `-c script`, the first argument is `$0`.
        parameters = {str(number): values for number, values in enumerate(_positional_parameters(args))}
        state = ShellState(self.state.cwds, parameters, glob_budget=self.state.glob_budget, is_posix=name != "bash")
        start = len(self.analyzer.commands)
        if len(wrappers) > MAX_WRAPPERS:
            raise NotProvenSafe("it nests too many shells")
        self.analyzer.analyse_nested(text, self.analyzer, state)
        for index in range(start, len(self.analyzer.commands)):
            command = self.analyzer.commands[index]
            self.analyzer.commands[index] = AnalysedCommand(
                command.argv,
                command.cwds,
                command.source_text,
                (*wrappers, name, *command.wrappers),
                command.unproven_reason,
                (*barriers, *command.barriers),
            )
        return PrintedNames()

    def _prove_read_only(self, name: str, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...]) -> PrintedNames:
        """Checks a builtin, function or program; returns the file names that it prints. Raises NotProvenSafe."""
        if (
            (name == "cd" or name in BUILTIN_CHECKS)
            and name not in _BUILTINS_WITH_PROGRAM
            and not _SHELL_PREFIXES.issuperset(wrappers)
        ):
            raise NotProvenSafe(f"{name} is a shell builtin, but a wrapper runs it as a program")
        if name == "cd":
            self._change_folder(args)
            return PrintedNames()
        self.state.cwds_on_success = None
        if name in BUILTIN_CHECKS:
            self._reject_removed_functions(name, args)
            start = len(self.state.assigned)
            BUILTIN_CHECKS[name](args, self.state)
            if self._may_fail(name, wrappers):
                for assigned in self.state.assigned[start:]:
                    self.state.assign(assigned, None)
            return PrintedNames()
        prove_program(name, args, self.paths)
        for arg in args:
            if arg.found_patterns is not None:
                check_found_files(name, arg.found_patterns, (), self.paths)
        if prints_number(name, args):
            return PrintedNames(is_number=True)
        return (
            names_after_filter(name, args, self.stdin)
            if self.stdin.patterns is not None
            else names_printed_by(name, args)
        )

    def _call_function(self, name: str, args: tuple[ExpandedArg, ...], wrappers: tuple[str, ...]) -> None:
        """Analyses the body of a called function. A wrapper runs the program with the function's name instead."""
        if wrappers:
            raise NotProvenSafe(f"{wrappers[-1]} could run a program with the name of the function {name}")
        self.state.cwds_on_success = None
        self.resolver.control_flow.call_function(name, _positional_parameters(args), self.state)

    def _may_fail(self, name: str, wrappers: tuple[str, ...]) -> bool:
        """Returns whether a builtin fails in this shell, or outside a function, and then assigns nothing."""
        is_missing = self.state.is_posix and (name in BASH_BUILTINS or "builtin" in wrappers)
        return is_missing or (name in FUNCTION_BUILTINS and not self.resolver.control_flow.active_calls)

    def _reject_removed_functions(self, name: str, args: tuple[ExpandedArg, ...]) -> None:
        if name == "unset" and any(arg.text in self.resolver.control_flow.functions for arg in args):
            raise NotProvenSafe("unset could remove a function, so that a program with its name runs")

    def _change_folder(self, args: tuple[ExpandedArg, ...]) -> None:
        """Applies `cd`. Rejects symbolic links: bash resolves `..` in the path's text, the kernel follows the link."""
        words = [arg for arg in args if arg.text != "--"]
        if len(words) != 1 or words[0].text is None or words[0].text.startswith("-") or not words[0].text:
            raise NotProvenSafe("cd changes to a folder that is not known in advance")
        entered = [os.path.normpath(os.path.join(cwd, words[0].text)) for cwd in self.state.cwds]  # noqa: PTH118
        for folder in entered:
            containment = self.paths.contain(folder, folder)
            if containment.kind != "inside":
                raise NotProvenSafe(f"{words[0].text}: {containment.reason}")
            if containment.real_path != folder and os.path.realpath(self.paths.root) == self.paths.root:
                raise NotProvenSafe(f"cd changes to {words[0].text} through a symbolic link")
        possible = tuple(dict.fromkeys((*self.state.cwds, *entered)))
        if len(possible) > MAX_FOLDERS:
            raise NotProvenSafe("it uses cd too often: too many working folders are possible")
        self.state.cwds_on_success = tuple(dict.fromkeys(entered))
        self.state.cwds = possible
