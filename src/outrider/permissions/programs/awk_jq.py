"""Proves that a program of awk or a filter of jq only computes: no command, no file, no machine."""

import re
from collections.abc import Sequence

from outrider.permissions.programs.table import Place, program, read_use
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.expansion import Arg
from outrider.permissions.shell.parser import Unclear

AWK = program("-F= -v= --version", "text")
# Names and signs by which awk runs commands, opens files, or reaches what it was not given.
_AWK_REACHES = re.compile(
    r"system|getline|close|fflush|extension|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|PROCINFO|INPLACE|@|\\|`"
)
_AWK_TOKEN = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|#[^\n]*|[A-Za-z_]\w*|[0-9][\w.]*|\+\+|--|[ \t]+|.', re.DOTALL)
# A slash between brackets ends the pattern for some versions only, so none may stand there.
_AWK_PATTERN = re.compile(r"/(?:[^/\\\n\[]|\\[^\n]|\[\^?\]?(?:\[:[a-z]+:\]|[^\]/\\\n\[])*\])+/")
_AWK_KEYWORDS = names("print printf return in case else do length exit delete getline $ ++ --")
_AWK_CONTROLS = names("if while for switch")
_AWK_PRINTING = re.compile(r"(?<![A-Za-z_])printf?(?![A-Za-z0-9_])|[()\[\];}>]")
_AWK_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
JQ = program(
    "-nrjaSCMcseR --null-input --raw-input --slurp --compact-output --raw-output --raw-output0 --join-output "
    "--ascii-output --sort-keys --color-output --monochrome-output --tab --indent= --unbuffered --stream "
    "--stream-errors --seq --exit-status --args --jsonargs --arg= --argjson= --version --help -h -V",
    "text",
)
# As a field (`.include`) or a string such a word is none of jq's own.
_JQ_REACHES = re.compile(r"(?<![.\w\"])(?:import|include|modulemeta|get_search_list)\b")


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
    """What stands in strings and patterns does nothing; beyond ASCII it is not certain where they end."""
    code = _without_literals(text) if text.isascii() else text
    if _AWK_REACHES.search(code) or _AWK_PIPE.search(code):
        raise Unclear("a program of awk that could run a command or open a file")
    if _prints_into_a_file(code):
        raise Unclear("a program of awk that could print into a file")


def _without_literals(text: str) -> str:
    """The program without strings, patterns and comments; a slash that could divide or begin a pattern is unclear."""
    code: list[str] = []
    controls: list[bool] = []  # for every open parenthesis whether a statement follows the closing one
    before, at = "", 0  # the last token that counts; "" where a pattern may begin
    while at < len(text):
        found = _AWK_TOKEN.match(text, at)
        token = found[0] if found else text[at]
        if token == '"':
            raise Unclear("a string of awk that is not closed")
        if token == "/" and not _divides(before):
            token = _pattern(text, at)
        at += len(token)
        if token[0] in '#"/' and len(token) > 1:
            code.append(" 0 ")
            before = before if token[0] == "#" else token
            continue
        if token == "(":
            controls.append(before in _AWK_CONTROLS)
        elif token == ")" and controls and controls.pop():
            token = ") "
        code.append(token)
        before = token if token.strip(" \t") or token == ") " else before
    return "".join(code)


def _divides(before: str) -> bool:
    """Whether a slash after this token divides; after a name, a number, `)` or `]` it does."""
    if before in _AWK_KEYWORDS or before == ") " or before[:1] in {'"', "/"}:
        raise Unclear("a slash in a program of awk that could begin a pattern")
    return before[:1].isdigit() or before[-1:] in {")", "]", "_"} or before[-1:].isalnum()


def _pattern(text: str, at: int) -> str:
    found = _AWK_PATTERN.match(text, at)
    if not found:
        raise Unclear("a pattern of awk that is not closed, or unusual")
    return found[0]


def _prints_into_a_file(code: str) -> bool:
    """Whether `>` follows `print` outside parentheses, where it compares nothing; a line end does not end a statement
    for certain."""
    printing, depth = False, 0
    for found in _AWK_PRINTING.finditer(code):
        match found[0]:
            case "(" | "[":
                depth += 1
            case ")" | "]":
                depth -= 1
            case ";" | "}":
                printing = printing and depth > 0
            case ">":
                if printing and depth <= 0:
                    return True
            case _:
                printing, depth = True, 0
    return False


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
