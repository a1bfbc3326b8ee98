"""The program `outrider`: finds the command that was asked for, and turns what goes wrong into an exit code."""

import os
import sys

from outrider.cli import exits


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    try:
        return _run(given)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _leave_quietly()
        return exits.DONE


def _run(given: list[str]) -> int:
    if given[:1] in (["--version"], ["-V"]):
        sys.stdout.write(f"outrider {version()}\n")
        sys.stdout.flush()
        return exits.DONE
    from outrider.cli.dispatch import dispatch

    code = dispatch(given)
    sys.stdout.flush()
    return code


def version() -> str:
    """Asked of the package that is loaded already; the installed metadata would take longer to read than to print."""
    return sys.modules["outrider"].__version__


def _leave_quietly() -> None:
    """Nobody reads any more, which is no error; nothing else must be written when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
