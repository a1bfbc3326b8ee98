"""Result types of the shell analysis, and the checks for variables and redirects of a simple command."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import (
    METACHARACTERS,
    LiteralText,
    NotProvenSafe,
    ShellSource,
    Word,
    WordReader,
    decode_bytes,
)
from outrider.permissions.shell.programs.table import PathChecker

if TYPE_CHECKING:
    from tree_sitter import Node


_REDIRECT = re.compile(r"(?P<fd>[0-9]{0,4})(?P<op><<<|<<-|<<|<>|<&|>>|>&|>\||<|>)|(?P<both>&>>|&>)")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<op>\+?=)")
_ARRAY_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[^\]]*\]\+?=")
_NAMED_DESCRIPTOR = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}[<>]")
_HERE_DOCUMENT_START = re.compile(r"<<[ \t]*(?P<quote>['\"]?)(?P<name>[A-Za-z0-9_]+)(?P=quote)(?=[ \t\n|&;<>()]|$)")


class VariableAssignment(Struct, frozen=True):
    """An assignment `name=value`, or `name+=value` if `appends` is true."""

    name: str
    appends: bool
    value: Word


class IoRedirect(Struct, frozen=True):
    """A redirect with its operator and target; for a here-document the target is its body."""

    operator: str
    target: Word
    source_text: str = ""


class ParsedCommand(Struct, frozen=True):
    """A parsed simple command. Each word has its parts and its source string."""

    assignments: tuple[VariableAssignment, ...]
    words: tuple[tuple[Word, str], ...]
    redirects: tuple[IoRedirect, ...]


def parse_simple_command(source: ShellSource, start: int, stop: int) -> ParsedCommand:
    """Parses the text between two offsets as exactly one simple command."""
    lexer = _CommandLexer(source, start, stop)
    lexer.run()
    return ParsedCommand(tuple(lexer.assignments), tuple(lexer.words), tuple(lexer.redirects))


def parse_words(source: ShellSource, start: int, stop: int) -> tuple[tuple[Word, str], ...]:
    """Parses the text between two offsets as words only, such as the values of a `for` loop."""
    simple = parse_simple_command(source, start, stop)
    if simple.assignments or simple.redirects:
        raise NotProvenSafe("it contains an assignment or redirect where words are expected")
    return simple.words


class _CommandLexer:
    """Splits the text of a simple command into assignments, words and redirects."""

    def __init__(self, source: ShellSource, start: int, stop: int) -> None:
        self.source, self.reader = source, WordReader(source, start, stop)
        self.assignments: list[VariableAssignment] = []
        self.words: list[tuple[Word, str]] = []
        self.redirects: list[IoRedirect] = []

    def run(self) -> None:
        reader = self.reader
        reader.skip_blanks()
        while reader.position < reader.stop:
            text, position = reader.text, reader.position
            redirect = _REDIRECT.match(text, position, reader.stop)
            if redirect and text[redirect.end() : redirect.end() + 1] != "(":
                self._read_redirect(redirect)
            elif not self.words and (match := _ASSIGNMENT.match(text, position, reader.stop)):
                self._read_assignment(match)
            else:
                self._read_word()
            reader.skip_blanks()

    def _read_word(self) -> None:
        reader, start = self.reader, self.reader.position
        if _NAMED_DESCRIPTOR.match(reader.text, start) or (not self.words and _ARRAY_ELEMENT.match(reader.text, start)):
            raise NotProvenSafe("it uses a named file descriptor or an array element")
        word = reader.read_word()
        if start not in self.source.node_starts or reader.position not in self.source.node_ends:
            raise NotProvenSafe("its words are not understood: two parsers disagree about them")
        self.words.append((word, decode_bytes(reader.text[start : reader.position])))

    def _read_assignment(self, match: re.Match[str]) -> None:
        reader = self.reader
        reader.position = match.end()
        value: Word = (LiteralText(""),)
        if reader.peek() == "(":
            raise NotProvenSafe("it assigns an array, which is not analysed")
        if reader.peek() and reader.peek() not in METACHARACTERS:
            value = reader.read_word()
        if ":~" in reader.text[match.end() : reader.position]:
            raise NotProvenSafe("it contains a ~ inside an assigned value")
        self.assignments.append(VariableAssignment(match["name"], match["op"] == "+=", value))

    def _read_redirect(self, match: re.Match[str]) -> None:
        reader, operator = self.reader, match["op"] or match["both"]
        reader.position = match.end()
        if operator in {"<<", "<<-"}:
            self._read_here_document(match.start("op"), operator)
            return
        reader.skip_blanks()
        start = reader.position
        target = reader.read_word()
        self.redirects.append(IoRedirect(operator, target, decode_bytes(reader.text[start : reader.position])))

    def _read_here_document(self, position: int, operator: str) -> None:
        """Reads a here-document whose first line has nothing after the delimiter."""
        reader = self.reader
        node = self.source.nested_nodes.get(position) or self.source.nested_nodes.get(position - 1)
        document = read_here_document(self.source, node, position)
        if document.operator != operator or self.source.text[document.delimiter_end : document.line_end].strip(" \t"):
            raise NotProvenSafe("it continues on the line that starts a here-document")
        self.redirects.append(IoRedirect(operator, document.body))
        reader.position = min(document.end, reader.stop)


class HereDocument(Struct, frozen=True):
    """A here-document.

    - `operator`: `<<` or `<<-`.
    - `body`: the text, as a word.
    - `delimiter_end`: the offset after the delimiter that follows the operator.
    - `line_end`: the offset of the end of that line.
    - `end`: the offset of the end of the here-document.
    """

    operator: str
    body: Word
    delimiter_end: int
    line_end: int
    end: int


def read_here_document(source: ShellSource, node: "Node | None", position: int) -> HereDocument:
    """Reads the here-document whose operator is at an offset; the end in the syntax tree must agree with the text."""
    text = source.text
    start = _HERE_DOCUMENT_START.match(text, position)
    if node is None or not start:
        raise NotProvenSafe("it contains a here-document in an unusual form")
    line_end = text.find("\n", start.end())
    if line_end < 0:
        raise NotProvenSafe("it contains a here-document without an end")
    body, end = split_here_document(text, line_end + 1, start["name"])
    if node.end_byte not in {end, end - 1, end + 1}:
        raise NotProvenSafe("the end of its here-document is not understood")
    if not start["quote"] and "\\\n" in body:
        raise NotProvenSafe("its here-document joins lines with a backslash, which could hide the end")
    word = (
        (LiteralText(decode_bytes(body), quoted=True),)
        if start["quote"]
        else WordReader(source, line_end + 1, line_end + 1 + len(body)).read_here_document()
    )
    return HereDocument("<<", word, start.end(), line_end, end)


def split_here_document(text: str, start: int, delimiter: str) -> tuple[str, int]:
    """Returns the body of a here-document and the offset of the end of its delimiter line."""
    line_start = start
    while line_start < len(text):
        end = text.find("\n", line_start)
        end = len(text) if end < 0 else end
        if text[line_start:end] == delimiter:
            return text[start:line_start], end
        line_start = end + 1
    raise NotProvenSafe("it contains a here-document without an end")


# An allow rule for the inner command also applies behind these wrappers: they change only time, priority or buffering.
TRANSPARENT_WRAPPERS = frozenset({"timeout", "nice", "ionice", "stdbuf", "nohup", "time", "command", "env"})


class AnalysedCommand(Struct, frozen=True):
    """One simple command after its wrappers (`timeout`, `env`, …) are removed.

    - `argv`: the program and its arguments.
    - `cwds`: every folder in which the command can run.
    - `source_text`: the command as written.
    - `wrappers`: the removed wrappers, the outermost first.
    - `unproven_reason`: why the analysis could not prove that the command only reads; None if it is proven.
    - `barriers`: redirects and variables that no allow rule covers.
    """

    argv: tuple[ExpandedArg, ...]
    cwds: tuple[str, ...]
    source_text: str
    wrappers: tuple[str, ...] = ()
    unproven_reason: str | None = None
    barriers: tuple[str, ...] = ()


class ScriptAnalysis(Struct, frozen=True):
    """The analysis of a command line: its simple commands, and the problems that apply to the line as a whole."""

    commands: tuple[AnalysedCommand, ...]
    problems: tuple[str, ...] = ()

    @property
    def unproven_reasons(self) -> tuple[str, ...]:
        """Returns why the command line is not proven to only read, without duplicates; empty if it is proven."""
        reasons = [
            self.name_program(command, reason)
            for command in self.commands
            for reason in (command.unproven_reason, *command.barriers)
            if reason
        ]
        return tuple(dict.fromkeys([*self.problems, *reasons]))

    def name_program(self, command: AnalysedCommand, reason: str) -> str:
        """Returns the reason; prepends the program's name if the line has several commands and the reason does not name
        it."""
        program = command.argv[0].source_text if command.argv else ""
        is_named = any(name in reason for name in (program, *command.wrappers))
        return reason if is_named or len(self.commands) == 1 else f"{program}: {reason}"


# Environment variables that change at most how a program formats its output.
_HARMLESS_VARIABLES = split_names(
    """CI NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE COLUMNS LINES TZ LANG LANGUAGE LC_ALL LC_CTYPE LC_COLLATE
    LC_MESSAGES LC_NUMERIC LC_TIME TERM GIT_OPTIONAL_LOCKS GIT_TERMINAL_PROMPT PYTHONUNBUFFERED
    PYTHONDONTWRITEBYTECODE DEBUG VERBOSE NODE_ENV RUST_BACKTRACE DEBIAN_FRONTEND"""
)
_PAGER_VARIABLES = frozenset({"PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER"})
_TIME_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")
_PLAIN_VALUE = re.compile(r"^[A-Za-z0-9_.:@%+, -]*$")
# The shell, the dynamic loader or common programs read these variables, whether they are exported or not.
_SPECIAL_VARIABLES = re.compile(
    r"^(?:PATH|IFS|ENV|CDPATH|PS[0-4]|HOME|PWD|OLDPWD|SHELL|SHELLOPTS|PROMPT_COMMAND|GLOBIGNORE|EXECIGNORE|FIGNORE|"
    r"FCEDIT|FUNCNEST|HIST.*|IGNOREEOF|INPUTRC|MAIL.*|OPT.*|POSIXLY_CORRECT|READLINE_.*|REPLY|TIMEFORMAT|TMOUT|TMPDIR|"
    r"BASH.*|COMP_.*|COMPREPLY|COPROC|DIRSTACK|EUID|UID|PPID|FUNCNAME|GROUPS|LINENO|MAPFILE|PIPESTATUS|RANDOM|SRANDOM|"
    r"SECONDS|EPOCH.*|USER|LOGNAME|LD_.*|DYLD_.*|GIT_.*|.*PAGER|EDITOR|VISUAL|BROWSER|LESS.*|MAN.*|.*_OPTIONS|.*OPTS?|"
    r"PYTHON.*|PERL.*|RUBY.*|NODE_.*|NPM_.*|JAVA.*|JDK_.*|GO[A-Z]+|CARGO.*|RUST.*|AWK.*|GCONV_PATH|LOCPATH|NLSPATH|"
    r"TERMINFO.*|TERMCAP|.*_proxy|.*_PROXY|.*PATH|XDG_.*|SSH_.*|GPG_.*|DISPLAY|histchars|auto_resume)$"
)


def check_script_variable(name: str) -> None:
    """Raises NotProvenSafe if a script assigns a variable that the shell or its programs read."""
    if _SPECIAL_VARIABLES.match(name):
        raise NotProvenSafe(f"it sets {name}, which the shell or other programs read")


def check_exported_variable(name: str, value: ExpandedArg) -> None:
    """Raises NotProvenSafe if a variable in a program's environment can change what the program does."""
    if name == "GIT_OPTIONAL_LOCKS" and value.text != "0":
        raise NotProvenSafe("it lets git rewrite the index (GIT_OPTIONAL_LOCKS)")
    if name == "TZ" and value.text is not None and _TIME_ZONE.fullmatch(value.text):
        return
    if name in _PAGER_VARIABLES and value.text in {"", "cat"}:
        return
    if name not in _HARMLESS_VARIABLES:
        raise NotProvenSafe(f"it sets {name} in a program's environment, which can change what the program does")
    if value.text is None or not _PLAIN_VALUE.match(value.text):
        raise NotProvenSafe(f"it sets {name} in a program's environment to a value that is not plain text")


_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


def keeps_output(redirects: Sequence[IoRedirect]) -> bool:
    """Returns whether the output of a command is still only its own output, without error messages in it."""
    return all(redirect.operator in {"<", "<<", "<<<"} or redirect.source_text == "/dev/null" for redirect in redirects)


def check_redirect(redirect: IoRedirect, targets: list[ExpandedArg], paths: PathChecker) -> None:
    """Raises NotProvenSafe if a redirect can write a file, or reads a file that needs approval."""
    operator = redirect.operator
    if operator in {"<<", "<<<"}:
        return
    target = targets[0].text if len(targets) == 1 else None
    if operator in {"<&", ">&"} and target is not None and _DESCRIPTOR.fullmatch(target):
        return
    if operator == "<" and target is not None:
        paths.check_argument(targets[0])
        return
    if operator in {">", ">>", ">|", "&>", "&>>", ">&"} and target in _HARMLESS_TARGETS:
        return
    effect = "reads from" if operator in {"<", "<&"} else "writes to"
    raise NotProvenSafe(f"it {effect} {redirect.source_text} (redirect {operator})")
