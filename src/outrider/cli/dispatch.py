"""Finds the command of a command line, runs it, and converts its errors into messages and exit codes."""

import os
import sys
from collections.abc import Callable

from outrider.cli import exit_codes
from outrider.cli.parser import COMMANDS, find_command, load_entry_point, parse_arguments
from outrider.errors import ConfigurationError, LimitReachedError, OutriderError, ProviderError


def dispatch_command(arguments: list[str]) -> int:
    """Run the command that the arguments name; without one, or with a prompt, open the terminal application."""
    if not arguments or arguments[0].startswith("-") or _is_prompt(arguments[0]):
        from outrider.cli.interactive import run_interactive

        return report_errors(lambda: run_interactive(arguments))
    if arguments[0] == "help":
        return dispatch_command([*arguments[1:], "--help"])
    command = find_command(arguments[0])
    if command is None:
        return _report_unknown_command(arguments[0])
    parsed = parse_arguments(command, arguments[1:])
    return report_errors(lambda: load_entry_point(parsed.execute)(parsed))


def _is_prompt(text: str) -> bool:
    """Return whether an argument is a prompt for the terminal application. A single word may be a misspelled command,
    which must not start a conversation."""
    return len(text.split()) > 1


def report_errors(work: Callable[[], int]) -> int:
    """Run `work`; print an expected error as one line instead of a traceback, and return its exit code."""
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


def exit_code_for(error: OutriderError) -> int:
    """Return the exit code of an error class."""
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
    """Print a usage error that suggests the closest command name."""
    from difflib import get_close_matches

    near = get_close_matches(name, [command.name for command in COMMANDS], 1)
    hint = (
        f"Did you mean `outrider {near[0]}`?"
        if near
        else f"To send it as a prompt: outrider run {name!r}, or outrider -- {name!r} in the terminal application."
    )
    sys.stderr.write(f"outrider: unknown command {name!r}. {hint} See `outrider --help`.\n")
    return exit_codes.USAGE_ERROR
