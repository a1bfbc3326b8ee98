"""Judges one simple command: what it sets, what it redirects, what it wraps, and whether it only reads."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.permissions.programs.find import FOUND, read_find, refuse_found
from outrider.permissions.programs.registry import (
    Found,
    is_reader,
    kept_names,
    printed_names,
    program_name,
    prove_program,
)
from outrider.permissions.programs.table import Place, program, read_use
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.command import Command, refuse_exported, refuse_redirect, refuse_special
from outrider.permissions.shell.control_flow import Flow
from outrider.permissions.shell.expansion import Arg, Known, Scope, expand, literal
from outrider.permissions.shell.parser import Redirect, Simple, Unclear, Word
from outrider.permissions.shell.wrappers import OPAQUE, SHELLS, WRAPPERS, shell_text, unwrap_xargs

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_UNARY = names("""-b -c -d -e -f -g -h -k -L -n -N -O -G -p -r -s -S -t -u -w -x -z -a""")
_BINARY = names("""= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef""")
_INTEGER_TESTS = frozenset(["-eq", "-ne", "-lt", "-le", "-gt", "-ge"])
_INTEGER = re.compile(r"^-?[0-9]+$")
_SET = re.compile(r"^[-+][efuvx]*o?$")  # what -x prints before a command is PS4, which nobody may set
_READ = program("-rs -d= -n= -N= -t= -u= -p=")
_LIMITS = program("-HSacdfilmnpqrstuvx", "text")


def _nothing(_: Sequence[Arg], __: Scope) -> None:
    return


def _no_arguments(args: Sequence[Arg], _: Scope) -> None:
    if args:
        raise Unclear(f"{args[0].shown} is not expected")


def _number(args: Sequence[Arg], _: Scope) -> None:
    if len(args) > 1 or any(arg.many or arg.text is None or not _INTEGER.match(arg.text) for arg in args):
        raise Unclear("a number is expected")


def _shift(args: Sequence[Arg], scope: Scope) -> None:
    _number(args, scope)
    scope.variables.update({str(number): None for number in range(1, 10)})


def _printf(args: Sequence[Arg], _: Scope) -> None:
    """`-v` assigns, and an array element as its target would run what stands in the index."""
    if args and args[0].text != "--" and args[0].can_be_option():
        raise Unclear("printf could be told to assign")


def prove_test(args: Sequence[Arg], _: Scope) -> None:
    """`-v` evaluates an index, so every operator must be certain."""
    words = list(args)
    if any(arg.many for arg in words):
        raise Unclear("an unquoted value in a test")
    while words and words[0].text == "!":
        words.pop(0)
    match words:
        case [] | [_]:
            return
        case [operator, _] if operator.text in _UNARY:
            return
        case [_, operator, _] if operator.text in _BINARY:
            return
        case _ if all(arg.text is not None for arg in words) and not any(arg.text in {"-v", "-R"} for arg in words):
            return
        case _:
            raise Unclear("a test whose operators are not certain")


def _bracket(args: Sequence[Arg], scope: Scope) -> None:
    if not args or args[-1].text != "]":
        raise Unclear("a test without its end")
    prove_test(args[:-1], scope)


def prove_double_bracket(args: Sequence[Arg]) -> None:
    """Numeric tests between double brackets are arithmetic, which runs what stands in an index."""
    for place, arg in enumerate(args):
        if arg.text in {"-v", "-R", "-o"}:
            raise Unclear(f"the test {arg.text}")
        if arg.text in _INTEGER_TESTS:
            _refuse_expressions((*args[max(place - 1, 0) : place], *args[place + 1 : place + 2]))


def _refuse_expressions(sides: Sequence[Arg]) -> None:
    if any(side.choices is None or not all(_INTEGER.match(choice) for choice in side.choices) for side in sides):
        raise Unclear("arithmetic with an unknown value")


def _ulimit(args: Sequence[Arg], _: Scope) -> None:
    read_use(_LIMITS, args)


def _set(args: Sequence[Arg], _: Scope) -> None:
    rest = list(args)
    while rest:
        text = rest.pop(0).text
        if text is None or not _SET.match(text):
            raise Unclear("it changes how the shell works")
        if text.endswith("o") and (not rest or rest.pop(0).text not in {"pipefail", "errexit", "nounset", "noglob"}):
            raise Unclear("it changes how the shell works")


def _read(args: Sequence[Arg], scope: Scope) -> None:
    for name in read_use(_READ, args).operands:
        if name.text is None or not _NAME.match(name.text):
            raise Unclear("read into something that is no plain name")
        refuse_special(name.text)
        scope.variables[name.text] = None
    scope.variables["REPLY"] = None


def _unset(args: Sequence[Arg], scope: Scope) -> None:
    for arg in args:
        if arg.text is None or not _NAME.match(arg.text):
            raise Unclear("unset of something that is no plain name")
        refuse_special(arg.text)
        scope.variables[arg.text] = None


def _declare(args: Sequence[Arg], scope: Scope) -> None:
    for name, value in _declared(args):
        refuse_special(name)
        scope.variables[name] = value.choices


def _export(args: Sequence[Arg], scope: Scope) -> None:
    for name, value in _declared(args):
        refuse_exported(name, value)
        scope.variables[name] = value.choices


def _declared(args: Sequence[Arg]) -> list[tuple[str, Arg]]:
    """`name=value` words; the value may be unknown, the name may not."""
    found: list[tuple[str, Arg]] = []
    for arg in args:
        start = arg.text if arg.text is not None else arg.lead
        name, given, value = start.partition("=")
        if not given or not _NAME.match(name) or arg.many:
            raise Unclear("a declaration that is no plain assignment")
        found.append((name, literal(value) if arg.text is not None else Arg(None)))
    return found


BUILTINS: dict[str, Callable[[Sequence[Arg], Scope], None]] = {
    ":": _nothing,
    "echo": _nothing,
    "printf": _printf,
    "test": prove_test,
    "[": _bracket,
    "exit": _number,
    "return": _number,
    "break": _number,
    "continue": _number,
    "shift": _shift,
    "wait": _no_arguments,
    "jobs": _no_arguments,
    "times": _no_arguments,
    "type": _nothing,
    "umask": _no_arguments,
    "ulimit": _ulimit,
    "set": _set,
    "read": _read,
    "unset": _unset,
    "local": _declare,
    "declare": _declare,
    "typeset": _declare,
    "export": _export,
}


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


class SimpleCommandAnalyzer:
    """Collects the commands of one command line and what is not understood about it."""

    def __init__(self, root: str, cwd: str, nested: Callable[[str, "SimpleCommandAnalyzer", Scope], None]) -> None:
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

    def __init__(self, judge: SimpleCommandAnalyzer, walk: Walker, scope: Scope, shown: str, stdin: Found) -> None:
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
