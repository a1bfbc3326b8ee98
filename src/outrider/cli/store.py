"""How commands reach what is kept."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from outrider.app.config.folders import Folders, find_folders

if TYPE_CHECKING:
    from outrider.app.archive.archive import Archive

T = TypeVar("T")


def folders() -> Folders:
    return find_folders(os.environ)


def with_archive(work: "Callable[[Archive], Awaitable[T]]", *, make: bool = False) -> T:
    """The value of work on the archive of this user."""
    from outrider.app.archive.archive import open_archive

    async def whole() -> T:
        async with open_archive(folders().store, make=make) as archive:
            return await work(archive)

    return asyncio.run(whole())
