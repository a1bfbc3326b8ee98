"""Stores which workspaces the user trusts and which executable files in them are approved.

Workspaces are identified by real path, files by content hash.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct


class TrustedWorkspace(Struct, frozen=True):
    """A trusted workspace: time of the decision in milliseconds, and approved files (relative path to SHA-256)."""

    since: int
    items: dict[str, str] = {}


class TrustList:
    """The trust file in the user's configuration directory. It lies outside every workspace, so no agent can edit
    it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def is_trusted(self, workspace: str | os.PathLike[str]) -> bool:
        return _workspace_key(workspace) in self._read()

    def is_approved(self, workspace: str | os.PathLike[str], item: str, content: bytes) -> bool:
        """Returns whether the item was approved with exactly this content."""
        found = self._read().get(_workspace_key(workspace))
        return found is not None and found.items.get(item) == content_hash(content)

    def approved_hashes(self, workspace: str | os.PathLike[str]) -> frozenset[str]:
        found = self._read().get(_workspace_key(workspace))
        return frozenset() if found is None else frozenset(found.items.values())

    def trust(self, workspace: str | os.PathLike[str], *, time: int) -> None:
        with self._exclusive_lock():
            workspaces = self._read()
            workspaces.setdefault(_workspace_key(workspace), TrustedWorkspace(time))
            self._write(workspaces)

    def approve(self, workspace: str | os.PathLike[str], item: str, content: bytes) -> None:
        """Approves the content of one item. Raises ValueError if the workspace is not trusted."""
        with self._exclusive_lock():
            workspaces, key = self._read(), _workspace_key(workspace)
            if key not in workspaces:
                raise ValueError(f"{key} is not a trusted workspace; trust it before approving files in it")
            workspaces[key] = TrustedWorkspace(
                workspaces[key].since, {**workspaces[key].items, item: content_hash(content)}
            )
            self._write(workspaces)

    def revoke(self, workspace: str | os.PathLike[str]) -> None:
        with self._exclusive_lock():
            workspaces = self._read()
            if workspaces.pop(_workspace_key(workspace), None) is not None:
                self._write(workspaces)

    def load(self) -> dict[str, TrustedWorkspace]:
        return self._read()

    @contextmanager
    def _exclusive_lock(self) -> Generator[None]:
        """Holds a lock file for a read-modify-write cycle, because several processes may change the list at once."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(f"{self._file}.lock", flags, 0o600), "rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, TrustedWorkspace]:
        """Reads the file; one that is missing, corrupt, foreign-owned or writable by other users is treated as
        empty."""
        try:
            found = self._file.lstat()
            if found.st_mode & 0o022 or found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                return {}
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, TrustedWorkspace])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self, workspaces: dict[str, TrustedWorkspace]) -> None:
        # Write a temporary file, fsync and rename: a crash leaves either the old or the new list.
        temporary = self._file.with_name(f".{self._file.name}.{os.urandom(8).hex()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(workspaces, order="sorted")))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _workspace_key(workspace: str | os.PathLike[str]) -> str:
    """Returns the real path, so that a symlink to a trusted folder is trusted too."""
    return os.path.realpath(workspace)
