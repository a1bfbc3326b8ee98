"""Variables that may be set without changing which program runs or what it does."""

import re

from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg
from outrider.permissions.texts.names import names

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
