"""`outrider` without a command: the terminal application, or a word on why it cannot open."""

import os
import sys

from outrider.cli.parser import Parser, add_conversation, add_server, loaded
from outrider.cli.registry import COMMANDS
from outrider.errors import ConfigurationError

_BEGIN = """\
Outrider is an agent for your terminal: it reads, writes and runs things in a folder, and asks before it matters.
Without a command it opens a terminal application; `outrider run` works on one prompt without a screen."""
_END = """\
Examples:
  outrider                                     talk with the agent about this folder
  outrider --continue                          go on where you stopped
  outrider --attach http://127.0.0.1:8765      the same, in the sessions of a server
  outrider run 'why does the build fail?'      one answer, on stdout
  git diff | outrider run 'review this' -      with input from a pipe
  outrider run --mode background 'fix the lint errors' --max-cost 1

Commands:
{commands}

Each command explains itself: outrider run --help
Keys come from ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY. Is everything in order? outrider doctor"""


def top_parser() -> Parser:
    listed = "\n".join(f"  {command.name:<12} {command.summary}" for command in COMMANDS)
    parser = Parser(
        prog="outrider",
        usage="outrider [options]\n       outrider COMMAND ...",
        description=_BEGIN,
        epilog=_END.format(commands=listed),
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    add_conversation(parser)
    add_server(parser)
    return parser


def interactive(given: list[str]) -> int:
    arguments = top_parser().parse_args(given)
    from outrider.cli.setup import settings_of

    settings = settings_of(arguments)  # what is wrong with flags and files is said before the screen changes
    if settings.missing and not arguments.attach:
        from outrider.models.local.discovery import ways_to_a_model

        raise ConfigurationError(ways_to_a_model(settings.missing))
    _check_terminal()
    if not arguments.attach:
        from outrider.config.paths import make_private

        make_private(settings.data)
    # By name: the two front ends do not know each other, and only one of them is loaded.
    run_tui = loaded("outrider.tui.app:run_tui")
    if arguments.attach:
        return loaded("outrider.cli.commands.run_attached:open_screen")(arguments, run_tui)
    return run_tui(lambda: settings_of(arguments), session=arguments.session or "", resume=arguments.resume)


def _check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "the terminal application needs a terminal on stdin and stdout. Without one: outrider run PROMPT"
        )
    kind = os.environ.get("TERM", "")
    if kind in ("dumb", "unknown") or (not kind and os.name == "posix"):
        said = f"TERM={kind}" if kind else "TERM is not set"
        raise ConfigurationError(
            f"this terminal cannot show the application ({said}). "
            "If it can do more, set TERM, e.g. to xterm-256color. Without one: outrider run PROMPT"
        )
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise ConfigurationError(
            "the terminal application is not installed: pip install 'outrider[terminal]'. "
            "Without it: outrider run PROMPT"
        )
