"""`outrider` without a command: opens the terminal application, or explains why it cannot open."""

import os
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from outrider.cli.parser import COMMANDS, CommandParser, add_server_options, add_session_options, load_entry_point
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider.config.settings import Settings

_DESCRIPTION = """\
Outrider is a coding agent for your terminal. It reads and edits files and runs commands in a folder, and asks for
approval first. Without a command it opens the terminal application; `outrider run` runs one prompt and exits."""
_EPILOG = """\
Examples:
  outrider                                     open the terminal application in this folder
  outrider 'explain this project'              open it and send a prompt
  outrider --continue                          continue the last session of this folder
  outrider --attach http://127.0.0.1:8765      use the sessions of a running server
  outrider run 'why does the build fail?'      print one answer to stdout
  git diff | outrider run 'review this' -      read input from a pipe
  outrider run --mode background 'fix the lint errors' --max-cost 1

Commands:
{commands}

For details on a command: outrider COMMAND --help
API keys are read from ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY. To check the setup: outrider doctor"""

_CHOICES = ("model", "mode", "approval", "effort", "agent")


def build_top_parser() -> CommandParser:
    """Builds the parser for the command line without a command; its help lists the commands."""
    command_list = "\n".join(f"  {command.name:<12} {command.summary}" for command in COMMANDS)
    parser = CommandParser(
        prog="outrider",
        usage="outrider [options] [PROMPT]\n       outrider COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(commands=command_list),
    )
    parser.add_argument("prompt", nargs="?", default="", metavar="PROMPT", help="send this text at once")
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    add_session_options(parser)
    add_server_options(parser)
    return parser


def run_interactive(arguments: list[str]) -> int:
    """Checks settings and terminal, then runs the terminal application; returns its exit code."""
    options = build_top_parser().parse_args(arguments)
    from outrider.cli.setup import settings_from_arguments

    settings = settings_from_arguments(options)  # reports errors in flags and files before the screen changes
    _check_terminal(settings, attached=bool(options.attach))
    if not options.attach:
        from outrider.config.paths import make_private_folder

        make_private_folder(settings.data_folder)
    with first_frame():
        # Imported by name: front ends must not import each other, and only the one in use is loaded.
        run_tui = load_entry_point("outrider.tui.app:run_tui")
        if options.attach:
            return load_entry_point("outrider.cli.commands.run_attached:run_attached_tui")(options, run_tui)
        from outrider.config.environment import choices_of_environment  # lazy: the help needs no environment

        unused = [settings]  # later calls read the files again

        def current_settings() -> "Settings":
            return unused.pop() if unused else settings_from_arguments(options)

        return run_tui(
            current_settings,
            session=options.session or "",
            resume=options.resume,
            prompt=options.prompt,
            given=choices_of_environment().union(name for name in _CHOICES if getattr(options, name)),
        )


@contextmanager
def first_frame() -> Generator[None]:
    """Draws the input field on the alternate screen while the application is loaded, which takes several times as long.

    The terminal is in raw mode from here on, so keys are neither echoed nor lost: the application reads them. Its
    driver takes over the alternate screen; the terminal's mode is restored here.
    """
    output, descriptor = sys.stdout, sys.stdin.fileno()
    if isinstance(output, TextIOWrapper):  # boxes and marks need UTF-8, whatever the locale is; input is decoded so too
        output.reconfigure(encoding="utf-8", errors="replace")
    before = termios.tcgetattr(descriptor)
    mode = termios.tcgetattr(descriptor)
    mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.IXOFF)
    mode[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)  # Ctrl+C still ends the program
    columns, rows = os.get_terminal_size(output.fileno())
    termios.tcsetattr(descriptor, termios.TCSANOW, mode)
    try:
        output.write(frame_text(columns, rows))
        output.flush()
        yield
    except BaseException:
        with suppress(OSError):  # the application has not taken over, or its screen is left already
            output.write("\x1b[?2004l\x1b[?1049l\x1b[?25h")
            output.flush()
        raise
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


def frame_text(columns: int, rows: int) -> str:
    """Returns the sequences that draw the empty input field where the application will draw it."""
    line = "─" * max(columns - 4, 0)
    box = (f" ╭{line}╮", f" │ ›{' ' * max(columns - 7, 0)}│", f" ╰{line}╯")
    drawn = "".join(f"\x1b[{max(rows - 3, 1) + number};1H{text}" for number, text in enumerate(box))
    return f"\x1b[?1049h\x1b[?2004h\x1b[2J{drawn}\x1b[{max(rows - 2, 1)};6H"


def _check_terminal(settings: "Settings", *, attached: bool) -> None:
    """Raises ConfigurationError if the terminal application cannot run here, where it could also ask for a model."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        if settings.missing and not attached:
            from outrider.models.local_models import missing_model_message

            raise ConfigurationError(missing_model_message(settings.missing))
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
