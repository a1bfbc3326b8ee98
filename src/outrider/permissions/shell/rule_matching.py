"""How far rules for the shell reach: each simple command on its own, never past what the rule's words say."""

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from outrider.permissions.paths.containment import contain
from outrider.permissions.programs.registry import program_name, reaches
from outrider.permissions.programs.workspace_config import Item, is_harmless_key, steering, unapproved
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.rules import Rule, match_words
from outrider.permissions.shell.command import TRANSPARENT, Command
from outrider.permissions.shell.expansion import Arg
from outrider.permissions.shell.wrappers import mentions, paths_in, reads_commands, runs_anything, runs_its_words, tells

# The shell itself: what these do depends on the rest of the script, so no rule can allow them on their own.
_SHELL_ITSELF = names(
    """. : [ [[ alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare
    dirs disown echo enable eval exec exit export false fc fg for function getopts hash help history if jobs
    kill let local logout mapfile noglob nocorrect popd printf pushd pwd read readarray readonly return select
    set shift shopt source suspend test then time times trap true type typeset ulimit umask unalias unset until
    wait while xargs env sudo doas"""
)
_RUNNING_VERBS = frozenset({("git", "bisect", "run"), ("git", "submodule", "foreach")})
_WHOLESALE = frozenset({"rm", "mv", "chmod", "chown", "chgrp", "shred", "rmdir"})


class ShellRuleMatcher:
    """Rules against the commands of one command line in one workspace."""

    def __init__(self, root: str, approved: Collection[str], search_path: str = "") -> None:
        self.root, self.approved = root, approved
        self._own_folders = [folder for folder in search_path.split(os.pathsep) if _is_inside(folder, root)]

    def covers(self, rule: Rule, command: Command) -> str | None:
        """None: an allow rule covers the command. Otherwise why not."""
        words = certain_words(command)
        if words is None or rule.broken:
            return "not every word of it is certain"
        name = program_name(words[0])
        if name in _SHELL_ITSELF:
            return f"{name} belongs to the shell itself"
        named = match_words(rule, (name, *words[1:])) if rule.words else 0
        if named is None:
            return "the rule's words are others"
        if command.barriers or not TRANSPARENT.issuperset(command.wrappers):
            return "a rule does not reach across that"
        return self._beyond(name, words, named, command) or self._steered(name, words, command, reads_only=False)

    def _beyond(self, name: str, words: tuple[str, ...], named: int, command: Command) -> str | None:
        further = words[named:]
        if tells(name, words, named) or (named < 3 and (name, *words[1:3]) in _RUNNING_VERBS):
            return "the rule does not name what runs or writes something"
        if further and runs_anything(name) and all(word.startswith("-") for word in words[1:named]):
            return f"{name} runs whatever it is given; a rule must name the script"
        if further and not reaches(name, words, named):
            return f"{name} is known for reading; a rule must name the option that does more"
        if name == "git" and "config" in words and not all(map(is_harmless_key, _keys(further))):
            return "git can run something by that setting; a rule must name it"
        return self._leads_out(name, named, command)

    def _leads_out(self, name: str, named: int, command: Command) -> str | None:
        given = {word for arg in command.argv[named:] for word in arg.choices or ()}
        if name == "git":  # a revision is no path, but one may follow it
            given = (given | {_after_revision(word) for word in given}) - {"HEAD"}
        paths = [path for word in sorted(given) for path in paths_in(word)]
        for cwd in command.cwds:
            for path in paths:
                found = contain(path, root=self.root, cwd=cwd, op="change")
                if found.kind not in {"inside", "reject"}:
                    return f"{path}: {found.reason}"
                if name in _WHOLESALE and found.real_path == str(Path(self.root).resolve()):
                    return "it would take the whole workspace"
        return None

    def steered(self, command: Command) -> str | None:
        """Why a command that is proven to read still asks: the workspace steers its program."""
        words = tuple(arg.text or "" for arg in command.argv)
        if not words:
            return None
        name = program_name(words[0])
        return self._stand_in(name) or self._steered(name, words, command, reads_only=True)

    def _stand_in(self, name: str) -> str | None:
        """Why the program is not the one that is known: the search path leads to one of the workspace's first."""
        for folder in self._own_folders:
            if "/" not in name and os.access(os.path.join(folder, name), os.X_OK):  # noqa: PTH118
                return f"{name} is a program of this workspace, by the search path"
        return None

    def _steered(self, name: str, words: tuple[str, ...], command: Command, *, reads_only: bool) -> str | None:
        item = unapproved(self._items(name, words, command, reads_only=reads_only), self.approved)
        return None if item is None else f"{item.path.name} of this workspace steers {name}: {item.why}"

    def steering_contents(self, command: Command) -> Iterator[str]:
        """The hashes of all files of the workspace that steer the command, as they are now."""
        words = certain_words(command)
        if words:
            name = program_name(words[0])
            yield from (item.content for item in self._items(name, words, command, reads_only=command.doubt is None))

    def _items(self, name: str, words: tuple[str, ...], command: Command, *, reads_only: bool) -> Iterator[Item]:
        for cwd in command.cwds:
            for folder in _folders(name, words, cwd):
                yield from steering(name, words[1:], root=Path(self.root), cwd=folder, reads_only=reads_only)


def _keys(words: Sequence[str]) -> list[str]:
    """The setting that `git config` would change."""
    return [word for word in words if "." in word and not word.startswith("-")][:1]


def _after_revision(word: str) -> str:
    return "" if "://" in word or " " in word else word.rpartition(":")[2]


def _is_inside(folder: str, root: str) -> bool:
    real = os.path.realpath(folder) if folder else root
    return real == root or real.startswith(root.rstrip("/") + "/")


def certain_words(command: Command) -> tuple[str, ...] | None:
    """Every word, where a pattern for file names counts as one word that is no option."""
    words: list[str] = []
    for arg in command.argv:
        word = _certain(arg)
        if word is None:
            return None
        words.append(word)
    return tuple(words)


def _certain(arg: Arg) -> str | None:
    if arg.text is not None:
        return arg.text
    return arg.choices[0] if arg.choices and not arg.can_be_option() else None


def _folders(name: str, words: Sequence[str], cwd: str) -> Iterator[Path]:
    here = Path(cwd)
    if name == "git":
        for option, value in pairwise(words):
            if option == "-C":
                here /= value
    yield here.resolve()


def forbids(rule: Rule, command: Command) -> bool:
    """A rule that denies or asks reaches through every wrapper, and takes every possible word."""
    if rule.broken or not rule.words:
        return True
    if any(match_words(rule, words) is not None for words in _readings(command)):
        return True
    name, words = _named(command)
    return command.doubt is not None and runs_its_words(name, words) and any(mentions(rule, word) for word in words[1:])


def may_read_commands(command: Command) -> bool:
    return command.doubt is not None and reads_commands(*_named(command))


def _named(command: Command) -> tuple[str, tuple[str, ...]]:
    words = tuple(arg.text if arg.text is not None else (arg.choices or ("",))[0] for arg in command.argv)
    return (words[0].rpartition("/")[2] if words else ""), words


def _readings(command: Command) -> Iterator[tuple[str, ...]]:
    name, words = _named(command)
    if not words:
        return
    yield (name, *words[1:])
    yield words
    if command.doubt is not None and runs_its_words(name, words):
        # What it runs could not be told from its own options, so it may be anything behind it.
        yield from (words[place:] for place in range(1, len(words)))
    for place, word in enumerate(words[1:], 1):
        # `git -C folder push` is a push, whatever stands in between.
        if not word.startswith("-"):
            yield (name, *words[place:])
