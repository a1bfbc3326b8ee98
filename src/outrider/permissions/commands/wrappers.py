"""Programs that run another program: what they run, and whether they themselves stay harmless."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from outrider.permissions.commands.environment import refuse_exported
from outrider.permissions.programs.table import Program, program, read_use
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg, literal

_NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]+)?[smhd]?$")
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)


Separator = Literal["NUL", "blank", "other"]


class Wrapped(Struct, frozen=True):
    """What a wrapper runs; `barrier` says why no rule may reach through it this time."""

    argv: tuple[Arg, ...]
    barrier: str | None = None


def _split(spec: Program, args: Sequence[Arg]) -> tuple[Sequence[Arg], tuple[Arg, ...]]:
    """Options up to the first operand, and the rest: wrappers stop there, since what follows belongs to another."""
    at = 0
    while at < len(args):
        text = args[at].text
        if text is None:
            raise Unclear("what a wrapper runs is unknown")
        if text == "--":
            return args[:at], tuple(args[at + 1 :])
        if not text.startswith("-") or text == "-":
            break
        at += _width(spec, text)
    return args[:at], tuple(args[at:])


def _width(spec: Program, text: str) -> int:
    """How many words an option takes."""
    if text.startswith("--"):
        return 2 if spec.options.get(text) == "value" else 1
    if spec.numbers and text[1:].isdigit():
        return 1
    for place, letter in enumerate(text[1:]):
        if spec.options.get(f"-{letter}") == "value":
            return 2 if place == len(text) - 2 else 1
    return 1


def _plain(spec: Program) -> Callable[[Sequence[Arg]], Wrapped]:
    def unwrap(args: Sequence[Arg]) -> Wrapped:
        options, rest = _split(spec, args)
        read_use(spec, options)
        return Wrapped(rest)

    return unwrap


_TIMEOUT = program("-s= -k= -v --signal= --kill-after= --preserve-status --foreground --verbose")
_ENV = program("-i0 -u= --ignore-environment --unset= --null")
_LOOKUP = program("-pvV", "text")
_XARGS = program(
    "-0rtx -I= -n= -P= -L= -s= -d= --null --no-run-if-empty --verbose --max-args= --max-procs= --max-lines= "
    "--delimiter= --exit"
)
_SHELL = program("-ceuf")


def _timeout(args: Sequence[Arg]) -> Wrapped:
    options, rest = _split(_TIMEOUT, args)
    read_use(_TIMEOUT, options)
    if not rest or rest[0].text is None or not _NUMBER.match(rest[0].text):
        raise Unclear("how long timeout waits is unknown")
    return Wrapped(rest[1:])


def _env(args: Sequence[Arg]) -> Wrapped:
    options, rest = _split(_ENV, args)
    read_use(_ENV, options)
    barrier = None
    while rest and (text := rest[0].text) is not None and (found := _ASSIGNMENT.match(text)):
        try:
            refuse_exported(found[1], literal(found[2]))
        except Unclear as unclear:
            barrier = str(unclear)
        rest = rest[1:]
    return Wrapped(rest, barrier)


def _command(args: Sequence[Arg]) -> Wrapped:
    options, rest = _split(_LOOKUP, args)
    if read_use(_LOOKUP, options).has("-v", "-V"):
        return Wrapped(())
    return Wrapped(rest)


WRAPPERS: dict[str, Callable[[Sequence[Arg]], Wrapped]] = {
    "timeout": _timeout,
    "env": _env,
    "command": _command,
    "nice": _plain(program("-n= --adjustment=", numbers=True)),
    "ionice": _plain(program("-c= -n= -t --class= --classdata= --ignore")),
    "nohup": _plain(program("")),
    "stdbuf": _plain(program("-i= -o= -e= --input= --output= --error=")),
    "time": _plain(program("-p")),
    "builtin": _plain(program("")),
    "exec": _plain(program("")),
}
# These run another program with other rights or elsewhere: followed only to find what is forbidden.
OPAQUE: dict[str, Callable[[Sequence[Arg]], Wrapped]] = {
    name: _plain(program("-nEHSbkPAisww -u= -g= -c= -o= -p= -w= -q"))
    for name in ("sudo", "doas", "setsid", "chroot", "unshare", "strace", "watch", "flock", "su", "runuser", "nsenter",
                 "ltrace", "gdb", "script", "chrt", "taskset", "parallel", "proot", "fakeroot", "busybox", "toybox",
                 "run-parts", "systemd-run", "firejail", "bwrap", "eatmydata", "unbuffer", "catchsegv", "valgrind")
}  # fmt: skip
SHELLS = frozenset({"bash", "sh", "dash"})
OTHER_SHELLS = frozenset({"zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "pwsh"})
RUNNERS = frozenset({*WRAPPERS, *OPAQUE, *SHELLS, *OTHER_SHELLS, "xargs", "find", "eval", "trap"})


def unwrap_xargs(args: Sequence[Arg]) -> tuple[Callable[[Arg], tuple[Arg, ...]], Separator]:
    """What xargs runs, given what it reads, and where it takes that apart."""
    options, rest = _split(_XARGS, args)
    use = read_use(_XARGS, options)
    argv = rest or (literal("echo"),)
    marks = use.values("-I")
    separator = "NUL" if use.has("-0", "--null") else "blank"
    if any(value.text != "\\n" for value in use.values("-d", "--delimiter")):
        separator = "other"
    if not marks:
        return (lambda given: (*argv, given)), separator
    mark = marks[-1].text
    if not mark:
        raise Unclear("what xargs replaces is unknown")
    return (lambda given: tuple(_filled(arg, mark, given) for arg in argv)), separator


def _filled(arg: Arg, mark: str, given: Arg) -> Arg:
    if arg.text is None or mark not in arg.text:
        return arg
    return given if arg.text == mark else Arg(None, lead=arg.text.partition(mark)[0], shown=arg.shown)


def shell_text(args: Sequence[Arg]) -> tuple[str, tuple[Arg, ...]] | None:
    """The script after `-c` and its arguments; None: this is no such call."""
    if args and args[0].text in {"--version", "-n"}:
        return None
    options, rest = _split(_SHELL, args)
    if not read_use(_SHELL, options).has("-c"):
        return None
    if not rest or rest[0].text is None:
        raise Unclear("the script for another shell is unknown")
    return rest[0].text, rest[1:]
