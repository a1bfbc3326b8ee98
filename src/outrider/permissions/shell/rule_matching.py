"""Matches permission rules against analysed shell commands.

An allow rule covers one simple command and only the effects that its words name. Deny and ask rules match more
broadly: behind every wrapper and for every possible value of a word.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from outrider._posix import is_within
from outrider.permissions.paths.containment import contain
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.rules import match_words
from outrider.permissions.shell.command import TRANSPARENT_WRAPPERS, AnalysedCommand
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.programs.registry import program_name, rule_covers_arguments
from outrider.permissions.shell.programs.workspace_config import (
    WorkspaceConfigFile,
    find_config_files,
    first_unapproved,
    is_harmless_key,
)
from outrider.permissions.shell.wrappers import (
    candidate_paths,
    contains_rule_words,
    has_exec_or_output_option,
    reads_commands_from_stdin,
    runs_any_program,
    runs_its_arguments,
)
from outrider.types.tool_declaration import PermissionRule

# The effect of a shell builtin depends on the rest of the script, so an allow rule cannot cover it alone.
SHELL_BUILTINS = split_names(
    """. : [ [[ alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare
    dirs disown echo enable eval exec exit export false fc fg for function getopts hash help history if jobs
    kill let local logout mapfile noglob nocorrect popd printf pushd pwd read readarray readonly return select
    set shift shopt source suspend test then time times trap true type typeset ulimit umask unalias unset until
    wait while xargs env sudo doas"""
)
_RUNNING_VERBS = frozenset({("git", "bisect", "run"), ("git", "submodule", "foreach")})
_WHOLE_TREE_PROGRAMS = frozenset({"rm", "mv", "chmod", "chown", "chgrp", "shred", "rmdir"})


class ShellRuleMatcher:
    """Matches allow rules against the commands of one command line in one workspace.

    `approved` contains the hashes of workspace files that a person has approved. `search_path` is the PATH of the
    command: a program that it finds inside the workspace is not the known program of that name.
    """

    def __init__(self, root: str, approved: Collection[str], search_path: str = "") -> None:
        self.root, self.approved = root, approved
        self._workspace_path_folders = [folder for folder in search_path.split(os.pathsep) if _is_inside(folder, root)]

    def find_coverage_gap(self, rule: PermissionRule, command: AnalysedCommand) -> str | None:
        """Returns why an allow rule does not cover the command, or None if it does."""
        words = certain_words(command)
        if words is None or rule.parse_error:
            return "not every word of the command is known in advance"
        if rule.folder is not None and not all(_is_inside(cwd, self._rule_folder(rule)) for cwd in command.cwds):
            return f"the rule applies in {rule.folder} only"
        name = program_name(words[0])
        if may_read_commands_from_stdin(command):
            return f"{name} runs what it reads from standard input, which no rule can name"
        if name in SHELL_BUILTINS:
            return f"{name} is a shell builtin, which an allow rule cannot cover"
        named_count = match_words(rule, (name, *words[1:])) if rule.words else 0
        if named_count is None:
            return "the rule names other words"
        if command.barriers or not TRANSPARENT_WRAPPERS.issuperset(command.wrappers):
            return "an allow rule does not apply behind this wrapper, redirect or variable"
        return self._find_uncovered_effect(name, words, named_count, command) or self._find_unapproved_config(
            name, words, command, reads_only=False
        )

    def names_command(self, rule: PermissionRule, command: AnalysedCommand) -> bool:
        """Returns whether the rule has the words of the command. Without a pattern it names every command."""
        words = certain_words(command)
        return words is not None and match_words(rule, (program_name(words[0]), *words[1:])) is not None

    def names_program(self, rule: PermissionRule, command: AnalysedCommand) -> bool:
        """Returns whether the rule names the program, or one that runs the command, with any arguments."""
        called = (program_name(value) for word in command.argv[:1] for value in word.values or ())
        is_general = rule.open_ended and len(rule.words) == 1 and rule.folder is None
        return is_general and rule.words[0] in {*command.wrappers, *called}

    def _rule_folder(self, rule: PermissionRule) -> str:
        return os.path.realpath(Path(self.root, os.path.expanduser(rule.folder or ".")))  # noqa: PTH111

    def is_restricted(self, rule: PermissionRule, command: AnalysedCommand) -> bool:
        """Returns whether a deny or ask rule matches the command, or may match it."""
        if rule.folder is not None and not any(_is_inside(cwd, self._rule_folder(rule)) for cwd in command.cwds):
            return False
        return restrictive_rule_matches(rule, command)

    def _find_uncovered_effect(
        self, name: str, words: tuple[str, ...], named_count: int, command: AnalysedCommand
    ) -> str | None:
        """Returns why a rule does not cover the arguments after those that it names, or None."""
        further = words[named_count:]
        if has_exec_or_output_option(name, words, named_count) or (
            named_count < 3 and (name, *words[1:3]) in _RUNNING_VERBS
        ):
            return "the rule does not name the option that runs a program or writes a file"
        if further and runs_any_program(name) and all(word.startswith("-") for word in words[1:named_count]):
            return f"{name} runs its arguments as a command; the rule must name the script"
        if further and not rule_covers_arguments(name, words, named_count):
            return f"{name} usually only reads; the rule must name the option that does more"
        if name == "git" and "config" in words and not all(map(is_harmless_key, _git_config_keys(further))):
            return "git can run a program through that setting; the rule must name it"
        return self._find_outside_path(name, named_count, command)

    def _find_outside_path(self, name: str, named_count: int, command: AnalysedCommand) -> str | None:
        """Returns a reason if an argument can be a path outside the workspace or a protected file."""
        values = {word for arg in command.argv[named_count:] for word in arg.values or ()}
        if name == "git":  # a revision is not a path, but `revision:path` contains one
            values = (values | {_path_after_revision(word) for word in values}) - {"HEAD"}
        paths = [path for word in sorted(values) for path in candidate_paths(word)]
        for cwd in command.cwds:
            for path in paths:
                containment = contain(path, root=self.root, cwd=cwd, op="change")
                if containment.kind not in {"inside", "reject"}:
                    return f"{path}: {containment.reason}"
                if name in _WHOLE_TREE_PROGRAMS and containment.real_path == str(Path(self.root).resolve()):
                    return "it would affect the whole workspace"
        return None

    def find_workspace_influence(self, command: AnalysedCommand) -> str | None:
        """Returns why a command that only reads still needs approval: workspace files change what its program does."""
        words = tuple(arg.text or "" for arg in command.argv)
        if not words:
            return None
        name = program_name(words[0])
        return self._find_shadowing_program(name) or self._find_unapproved_config(name, words, command, reads_only=True)

    def _find_shadowing_program(self, name: str) -> str | None:
        """Returns a reason if PATH resolves the name to a program inside the workspace."""
        for folder in self._workspace_path_folders:
            if "/" not in name and os.access(os.path.join(folder, name), os.X_OK):  # noqa: PTH118
                return f"PATH finds {name} inside the workspace, so it is not the known program"
        return None

    def _find_unapproved_config(
        self, name: str, words: tuple[str, ...], command: AnalysedCommand, *, reads_only: bool
    ) -> str | None:
        """Returns a reason if a workspace file that is not approved changes what the program does."""
        config_file = first_unapproved(self._config_files(name, words, command, reads_only=reads_only), self.approved)
        return (
            None
            if config_file is None
            else f"{config_file.path.name} in this workspace changes what {name} does: {config_file.reason}"
        )

    def config_hashes(self, command: AnalysedCommand) -> Iterator[str]:
        """Yields the current hashes of all workspace files that change what the command does."""
        words = certain_words(command)
        if words:
            name = program_name(words[0])
            yield from (
                config_file.content_hash
                for config_file in self._config_files(name, words, command, reads_only=command.unproven_reason is None)
            )

    def _config_files(
        self, name: str, words: tuple[str, ...], command: AnalysedCommand, *, reads_only: bool
    ) -> Iterator[WorkspaceConfigFile]:
        for cwd in command.cwds:
            for folder in _working_folders(name, words, cwd):
                yield from find_config_files(name, words[1:], root=Path(self.root), cwd=folder, reads_only=reads_only)


def _git_config_keys(words: Sequence[str]) -> list[str]:
    """Returns the key that `git config` would change."""
    return [word for word in words if "." in word and not word.startswith("-")][:1]


def _path_after_revision(word: str) -> str:
    return "" if "://" in word or " " in word else word.rpartition(":")[2]


def _is_inside(folder: str, root: str) -> bool:
    real = os.path.realpath(folder) if folder else root
    return is_within(real, root)


def certain_words(command: AnalysedCommand) -> tuple[str, ...] | None:
    """Returns the argument values of a command, or None if one is uncertain. A glob that cannot be an option is
    certain."""
    words: list[str] = []
    for arg in command.argv:
        word = _certain_word(arg)
        if word is None:
            return None
        words.append(word)
    return tuple(words)


def _certain_word(arg: ExpandedArg) -> str | None:
    if arg.text is not None:
        return arg.text
    return arg.values[0] if arg.values and not arg.can_be_option() else None


def _working_folders(name: str, words: Sequence[str], cwd: str) -> Iterator[Path]:
    """Yields the folders in which a program may work. After git's subcommand, `-C` is another option."""
    folder = Path(cwd)
    yield folder.resolve()
    if name == "git":
        for option, value in pairwise(words):
            if option == "-C":
                folder /= value
                yield folder.resolve()


def restrictive_rule_matches(rule: PermissionRule, command: AnalysedCommand) -> bool:
    """Returns whether a deny or ask rule matches, behind every wrapper and for every possible reading of the words.

    The rule names the start of a command: `rm` also restricts `rm -rf src`."""
    if rule.parse_error or not rule.words:
        return True
    if any(match_words(rule, words, prefix=True) is not None for words in _possible_readings(command)):
        return True
    name, words = _name_and_words(command)
    if name == rule.words[0] == "git" and any(word.startswith("alias.") for word in words):
        return True  # an alias can be any subcommand
    return (
        command.unproven_reason is not None
        and runs_its_arguments(name, words)
        and any(contains_rule_words(rule, word) for word in words[1:])
    )


def may_read_commands_from_stdin(command: AnalysedCommand) -> bool:
    """Returns whether a command that is not proven to only read may run its standard input."""
    return command.unproven_reason is not None and reads_commands_from_stdin(*_name_and_words(command))


def _name_and_words(command: AnalysedCommand) -> tuple[str, tuple[str, ...]]:
    words = tuple(arg.text if arg.text is not None else (arg.values or ("",))[0] for arg in command.argv)
    return (words[0].rpartition("/")[2] if words else ""), words


def _possible_readings(command: AnalysedCommand) -> Iterator[tuple[str, ...]]:
    """Yields the word sequences against which a restrictive rule is matched."""
    name, words = _name_and_words(command)
    if not words:
        return
    yield (name, *words[1:])
    yield words
    if command.unproven_reason is not None and runs_its_arguments(name, words):
        # The inner command cannot be separated from the program's own options, so every tail may be the command.
        yield from (words[index:] for index in range(1, len(words)))
    for index, word in enumerate(words[1:], 1):
        # `git -C folder push` is a push: skip the options before the verb.
        if not word.startswith("-"):
            yield (name, *words[index:])
