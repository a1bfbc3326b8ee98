"""The contract of a sandbox: it turns a launch into one that the operating system confines."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from outrider.processes.launch import Launch

Access = Literal["writable", "read-only", "hidden"]
GIB = 1 << 30


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a command may use at most, with everything that it starts unless said otherwise. Sizes in bytes."""

    memory: int = 8 * GIB
    processes: int = 1024  # threads count as well
    file_size: int = 8 * GIB  # one file
    disk: int = 16 * GIB  # growth of the workspace's file system while the command runs
    temporary: int = 2 * GIB  # each of the folders that vanish with the command
    open_files: int = 4096  # one process
    cpu_seconds: int = 3600  # one process
    seconds: float = 24 * 3600


class Hosts(msgspec.Struct, frozen=True):
    """Only what the doorman lets through: it listens at `door`, a socket in the file system, and knows the names."""

    door: Path


Network = Literal["off", "on"] | Hosts


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Of two paths, the deeper one counts; of two words about one path, the stricter.

    What no path covers is readable; folders for temporary and run-time files are new, and the command's own.
    """

    workspace: Path
    writable: bool = False
    also_writable: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    temporary: Path | None = None  # shown as /tmp, and kept; without it /tmp is new for every command
    network: Network = "off"
    bounds: Bounds = Bounds()

    def places(self) -> Iterator[tuple[Path, Access]]:
        groups: tuple[tuple[Access, tuple[Path, ...]], ...] = (
            ("writable" if self.writable else "read-only", (self.workspace,)),
            ("writable", self.also_writable),
            ("read-only", self.read_only),
            ("hidden", self.hidden),
        )
        for access, paths in groups:
            for path in paths:
                yield path, access


class Sandbox(Protocol):
    """`gaps` says in plain words what this sandbox cannot hold back; `confines` is False for none at all."""

    @property
    def name(self) -> str: ...

    @property
    def confines(self) -> bool: ...

    @property
    def gaps(self) -> tuple[str, ...]: ...

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        """Raises ConfigurationError for a policy that this sandbox cannot keep."""
        ...


class NoSandbox(msgspec.Struct, frozen=True):
    """Modes in which nobody is asked must not run commands here."""

    reason: str
    remedy: str
    name: str = "none"
    confines: bool = False

    @property
    def gaps(self) -> tuple[str, ...]:
        return (f"nothing confines commands: {self.reason}. {self.remedy}",)

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        return launch


_STRICTNESS: dict[Access, int] = {"writable": 0, "read-only": 1, "hidden": 2}

Zones = dict[str, Access]


def zones_of(policy: Policy, shown: Iterable[str] = ()) -> Zones:
    """Only what exists and can be reached. `shown` is what the sandbox itself needs: never hidden, never writable."""
    zones: Zones = {}
    hidden = [real for path in policy.hidden if (real := real_path(path))]
    workspace = real_path(policy.workspace) or ""
    for path, access in policy.places():
        real = real_path(path)
        if not real or (access == "read-only" and _leads_to_secrets(real, workspace, hidden)):
            continue
        if _STRICTNESS[access] >= _STRICTNESS.get(zones.get(real, "writable"), 0):
            zones[real] = access
    for path in shown:
        zones[path] = "read-only"
    return dict(sorted(zones.items(), key=lambda zone: zone[0].count("/") if zone[0] != "/" else 0))


def _leads_to_secrets(real: str, workspace: str, hidden: Iterable[str]) -> bool:
    """A file of the workspace that is to be kept from changes may be a link, and must not bring into view what is
    hidden: the deeper one would count."""
    return not is_within(real, workspace) and any(is_within(real, secret) for secret in hidden)


def real_path(path: Path) -> str | None:
    """None for what does not exist, or lies where the user cannot go and so no command can."""
    if not os.access(path, os.F_OK):  # one call, where the walk below makes one for every folder on the way
        return None
    try:
        return os.path.realpath(path, strict=True)
    except OSError:
        return None


def access_above(path: str, zones: Zones) -> Access | None:
    """The access of the nearest zone that the path lies in, itself left out."""
    parent = path
    while parent != "/":
        parent = parent_of(parent)
        if parent in zones:
            return zones[parent]
    return None


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
