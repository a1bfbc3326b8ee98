"""`outrider` without a command: opens the terminal application, or explains why it cannot open."""

import os
import sys

from outrider.cli.parser import COMMANDS, CommandParser, add_server_options, add_session_options, load_entry_point
from outrider.errors import ConfigurationError

_DESCRIPTION = """\
Outrider is a coding agent for your terminal. It reads and edits files and runs commands in a folder, and asks for
approval first. Without a command it opens the terminal application; `outrider run` runs one prompt and exits."""
_EPILOG = """\
Examples:
  outrider                                     open the terminal application in this folder
  outrider --continue                          continue the last session of this folder
  outrider --attach http://127.0.0.1:8765      use the sessions of a running server
  outrider run 'why does the build fail?'      print one answer to stdout
  git diff | outrider run 'review this' -      read input from a pipe
  outrider run --mode background 'fix the lint errors' --max-cost 1

Commands:
{commands}

For details on a command: outrider COMMAND --help
API keys are read from ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY. To check the setup: outrider doctor"""


def build_top_parser() -> CommandParser:
    """Build the parser for the command line without a command; its help lists the commands."""
    command_list = "\n".join(f"  {command.name:<12} {command.summary}" for command in COMMANDS)
    parser = CommandParser(
        prog="outrider",
        usage="outrider [options]\n       outrider COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(commands=command_list),
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    add_session_options(parser)
    add_server_options(parser)
    return parser


def run_interactive(arguments: list[str]) -> int:
    """Check settings and terminal, then run the terminal application; returns its exit code."""
    options = build_top_parser().parse_args(arguments)
    from outrider.cli.setup import settings_from_arguments

    settings = settings_from_arguments(options)  # reports errors in flags and files before the screen changes
    if settings.missing and not options.attach:
        from outrider.models.local.discovery import missing_model_message

        raise ConfigurationError(missing_model_message(settings.missing))
    _check_terminal()
    if not options.attach:
        from outrider.config.paths import make_private_folder

        make_private_folder(settings.data_folder)
    # Imported by name: front ends must not import each other, and only the one in use is loaded.
    run_tui = load_entry_point("outrider.tui.app:run_tui")
    if options.attach:
        return load_entry_point("outrider.cli.commands.run_attached:run_attached_tui")(options, run_tui)
    return run_tui(lambda: settings_from_arguments(options), session=options.session or "", resume=options.resume)


def _check_terminal() -> None:
    """Raise ConfigurationError if the terminal application cannot run here."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "the terminal application needs a terminal on stdin and stdout. Without a terminal: outrider run PROMPT"
        )
    kind = os.environ.get("TERM", "")
    if kind in ("dumb", "unknown") or (not kind and os.name == "posix"):
        problem = f"TERM={kind}" if kind else "TERM is not set"
        raise ConfigurationError(
            f"this terminal cannot show the application ({problem}). "
            "If it supports colors and cursor movement, set TERM, e.g. to xterm-256color. "
            "Without the application: outrider run PROMPT"
        )
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise ConfigurationError(
            "the terminal application is not installed: pip install 'outrider[terminal]'. "
            "Without it: outrider run PROMPT"
        )
