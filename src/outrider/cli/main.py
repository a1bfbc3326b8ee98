"""The program `outrider`: finds the command that was asked for, and turns what goes wrong into an exit code."""

import gc
import os
import sys

from outrider.cli import registry as exits


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    _fill_in_streams()
    try:
        return _flushed(_run(given))
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _leave_quietly()
        return exits.DONE


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


def _fill_in_streams() -> None:
    """All three are there, and take everything. Where somebody closed one, the next file that is opened would get its
    number, and what is printed."""
    for number, name, way in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, way, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):  # a terminal that takes less than we write gets the rest described
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """The exit code once all that was printed has left; if it cannot, that is a failure too, and said if none was."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _leave_quietly()
        if code == exits.DONE:
            sys.stderr.write(f"outrider: stdout cannot be written: {error.strerror or error}\n")
        return code or exits.FAILED
    return code


def _leave_quietly() -> None:
    """Nothing goes through any more; nothing else must be written when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
