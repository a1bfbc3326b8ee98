"""The files that tools may touch; where a path leads is decided when it is opened, and refusals are said in words."""

import errno
import os
import re
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.contain import Containment, contain
from outrider.tools.files.folders import FILE, open_folder

Granted = Callable[[Containment, str], bool]
"""Whether a place outside the workspace, or a protected one, may be used for an operation after all."""

LARGEST = 32 * 1024 * 1024  # bytes of a file that is read whole, and so can be changed
_READING = frozenset({"read", "list", "search"})
_CONTROL = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_WORDS = {
    errno.EACCES: "the system does not allow it",
    errno.EPERM: "the system does not allow it",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "a file stands where a folder is expected",
    errno.ELOOP: "a link was put in its way meanwhile",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENXIO: "it is not a regular file",
}


class Place(msgspec.Struct, frozen=True):
    """Where a path led when it was looked at: `real` lies below `home` and is opened from there, through no link."""

    real: str
    home: str
    shown: str

    @property
    def parts(self) -> list[str]:
        return [part for part in self.real[len(self.home) :].split("/") if part]


class Files:
    """`readable` names folders beside the workspace that may be read: kept outputs, skills."""

    def __init__(
        self, root: str | Path, *, readable: Sequence[str | Path] = (), granted: Granted = lambda _, __: False
    ) -> None:
        self.root = os.path.realpath(root)
        self._readable = [os.path.realpath(folder) for folder in readable]
        self._granted = granted

    def locate(self, path: str, op: str) -> Place:
        """Where the path leads for `op` (see `contain`); what may not be used raises ToolFailure."""
        shown = printable(path)
        self._require_workspace()
        extra = [folder for folder in self._readable if op in _READING and os.path.isdir(folder)]  # noqa: PTH112
        found = contain(path, root=self.root, cwd=self.root, op=op, extra_roots=extra)
        if found.real_path is None:
            raise ToolFailure(f"{shown}: {found.reason}{_hint(found.reason, op)}")
        if not found.ok and not self._granted(found, op):
            raise ToolFailure(f"{shown}: {found.reason}, and may not be used without approval")
        home = next((root for root in [self.root, *extra] if _below(found.real_path, root)), "/")
        return Place(found.real_path, home, self._name(found.real_path))

    @contextmanager
    def open(self, place: Place) -> Generator[BinaryIO]:
        """A regular file, opened to be read without ever waiting for it."""
        with telling(place.shown, near=place.real), open_folder(place.home, place.parts[:-1]) as folder:
            if not place.parts:
                raise IsADirectoryError(errno.EISDIR, "")
            descriptor = os.open(place.parts[-1], FILE, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolFailure(f"{place.shown}: it is not a regular file")
            with telling(place.shown):
                yield file

    @contextmanager
    def folder(self, place: Place) -> Generator[int]:
        with telling(place.shown, near=place.real), open_folder(place.home, place.parts) as folder:
            yield folder

    def _require_workspace(self) -> None:
        """A workspace that was deleted, or replaced by a link to somewhere else, is not followed."""
        if not os.path.isdir(self.root):  # noqa: PTH112
            raise ToolFailure(f"the workspace {self.root} does not exist any more")
        if os.path.realpath(self.root) != self.root:
            raise ToolFailure(f"the workspace {self.root} was replaced by a link; nothing in it is used")

    def _name(self, real: str) -> str:
        inside = _below(real, self.root)
        return printable(os.path.relpath(real, self.root) if inside else real)


def printable(path: object, limit: int = 300) -> str:
    """A path for a message: on one line, and no longer than is useful."""
    text = re.sub(_CONTROL, lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), str(path))
    return (text if len(text) <= limit else f"{text[:limit]}…") or "(empty path)"


@contextmanager
def telling(shown: str, near: str = "") -> Generator[None]:
    """What the system refuses is a failure that the model can read."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailure(f"{shown} does not exist{_similar(near)}") from error
    except OSError as error:
        words = _WORDS.get(error.errno or 0) or error.strerror or str(error)
        raise ToolFailure(f"{shown}: {words}", errno=error.errno) from error


def _similar(path: str) -> str:
    """Names beside a missing one that may have been meant."""
    folder, _, name = path.rpartition("/")
    try:
        names = [entry.name for entry in islice(os.scandir(folder or "/"), 5000)] if name else []
    except OSError:
        return ""
    near = get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(map(printable, near))}?" if near else ""


def _hint(reason: str, op: str) -> str:
    return "; list shows what is in it" if "folder" in reason and op == "read" else ""


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
