"""From the options of a command line to settings."""

import asyncio
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from outrider.config.paths import Folders, find_folders
from outrider.config.settings import Flags, Settings, read_settings
from outrider.types.agents import Provider

if TYPE_CHECKING:
    from outrider.engine.archive import Archive


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


T = TypeVar("T")


def folders() -> Folders:
    return find_folders(os.environ)


def with_archive(work: "Callable[[Archive], Awaitable[T]]", *, make: bool = False) -> T:
    """The value of work on the archive of this user."""
    from outrider.engine.archive import open_archive

    async def whole() -> T:
        async with open_archive(folders().store, make=make) as archive:
            return await work(archive)

    return asyncio.run(whole())


_NOBODY = Provider("nobody", "scripted", options={"script": []})


def modelless(settings: Settings) -> Settings:
    agents = tuple(msgspec.structs.replace(agent, provider=_NOBODY.name, model="nobody") for agent in settings.agents)
    return msgspec.structs.replace(settings, agents=agents, providers=(_NOBODY,), missing="")
