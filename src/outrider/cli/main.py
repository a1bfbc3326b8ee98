"""Entry point of the `outrider` program: finds the command of a command line, runs it, converts its errors into
messages, and returns its exit code."""

import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider.cli import exit_codes

# Parsers and errors are imported by the functions that need them: `--version` is to start as fast as Python does.
if TYPE_CHECKING:
    from outrider.errors import OutriderError

_FROM_KERNEL = 0x80  # SI_KERNEL


def main(argv: list[str] | None = None) -> int:
    """Runs the command line `argv` (default: `sys.argv`) and returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if os.getpid() == 1:
        _run_init()
    _open_missing_streams()
    try:
        return _flush_stdout(_run_command_line(arguments))
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return exit_codes.SUCCESS


def _run_init() -> None:
    """Continues in a child process, while this process does the work of process 1 of a container.

    Orphans of commands become its children. It reaps them, which the program cannot do: `waitpid(-1)` would take the
    exit codes of the children that it started. It forwards signals and exits with the code of the program.
    """
    import signal

    signals = {
        signal.SIGCHLD,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return
    while True:
        signal_info = signal.sigwaitinfo(signals)
        if signal_info.si_signo != signal.SIGCHLD:
            if signal_info.si_code != _FROM_KERNEL:  # a terminal sends its signals to both processes
                os.kill(program, signal_info.si_signo)
            continue
        while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)) is not None:
            if child.si_pid == program:
                os._exit(child.si_status if child.si_code == os.CLD_EXITED else 128 + child.si_status)


def _run_command_line(arguments: list[str]) -> int:
    if arguments and arguments[0].startswith("-") and not {"--version", "-V"}.isdisjoint(arguments):
        sys.stdout.write(f"outrider {program_version()}\n")
        return exit_codes.SUCCESS
    # Imports create no garbage, and collecting during them costs a tenth of start-up time. `load_entry_point` enables
    # the collector again once the command is imported.
    gc.disable()
    try:
        return dispatch_command(arguments)
    except SystemExit as system_exit:  # argparse exits this way after it has printed help or a usage error
        return system_exit.code if isinstance(system_exit.code, int) else exit_codes.SUCCESS


def dispatch_command(arguments: list[str]) -> int:
    """Runs the command that the arguments name; without one, or with a prompt, opens the terminal application."""
    if not arguments or arguments[0].startswith("-") or _is_prompt(arguments[0]):
        from outrider.cli.interactive import run_interactive

        return report_errors(lambda: run_interactive(arguments))
    if arguments[0] == "help":
        return dispatch_command([*arguments[1:], "--help"])
    from outrider.cli.parser import find_command, load_entry_point, parse_arguments  # lazy: `--version` needs none

    command = find_command(arguments[0])
    if command is None:
        return _report_unknown_command(arguments[0])
    parsed = parse_arguments(command, arguments[1:])
    return report_errors(lambda: load_entry_point(parsed.execute)(parsed))


def _is_prompt(text: str) -> bool:
    """Returns whether an argument is a prompt for the terminal application. A single word may be a misspelled command,
    which must not start a conversation."""
    return len(text.split()) > 1


def report_errors(work: Callable[[], int]) -> int:
    """Runs `work`; prints an expected error as one line instead of a traceback, and returns its exit code."""
    from outrider.errors import OutriderError

    try:
        return work()
    except OutriderError as error:
        from outrider.cli.output import Console

        Console().print_stderr(f"outrider: {error}")
        return exit_code_for(error)
    except FileNotFoundError:
        if _cwd_exists():
            raise
        sys.stderr.write("outrider: the current folder no longer exists. Change to another one, or pass --cwd FOLDER\n")
        return exit_codes.USAGE_ERROR


def _cwd_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  called only for its error
    except FileNotFoundError:
        return False
    return True


def exit_code_for(error: "OutriderError") -> int:
    """Returns the exit code of an error class."""
    from outrider.errors import ConfigurationError, LimitReachedError, ProviderError

    match error:
        case ConfigurationError():
            return exit_codes.USAGE_ERROR
        case LimitReachedError():
            return exit_codes.LIMIT_REACHED
        case ProviderError():
            return exit_codes.PROVIDER_ERROR
        case _:
            return exit_codes.FAILURE


def _report_unknown_command(name: str) -> int:
    """Prints a usage error that suggests the closest command name."""
    from difflib import get_close_matches

    from outrider.cli.parser import COMMANDS

    near = get_close_matches(name, [command.name for command in COMMANDS], 1)
    hint = (
        f"Did you mean `outrider {near[0]}`?"
        if near
        else f"To send it as a prompt: outrider run {name!r}, or outrider -- {name!r} in the terminal application."
    )
    sys.stderr.write(f"outrider: unknown command {name!r}. {hint} See `outrider --help`.\n")
    return exit_codes.USAGE_ERROR


def program_version() -> str:
    """Returns the version from the imported package; reading the installed metadata would slow down `--version`."""
    return sys.modules["outrider"].__version__


def _open_missing_streams() -> None:
    """Opens /dev/null for every closed standard stream, and makes output streams accept any character.

    Without this, the next opened file would get descriptor 0, 1 or 2 and receive what the program prints.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `number`
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):  # characters outside the terminal's encoding are printed as escapes
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _flush_stdout(code: int) -> int:
    """Flushes stdout and returns `code`, or a failure code if the flush fails (for example on a full disk)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_stdout()
        if code == exit_codes.SUCCESS:
            sys.stderr.write(f"outrider: cannot write to stdout: {error.strerror or error}\n")
        return code or exit_codes.FAILURE
    return code


def _discard_stdout() -> None:
    """Redirects stdout to /dev/null, so that the interpreter's final flush does not fail again and print a
    traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
