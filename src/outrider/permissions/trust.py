"""Which workspaces the user trusts, and which executable items in them: kept by real path and by content."""

import fcntl
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct


class Trusted(Struct, frozen=True):
    """One workspace: when it was trusted, and the contents that were approved in it (path below it to hash)."""

    since: int
    items: dict[str, str] = {}


class TrustList:
    """Kept in one file of the user's own; nothing in a workspace can change it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def trusts(self, workspace: str | os.PathLike[str]) -> bool:
        return _key(workspace) in self._read()

    def approves(self, workspace: str | os.PathLike[str], item: str, content: bytes) -> bool:
        """Whether this item was approved with exactly this content."""
        found = self._read().get(_key(workspace))
        return found is not None and found.items.get(item) == content_hash(content)

    def approved_hashes(self, workspace: str | os.PathLike[str]) -> frozenset[str]:
        found = self._read().get(_key(workspace))
        return frozenset() if found is None else frozenset(found.items.values())

    def trust(self, workspace: str | os.PathLike[str], *, time: int) -> None:
        with self._alone():
            listed = self._read()
            listed.setdefault(_key(workspace), Trusted(time))
            self._write(listed)

    def approve(self, workspace: str | os.PathLike[str], item: str, content: bytes) -> None:
        """Only inside a trusted workspace: trust comes first."""
        with self._alone():
            listed, key = self._read(), _key(workspace)
            if key not in listed:
                raise ValueError(f"{key} is not trusted")
            listed[key] = Trusted(listed[key].since, {**listed[key].items, item: content_hash(content)})
            self._write(listed)

    def forget(self, workspace: str | os.PathLike[str]) -> None:
        with self._alone():
            listed = self._read()
            if listed.pop(_key(workspace), None) is not None:
                self._write(listed)

    def listed(self) -> dict[str, Trusted]:
        return self._read()

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Several programs may change the list at once; each sees what the one before it wrote."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(f"{self._file}.lock", flags, 0o600), "rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, Trusted]:
        """A file that is missing, damaged, or that others may write counts as empty: nothing is trusted."""
        try:
            found = self._file.lstat()
            if found.st_mode & 0o022 or found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                return {}
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Trusted])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self, listed: dict[str, Trusted]) -> None:
        temporary = self._file.with_name(f".{self._file.name}.{os.urandom(8).hex()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(listed, order="sorted")))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _key(workspace: str | os.PathLike[str]) -> str:
    """The real path: a link to a trusted folder is that folder, a folder moved in its place is another one."""
    return os.path.realpath(workspace)
