"""Shared setup of commands: settings from command line options, the user's folders, and the session archive."""

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from outrider.config.paths import AppFolders, find_app_folders

# The settings are imported by the functions that read them: commands that only open the archive do not need them.
if TYPE_CHECKING:
    from outrider.config.settings import Settings
    from outrider.engine.archive import SessionArchive
    from outrider.remote.engine import RemoteEngine


def settings_from_arguments(arguments: Namespace, folder: Path | None = None) -> "Settings":
    """Returns the settings for `folder`, else for `--cwd` or the current folder, with the command line flags
    applied."""
    from outrider.config.settings import CommandFlags, read_settings

    flags = CommandFlags(
        model=arguments.model,
        mode=arguments.mode,
        approval=arguments.approval,
        effort=arguments.effort,
        no_sandbox=arguments.no_sandbox,
        agent=arguments.agent,
        allow=tuple(arguments.allow),
        ask=tuple(arguments.ask),
        deny=tuple(arguments.deny),
        max_turns=arguments.max_turns,
        retry_attempts=arguments.retry_attempts,
        retry_seconds=arguments.retry_seconds,
        max_cost=arguments.max_cost,
        max_seconds=arguments.max_time,
    )
    return read_settings(cwd=folder or arguments.cwd or Path.cwd(), environ=os.environ, flags=flags)


T = TypeVar("T")


def user_folders() -> AppFolders:
    """Returns the folders of the current user, from the environment."""
    return find_app_folders(os.environ)


def run_with_archive(
    work: "Callable[[SessionArchive], Awaitable[T]]", arguments: Namespace | None = None, *, create: bool = False
) -> T:
    """Opens the sessions of the user, of `--attach` or of `--database`, awaits `work` on them, and returns the result.
    `create` creates a missing store."""
    if arguments is not None and arguments.attach and arguments.database:
        from outrider.errors import ConfigurationError

        raise ConfigurationError("--attach and --database name different sessions; pass one of them")

    async def open_and_run() -> T:
        if arguments is not None and arguments.attach:
            async with attached_engine(arguments) as engine:
                from outrider.remote.engine import RemoteArchive  # lazy: most commands open the store

                return await work(RemoteArchive(engine.client))
        from outrider.engine.archive import SessionArchive, open_archive

        if arguments is not None and arguments.database:
            from outrider.engine.factory import create_store  # lazy: most users have their sessions on this machine

            async with create_store(user_folders().store_file, arguments.database) as store:
                return await work(SessionArchive(store))
        async with open_archive(user_folders().store_file, create=create) as archive:
            return await work(archive)

    return asyncio.run(open_and_run())


@asynccontextmanager
async def attached_engine(arguments: Namespace) -> "AsyncGenerator[RemoteEngine, None]":
    """Connects to the server of `--attach`."""
    from outrider.remote.client import resolve_server  # lazy: most commands work on this machine
    from outrider.remote.engine import connect_engine

    address = resolve_server(arguments.attach, token=arguments.token, environ=os.environ)
    async with connect_engine(address, sys.modules["outrider"].__version__) as engine:
        yield engine


def without_models(settings: "Settings") -> "Settings":
    """Replaces all providers by a scripted one without responses, for commands that need an engine and no model."""
    from outrider.types.agents import Provider

    provider = Provider("none", "scripted", options={"script": []})
    agents = tuple(msgspec.structs.replace(agent, provider=provider.name, model="none") for agent in settings.agents)
    return msgspec.structs.replace(settings, agents=agents, providers=(provider,), missing="")
