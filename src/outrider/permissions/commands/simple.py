"""Judges one simple command: what it sets, what it redirects, what it wraps, and whether it only reads."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.permissions.commands.builtins import BUILTINS, prove_double_bracket
from outrider.permissions.commands.command import Command
from outrider.permissions.commands.environment import refuse_exported, refuse_special
from outrider.permissions.commands.finding import FOUND, read_find, refuse_found
from outrider.permissions.commands.flow import Flow
from outrider.permissions.commands.redirects import refuse_redirect
from outrider.permissions.commands.wrappers import OPAQUE, SHELLS, WRAPPERS, shell_text, unwrap_xargs
from outrider.permissions.programs.known import is_reader, program_name, prove_program
from outrider.permissions.programs.outputs import Found, kept_names, printed_names
from outrider.permissions.programs.place import Place
from outrider.permissions.shell.lexing import Redirect, Simple
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg, Known, Scope, expand
from outrider.permissions.shell.words import Word

DEEPEST_WRAPPING = 8
MOST_FOLDERS = 12  # in which a command can be, after every `cd` that may or may not work
MOST_WORDS = 500
_PROGRAMS_TOO = frozenset({"echo", "printf", "test", "["})
# Signs that a plain shell takes for something else, so that what was read is not what would run.
_ONLY_BASH = (
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
)
_DUPLICATE = re.compile(r"[0-9]>&[0-9]")
_OF_THE_SHELL = frozenset({"command", "builtin", "time"})


class Walker(Protocol):
    """What a judge needs from the walk."""

    flow: Flow

    def resolved(self, word: Word, scope: Scope) -> Word: ...


class Judge:
    """Collects the commands of one command line and what is not understood about it."""

    def __init__(self, root: str, cwd: str, nested: Callable[[str, "Judge", Scope], None]) -> None:
        self.place = Place(root, (cwd,), {})
        self.nested = nested
        self.commands: list[Command] = []
        self.problems: list[str] = []
        self.stdin = Found()

    def is_known(self, name: str) -> bool:
        return is_reader(name) or name in BUILTINS or name in WRAPPERS or name in OPAQUE or name in SHELLS

    def double_bracket(self, args: Sequence[Arg]) -> None:
        prove_double_bracket(args)

    def redirected(self, redirects: Sequence[Redirect], resolved: Callable[[Word, Scope], Word], scope: Scope) -> None:
        """A redirect that could write is a problem of the whole line: no rule reaches across it."""
        for redirect in redirects:
            targets = expand(resolved(redirect.target, scope), scope, redirect.shown)
            try:
                refuse_redirect(redirect, targets, self.place.at(scope.cwds))
            except Unclear as unclear:
                self.problems.append(str(unclear))

    def simple(self, simple: Simple, walk: Walker, scope: Scope) -> Found:
        stdin, self.stdin = self.stdin, Found()
        self.redirected(simple.redirects, walk.resolved, scope)
        argv = [arg for word, shown in simple.words for arg in expand(walk.resolved(word, scope), scope, shown)]
        barriers = self.assign(simple, walk, scope, exported=bool(argv))
        if not argv:
            return Found()
        if len(argv) > MOST_WORDS:
            raise Unclear("a command with too many words")
        shown = " ".join(shown for _, shown in simple.words)
        call = _Call(self, walk, scope, shown, stdin)
        return call.run(tuple(argv), (), tuple(barriers))

    def assign(self, simple: Simple, walk: Walker, scope: Scope, *, exported: bool) -> list[str]:
        """Variables before a command go to that command; without one they change the script's own."""
        barriers: list[str] = []
        for assignment in simple.assignments:
            args = expand(walk.resolved(assignment.value, scope), scope)
            value = args[0] if len(args) == 1 and not assignment.adds else Arg(None)
            try:
                if exported:
                    refuse_exported(assignment.name, value)
                else:
                    refuse_special(assignment.name)
                    scope.variables[assignment.name] = None if value.many else value.choices
            except Unclear as unclear:
                barriers.append(str(unclear))
        if not exported:
            self.problems += barriers
        return barriers


def _refuse_bash_only(text: str) -> None:
    plain = _DUPLICATE.sub("", text)
    if sign := next((sign for sign in _ONLY_BASH if sign in plain), None):
        raise Unclear(f"a plain shell reads {sign} otherwise than bash")


def _positions(args: Sequence[Arg]) -> list[Known]:
    """What `$1` and its followers hold; nothing is certain once a word may be several."""
    return [] if any(arg.many for arg in args) else [arg.choices for arg in args]


class _Call:
    """One command while its wrappers are taken off."""

    def __init__(self, judge: Judge, walk: Walker, scope: Scope, shown: str, stdin: Found) -> None:
        self.judge, self.walk, self.scope, self.shown, self.stdin = judge, walk, scope, shown, stdin
        self.place = judge.place.at(scope.cwds)

    def run(self, argv: tuple[Arg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]) -> Found:
        first = argv[0]
        found, doubt = Found(), None
        try:
            name = self.named(first, wrappers)
            inner = self.inside(name, argv[1:], wrappers, barriers)
            if inner is not None:
                return inner
            found = self.prove(name, argv[1:], wrappers)
        except Unclear as unclear:
            doubt = str(unclear)
        self.keep(argv, wrappers, barriers, doubt)
        return found

    def named(self, first: Arg, wrappers: tuple[str, ...]) -> str:
        if first.text is None or first.loose:
            raise Unclear(f"which program {first.shown} is, is unknown")
        if len(wrappers) > DEEPEST_WRAPPING:
            raise Unclear("too many wrappers around each other")
        return program_name(first.text)

    def keep(
        self, argv: tuple[Arg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...], doubt: str | None
    ) -> None:
        command = Command(argv, self.scope.cwds, self.shown, wrappers, doubt, barriers)
        self.judge.commands.append(command)

    def inside(
        self, name: str, args: tuple[Arg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> Found | None:
        """Follows a program that runs another; None: it is no such program."""
        if name in WRAPPERS:
            return self.unwrap(name, args, wrappers, barriers)
        if name in OPAQUE:
            self.look_behind(name, args, wrappers)
            raise Unclear(f"{name} runs a program in a way that is not followed")
        if name == "xargs":
            return self.xargs(args, wrappers, barriers)
        if name == "find":
            return self.find(args, wrappers, barriers)
        if name in SHELLS and (script := shell_text(args)) is not None:
            return self.shell(name, script, wrappers, barriers)
        return None

    def unwrap(
        self, name: str, args: tuple[Arg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> Found | None:
        wrapped = WRAPPERS[name](args)
        added = (wrapped.barrier,) if wrapped.barrier else ()
        if wrapped.argv:
            return self.run(wrapped.argv, (*wrappers, name), (*barriers, *added))
        self.keep((Arg((name,)),), wrappers, (*barriers, *added), None)
        return Found()

    def look_behind(self, name: str, args: tuple[Arg, ...], wrappers: tuple[str, ...]) -> None:
        """What stands behind an opaque wrapper is kept, so that a rule that forbids it finds it."""
        try:
            inner = OPAQUE[name](args).argv
        except Unclear:
            inner = args
        for start in range(len(inner)):
            self.keep(inner[start:], (*wrappers, name), (), f"it stands behind {name}")

    def xargs(self, args: tuple[Arg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]) -> Found:
        told, separator = unwrap_xargs(args)
        contained = self.stdin.names is not None and separator == ("blank" if self.stdin.lines else "NUL")
        if contained and self.stdin.lines:
            self.place.refuse_unruly(self.stdin.below)
        given = FOUND if contained else Arg(None, many=True, shown="what xargs reads")
        argv = told(given)
        found = self.run(argv, (*wrappers, "xargs"), barriers)
        if self.stdin.names is not None:
            refuse_found(argv[0].text or "", self.stdin.names, self.stdin.links_below, self.place)
        return found

    def find(self, args: tuple[Arg, ...], wrappers: tuple[str, ...], barriers: tuple[str, ...]) -> Found:
        finding = read_find(args, self.place)
        for argv in finding.runs:
            if not argv:
                raise Unclear("find is told to run nothing")
            self.run(argv, (*wrappers, "find"), barriers)
            if FOUND in argv[1:]:
                refuse_found(argv[0].text or "", finding.names, finding.links_below, self.place)
        self.keep((Arg(("find",), shown="find"), *args), wrappers, barriers, None)
        if finding.runs or not finding.prints_names:
            return Found()
        return Found(finding.names, finding.links_below, finding.prints_names == "lines", finding.starts)

    def shell(
        self, name: str, script: tuple[str, tuple[Arg, ...]], wrappers: tuple[str, ...], barriers: tuple[str, ...]
    ) -> Found:
        """The text is a script of its own; its commands are kept behind a wrapper that no rule reaches through."""
        text, args = script
        if name != "bash":
            _refuse_bash_only(text)
        given = {str(number): known for number, known in enumerate(_positions(args))}
        scope = Scope(self.scope.cwds, given, unseen=self.scope.unseen)
        start = len(self.judge.commands)
        if len(wrappers) > DEEPEST_WRAPPING:
            raise Unclear("shells inside shells")
        self.judge.nested(text, self.judge, scope)
        for place in range(start, len(self.judge.commands)):
            kept = self.judge.commands[place]
            self.judge.commands[place] = Command(
                kept.argv,
                kept.cwds,
                kept.shown,
                (*wrappers, name, *kept.wrappers),
                kept.doubt,
                (*barriers, *kept.barriers),
            )
        return Found()

    def prove(self, name: str, args: tuple[Arg, ...], wrappers: tuple[str, ...]) -> Found:
        if (name == "cd" or name in BUILTINS) and name not in _PROGRAMS_TOO and not _OF_THE_SHELL.issuperset(wrappers):
            raise Unclear(f"{name} belongs to the shell and is run as a program")
        if name == "cd":
            self.change_folder(args)
            return Found()
        self.scope.entered = None
        if name in self.walk.flow.functions:
            self.walk.flow.call(name, _positions(args), self.scope)
            return Found()
        if name in BUILTINS:
            BUILTINS[name](args, self.scope)
            return Found()
        prove_program(name, args, self.place)
        return kept_names(name, args, self.stdin) if self.stdin.names is not None else printed_names(name, args)

    def change_folder(self, args: tuple[Arg, ...]) -> None:
        """Folders are followed as text, so a link on the way is refused: the shell and the kernel disagree there."""
        words = [arg for arg in args if arg.text != "--"]
        if len(words) != 1 or words[0].text is None or words[0].text.startswith("-") or not words[0].text:
            raise Unclear("the folder that it changes to is unknown")
        entered = [os.path.normpath(os.path.join(cwd, words[0].text)) for cwd in self.scope.cwds]  # noqa: PTH118
        for folder in entered:
            found = self.place.contain(folder, folder)
            if found.kind != "inside":
                raise Unclear(f"{words[0].text}: {found.reason}")
            if found.real_path != folder and os.path.realpath(self.place.root) == self.place.root:
                raise Unclear(f"{words[0].text} is reached through a link")
        possible = tuple(dict.fromkeys((*self.scope.cwds, *entered)))
        if len(possible) > MOST_FOLDERS:
            raise Unclear("it can be in too many folders")
        self.scope.entered = tuple(dict.fromkeys(entered))
        self.scope.cwds = possible
