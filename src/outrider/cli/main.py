"""Entry point of the `outrider` program: runs the requested command and returns its exit code."""

import gc
import os
import sys

from outrider.cli import exit_codes

_FROM_KERNEL = 0x80  # SI_KERNEL


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: `sys.argv`) and return the exit code."""
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

    waited = {
        signal.SIGCHLD,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited)
        return
    while True:
        received = signal.sigwaitinfo(waited)
        if received.si_signo != signal.SIGCHLD:
            if received.si_code != _FROM_KERNEL:  # a terminal sends its signals to both processes
                os.kill(program, received.si_signo)
            continue
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)) is not None:
            if ended.si_pid == program:
                os._exit(ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status)


def _run_command_line(arguments: list[str]) -> int:
    if arguments and arguments[0].startswith("-") and not {"--version", "-V"}.isdisjoint(arguments):
        sys.stdout.write(f"outrider {program_version()}\n")
        return exit_codes.SUCCESS
    # Imports create no garbage, and collecting during them costs a tenth of start-up time. `load_entry_point` enables
    # the collector again once the command is imported.
    gc.disable()
    from outrider.cli.dispatch import dispatch_command

    try:
        return dispatch_command(arguments)
    except SystemExit as ended:  # argparse exits this way after it has printed help or a usage error
        return ended.code if isinstance(ended.code, int) else exit_codes.SUCCESS


def program_version() -> str:
    """Return the version from the imported package; reading the installed metadata would slow down `--version`."""
    return sys.modules["outrider"].__version__


def _open_missing_streams() -> None:
    """Open /dev/null for every closed standard stream, and make output streams accept any character.

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
    """Flush stdout and return `code`, or a failure code if the flush fails (for example on a full disk)."""
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
    """Redirect stdout to /dev/null, so that the interpreter's final flush does not fail again and print a traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
