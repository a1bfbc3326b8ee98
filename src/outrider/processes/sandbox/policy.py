"""What a command may reach inside a sandbox, as a value that no sandbox can change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

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
