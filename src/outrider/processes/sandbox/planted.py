"""Steering files that were not there before a command ran: a mount can protect only what exists."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from outrider.processes.sandbox.policy import Policy


def absent_places(policy: Policy) -> tuple[Path, ...]:
    """Asked before a command starts: places that it must not change and that do not exist."""
    if not policy.writable:
        return ()
    return tuple(path for path in policy.read_only if not os.path.lexists(path))


def remove_planted(absent: Iterable[Path], keep_in: Path) -> tuple[Path, ...]:
    """Asked after it ended: which of them exist now. They are moved away, not deleted, so that nothing is lost."""
    planted = [path for path in absent if os.path.lexists(path)]
    for path in planted:
        keep_in.mkdir(parents=True, exist_ok=True)
        _move(path, keep_in)
    return tuple(planted)


def _move(path: Path, keep_in: Path) -> None:
    try:
        path.rename(_free_name(keep_in, path.name))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # On another disk it would have to be copied, whatever its size; under another name nobody obeys it.
        path.rename(_free_name(path.parent, f"{path.name}.planted"))


def planted_words(planted: Iterable[Path], keep_in: Path) -> str:
    """What is said of them to whoever ran the command."""
    names = ", ".join(str(path) for path in planted)
    return f"not allowed here, and moved away (see {keep_in}): {names}" if names else ""


def _free_name(folder: Path, name: str) -> Path:
    count = 0
    while os.path.lexists(place := folder / (f"{name}.{count}" if count else name)):
        count += 1
    return place
