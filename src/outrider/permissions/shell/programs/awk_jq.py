"""Checks that an awk program or a jq filter only computes: it runs no command and opens no other file."""

import re
from collections.abc import Sequence

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import PathChecker, parse_args, program_spec

AWK_SPEC = program_spec("-F= -v= --version", "text")
# Functions, variables and characters with which awk runs commands, opens files or changes its input.
_AWK_SIDE_EFFECTS = re.compile(
    r"system|getline|close|fflush|extension|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|PROCINFO|INPLACE|@|\\|`"
)
_AWK_TOKEN = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|#[^\n]*|[A-Za-z_]\w*|[0-9][\w.]*|\+\+|--|[ \t]+|.', re.DOTALL)
# A slash inside brackets ends the regex in some awk versions only, so the pattern does not accept one.
_AWK_REGEX = re.compile(r"/(?:[^/\\\n\[]|\\[^\n]|\[\^?\]?(?:\[:[a-z]+:\]|[^\]/\\\n\[])*\])+/")
_AWK_KEYWORDS = split_names("print printf return in case else do length exit delete getline $ ++ --")
_AWK_CONTROLS = split_names("if while for switch")
_AWK_PRINTING = re.compile(r"(?<![A-Za-z_])printf?(?![A-Za-z0-9_])|[()\[\];}>]")
_AWK_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
JQ_SPEC = program_spec(
    "-nrjaSCMcseR --null-input --raw-input --slurp --compact-output --raw-output --raw-output0 --join-output "
    "--ascii-output --sort-keys --color-output --monochrome-output --tab --indent= --unbuffered --stream "
    "--stream-errors --seq --exit-status --args --jsonargs --arg= --argjson= --version --help -h -V",
    "text",
)
# After a dot (`.include`) or in a string, these are data, not jq keywords.
_JQ_FILE_ACCESS = re.compile(r"(?<![.\w\"])(?:import|include|modulemeta|get_search_list)\b")


def prove_awk(args: Sequence[ExpandedArg], paths: PathChecker) -> None:
    """Raises NotProvenSafe unless the awk call only reads files that need no approval."""
    parsed = parse_args(AWK_SPEC, _options_before_program(args))
    if parsed.has_option("--version"):
        return
    rest = list(args[len(_options_before_program(args)) :])
    if not rest or rest[0].text is None:
        raise NotProvenSafe("the awk program is not known in advance")
    _prove_awk_program(rest[0].text)
    for file in rest[1:]:
        if file.can_be_option():
            raise NotProvenSafe("awk has an option after its program")
        if file.text is None or not _ASSIGNMENT.match(file.text):
            paths.check_argument(file)


def _options_before_program(args: Sequence[ExpandedArg]) -> Sequence[ExpandedArg]:
    """Returns the options before the program; awk stops parsing options at the first operand."""
    index = 0
    while index < len(args) and (text := args[index].text) is not None and text.startswith("-") and text != "-":
        if text == "--":
            return args[: index + 1]
        index += 2 if text in {"-F", "-v"} else 1
    return args[:index]


def _prove_awk_program(text: str) -> None:
    """Checks the code outside strings and regexes; in non-ASCII text their ends are uncertain, so checks all of it."""
    code = _strip_literals(text) if text.isascii() else text
    if _AWK_SIDE_EFFECTS.search(code) or _AWK_PIPE.search(code):
        raise NotProvenSafe("the awk program could run a command or open a file")
    if _prints_to_file(code):
        raise NotProvenSafe("the awk program could write to a file")


def _strip_literals(text: str) -> str:
    """Returns the program without strings, regexes and comments.

    Raises NotProvenSafe for a slash that could be a division or the start of a regex.
    """
    code: list[str] = []
    control_parens: list[bool] = []  # per open parenthesis: whether a statement follows the closing one
    previous, at = "", 0  # the previous significant token; "" where a regex may start
    while at < len(text):
        match = _AWK_TOKEN.match(text, at)
        token = match[0] if match else text[at]
        if token == '"':
            raise NotProvenSafe("the awk program contains a string that is not closed")
        if token == "/" and not _is_division(previous):
            token = _match_regex(text, at)
        at += len(token)
        if token[0] in '#"/' and len(token) > 1:
            code.append(" 0 ")
            previous = previous if token[0] == "#" else token
            continue
        if token == "(":
            control_parens.append(previous in _AWK_CONTROLS)
        elif token == ")" and control_parens and control_parens.pop():
            token = ") "
        code.append(token)
        previous = token if token.strip(" \t") or token == ") " else previous
    return "".join(code)


def _is_division(previous: str) -> bool:
    """Returns whether a slash after this token is a division: after a name, a number, `)` or `]`."""
    if previous in _AWK_KEYWORDS or previous == ") " or previous[:1] in {'"', "/"}:
        raise NotProvenSafe("the awk program contains a slash that could start a regex")
    return previous[:1].isdigit() or previous[-1:] in {")", "]", "_"} or previous[-1:].isalnum()


def _match_regex(text: str, at: int) -> str:
    match = _AWK_REGEX.match(text, at)
    if not match:
        raise NotProvenSafe("the awk program contains a regex that is not closed or has an unusual form")
    return match[0]


def _prints_to_file(code: str) -> bool:
    """Returns whether `>` follows `print` outside parentheses, where it redirects instead of comparing.

    A line end may not end the statement, so it is ignored.
    """
    printing, depth = False, 0
    for match in _AWK_PRINTING.finditer(code):
        match match[0]:
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


def prove_jq(args: Sequence[ExpandedArg], paths: PathChecker) -> None:
    """Raises NotProvenSafe unless the jq call only reads files that need no approval."""
    rest = _drop_named_args(list(args))
    parsed = parse_args(JQ_SPEC, rest)
    if parsed.has_option("--version", "--help", "-h", "-V"):
        return
    operands = list(parsed.operands)
    if not operands or operands[0].text is None:
        raise NotProvenSafe("the jq filter is not known in advance")
    if _JQ_FILE_ACCESS.search(operands[0].text):
        raise NotProvenSafe("the jq filter loads other files")
    if not parsed.has_option("--args", "--jsonargs"):
        for file in operands[1:]:
            paths.check_argument(file)


def _drop_named_args(args: list[ExpandedArg]) -> list[ExpandedArg]:
    """Removes `--arg name value` and `--argjson name value`, whose options take two arguments."""
    positional: list[ExpandedArg] = []
    while args:
        arg = args.pop(0)
        if arg.text == "--":
            return [*positional, arg, *args]
        if arg.text in {"--arg", "--argjson"}:
            if len(args) < 2 or any(value.multiple for value in args[:2]):
                raise NotProvenSafe("an argument of jq is missing or not known in advance")
            del args[:2]
            continue
        positional.append(arg)
    return positional
