"""Folders opened name by name through no link, so that what was decided about a path holds when it is used."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


@contextmanager
def open_folder(home: str, parts: Sequence[str], made: list[str] | None = None) -> Generator[int]:
    """The folder below `home`. With a list `made`, missing folders are made and their paths added to it."""
    folder = os.open(home, FOLDER)
    try:
        for depth, part in enumerate(parts, 1):
            if made is not None and _make(part, folder):
                made.append("/".join([home, *parts[:depth]]))
            deeper = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def _make(name: str, folder: int) -> bool:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True
