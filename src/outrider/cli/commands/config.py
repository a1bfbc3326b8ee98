"""`outrider config`: shows the settings and their sources, and creates a commented settings file."""

import os
from argparse import Namespace
from pathlib import Path

from outrider.cli import exit_codes
from outrider.cli.output import Console, format_table
from outrider.cli.setup import user_folders
from outrider.config.settings import read_settings
from outrider.engine.diagnostics import setting_origins
from outrider.errors import ConfigurationError

CONFIG_TEMPLATE = """\
# Outrider settings. Lines that start with # show a default or an example.

# model = "anthropic/claude-sonnet-4-6"   # PROVIDER/MODEL; `outrider models` lists them
# mode = "agent"                          # chat, plan, agent or background

# [limits]                                # per turn, all its agents included
# turns = 100
# cost = 5.0                              # dollars
# seconds = 3600

# [rules]                                 # deny takes precedence over ask, ask over allow
# allow = ["shell(make test)", "write(/docs/**)"]
# ask = ["web_fetch"]
# deny = ["shell(git push *)"]

# A custom server with an OpenAI-compatible API. Keys stay in the environment: name the variable.
# [providers.home]
# kind = "openai"
# base_url = "http://127.0.0.1:8080/v1"
# api_key_env = "HOME_SERVER_KEY"
# model = "qwen3"

# Another agent, to start with (--agent reviewer) or to be called by other agents.
# [agents.reviewer]
# role = "reads changes and finds mistakes"
# instructions = "Review changes. Be brief."
# mode = "plan"
"""


def run_config(arguments: Namespace) -> int:
    """Prints the settings or the path of the settings file, or creates the file."""
    path = user_folders().config_file
    match arguments.what:
        case "path":
            Console().print(str(path))
        case "init":
            _write_config_file(path)
        case _:
            _show_settings(arguments)
    return exit_codes.SUCCESS


def _write_config_file(path: Path) -> None:
    """Creates the settings file; never overwrites an existing one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("x", encoding="utf-8") as file:
            file.write(CONFIG_TEMPLATE)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} already exists; it was not changed") from error
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    Console().print_stderr(f"written: {path}")


def _show_settings(arguments: Namespace) -> None:
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    rows = [(origin.name, origin.value, origin.source) for origin in setting_origins(settings, os.environ)]
    for line in format_table(("setting", "value", "from"), rows, console.width):
        console.print(line)
    for text in (*settings.notices, settings.missing):
        if text:
            console.print_stderr(text, "yellow")
