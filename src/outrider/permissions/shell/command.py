"""What the walk finds: simple commands, each with a proof that it only reads or the reason why there is none."""

import re

from msgspec import Struct

from outrider.permissions.programs.table import Place
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.expansion import Arg
from outrider.permissions.shell.parser import Redirect, Unclear

# A rule for the inner command reaches through these: they change nothing but time, priority or buffering.
TRANSPARENT = frozenset({"timeout", "nice", "ionice", "stdbuf", "nohup", "time", "command", "env"})


class Command(Struct, frozen=True):
    """One simple command, after wrappers are taken off."""

    argv: tuple[Arg, ...]
    cwds: tuple[str, ...]
    shown: str
    wrappers: tuple[str, ...] = ()
    doubt: str | None = None  # why it is not proven to be harmless; None: it is
    barriers: tuple[str, ...] = ()  # redirects and variables that no rule reaches across


class Script(Struct, frozen=True):
    """A whole command line: what it runs, and what about it is not understood."""

    commands: tuple[Command, ...]
    problems: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it is not proven to be harmless; empty: it is."""
        own = [doubt for command in self.commands for doubt in (command.doubt, *command.barriers) if doubt]
        return tuple(dict.fromkeys([*self.problems, *own]))


# Given to a program, these change at most how its output looks.
_HARMLESS = names(
    """CI NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE COLUMNS LINES TZ LANG LANGUAGE LC_ALL LC_CTYPE LC_COLLATE
    LC_MESSAGES LC_NUMERIC LC_TIME TERM GIT_OPTIONAL_LOCKS GIT_TERMINAL_PROMPT PYTHONUNBUFFERED
    PYTHONDONTWRITEBYTECODE DEBUG VERBOSE NODE_ENV RUST_BACKTRACE DEBIAN_FRONTEND"""
)
_PAGERS = frozenset({"PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER"})
_PLAIN_VALUE = re.compile(r"^[A-Za-z0-9_.:@%+, -]*$")
# The shell or every program obeys these, exported or not.
_SPECIAL = re.compile(
    r"^(?:PATH|IFS|ENV|CDPATH|PS[0-4]|HOME|PWD|OLDPWD|SHELL|SHELLOPTS|PROMPT_COMMAND|GLOBIGNORE|EXECIGNORE|FIGNORE|"
    r"FCEDIT|FUNCNEST|HIST.*|IGNOREEOF|INPUTRC|MAIL.*|OPT.*|POSIXLY_CORRECT|READLINE_.*|REPLY|TIMEFORMAT|TMOUT|TMPDIR|"
    r"BASH.*|COMP_.*|COMPREPLY|COPROC|DIRSTACK|EUID|UID|PPID|FUNCNAME|GROUPS|LINENO|MAPFILE|PIPESTATUS|RANDOM|SRANDOM|"
    r"SECONDS|EPOCH.*|USER|LOGNAME|LD_.*|DYLD_.*|GIT_.*|.*PAGER|EDITOR|VISUAL|BROWSER|LESS.*|MAN.*|.*_OPTIONS|.*OPTS?|"
    r"PYTHON.*|PERL.*|RUBY.*|NODE_.*|NPM_.*|JAVA.*|JDK_.*|GO[A-Z]+|CARGO.*|RUST.*|AWK.*|GCONV_PATH|LOCPATH|NLSPATH|"
    r"TERMINFO.*|TERMCAP|.*_proxy|.*_PROXY|.*PATH|XDG_.*|SSH_.*|GPG_.*|DISPLAY|histchars|auto_resume)$"
)


def refuse_special(name: str) -> None:
    """A variable of the script itself: fine, unless the shell or its programs look at it."""
    if _SPECIAL.match(name):
        raise Unclear(f"it sets {name}")


def refuse_exported(name: str, value: Arg) -> None:
    """A variable that a program is given."""
    if name in _PAGERS and value.text in {"", "cat"}:
        return
    if name not in _HARMLESS:
        raise Unclear(f"it gives {name} to a program")
    if value.text is None or not _PLAIN_VALUE.match(value.text):
        raise Unclear(f"it gives {name} an unusual value")


_NOWHERE = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


def refuse_redirect(redirect: Redirect, targets: list[Arg], place: Place) -> None:
    """Raises Unclear for a redirect that could write, or read what may not be read unasked."""
    operator = redirect.operator
    if operator in {"<<", "<<<"}:
        return
    target = targets[0].text if len(targets) == 1 else None
    if operator in {"<&", ">&"} and target is not None and (target == "-" or target.rstrip("-").isdigit()):
        return
    if operator == "<" and target is not None:
        place.check(targets[0])
        return
    if operator in {">", ">>", ">|", "&>", "&>>", ">&"} and target in _NOWHERE:
        return
    raise Unclear(f"it redirects with {operator} {redirect.shown}")
