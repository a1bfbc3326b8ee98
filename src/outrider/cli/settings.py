"""From the options of a command line to settings."""

import os
from argparse import Namespace
from pathlib import Path

from outrider.app.config.settings import Flags, Settings, read_settings


def settings_of(arguments: Namespace, folder: Path | None = None) -> Settings:
    """For a folder that somebody names later, or for the one that the command line means."""
    flags = Flags(
        model=arguments.model,
        mode=arguments.mode,
        agent=arguments.agent,
        allow=tuple(arguments.allow),
        ask=tuple(arguments.ask),
        deny=tuple(arguments.deny),
        max_turns=arguments.max_turns,
        max_cost=arguments.max_cost,
        max_seconds=arguments.max_time,
    )
    return read_settings(cwd=folder or arguments.cwd or Path.cwd(), environ=os.environ, flags=flags)
