"""Checks the calls of shell builtins: which of them only read, and how they change variables and options."""

import re
from collections.abc import Callable, Sequence

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.command import check_exported_variable, check_script_variable
from outrider.permissions.shell.expansion import ExpandedArg, ShellState, literal_arg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import parse_args, program_spec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNARY_TESTS = split_names("""-b -c -d -e -f -g -h -k -L -n -N -O -G -p -r -s -S -t -u -w -x -z -a""")
_BINARY_TESTS = split_names("""= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef""")
_INTEGER_TESTS = frozenset(["-eq", "-ne", "-lt", "-le", "-gt", "-ge"])
_INTEGER = re.compile(r"-?[0-9]+")
_SET_OPTION = re.compile(r"^[-+][efuvx]*o?$")  # -x prints PS4, and assigning PS4 is rejected
_READ_SPEC = program_spec("-rs -d= -n= -N= -t= -u= -p=")
_ULIMIT_SPEC = program_spec("-HSacdfilmnpqrstuvx", "text")


def _accept_any(_: Sequence[ExpandedArg], __: ShellState) -> None:
    return


def _check_no_arguments(args: Sequence[ExpandedArg], _: ShellState) -> None:
    if args:
        raise NotProvenSafe(f"{args[0].source_text} is an unexpected argument")


def _check_number(args: Sequence[ExpandedArg], _: ShellState) -> None:
    if len(args) > 1 or any(arg.multiple or arg.text is None or not _INTEGER.fullmatch(arg.text) for arg in args):
        raise NotProvenSafe("it has an argument that is not a plain number")


def _check_shift(args: Sequence[ExpandedArg], state: ShellState) -> None:
    _check_number(args, state)
    for number in range(1, 10):
        state.assign(str(number), None)


def _check_printf(args: Sequence[ExpandedArg], _: ShellState) -> None:
    """Rejects `-v`: it assigns a variable, and bash runs commands in the index of an array element."""
    if args and args[0].text != "--" and args[0].can_be_option():
        raise NotProvenSafe("printf could assign a variable (-v)")


def check_test(args: Sequence[ExpandedArg], _: ShellState) -> None:
    """Checks that the operators of a test are certain, because `-v` evaluates an array index and can run a command."""
    words = list(args)
    if any(arg.multiple and not arg.is_number for arg in words):
        raise NotProvenSafe("it tests an unquoted value that could become several words")
    while words and words[0].text == "!":
        words.pop(0)
    match words:
        case [] | [_]:
            return
        case [operator, _] if operator.text in _UNARY_TESTS:
            return
        case [_, operator, _] if operator.text in _BINARY_TESTS:
            return
        case _ if all(arg.text is not None for arg in words) and not any(arg.text in {"-v", "-R"} for arg in words):
            return
        case _:
            raise NotProvenSafe("it contains a test whose operators are not known in advance")


def _check_bracket(args: Sequence[ExpandedArg], state: ShellState) -> None:
    if not args or args[-1].text != "]":
        raise NotProvenSafe("it contains a [ test without the closing ]")
    check_test(args[:-1], state)


def check_double_bracket(args: Sequence[ExpandedArg]) -> None:
    """Checks `[[ … ]]`, whose numeric tests evaluate arithmetic and can run a command in an array index."""
    for index, arg in enumerate(args):
        if arg.text in {"-v", "-R", "-o"}:
            raise NotProvenSafe(f"it uses the test {arg.text}, which could run a command")
        if arg.text in _INTEGER_TESTS:
            _check_integers((*args[max(index - 1, 0) : index], *args[index + 1 : index + 2]))


def _check_integers(sides: Sequence[ExpandedArg]) -> None:
    if not all(
        side.is_number or (side.values is not None and all(_INTEGER.fullmatch(choice) for choice in side.values))
        for side in sides
    ):
        raise NotProvenSafe("it calculates with an unknown value, which could run a command")


def _check_ulimit(args: Sequence[ExpandedArg], _: ShellState) -> None:
    parse_args(_ULIMIT_SPEC, args)


def _check_set(args: Sequence[ExpandedArg], _: ShellState) -> None:
    """Allows options that only change error handling and tracing."""
    remaining = list(args)
    while remaining:
        text = remaining.pop(0).text
        if text is None or not _SET_OPTION.match(text):
            raise NotProvenSafe("it changes the options or parameters of the shell (set)")
        if text.endswith("o") and (
            not remaining or remaining.pop(0).text not in {"pipefail", "errexit", "nounset", "noglob"}
        ):
            raise NotProvenSafe("it changes the options or parameters of the shell (set)")


def _check_read(args: Sequence[ExpandedArg], state: ShellState) -> None:
    """Marks the variables that `read` assigns as unknown."""
    for name in parse_args(_READ_SPEC, args).operands:
        if name.text is None or not _NAME.fullmatch(name.text):
            raise NotProvenSafe("read could assign something that is not a plain variable")
        check_script_variable(name.text)
        state.assign(name.text, None)
    state.assign("REPLY", None)


def _check_unset(args: Sequence[ExpandedArg], state: ShellState) -> None:
    for arg in args:
        if arg.text is None or not _NAME.fullmatch(arg.text):
            raise NotProvenSafe("unset could remove something that is not a plain variable")
        check_script_variable(arg.text)
        state.assign(arg.text, None)


def _check_declare(args: Sequence[ExpandedArg], state: ShellState) -> None:
    for name, value in _parse_declarations(args):
        check_script_variable(name)
        state.assign(name, value.values)


def _check_export(args: Sequence[ExpandedArg], state: ShellState) -> None:
    for name, value in _parse_declarations(args):
        check_exported_variable(name, value)
        state.assign(name, value.values)


def _parse_declarations(args: Sequence[ExpandedArg]) -> list[tuple[str, ExpandedArg]]:
    """Parses `name=value` arguments. The value may be unknown, the name must be certain."""
    declarations: list[tuple[str, ExpandedArg]] = []
    for arg in args:
        start = arg.text if arg.text is not None else arg.prefix
        name, equals, value = start.partition("=")
        if not equals or not _NAME.fullmatch(name) or arg.multiple:
            raise NotProvenSafe("it contains a declaration that is not a plain name=value")
        declarations.append((name, literal_arg(value) if arg.text is not None else ExpandedArg(None)))
    return declarations


BUILTIN_CHECKS: dict[str, Callable[[Sequence[ExpandedArg], ShellState], None]] = {
    ":": _accept_any,
    "echo": _accept_any,
    "printf": _check_printf,
    "test": check_test,
    "[": _check_bracket,
    "exit": _check_number,
    "return": _check_number,
    "break": _check_number,
    "continue": _check_number,
    "shift": _check_shift,
    "wait": _check_no_arguments,
    "jobs": _check_no_arguments,
    "times": _check_no_arguments,
    "type": _accept_any,
    "umask": _check_no_arguments,
    "ulimit": _check_ulimit,
    "set": _check_set,
    "read": _check_read,
    "unset": _check_unset,
    "local": _check_declare,
    "declare": _check_declare,
    "typeset": _check_declare,
    "export": _check_export,
}
FUNCTION_BUILTINS = frozenset({"local"})  # they fail outside a function and assign nothing
BASH_BUILTINS = split_names("local declare typeset")  # dash lacks them, or treats them differently
# Every builtin and reserved word of bash. A function with such a name would change what other commands do.
SHELL_NAMES = frozenset(BUILTIN_CHECKS) | split_names(
    """. alias bg bind builtin caller cd command compgen complete compopt coproc dirs disown enable eval exec false fc
    fg getopts hash help history kill let logout mapfile popd pushd pwd readarray readonly select shopt source suspend
    time trap true unalias until"""
)
