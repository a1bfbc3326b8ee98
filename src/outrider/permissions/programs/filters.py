"""Proves that a program of awk or a filter of jq only computes: no command, no file, no machine."""

import re
from collections.abc import Sequence

from outrider.permissions.programs.place import Place
from outrider.permissions.programs.table import program, read_use
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg

AWK = program("-F= -v= --version", "text")
# Names and signs by which awk runs commands, opens files, or reaches what it was not given.
_AWK_REACHES = re.compile(
    r"system|getline|close|fflush|extension|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|PROCINFO|INPLACE|printf?\s*>|@|\\\n|/inet|`"
)
_AWK_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
JQ = program(
    "-nrjaSCMcseR --null-input --raw-input --slurp --compact-output --raw-output --raw-output0 --join-output "
    "--ascii-output --sort-keys --color-output --monochrome-output --tab --indent= --unbuffered --stream "
    "--stream-errors --seq --exit-status --args --jsonargs --arg= --argjson= --version --help -h -V",
    "text",
)
_JQ_REACHES = re.compile(r"\b(?:import|include|modulemeta|get_search_list)\b")


def prove_awk(args: Sequence[Arg], place: Place) -> None:
    use = read_use(AWK, _until_program(args))
    if use.has("--version"):
        return
    rest = list(args[len(_until_program(args)) :])
    if not rest or rest[0].text is None:
        raise Unclear("a program of awk that is unknown")
    _prove_awk_program(rest[0].text)
    for file in rest[1:]:
        if file.can_be_option():
            raise Unclear("an option after the program of awk")
        if file.text is None or not _ASSIGNMENT.match(file.text):
            place.check(file)


def _until_program(args: Sequence[Arg]) -> Sequence[Arg]:
    """The options before the program: awk stops at the first operand."""
    place = 0
    while place < len(args) and (text := args[place].text) is not None and text.startswith("-") and text != "-":
        if text == "--":
            return args[: place + 1]
        place += 2 if text in {"-F", "-v"} else 1
    return args[:place]


def _prove_awk_program(text: str) -> None:
    """Strict on purpose: a sign in a string counts as if it stood in the program, since quoting depends on context."""
    if _AWK_REACHES.search(text) or _AWK_PIPE.search(text):
        raise Unclear("a program of awk that could run a command or open a file")
    before, printed, after = text.partition("print")
    if printed and ">" in after:
        raise Unclear("a program of awk that could print into a file")
    if "<" in before + after and "getline" in text:
        raise Unclear("a program of awk that could read another file")


def prove_jq(args: Sequence[Arg], place: Place) -> None:
    rest = _without_named(list(args))
    use = read_use(JQ, rest)
    if use.has("--version", "--help", "-h", "-V"):
        return
    operands = list(use.operands)
    if not operands or operands[0].text is None:
        raise Unclear("a filter of jq that is unknown")
    if _JQ_REACHES.search(operands[0].text):
        raise Unclear("a filter of jq that loads other files")
    if not use.has("--args", "--jsonargs"):
        for file in operands[1:]:
            place.check(file)


def _without_named(args: list[Arg]) -> list[Arg]:
    """`--arg name value` takes two words."""
    kept: list[Arg] = []
    while args:
        arg = args.pop(0)
        if arg.text in {"--arg", "--argjson"}:
            if len(args) < 2 or any(value.many for value in args[:2]):
                raise Unclear("an argument of jq is missing or unknown")
            del args[:2]
            continue
        kept.append(arg)
    return kept
