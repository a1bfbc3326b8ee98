"""bubblewrap: namespaces of one's own, a file system with holes where secrets are, and the warden inside."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from outrider.errors import ConfigurationError
from outrider.processes.launch import Launch
from outrider.processes.sandbox.init_args import (
    DEVICES,
    DOOR_PORT,
    READING,
    WRITING,
    Grants,
    Locks,
    outer_environment,
    ruleset,
    runtime,
    version,
    warden_argv,
)
from outrider.processes.sandbox.sandbox import (
    Access,
    Hosts,
    Policy,
    Zones,
    access_above,
    is_within,
    parent_of,
    zones_of,
)
from outrider.processes.sandbox.seccomp import Freedom, filter_for, machine

NAMESPACES = ("--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
BEHAVIOUR = ("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL")
# New and empty for every command. What is in there outside belongs to other programs: sockets above all.
FRESH = ("/tmp", "/var/tmp", "/run")
# Parts of /run that programs are lost without: where names are asked for, and the whole system on NixOS.
KEPT = ("/run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/current-system")


class Bubblewrap(msgspec.Struct, frozen=True):
    """`starter` is what starts the program, see `detect.starter`."""

    program: str
    starter: tuple[str, ...] = ()
    name: str = "bubblewrap"
    confines: bool = True
    gaps: tuple[str, ...] = ()

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        zones = zones_of(policy, (*runtime(), *filter(os.path.exists, KEPT)))
        if access_above(self.program, zones) == "writable":
            raise ConfigurationError(f"{self.program} lies where commands may write; install bubblewrap elsewhere")
        size = str(policy.bounds.temporary)
        argv = (
            *(*self.starter, self.program, *NAMESPACES, *BEHAVIOUR),
            *(() if policy.network == "on" else ("--unshare-net",)),
            *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
            *("--size", size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
            *_fresh_folders(policy, size),
            *(word for mount in _mounts(zones) for word in mount),
            *("--chdir", str(launch.workdir), "--"),
            *warden_argv(launch, policy.bounds, _locks(policy, zones), str(policy.workspace)),
        )
        return Launch(argv, _environment(launch, policy), Path("/"), launch.limits)


def _fresh_folders(policy: Policy, size: str) -> Iterator[str]:
    for folder in FRESH:
        if folder == "/tmp" and policy.temporary:
            yield from ("--bind", str(policy.temporary), folder)
        elif Path(folder).is_dir() and not Path(folder).is_symlink():
            yield from ("--size", size, "--perms", "1777", "--tmpfs", folder)
    if isinstance(policy.network, Hosts):
        yield from ("--ro-bind", str(policy.network.door), str(policy.network.door))


def _mounts(zones: Zones) -> Iterator[tuple[str, ...]]:
    pinned = _pinned(zones)
    sockets: Zones = {path: "hidden" for path in _bound_sockets() if _access(path, zones) != "hidden"}
    everything: Zones = {**pinned, **zones, **sockets}
    for path in sorted(everything, key=lambda path: path.count("/")):
        access = everything[path]
        above = _access(path, zones)
        if access == above and path not in pinned:
            continue
        yield _mount(path, access)


def _access(path: str, zones: Zones) -> Access:
    """What holds for a path without a mount of its own."""
    return access_above(path, zones) or ("hidden" if any(is_within(path, fresh) for fresh in FRESH) else "read-only")


def _mount(path: str, access: Access) -> tuple[str, ...]:
    match access:
        case "writable":
            return "--bind", path, path
        case "read-only":
            return "--ro-bind", path, path
        case "hidden":
            if Path(path).is_dir():
                return "--size", "4096", "--perms", "0555", "--tmpfs", path
            return "--ro-bind", "/dev/null", path
        case _:
            assert_never(access)


def _pinned(zones: Zones) -> Zones:
    """Folders between a writable one and a stricter place in it: as mounts they cannot be renamed and replaced."""
    pinned: Zones = {}
    for path, access in zones.items():
        if access != "writable" and access_above(path, zones) == "writable":
            folder = parent_of(path)
            while folder not in zones:
                pinned[folder] = "writable"
                folder = parent_of(folder)
    return pinned


def _bound_sockets() -> list[str]:
    """Sockets in the file system that programs listen at now; a read-only mount keeps nobody from using one."""
    try:
        with Path("/proc/net/unix").open(encoding="utf-8", errors="surrogateescape") as file:
            names = {line.split(maxsplit=7)[-1].rstrip("\n") for line in file}
    except OSError:
        return []
    # What this user cannot even look at, its commands cannot reach either.
    return [os.path.realpath(name) for name in names if name.startswith("/") and os.path.exists(name)]  # noqa: PTH110


def _locks(policy: Policy, zones: Zones) -> Locks:
    architecture = machine()
    if architecture is None:
        raise ConfigurationError("there is no filter of system calls for this machine yet")
    grants: Grants = [(b"/", READING), (b"/dev", DEVICES)]
    writable = [path for path, access in zones.items() if access == "writable"]
    grants += [(os.fsencode(path), WRITING) for path in (*writable, *FRESH, "/dev/shm")]
    door = str(policy.network.door) if isinstance(policy.network, Hosts) else ""
    return Locks(
        seccomp=filter_for(architecture, Freedom()),
        landlock=ruleset(grants, version(), network=True),
        door=door,
    )


def _environment(launch: Launch, policy: Policy) -> dict[str, str]:
    environment = outer_environment(launch.environment) | {"TMPDIR": "/tmp"}
    if isinstance(policy.network, Hosts):
        address = f"http://127.0.0.1:{DOOR_PORT}"
        names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        environment |= dict.fromkeys(names, address)
    return environment
