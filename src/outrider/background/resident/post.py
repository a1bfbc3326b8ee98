"""The post of the worker of a data directory: held by one process at a time, and free again when it ends, however."""

import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outrider.sessions.records import Owner
from outrider.sessions.sqlite.owners import is_alive, this_process


class Holding(Owner, frozen=True):
    """`mark` tells what its process was started with, without telling what that is."""

    mark: str = ""


class Post:
    """`terms` are what the process was started with, where others should know that they would start it otherwise."""

    def __init__(self, folder: Path, terms: Sequence[str] = ()) -> None:
        self._terms = terms
        self._file = folder / "worker.lock"
        self._held: int | None = None

    def take(self) -> bool:
        """Whether it is ours now: False if another process has it."""
        if self._held is not None:
            return True
        opened = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        os.ftruncate(opened, 0)
        me = this_process()
        holding = Holding(**msgspec.structs.asdict(me), mark=_mark(me, self._terms) if self._terms else "")
        os.write(opened, msgspec.json.encode(holding))
        self._held = opened
        return True

    def leave(self) -> None:
        if self._held is not None:
            os.ftruncate(self._held, 0)
            os.close(self._held)
            self._held = None

    def holder(self) -> Holding | None:
        """Who has it; None if nobody does. What a process that was killed wrote there counts for nothing."""
        try:
            owner = msgspec.json.decode(self._file.read_bytes(), type=Holding)
        except (OSError, msgspec.MsgspecError):
            return None
        return None if is_alive(owner) is False else owner


def differs(holding: Holding, terms: Sequence[str]) -> bool:
    """Whether the process was started with other terms; False where it did not say with which."""
    return bool(holding.mark) and holding.mark != _mark(holding, terms)


def _mark(owner: Owner, terms: Sequence[str]) -> str:
    """Another one for each process: what keys are the same where is nobody's business."""
    return hashlib.sha256("\0".join([owner.id, *terms]).encode()).hexdigest()
