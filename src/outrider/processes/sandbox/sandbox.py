"""The sandbox contract: a policy, and a protocol that wraps a launch request so that the command is confined."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.overlay import OverlayFolders

Access = Literal["writable", "read-only", "hidden"]
GIB = 1 << 30
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)  # opens a path without rights to its content, on Linux


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a command and its descendants together, unless a comment says otherwise. Sizes in bytes."""

    memory: int = 8 * GIB
    processes: int = 1024  # including threads
    file_size: int = 8 * GIB  # per file
    disk: int = 16 * GIB  # growth of the workspace's file system while the command runs
    temporary: int = 2 * GIB  # per temporary folder
    open_files: int = 4096  # per process
    cpu_seconds: int = 3600  # per process
    seconds: float = 24 * 3600


class ProxyNetwork(msgspec.Struct, frozen=True):
    """Network access only through a filtering proxy, which listens on a Unix socket."""

    socket_path: Path


Network = Literal["off", "on"] | ProxyNetwork


class OverlayMount(msgspec.Struct, frozen=True, kw_only=True):
    """A folder outside the workspace with a copy-on-write view, or a read-only view with `layers` above it."""

    folder: Path
    overlay: OverlayFolders | None = None
    layers: tuple[Path, ...] = ()


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which paths a command can read and write, its network access and its limits.

    The entry for the deepest path applies; of two entries for the same path, the stricter one. All other paths are
    readable, except /tmp, /var/tmp and /run, which are new and empty for the command. With `overlay` the command sees
    a writable workspace, and what it writes there is stored in the overlay's upper folder instead. `layers` lie above
    a read-only workspace. `outside` are further folders with such a view, such as the git folder of a worktree.
    `caches` are folders of package managers, which can have one too.
    """

    workspace: Path
    writable: bool = False
    also_writable: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    temporary: Path | None = None  # mounted as /tmp and persistent; without it /tmp is new for every command
    network: Network = "off"
    limits: SandboxLimits = SandboxLimits()
    overlay: OverlayFolders | None = None
    layers: tuple[Path, ...] = ()
    outside: tuple[OverlayMount, ...] = ()
    caches: tuple[Path, ...] = ()

    def path_access(self) -> Iterator[tuple[Path, Access]]:
        """Yields each path of the policy with its access."""
        groups: tuple[tuple[Access, tuple[Path, ...]], ...] = (
            ("writable" if self.writable or self.overlay else "read-only", (self.workspace,)),
            ("writable", self.also_writable),
            ("writable", tuple(mount.folder for mount in self.outside if mount.overlay)),
            ("read-only", tuple(mount.folder for mount in self.outside if not mount.overlay)),
            ("read-only", self.read_only),
            ("hidden", self.hidden),
        )
        for access, paths in groups:
            for path in paths:
                yield path, access


class Sandbox(Protocol):
    """Confines commands with the means of the operating system.

    `gaps` describes what this sandbox cannot prevent; `confines` is False if there is no sandbox.
    """

    @property
    def name(self) -> str: ...

    @property
    def confines(self) -> bool: ...

    @property
    def gaps(self) -> tuple[str, ...]: ...

    @property
    def overlays(self) -> bool:
        """Whether a policy may have an overlay."""
        ...

    @property
    def protects_files(self) -> bool:
        """Whether protected files, such as git hooks, stay unchanged in a writable workspace."""
        ...

    @property
    def accepted(self) -> bool:
        """Whether the user has stated that no sandbox is needed."""
        ...

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request that starts the command confined.

        Raises ConfigurationError for a policy that this sandbox cannot enforce.
        """
        ...


class NoSandbox(msgspec.Struct, frozen=True):
    """Runs commands unconfined. Modes without approval prompts must not run commands with it, unless the user has
    `accepted` that: the machine itself is the sandbox then, for example a container."""

    reason: str
    remedy: str
    name: str = "none"
    confines: bool = False
    overlays: bool = False
    protects_files: bool = False
    accepted: bool = False

    @property
    def gaps(self) -> tuple[str, ...]:
        return (f"nothing confines commands: {self.reason}. {self.remedy}",)

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        return launch


_STRICTNESS: dict[Access, int] = {"writable": 0, "read-only": 1, "hidden": 2}

AccessZones = dict[str, Access]


def resolve_zones(policy: SandboxPolicy, runtime_paths: Iterable[str] = ()) -> AccessZones:
    """Resolves the existing paths of a policy to their access, parents first.

    `runtime_paths` are needed by the sandbox itself: they are never hidden and never writable.
    """
    zones: AccessZones = {}
    resolve = cache(real_path)
    hidden = [real for path in policy.hidden if (real := resolve(path))]
    workspace = resolve(policy.workspace) or ""
    for path, access in policy.path_access():
        real = resolve(path)
        if not real or (access == "read-only" and _exposes_hidden(real, workspace, hidden)):
            continue
        if _STRICTNESS[access] >= _STRICTNESS.get(zones.get(real, "writable"), 0):
            zones[real] = access
    for path in runtime_paths:
        zones[path] = "read-only"
    return dict(sorted(zones.items(), key=lambda zone: zone[0].count("/") if zone[0] != "/" else 0))


def _exposes_hidden(real: str, workspace: str, hidden: Iterable[str]) -> bool:
    """Returns whether a read-only entry is a link from the workspace into a hidden folder.

    Such an entry would make the hidden file readable, because the entry for the deeper path applies.
    """
    return not is_within(real, workspace) and any(is_within(real, secret) for secret in hidden)


def real_path(path: str | Path) -> str | None:
    """Resolves links; returns None if the path does not exist or the user cannot reach it."""
    if not os.access(path, os.F_OK):  # most paths of a policy do not exist
        return None
    try:
        return _ask_kernel_for_path(path) or os.path.realpath(path, strict=True)
    except OSError:
        return None


def _ask_kernel_for_path(path: str | Path) -> str | None:
    """Resolves a path with three system calls, where realpath makes one per folder. Returns None if /proc is missing or
    the file has just been deleted. Raises OSError if it cannot be opened."""
    descriptor = os.open(path, _PATH_ONLY | os.O_CLOEXEC)
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found if found.startswith("/") and not found.endswith(" (deleted)") else None


def access_above(path: str, zones: AccessZones) -> Access | None:
    """Returns the access of the nearest zone above the path, or None."""
    parent = path
    while parent != "/":
        parent = parent_of(parent)
        if parent in zones:
            return zones[parent]
    return None


def parent_of(path: str) -> str:
    """Returns the parent folder of an absolute path string."""
    return path.rpartition("/")[0] or "/"


def is_within(path: str, folder: str) -> bool:
    """Returns whether a path is the folder itself or inside it; both are resolved strings."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
