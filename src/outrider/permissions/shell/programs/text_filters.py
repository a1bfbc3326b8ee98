"""Checks that calls of sed, awk and jq only print: the script writes no file and runs no command."""

import re
from collections.abc import Sequence

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import PathChecker, parse_args, program_spec

SED_SPEC = program_spec(
    "-nErsuz -e= -l= --quiet --silent --regexp-extended --expression= --line-length= --separate --unbuffered "
    "--null-data --posix --sandbox --debug --help --version"
)
_PLAIN_COMMANDS = frozenset("dDgGhHnNpPxz=F")
_LABEL_COMMANDS = frozenset("btT:")
_NUMBER_COMMANDS = frozenset("qQlL")
_TEXT_COMMANDS = frozenset("aic")
_SUBSTITUTE_FLAGS = re.compile(r"[gpiImM0-9]*")
_NUMERIC_ADDRESS = re.compile(r"(?:[0-9]+|\$)(?:~[0-9]+)?|[+~][0-9]+")


def prove_sed(args: Sequence[ExpandedArg], paths: PathChecker) -> None:
    """Raises NotProvenSafe unless the sed call only reads files that need no approval."""
    try:
        parsed = parse_args(SED_SPEC, args)
    except NotProvenSafe as error:
        if any((arg.text or "").startswith(("-i", "--in-place")) for arg in args):
            raise NotProvenSafe("sed -i changes files in place") from error
        raise
    scripts = parsed.option_values("-e", "--expression")
    operands = list(parsed.operands)
    if not scripts and not parsed.has_option("--help", "--version"):
        if not operands:
            raise NotProvenSafe("sed has no script")
        scripts = [operands.pop(0)]
    for script in scripts:
        if script.text is None:
            raise NotProvenSafe("the sed script is not known in advance")
    _SedScriptChecker("\n".join(script.text or "" for script in scripts)).check()
    for file in operands:
        paths.check_argument(file)


class _SedScriptChecker:
    """A parser for the commands of sed that only print; every other command raises NotProvenSafe."""

    def __init__(self, text: str) -> None:
        if not text.isascii():
            raise NotProvenSafe("the sed script contains characters other than ASCII")
        self.text, self.position = text, 0

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _skip(self, chars: str) -> None:
        while self._peek() and self._peek() in chars:
            self.position += 1

    def check(self) -> None:
        """Raises NotProvenSafe at the first command that is not known to only print."""
        while True:
            self._skip(" \t\n;}")
            if not self._peek():
                return
            if self._peek() == "#":
                self._read_line()
                continue
            self._read_addresses()
            self._check_command()

    def _read_line(self) -> str:
        end = self.text.find("\n", self.position)
        end = len(self.text) if end < 0 else end
        match, self.position = self.text[self.position : end], end
        return match

    def _read_addresses(self) -> None:
        if self._read_address():
            self._skip(" \t")
            if self._peek() == ",":
                self.position += 1
                self._skip(" \t")
                if not self._read_address():
                    raise NotProvenSafe("the sed script contains an address in an unusual form")
        self._skip(" \t!")

    def _read_address(self) -> bool:
        """Skips one address; returns whether there was one."""
        if match := _NUMERIC_ADDRESS.match(self.text, self.position):
            self.position = match.end()
            return True
        if self._peek() == "\\":
            self.position += 1
            self._read_pattern(self._take_delimiter())
        elif self._peek() == "/":
            self._read_pattern(self._take_delimiter())
        else:
            return False
        while self._peek() in {"I", "M"}:
            self.position += 1
        return True

    def _take_delimiter(self) -> str:
        char = self._peek()
        if not char or char in "\n\\":
            raise NotProvenSafe("the sed script ends in the middle of a command")
        self.position += 1
        return char

    def _read_pattern(self, mark: str) -> None:
        """Skips a pattern up to its delimiter.

        sed versions disagree about a delimiter inside a bracket expression, so that raises NotProvenSafe.
        """
        bracket = False
        while (char := self._peek()) != mark or bracket:
            if not char or char == "\n":
                raise NotProvenSafe("the sed script contains a pattern that is not closed")
            if char == "\\" and not bracket:
                self.position += 1
                if self._peek() in {"", "\n"}:
                    raise NotProvenSafe("the sed script contains an escaped line end")
            elif char == "[" and not bracket:
                bracket = True
                if self.text[self.position + 1 : self.position + 2] == "^":
                    self.position += 1
                if self.text[self.position + 1 : self.position + 2] == "]":
                    self.position += 1
            elif char == "]":
                bracket = False
            elif bracket and char == mark:
                raise NotProvenSafe("the sed script contains a delimiter inside brackets")
            self.position += 1
        self.position += 1

    def _check_command(self) -> None:
        name = self._peek()
        self.position += 1
        if name == "{":
            return
        if name in _PLAIN_COMMANDS:
            self._check_command_end()
        elif name in _LABEL_COMMANDS:
            self._read_label()
        elif name in _NUMBER_COMMANDS:
            self._skip(" \t0123456789")
            self._check_command_end()
        elif name in _TEXT_COMMANDS:
            self._check_text()
        elif name == "s":
            self._check_substitute()
        elif name == "y":
            self._read_pattern_and_replacement(self._take_delimiter())
            self._check_command_end()
        else:
            raise NotProvenSafe(f"the sed command {name!r} can write files or run commands")

    def _check_command_end(self) -> None:
        """Raises NotProvenSafe if a command is followed by anything but a separator."""
        self._skip(" \t")
        if self._peek() not in {"", ";", "\n", "}", "#"}:
            raise NotProvenSafe(
                "the sed script contains a command in an unusual form, or a flag that writes or runs something"
            )

    def _read_label(self) -> None:
        match = re.compile(r"[ \t]*[A-Za-z0-9_]*").match(self.text, self.position)
        self.position = match.end() if match else self.position
        self._check_command_end()

    def _check_text(self) -> None:
        """Skips the text of `a`, `i` or `c` up to the line end; a continued line raises NotProvenSafe."""
        if self._read_line().rstrip().endswith("\\"):
            raise NotProvenSafe("the sed script contains text over several lines")

    def _check_substitute(self) -> None:
        """Checks `s`. The list of accepted flags lacks `w` and `e`, which write a file or run a command."""
        mark = self._take_delimiter()
        if mark.isalnum() or mark in " ;}#[]{":
            raise NotProvenSafe("the sed script uses an unusual delimiter")
        self._read_pattern_and_replacement(mark)
        match = _SUBSTITUTE_FLAGS.match(self.text, self.position)
        self.position = match.end() if match else self.position
        self._check_command_end()

    def _read_pattern_and_replacement(self, mark: str) -> None:
        self._read_pattern(mark)
        self._read_replacement(mark)

    def _read_replacement(self, mark: str) -> None:
        while (char := self._peek()) != mark:
            if not char or char == "\n":
                raise NotProvenSafe("the sed script contains a replacement that is not closed")
            self.position += 2 if char == "\\" else 1
        self.position += 1


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
    operands = list(args[len(_options_before_program(args)) :])
    if not operands or operands[0].text is None:
        raise NotProvenSafe("the awk program is not known in advance")
    _prove_awk_program(operands[0].text)
    for file in operands[1:]:
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
    previous, position = "", 0  # the previous significant token; "" where a regex may start
    while position < len(text):
        match = _AWK_TOKEN.match(text, position)
        token = match[0] if match else text[position]
        if token == '"':
            raise NotProvenSafe("the awk program contains a string that is not closed")
        if token == "/" and not _is_division(previous):
            token = _match_regex(text, position)
        position += len(token)
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


def _match_regex(text: str, position: int) -> str:
    match = _AWK_REGEX.match(text, position)
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
    remaining = _drop_named_args(list(args))
    parsed = parse_args(JQ_SPEC, remaining)
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
