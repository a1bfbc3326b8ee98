"""Result types of the shell analysis, and the checks for variables and redirects of a simple command."""

import re
from collections.abc import Sequence

from msgspec import Struct

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.command_parser import IoRedirect
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import PathChecker

# An allow rule for the inner command also applies behind these wrappers: they change only time, priority or buffering.
TRANSPARENT_WRAPPERS = frozenset({"timeout", "nice", "ionice", "stdbuf", "nohup", "time", "command", "env"})


class AnalysedCommand(Struct, frozen=True):
    """One simple command after its wrappers (`timeout`, `env`, …) are removed.

    `cwds` lists every folder in which the command can run. `unproven_reason` is the reason why the analysis could not
    prove that the command only reads, or None if it is proven. `barriers` lists redirects and variables that no
    allow rule covers.
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
        """Adds the program's name to a reason that lacks it if the line has several commands."""
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
