"""The bubblewrap sandbox: new namespaces, a mount tree that hides secrets, and the sandbox init inside."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import assert_never

import msgspec

from outrider.errors import ConfigurationError
from outrider.processes.launch import LaunchRequest, NamespaceJoin
from outrider.processes.sandbox.init_args import (
    DEVICE_RIGHTS,
    PROXY_PORT,
    READ_RIGHTS,
    WRITE_RIGHTS,
    Grants,
    KernelRestrictions,
    build_init_argv,
    build_ruleset,
    encode_init_request,
    landlock_version,
    list_runtime_paths,
    outer_environment,
)
from outrider.processes.sandbox.overlay import OverlayFolders, hides_path, lstat_or_none
from outrider.processes.sandbox.sandbox import (
    Access,
    AccessZones,
    ProxyNetwork,
    SandboxPolicy,
    access_above,
    is_within,
    parent_of,
    real_path,
    resolve_zones,
)
from outrider.processes.sandbox.seccomp import SyscallFilterOptions, build_filter, detect_architecture

NAMESPACE_OPTIONS = ("--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
PROCESS_OPTIONS = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
# New and empty for every command: outside they contain files and sockets of other programs.
FRESH_FOLDERS = ("/tmp", "/var/tmp", "/run")
# Parts of /run that programs need: the DNS resolver configuration, and the whole system on NixOS.
PROXY_SOCKET = "/run/outrider-proxy"  # in a folder that no command has written to
_SOCKET_NAME = re.compile(r"^(?:\S+ +){6}\S+ (/.*)$", re.MULTILINE)  # the last field of a line in /proc/net/unix
VISIBLE_RUN_PATHS = ("/run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/current-system")


class BubblewrapSandbox(msgspec.Struct, frozen=True):
    """Runs commands under bubblewrap; `prefix` is the command that starts it, see `detect.bubblewrap_prefix`.

    `holder` is a program that copies its input to its output. It is set if the command guard can join the namespaces.
    """

    program: str
    prefix: tuple[str, ...] = ()
    holder: str = ""
    name: str = "bubblewrap"
    confines: bool = True
    overlays: bool = False
    protects_files: bool = True
    accepted: bool = False
    gaps: tuple[str, ...] = ()

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request for bubblewrap with mounts for the policy, and the sandbox init as its program."""
        zones = resolve_zones(policy, (*list_runtime_paths(), *filter(os.path.exists, VISIBLE_RUN_PATHS)))
        if access_above(self.program, zones) == "writable":
            raise ConfigurationError(
                f"sandboxed commands could change {self.program}; install bubblewrap in a system folder"
            )
        if (policy.overlay or policy.layers or policy.outside) and not self.overlays:
            raise ConfigurationError(f"{self.program} cannot mount an overlay here")
        size = str(policy.limits.temporary)
        setup = (
            *(*NAMESPACE_OPTIONS, *PROCESS_OPTIONS),
            *(() if policy.network == "on" else ("--unshare-net",)),
            *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
            *("--size", size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
            *_fresh_folder_options(policy, zones, size),
            *(word for mount in _zone_mounts(zones, policy) for word in mount),
            *("--chdir", str(launch.workdir), "--"),
        )
        request = encode_init_request(launch, policy.limits, _build_restrictions(policy, zones), str(policy.workspace))
        return LaunchRequest(
            (*self.prefix, self.program, "--as-pid-1", *setup, *build_init_argv(request)),
            _build_environment(launch, policy),
            Path("/"),
            launch.limits,
            join=NamespaceJoin((self.program, *setup, self.holder), request) if self.holder else None,
        )


def _fresh_folder_options(policy: SandboxPolicy, zones: AccessZones, size: str) -> Iterator[str]:
    covered = _folders_over_temporary(policy, zones)
    for folder in FRESH_FOLDERS:
        if folder == "/tmp" and policy.temporary and covered is not None:
            yield from ("--bind", str(policy.temporary), folder)
            for inner in covered:
                yield from ("--size", size, "--perms", "0755", "--tmpfs", inner)
        elif Path(folder).is_dir() and not Path(folder).is_symlink():
            yield from ("--size", size, "--perms", "1777", "--tmpfs", folder)
    if isinstance(policy.network, ProxyNetwork):
        yield from ("--ro-bind", str(policy.network.socket_path), PROXY_SOCKET)


def _folders_over_temporary(policy: SandboxPolicy, zones: AccessZones) -> list[str] | None:
    """Returns the folders directly in /tmp that contain a path with a mount; None if /tmp must be new.

    Commands choose what the persistent /tmp contains, and bubblewrap follows links below it while it still sees the
    whole file system. So each such folder is a mount point in every command, which no command can replace, and a /tmp
    with another file in its place is not used.
    """
    inside = [path for path in zones if is_within(path, "/tmp")]
    if policy.temporary is None or any(is_within(os.path.realpath(path), "/tmp") for path in policy.also_writable):
        return None
    folders = sorted({"/".join(path.split("/")[:3]) for path in inside})
    for folder in folders:
        known = lstat_or_none(f"{policy.temporary}/{folder.rpartition('/')[2]}")
        if folder == "/tmp" or (known is not None and not stat.S_ISDIR(known.st_mode)):
            return None
    return folders


def _zone_mounts(zones: AccessZones, policy: SandboxPolicy) -> Iterator[tuple[str, ...]]:
    """Yields bubblewrap options for each path whose access differs from that of its parent.

    Inside an overlay the folders above a protected path are not pinned: the overlay itself keeps the real ones.
    """
    workspace = os.path.realpath(policy.workspace)
    outside = {os.path.realpath(mount.folder): mount for mount in policy.outside}
    pinned = {} if policy.overlay else _pinned_folders(zones)
    sockets: AccessZones = {
        _socket_folder(path): "hidden" for path in _list_bound_sockets() if _inherited_access(path, zones) != "hidden"
    }
    everything: AccessZones = {**pinned, **zones, **sockets}
    views = {workspace: policy.overlay.layers if policy.overlay else policy.layers}
    views |= {path: (mount.overlay.upper,) if mount.overlay else mount.layers for path, mount in outside.items()}
    for path in sorted(everything, key=lambda path: path.count("/")):
        access = everything[path]
        # A layer with a link on the way would make bubblewrap mount somewhere else; the path is not visible then.
        if _is_hidden_by_layer(path, views):
            continue
        above = _inherited_access(path, zones)
        if mount := outside.get(path):
            yield _overlay_options(mount.overlay, mount.layers, path)
        elif path == workspace and (policy.overlay or policy.layers):
            yield _overlay_options(policy.overlay, policy.layers, path)
        elif access != above or path in pinned:
            yield _mount_options(path, access)


def _is_hidden_by_layer(path: str, views: Mapping[str, Sequence[Path]]) -> bool:
    return any(
        path.startswith(f"{view}/") and any(hides_path(layer, path[len(view) + 1 :]) for layer in layers)
        for view, layers in views.items()
    )


def _overlay_options(folders: OverlayFolders | None, layers: Sequence[Path], workspace: str) -> tuple[str, ...]:
    """Returns the options that mount an overlay; bubblewrap stacks the sources from the lowest to the highest."""
    above = folders.layers if folders else layers
    sources = (word for source in (workspace, *above) for word in ("--overlay-src", str(source)))
    if folders is None:
        return (*sources, "--ro-overlay", workspace)
    return (*sources, "--overlay", str(folders.upper), str(folders.work), workspace)


def _inherited_access(path: str, zones: AccessZones) -> Access:
    """Returns the access of a path that has no mount itself."""
    return access_above(path, zones) or (
        "hidden" if any(is_within(path, folder) for folder in FRESH_FOLDERS) else "read-only"
    )


def _mount_options(path: str, access: Access) -> tuple[str, ...]:
    """Returns the options that mount a path; a hidden folder becomes an empty read-only tmpfs."""
    match access:
        case "writable":
            return "--bind", path, path
        case "read-only":
            return "--ro-bind", path, path
        case "hidden":
            if os.path.isdir(path):  # noqa: PTH112
                return "--size", "4096", "--perms", "0555", "--tmpfs", path
            return "--ro-bind", "/dev/null", path
        case _:
            assert_never(access)


def _pinned_folders(zones: AccessZones) -> AccessZones:
    """Returns the folders between a writable zone and a stricter one inside it.

    As mount points they cannot be renamed, so a command cannot replace the folder that contains a protected path.
    """
    pinned: AccessZones = {}
    for path, access in zones.items():
        if access != "writable" and access_above(path, zones) == "writable":
            folder = parent_of(path)
            while folder not in zones:
                pinned[folder] = "writable"
                folder = parent_of(folder)
    return pinned


def _list_bound_sockets() -> list[str]:
    """Returns the paths of listening Unix sockets. A read-only mount does not prevent connections to them."""
    try:
        with Path("/proc/net/unix").open(encoding="utf-8", errors="surrogateescape") as file:
            names = set(_SOCKET_NAME.findall(file.read()))
    except OSError:
        return []
    # A command cannot reach a socket that the user cannot see.
    return [real for name in names if (real := real_path(name))]


_RUNTIME_FILES = (".pid", ".lock", ".sock", ".socket")
_MAX_RUNTIME_FILES = 100


def _socket_folder(path: str) -> str:
    """Returns what to hide of a socket: its folder if that has nothing else, because a server that starts while the
    command runs creates its socket there again, which the mount over the old one does not cover."""
    folder = parent_of(path)
    try:
        with os.scandir(folder) as entries:
            found = list(islice(entries, _MAX_RUNTIME_FILES + 1))
        only_sockets = len(found) <= _MAX_RUNTIME_FILES and all(
            not entry.is_dir(follow_symlinks=False)
            and (entry.name.endswith(_RUNTIME_FILES) or stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode))
            for entry in found
        )
    except OSError:
        return path
    return folder if only_sockets and folder != "/" else path


def _build_restrictions(policy: SandboxPolicy, zones: AccessZones) -> KernelRestrictions:
    """Returns the seccomp filter and the Landlock ruleset, a second layer in addition to the mounts."""
    architecture = detect_architecture()
    if architecture is None:
        raise ConfigurationError("the sandbox supports only x86_64 and aarch64 machines")
    grants: Grants = [(b"/", READ_RIGHTS), (b"/dev", DEVICE_RIGHTS)]
    writable = [path for path, access in zones.items() if access == "writable"]
    grants += [(os.fsencode(path), WRITE_RIGHTS) for path in (*writable, *FRESH_FOLDERS, "/dev/shm")]
    proxy_socket = PROXY_SOCKET if isinstance(policy.network, ProxyNetwork) else ""
    return KernelRestrictions(
        # What is written to an overlay loses these bits when it is committed.
        seccomp=build_filter(
            architecture, SyscallFilterOptions(set_ids=not policy.also_writable and not _writes_workspace(policy))
        ),
        landlock=build_ruleset(grants, landlock_version(), network=True),
        proxy_socket=proxy_socket,
    )


def _writes_workspace(policy: SandboxPolicy) -> bool:
    return policy.writable and policy.overlay is None


def _build_environment(launch: LaunchRequest, policy: SandboxPolicy) -> dict[str, str]:
    """Returns the environment of bubblewrap, with proxy variables if the network is a list of hosts."""
    environment = outer_environment(launch.environment) | {"TMPDIR": "/tmp"}
    if isinstance(policy.network, ProxyNetwork):
        address = f"http://127.0.0.1:{PROXY_PORT}"
        names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        environment |= dict.fromkeys(names, address)
    return environment
