"""Parsers that explain themselves: one for each command, with examples, made when it is needed."""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from outrider.cli import exits
from outrider.cli.commands import Command

TO_DO = "what to do (default: list)"


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions and examples keep their lines."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, max_help_position=28, width=_width(), **options)


class Parser(argparse.ArgumentParser):
    """Flags are written in full: a shortened one would change its meaning when a longer one is added."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=Formatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Nothing unknown is left for the parser above, which could not say what was meant instead."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            from outrider.app.config.reading import closest

            hint = closest(unknown[0].split("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(exits.USAGE, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


def _width() -> int:
    """Asked here: argparse would load half of the standard library to find out."""
    try:
        columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size().columns
    except (OSError, ValueError):
        columns = 80
    return max(columns - 2, 20)


def examples(*lines: str) -> str:
    return "Examples:\n" + "\n".join(f"  {line}" for line in lines)


def parser_of(command: Command) -> Parser:
    """The whole parser of one command."""
    parser = Parser(prog=f"outrider {command.name}")
    named(command.declare)(parser)
    return parser


def arguments_of(command: Command, given: Sequence[str]) -> argparse.Namespace:
    """Where a command has several things to do and none is named, the first of them is meant: it looks and changes
    nothing."""
    parser = parser_of(command)
    usual = parser.get_default("usual")
    if usual and (not given or (given[0].startswith("-") and given[0] not in ("-h", "--help"))):
        given = [usual, *given]
    return parser.parse_args(given)


def named(place: str) -> Callable[..., Any]:
    """What `module:function` names; only now is the module loaded."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def loaded(place: str) -> Callable[..., Any]:
    """The work that is to be done, with all that it needs. What is loaded stays, so garbage need not be looked for in
    it; from now on some is made."""
    work = named(place)
    gc.freeze()
    gc.enable()
    return work
