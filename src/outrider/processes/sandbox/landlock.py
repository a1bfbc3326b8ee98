"""The Landlock sandbox: the fallback if bubblewrap is not available."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.init_args import (
    DEVICE_RIGHTS,
    READ_RIGHTS,
    WRITE_RIGHTS,
    KernelRestrictions,
    build_init_argv,
    build_ruleset,
    encode_init_request,
    landlock_version,
    list_runtime_paths,
    outer_environment,
)
from outrider.processes.sandbox.sandbox import (
    Access,
    AccessZones,
    ProxyNetwork,
    SandboxPolicy,
    access_above,
    is_within,
    resolve_zones,
)
from outrider.processes.sandbox.seccomp import SyscallFilterOptions, build_filter, detect_architecture

_DEVICE_NAMES = "null zero full random urandom tty ptmx pts"
_ALWAYS_HIDDEN: AccessZones = dict.fromkeys(("/dev", "/run", "/tmp", "/var/tmp"), "hidden")
_RIGHTS: dict[Access, int] = {"read-only": READ_RIGHTS, "writable": WRITE_RIGHTS, "hidden": 0}


class LandlockSandbox(msgspec.Struct, frozen=True):
    """Confines commands with Landlock and seccomp, without namespaces.

    /tmp and /run are shared with other programs here, so they are hidden; `temporary` replaces /tmp.
    """

    temporary: Path
    name: str = "landlock"
    confines: bool = True
    overlays: bool = False
    protects_files: bool = False
    accepted: bool = False
    gaps: tuple[str, ...] = (
        "a command that changes files runs unconfined after a yes, because protected files cannot be kept from it",
        "with a writable workspace, commands can change modes and times of the user's other files",
        "commands can list other processes",
        "shared memory in /dev/shm is denied, which breaks the locks of Python's multiprocessing",
        "sockets are denied unless the network is on; then commands can also connect to local programs",
    )

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request for the sandbox init with a ruleset for the policy. Raises ConfigurationError."""
        architecture = detect_architecture()
        if isinstance(policy.network, ProxyNetwork) or architecture is None:
            raise ConfigurationError(
                "allowing single hosts needs bubblewrap; install it, or switch the network on or off completely"
            )
        if policy.overlay is not None:
            raise ConfigurationError("Landlock cannot mount an overlay; install bubblewrap 0.11 or newer")
        scratch = str((policy.temporary or self.temporary).resolve())
        zones: AccessZones = {**_ALWAYS_HIDDEN, **resolve_zones(policy, list_runtime_paths()), scratch: "writable"}
        grants = [(os.fsencode(path), _RIGHTS[access]) for path, access in list_grants("/", "read-only", zones)]
        grants += [(os.fsencode(path), DEVICE_RIGHTS) for path in map("/dev/{}".format, _DEVICE_NAMES.split())]
        network = policy.network == "on"
        restrictions = KernelRestrictions(
            seccomp=build_filter(
                architecture,
                SyscallFilterOptions(namespaces=False, sockets=network, metadata=policy.writable, set_ids=False),
            ),
            landlock=build_ruleset(grants, landlock_version(), network=network),
            drop_capabilities=True,
        )
        environment = outer_environment(launch.environment) | {"TMPDIR": scratch}
        argv = build_init_argv(encode_init_request(launch, policy.limits, restrictions, str(policy.workspace)))
        return LaunchRequest(argv, environment, launch.workdir, launch.limits)


def list_grants(folder: str, access: Access, zones: AccessZones) -> Iterator[tuple[str, Access]]:
    """Yields the paths to grant. Landlock cannot revoke a right below a granted folder, so a folder with a hidden path
    inside is granted entry by entry."""
    below = [path for path in zones if path != folder and is_within(path, folder)]
    if access == "hidden":
        topmost = [path for path in below if access_above(path, zones) in ("hidden", None)]
        for path in topmost:
            yield from list_grants(path, zones[path], zones)
    elif access == "writable" or not any(zones[path] == "hidden" for path in below):
        yield folder, access
        for path in below:
            if zones[path] == "writable":
                yield path, "writable"
    else:
        for entry in _list_entries(folder):
            yield from list_grants(entry, zones.get(entry, access), zones)


def _list_entries(folder: str) -> list[str]:
    """Returns the paths of the entries of a folder; an empty list on an error."""
    try:
        with os.scandir(folder) as found:
            return [entry.path for entry in found if not entry.is_symlink()]
    except OSError:
        return []
