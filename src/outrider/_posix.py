"""Modules and constants that Windows does not have. Importing them works on every system; using them on Windows raises
a clear error.

Functions for POSIX paths as strings are here too, because permissions and processes do not import each other.
"""

import errno
import importlib
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    import fcntl
    import resource
    import termios

    O_CLOEXEC = os.O_CLOEXEC
    O_DIRECTORY = os.O_DIRECTORY
    O_NOFOLLOW = os.O_NOFOLLOW
    O_NONBLOCK = os.O_NONBLOCK
    O_NOCTTY = os.O_NOCTTY
    SIGKILL = signal.SIGKILL
else:
    O_CLOEXEC = getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
    O_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
    O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
    O_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
    O_NOCTTY = getattr(os, "O_NOCTTY", 0)
    SIGKILL = getattr(signal, "SIGKILL", 9)

    class _MissingModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            raise ConfigurationError(
                f"this needs {self._name}.{attribute}, which {sys.platform} does not have; use Linux, macOS or WSL"
            )

    def _find_module(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ImportError:
            return _MissingModule(name)

    def __getattr__(name: str) -> Any:
        if name not in ("fcntl", "resource", "termios"):
            raise AttributeError(name)
        module = globals()[name] = _find_module(name)
        return module


def require_posix(feature: str) -> None:
    """Raises ConfigurationError on Windows. `feature` is what needs the functions of a POSIX system."""
    if not hasattr(os, "geteuid"):
        raise ConfigurationError(
            f"{feature} needs functions that {sys.platform} does not have; use Linux, macOS or WSL"
        )


def check_place(descriptor: int, path: str) -> None:
    """Raises OSError if the open folder is not the folder at this path without links. Commands can replace a parent
    folder with a link after the path was checked. Without /proc there is no check."""
    try:
        real_path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return
    if real_path != path:
        raise OSError(errno.ELOOP, "a part of its path was replaced by a link", path)


FOLDER_FLAGS = os.O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW


@contextmanager
def open_folder(root: str, folders: Sequence[str], created: list[str] | None = None) -> Generator[int]:
    """Opens a folder below the resolved path `root`, one component after the other, without following links. If
    `created` is a list, creates missing folders and appends their paths to it."""
    folder = os.open(root, FOLDER_FLAGS)
    try:
        check_place(folder, root)
        for depth, name in enumerate(folders, 1):
            if created is not None and _make_folder(name, folder):
                created.append("/".join([root, *folders[:depth]]))
            child = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = child
        yield folder
    finally:
        os.close(folder)


def _make_folder(name: str, folder: int) -> bool:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def nearest_folder(root: str, folders: list[str]) -> list[str]:
    """Returns the longest beginning of `folders` that exists below the resolved path `root` and contains no link."""
    for depth in range(len(folders), 0, -1):
        with suppress(OSError), open_folder(root, folders[:depth]):
            return folders[:depth]
    return []


def parent_of(path: str) -> str:
    """Returns the parent folder of an absolute path string."""
    return path.rpartition("/")[0] or "/"


def is_within(path: str, folder: str) -> bool:
    """Returns whether a path is the folder itself or inside it. Both are strings of resolved paths."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


__all__ = [
    "FOLDER_FLAGS",
    "O_CLOEXEC",
    "O_DIRECTORY",
    "O_NOCTTY",
    "O_NOFOLLOW",
    "O_NONBLOCK",
    "SIGKILL",
    "check_place",
    "fcntl",
    "is_within",
    "nearest_folder",
    "open_folder",
    "parent_of",
    "require_posix",
    "resource",
    "termios",
]
