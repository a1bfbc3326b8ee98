"""What the settings are, where they come from, and a file to begin with."""

import os
from argparse import Namespace
from pathlib import Path

from outrider.cli import registry as exits
from outrider.cli.output import Console, table
from outrider.cli.setup import folders
from outrider.config.settings import read_settings
from outrider.engine.diagnostics import origins
from outrider.errors import ConfigurationError

BEGIN = """\
# Settings of Outrider. Every line that begins with # shows a default or an example.

# model = "anthropic/claude-sonnet-4-6"   # PROVIDER/MODEL; `outrider models` lists them
# mode = "agent"                          # chat, plan, agent or background

# [limits]                                # of one turn and all agents in it
# turns = 100
# cost = 5.0                              # dollars
# seconds = 3600

# [rules]                                 # deny wins over ask, ask over allow
# allow = ["shell(make test)", "write(/docs/**)"]
# ask = ["web_fetch"]
# deny = ["shell(git push *)"]

# A server of your own that speaks OpenAI's API. Keys stay in the environment: name the variable.
# [providers.home]
# kind = "openai"
# base_url = "http://127.0.0.1:8080/v1"
# api_key_env = "HOME_SERVER_KEY"
# model = "qwen3"

# Another agent, to begin with (--agent reviewer) or to be asked by others.
# [agents.reviewer]
# role = "reads changes and finds mistakes"
# instructions = "Review changes. Be brief."
# mode = "plan"
"""


def execute(arguments: Namespace) -> int:
    path = folders().config_file
    match arguments.what:
        case "path":
            Console().print(str(path))
        case "init":
            _write(path)
        case _:
            _show(arguments)
    return exits.DONE


def _write(path: Path) -> None:
    """Never over a file that is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("x", encoding="utf-8") as file:
            file.write(BEGIN)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} is there already; it was left as it is") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    Console().say(f"written: {path}")


def _show(arguments: Namespace) -> None:
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    rows = [(one.name, one.value, one.source) for one in origins(settings, os.environ)]
    for line in table(("setting", "value", "from"), rows, console.width):
        console.print(line)
    for text in (*settings.notices, settings.missing):
        if text:
            console.say(text, "yellow")
