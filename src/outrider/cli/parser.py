"""Parsers that explain themselves: one for each command, with examples, made when it is needed."""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from outrider.cli import registry as exits
from outrider.cli.registry import Command

if TYPE_CHECKING:
    from decimal import Decimal
    from pathlib import Path


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
            from outrider.config.file import closest

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


MODES = ("chat", "plan", "agent", "background")


def add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="FOLDER", type=folder, help="work in this folder instead of the current one")


def add_conversation(parser: argparse.ArgumentParser) -> None:
    """Which session, agent and model, and what may run: the same in a terminal application and without one."""
    add_place(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-s", "--session", metavar="ID", help="go on with this session (the end of its id is enough)")
    which.add_argument(
        "-c", "--continue", dest="resume", action="store_true", help="go on with this folder's last session"
    )
    add_terms(parser)


def add_server(parser: argparse.ArgumentParser) -> None:
    """Work in the sessions of a server instead of opening an engine here."""
    server = parser.add_argument_group("a server's sessions")
    server.add_argument(
        "--attach", metavar="URL", help="work on the server that `outrider serve` began, here or elsewhere"
    )
    server.add_argument(
        "--token",
        metavar="TOKEN",
        help="its token; else OUTRIDER_SERVER_TOKEN, or the file of a server of this machine",
    )


def add_database(parser: argparse.ArgumentParser) -> None:
    words = "postgresql://… that many machines share (default: a file)"
    parser.add_argument("--database", metavar="URL", type=database, help=words)


def add_terms(parser: argparse.ArgumentParser) -> None:
    """Who answers, and what may run, in whichever session."""
    parser.add_argument(
        "-m", "--model", metavar="PROVIDER/MODEL", help="the model to ask, e.g. anthropic/claude-sonnet-4-5"
    )
    parser.add_argument("--mode", choices=MODES, help="what may run: nothing, reading, what is approved, or unattended")
    parser.add_argument("--agent", metavar="NAME", help="the agent of your configuration that begins")
    rules = parser.add_argument_group("permissions")
    for effect, meaning in (("allow", "runs unasked"), ("ask", "is asked about"), ("deny", "never runs")):
        rules.add_argument(
            f"--{effect}",
            metavar="RULE",
            action="append",
            default=[],
            help=f"what {meaning}, e.g. 'shell(git status *)'",
        )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-turns", metavar="N", type=at_least_one, help="at most so many answers of the model")
    limits.add_argument("--max-cost", metavar="DOLLARS", type=money, help="at most so much money")
    limits.add_argument(
        "--max-time", metavar="SECONDS", type=seconds, help="at most so many seconds, or as 90s, 15m, 2h"
    )


def folder(text: str) -> "Path":
    from pathlib import Path

    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return path


def database(text: str) -> str:
    if not text.startswith("postgresql://"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not postgresql://…; without --database, sessions and runs are in a file of your data folder"
        )
    return text


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; write a number up to 65535, or 0 for any free one")
    return int(text)


def money(text: str) -> "Decimal":
    from decimal import Decimal, InvalidOperation

    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of money")
    return amount


def seconds(text: str) -> float:
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        found = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 90, 90s, 15m or 2h")
    return found
