"""The program `outrider`: finds the command that was asked for, and turns what goes wrong into an exit code."""

import gc
import os
import sys

from outrider.cli import exits


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    try:
        code = _run(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _leave_quietly()
        return exits.DONE
    return code


def _run(given: list[str]) -> int:
    if given and given[0].startswith("-") and not {"--version", "-V"}.isdisjoint(given):
        sys.stdout.write(f"outrider {version()}\n")
        return exits.DONE
    gc.disable()  # until all is loaded: nothing of it is garbage, and looking for some takes a tenth of the time
    from outrider.cli.dispatch import dispatch

    try:
        return dispatch(given)
    except SystemExit as ended:  # the parser's own way to end, with its help or a complaint already written
        return ended.code if isinstance(ended.code, int) else exits.DONE


def version() -> str:
    """Asked of the package that is loaded already; the installed metadata would take longer to read than to print."""
    return sys.modules["outrider"].__version__


def _leave_quietly() -> None:
    """Nobody reads any more, which is no error; nothing else must be written when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
