"""Landlock: the kernel's list of what a process may open, as a second lock or, without bubblewrap, the only one."""

import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError
from outrider.processes.launch import Launch
from outrider.processes.sandbox.order import Locks, outer_environment, runtime, warden_argv
from outrider.processes.sandbox.policy import Access, Hosts, Policy
from outrider.processes.sandbox.seccomp import filter_for, machine
from outrider.processes.sandbox.zones import Zones, access_above, is_within, zones_of

NEEDED = 6  # from here on it also keeps signals and abstract sockets inside
Grants = list[tuple[bytes, int]]

_CREATE_RULESET = 444
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE, _MAKE_FOLDER, _MAKE_FILE, _MAKE_SOCKET, _MAKE_FIFO, _MAKE_LINK = (
    3 << 4,
    1 << 7,
    1 << 8,
    1 << 9,
    1 << 10,
    1 << 12,
)
_MOVE, _TRUNCATE, _DEVICE_CALLS = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_TCP, _SCOPES = 0b11, 0b11

READING = _EXECUTE | _READ | _LIST
WRITING = (
    READING | _WRITE | _REMOVE | _MAKE_FOLDER | _MAKE_FILE | _MAKE_SOCKET | _MAKE_FIFO | _MAKE_LINK | _MOVE | _TRUNCATE
)
DEVICES = _READ | _WRITE | _LIST | _DEVICE_CALLS | _TRUNCATE
_PLAIN_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
)
_NEVER_SHOWN: Zones = dict.fromkeys(("/dev", "/run", "/tmp", "/var/tmp"), "hidden")


@cache
def version() -> int:
    """0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def ruleset(grants: Grants, *, network: bool = True) -> tuple[tuple[int, int, int], int, Grants] | None:
    """In the words of this kernel's version, as the warden takes it; `network` False refuses TCP as well."""
    known = version()
    if known == 0:
        return None
    files = (1 << _FILE_RIGHTS_BY_VERSION.get(known, 16)) - 1
    tcp = _TCP if known >= 4 and not network else 0
    scopes = _SCOPES if known >= NEEDED else 0
    return (files, tcp, scopes), 8 if known < 4 else 16 if known < NEEDED else 24, grants


class Landlock(msgspec.Struct, frozen=True):
    """The fallback: without namespaces, /tmp and /run are those of all; they are refused, and `temporary` stands in."""

    temporary: Path
    name: str = "landlock"
    confines: bool = True
    gaps: tuple[str, ...] = (
        "hidden and protected files inside a folder that is writable can be read and changed",
        "commands see the names of other processes",
        "no sockets at all unless the network is on, and then also those of local programs",
    )

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        architecture = machine()
        if isinstance(policy.network, Hosts) or architecture is None:
            raise ConfigurationError("only bubblewrap can let single hosts through; allow the network or go without")
        scratch = str((policy.temporary or self.temporary).resolve())
        zones: Zones = {**_NEVER_SHOWN, **zones_of(policy, runtime()), scratch: "writable"}
        grants = [(os.fsencode(path), _RIGHTS[access]) for path, access in granted("/", "read-only", zones)]
        grants += [(os.fsencode(path), DEVICES) for path in _PLAIN_DEVICES]
        online = policy.network == "on"
        locks = Locks(
            seccomp=filter_for(architecture, namespaces=False, sockets=online),
            landlock=ruleset(grants, network=online),
            drop_capabilities=True,
            count_processes=False,
        )
        environment = outer_environment(launch.environment) | {"TMPDIR": scratch}
        argv = warden_argv(launch, policy.bounds, locks, str(policy.workspace))
        return Launch(argv, environment, launch.workdir, launch.limits)


_RIGHTS: dict[Access, int] = {"read-only": READING, "writable": WRITING, "hidden": 0}


def granted(folder: str, access: Access, zones: Zones) -> Iterator[tuple[str, Access]]:
    """Rights only grow on the way down, so a folder with a stricter place in it is granted entry by entry."""
    below = [path for path in zones if path != folder and is_within(path, folder)]
    if access == "hidden":
        heads = [path for path in below if access_above(path, zones) in ("hidden", None)]
        for path in heads:
            yield from granted(path, zones[path], zones)
    elif access == "writable" or not any(zones[path] == "hidden" for path in below):
        yield folder, access
        for path in below:
            if zones[path] == "writable":
                yield path, "writable"
    else:
        for entry in _entries(folder):
            yield from granted(entry, zones.get(entry, access), zones)


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return [entry.path for entry in found if not entry.is_symlink()]
    except OSError:
        return []
