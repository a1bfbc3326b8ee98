"""`outrider --attach`: the terminal application over the sessions of a server."""

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from outrider.app.config.settings import Settings
from outrider.app.remote.bridge import RemoteBridge
from outrider.app.remote.connect import attached
from outrider.app.remote.place import Place, place_of
from outrider.cli.main import version
from outrider.cli.run.attach import check
from outrider.cli.settings import settings_of

_NOTICE = "Attached to {url}: sessions, files and commands are those of its machine, and its configuration counts."


def open_screen(arguments: Namespace, run_tui: Callable[..., int]) -> int:
    """What is wrong with the server is said before the screen changes."""
    check(arguments)
    place = place_of(arguments.attach, token=arguments.token, environ=os.environ)
    asyncio.run(_look(place))

    @asynccontextmanager
    async def attach(settings: Settings) -> AsyncGenerator[RemoteBridge, None]:
        async with attached(place, version(), patience=None) as engine:
            yield RemoteBridge(engine, settings, arguments.cwd)

    def settings() -> Settings:
        """Of this machine only what the screen needs: its folders, and where files that go along are."""
        notices = (_NOTICE.format(url=place.url),)
        return msgspec.structs.replace(settings_of(arguments), missing="", providers=(), notices=notices)

    chosen = {"session": arguments.session or "", "resume": arguments.resume}
    return run_tui(settings, **chosen, attach=attach, place=place.url)


async def _look(place: Place) -> None:
    async with attached(place, version()):
        pass
