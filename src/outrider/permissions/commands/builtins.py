"""Commands of the shell itself that change nothing but the shell."""

import re
from collections.abc import Callable, Sequence

from outrider.permissions.commands.environment import refuse_exported, refuse_special
from outrider.permissions.programs.table import program, read_use
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg, Scope, literal
from outrider.permissions.texts.names import names

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
