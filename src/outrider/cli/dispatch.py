"""From the words of a command line to the command that they name, and from its failure to an exit code."""

import os
import sys
from collections.abc import Callable

from outrider.cli import registry as exits
from outrider.cli.parser import arguments_of, loaded
from outrider.cli.registry import COMMANDS, command_named
from outrider.errors import ConfigurationError, LimitReachedError, OutriderError, ProviderError


def dispatch(given: list[str]) -> int:
    """Without a command the interactive application opens."""
    if not given or given[0].startswith("-"):
        from outrider.cli.interactive import interactive

        return reported(lambda: interactive(given))
    if given[0] == "help":
        return dispatch([*given[1:], "--help"])
    command = command_named(given[0])
    if command is None:
        return _unknown(given[0])
    arguments = arguments_of(command, given[1:])
    return reported(lambda: loaded(arguments.execute)(arguments))


def reported(work: Callable[[], int]) -> int:
    """What went wrong is said in one line: a traceback helps nobody who did not write this program."""
    try:
        return work()
    except OutriderError as error:
        from outrider.cli.output import Console

        Console().say(f"outrider: {error}")
        return code_of(error)
    except FileNotFoundError:
        if _is_somewhere():
            raise
        sys.stderr.write("outrider: the folder that you are in is gone. Go to another one, or name one with --cwd\n")
        return exits.USAGE


def _is_somewhere() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  nothing is done with it
    except FileNotFoundError:
        return False
    return True


def code_of(error: OutriderError) -> int:
    match error:
        case ConfigurationError():
            return exits.USAGE
        case LimitReachedError():
            return exits.LIMIT
        case ProviderError():
            return exits.PROVIDER
        case _:
            return exits.FAILED


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    near = get_close_matches(name, [command.name for command in COMMANDS], 1)
    hint = f"Did you mean `outrider {near[0]}`?" if near else f"To give it as a prompt: outrider run {name!r}."
    sys.stderr.write(f"outrider: there is no command {name!r}. {hint} See `outrider --help`.\n")
    return exits.USAGE
