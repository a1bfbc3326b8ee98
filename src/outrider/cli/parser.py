"""The table of commands, and argument parsers: the parser class, shared options, and argument types.

A parser is built only for the command that runs, so that start-up does not pay for the others.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from outrider.cli import exit_codes
from outrider.types.modes import APPROVAL_DESCRIPTIONS, MODE_DESCRIPTIONS, MODES, REASONING_EFFORTS

if TYPE_CHECKING:
    from decimal import Decimal
    from pathlib import Path


class CommandSpec(NamedTuple):
    """One command. `declare` is the path, as `module:function`, of the function that declares its arguments."""

    name: str
    summary: str
    declare: str


_ANALYSIS_COMMANDS = ("what-if", "trace", "context", "stats", "eval")
_SERVER_COMMANDS = ("serve", "users", "audit", "acp", "mcp")


def _declaration_of(name: str) -> str:
    module = "server_arguments" if name in _SERVER_COMMANDS else "arguments"
    module = "analysis_arguments" if name in _ANALYSIS_COMMANDS else module
    return f"outrider.cli.{module}:declare_{name.replace('-', '_')}"


_DECLARED_TOGETHER = tuple(
    CommandSpec(name, summary, _declaration_of(name))
    for name, summary in (
        ("run", "run one prompt without the terminal application and print the answer"),
        ("sessions", "list, show, search, fork, export, share and delete sessions"),
        ("undo", "revert the file changes of the last turn"),
        ("redo", "apply the file changes again that undo reverted"),
        ("what-if", "rerun a session from one of its steps with another model, agent or result"),
        ("trace", "show every step of a session, as a tree or an HTML page"),
        ("context", "show what fills the context, by source, and why the prompt cache missed"),
        ("stats", "show cost and tokens by day, model, agent and tool"),
        ("eval", "evaluate agents, models and prompts with suites of cases, and compare runs"),
        ("login", "store an API key, after a check with the vendor"),
        ("logout", "delete stored API keys"),
        ("models", "list available models with limits and prices; download local models"),
        ("config", "show the settings and where each value comes from"),
        ("permissions", "show, explain and test permission rules; revoke stored approvals"),
        ("trust", "allow a folder's own configuration to take effect"),
        ("distrust", "stop trusting a folder"),
        ("doctor", "check keys, sandbox, store and terminal, and suggest fixes"),
        ("backup", "write sessions, background runs, outputs and undo data to one archive"),
        ("restore", "replace the stored data with those of an archive"),
        ("serve", "serve the engine and a web page over HTTP, on this machine by default"),
        ("users", "manage the users of your server, their tokens and limits"),
        ("audit", "show who did what on your server"),
        ("acp", "run as an Agent Client Protocol agent for an editor, on stdio"),
        ("mcp", "manage MCP servers; run as an MCP server for other agents"),
        ("jobs", "submit and manage background runs, which continue after the terminal closes"),
        ("worker", "execute submitted background runs, on one or several machines"),
        ("completion", "print a completion script for bash, zsh or fish"),
    )
)
COMMANDS = (
    *_DECLARED_TOGETHER,
    CommandSpec(
        "replay",
        "run a recorded session again, offline, and show what differs",
        "outrider.cli.commands.what_if:declare_replay",
    ),
    CommandSpec(
        "compare", "compare two sessions: answer, steps, calls, cost", "outrider.cli.commands.what_if:declare_compare"
    ),
    CommandSpec(
        "simulate",
        "serve scripted answers as Anthropic, OpenAI and Gemini do, with their errors and faults",
        "outrider.cli.commands.simulate:declare_simulate",
    ),
)


def find_command(name: str) -> CommandSpec | None:
    """Returns the command with this name, or None."""
    return next((command for command in COMMANDS if command.name == name), None)


SUBCOMMANDS_TITLE = "subcommands (default: list)"


class CommandHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter that keeps the line breaks of descriptions and examples."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, max_help_position=28, width=_help_width(), **options)


class CommandParser(argparse.ArgumentParser):
    """A parser without abbreviated flags: an abbreviation could change its meaning when a new flag is added. With the
    default `takes_command`, the words after `--` are the argument `command`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=CommandHelpFormatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Rejects unknown arguments. The parent parser cannot do this: it does not know the flags of this parser, of
        which the closest one is suggested."""
        words, command = list(sys.argv[1:] if args is None else args), list[str]()
        takes_command = bool(self.get_default("takes_command"))
        if takes_command and "--" in words:  # argparse accepts no option between arguments and a list of words
            position = words.index("--")
            words, command = words[:position], words[position + 1 :]
        parsed, unknown = super().parse_known_args(words, namespace)
        unknown_text = " ".join(_hide_tokens(unknown, words))
        if takes_command:
            if unknown and not command:
                self.error(f"unrecognized arguments: {unknown_text}; write a command and its options after --")
            parsed.command = [*parsed.command, *command]
        if unknown:
            from outrider.config.file import suggest_name

            hint = suggest_name(unknown[0].split("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {unknown_text}{hint}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(exit_codes.USAGE_ERROR, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


def _hide_tokens(unknown: Sequence[str], words: Sequence[str]) -> list[str]:
    """Returns the unknown arguments without the values of `--token`: messages end up in logs."""
    values = {value for option, value in pairwise(words) if option == "--token"}
    return [
        "--token=…" if word.startswith("--token=") else "…" if word in values and word != "--token" else word
        for word in unknown
    ]


def _help_width() -> int:
    """Returns the width of help texts. argparse would import `shutil` for this, which slows down start-up."""
    try:
        columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size().columns
    except (OSError, ValueError):
        columns = 80
    return max(columns - 2, 20)


def format_examples(*lines: str) -> str:
    return "Examples:\n" + "\n".join(f"  {line}" for line in lines)


def build_parser(command: CommandSpec) -> CommandParser:
    """Builds the parser of one command, subcommands included."""
    parser = CommandParser(prog=f"outrider {command.name}")
    import_object(command.declare)(parser)
    return parser


def parse_arguments(command: CommandSpec, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of a command. Without a subcommand, inserts the command's default one (`list`, which changes
    nothing). If the command names its subcommands, any other first word is an argument of the default one."""
    parser = build_parser(command)
    default, names = parser.get_default("default_subcommand"), parser.get_default("subcommand_names")
    first = arguments[0] if arguments else ""
    is_other = first not in names if names and first else not first or first.startswith("-")
    if default and is_other and first not in ("-h", "--help"):
        arguments = [default, *arguments]
    return parser.parse_args(arguments)


def import_object(path: str) -> Callable[..., Any]:
    """Imports and returns the object that `module:name` refers to."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def load_entry_point(path: str) -> Callable[..., Any]:
    """Imports the function that runs a command, then enables garbage collection, which `main` disabled.

    Imported objects live until exit: `gc.freeze` excludes them from every later collection.
    """
    work = import_object(path)
    gc.freeze()
    gc.enable()
    return work


def add_cwd_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="FOLDER", type=parse_folder, help="use this folder instead of the current one")


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a conversation: folder, session, agent, model, permissions and limits."""
    add_cwd_option(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-s", "--session", metavar="ID", help="continue this session (the end of its id is enough)")
    which.add_argument(
        "-c", "--continue", dest="resume", action="store_true", help="continue the last session of this folder"
    )
    add_agent_options(parser)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that connect to a running server instead of opening an engine in this process."""
    server = parser.add_argument_group("remote server")
    server.add_argument("--attach", metavar="URL", help="use the sessions of a server started with `outrider serve`")
    server.add_argument(
        "--token",
        metavar="TOKEN",
        help="the server's token (default: OUTRIDER_SERVER_TOKEN, else the token file of a server on this machine)",
    )


def add_archive_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose whose sessions a command reads: those of a server, of a database, or of the user."""
    text = "the sessions in a Postgres database, such as those of background runs; @FILE reads its postgresql://… URL"
    parser.add_argument("--database", metavar="URL", type=parse_database_url, help=text)
    add_server_options(parser)


def add_health_options(parser: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]  it has no public name
    """Adds --health and --log-format, with defaults from the environment."""
    from outrider.config.environment import read_option_defaults  # lazy: most commands need no defaults

    defaults = read_option_defaults()
    parser.add_argument(
        "--health",
        type=parse_address,
        metavar="HOST:PORT",
        default=defaults.health or None,
        help="serve /livez, /readyz and /metrics there, without a token (OUTRIDER_HEALTH; default: no port)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default=defaults.log_format or "text",
        help="format of log lines on stderr (OUTRIDER_LOG_FORMAT; default: text)",
    )


def add_database_option(parser: argparse.ArgumentParser) -> None:
    from outrider.config.environment import read_option_defaults  # lazy: most commands need no defaults

    text = "postgresql://… shared by several machines; @FILE reads it (OUTRIDER_DATABASE_URL; default: a local file)"
    default = read_option_defaults().database_url or None
    parser.add_argument("--database", metavar="URL", type=parse_database_url, default=default, help=text)


def add_agent_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for model, mode, agent, permission rules and limits."""
    parser.add_argument(
        "-m", "--model", metavar="PROVIDER/MODEL", help="the model to use, e.g. anthropic/claude-sonnet-4-5"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="; ".join(f"{mode}: {text}" for mode, text in MODE_DESCRIPTIONS.items()),
    )
    parser.add_argument(
        "--approval",
        choices=tuple(APPROVAL_DESCRIPTIONS),
        help="what agent mode asks about: "
        + "; ".join(f"{level}: {text}" for level, text in APPROVAL_DESCRIPTIONS.items()),
    )
    parser.add_argument(
        "--effort",
        metavar="LEVEL",
        choices=REASONING_EFFORTS,
        help=f"how much the model reasons: {', '.join(REASONING_EFFORTS)} (default: medium)",
    )
    parser.add_argument(
        "--no-sandbox",
        action="store_true",
        help="run commands without a sandbox, because this machine is one (a container); "
        "agent mode then asks about every command that no rule allows",
    )
    parser.add_argument("--agent", metavar="NAME", help="the configured agent to start with")
    rules = parser.add_argument_group("permissions")
    for effect, meaning in (
        ("allow", "run matching calls without asking"),
        ("ask", "ask before matching calls"),
        ("deny", "never run matching calls"),
    ):
        rules.add_argument(
            f"--{effect}",
            metavar="RULE",
            action="append",
            default=[],
            help=f"{meaning}, e.g. 'shell(git status *)'; may be repeated",
        )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-turns", metavar="N", type=parse_positive_int, help="stop after N model responses")
    limits.add_argument("--max-cost", metavar="DOLLARS", type=parse_cost, help="stop when this cost is reached")
    limits.add_argument(
        "--max-time", metavar="SECONDS", type=parse_duration, help="stop after this time: seconds, or 90s, 15m, 2h"
    )
    limits.add_argument(
        "--retry-attempts", metavar="N", type=parse_positive_int, help="send a failed request at most N times; 1: once"
    )
    limits.add_argument(
        "--retry-seconds", metavar="SECONDS", type=parse_duration, help="repeat failed requests for at most this time"
    )


def parse_folder(text: str) -> "Path":
    """Returns the absolute path of an existing folder argument."""
    from pathlib import Path

    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return path


class DatabaseUrl(str):
    """A Postgres URL. `file` is the absolute path of the file that it was read from, if there is one."""

    file: str = ""


def parse_database_url(text: str) -> DatabaseUrl:
    """Returns a Postgres URL argument. `@FILE` reads it from a file, so that process lists do not show its password;
    for the same reason, the error does not repeat it."""
    from pathlib import Path

    file = str(Path(text[1:]).expanduser().absolute()) if text.startswith("@") else ""
    try:
        url = Path(file).read_text(encoding="utf-8").strip() if file else text
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"the database URL in {file} cannot be read: {error}") from None
    if url.startswith("postgres://"):
        url = url.replace("postgres://", "postgresql://", 1)
    if not url.startswith("postgresql://"):
        source = f"the content of {file}" if file else "the value of --database or OUTRIDER_DATABASE_URL"
        raise argparse.ArgumentTypeError(
            f"{source} is not a postgresql://… URL; without one, a file in your data folder is used"
        )
    database_url = DatabaseUrl(url)
    database_url.file = file
    return database_url


def parse_address(text: str) -> tuple[str, int]:
    """Returns the host and port of an argument such as 127.0.0.1:9464 or [::1]:9464; port 0 selects any free port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def parse_positive_int(text: str) -> int:
    """Returns an integer argument of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parse_port(text: str) -> int:
    """Returns a port argument; 0 selects any free port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; pass a number up to 65535, or 0 for any free port")
    return int(text)


def parse_cost(text: str) -> "Decimal":
    """Returns an amount of dollars as a Decimal value; a leading `$` is accepted."""
    from decimal import Decimal, InvalidOperation

    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive amount of dollars")
    return amount


def parse_duration(text: str) -> float:
    """Returns a duration argument (`90`, `90s`, `15m`, `2h`) in seconds."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        seconds = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; pass 90, 90s, 15m or 2h")
    return seconds


def parse_prompt(text: str) -> str:
    """Returns the prompt argument. Raises ArgumentTypeError if it is blank."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the prompt is empty")
    return text


def parse_web_url(text: str) -> str:
    """Returns an http or https URL argument. Raises ArgumentTypeError for any other string."""
    from urllib.parse import urlsplit

    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http:// or https:// URL")
    return text
