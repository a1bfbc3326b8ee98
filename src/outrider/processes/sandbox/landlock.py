"""Landlock: the kernel's list of what a process may open, as a second lock or, without bubblewrap, the only one."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError
from outrider.processes.launch import Launch
from outrider.processes.sandbox.init_args import (
    DEVICES,
    READING,
    WRITING,
    Locks,
    outer_environment,
    ruleset,
    runtime,
    version,
    warden_argv,
)
from outrider.processes.sandbox.sandbox import Access, Hosts, Policy, Zones, access_above, is_within, zones_of
from outrider.processes.sandbox.seccomp import Freedom, filter_for, machine

_PLAIN_DEVICES = "null zero full random urandom tty ptmx pts"
_NEVER_SHOWN: Zones = dict.fromkeys(("/dev", "/run", "/tmp", "/var/tmp"), "hidden")
_RIGHTS: dict[Access, int] = {"read-only": READING, "writable": WRITING, "hidden": 0}


class Landlock(msgspec.Struct, frozen=True):
    """The fallback: without namespaces, /tmp and /run are those of all; they are refused, and `temporary` stands in."""

    temporary: Path
    name: str = "landlock"
    confines: bool = True
    gaps: tuple[str, ...] = (
        "hidden and protected files inside a folder that is writable can be read and changed",
        "with a writable workspace, modes and times of the user's other files can be changed",
        "commands see the names of other processes",
        "shared memory in /dev/shm is refused, and with it the locks of Python's multiprocessing",
        "no sockets at all unless the network is on, and then also those of local programs",
    )

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        architecture = machine()
        if isinstance(policy.network, Hosts) or architecture is None:
            raise ConfigurationError("only bubblewrap can let single hosts through; allow the network or go without")
        scratch = str((policy.temporary or self.temporary).resolve())
        zones: Zones = {**_NEVER_SHOWN, **zones_of(policy, runtime()), scratch: "writable"}
        grants = [(os.fsencode(path), _RIGHTS[access]) for path, access in granted("/", "read-only", zones)]
        grants += [(os.fsencode(path), DEVICES) for path in map("/dev/{}".format, _PLAIN_DEVICES.split())]
        online = policy.network == "on"
        locks = Locks(
            seccomp=filter_for(architecture, Freedom(namespaces=False, sockets=online, metadata=policy.writable)),
            landlock=ruleset(grants, version(), network=online),
            drop_capabilities=True,
        )
        environment = outer_environment(launch.environment) | {"TMPDIR": scratch}
        argv = warden_argv(launch, policy.bounds, locks, str(policy.workspace))
        return Launch(argv, environment, launch.workdir, launch.limits)


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
