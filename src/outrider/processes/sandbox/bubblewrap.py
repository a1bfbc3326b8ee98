"""The bubblewrap sandbox: new namespaces, a mount tree that hides secrets, and the sandbox init inside.

The init gets the command, its restrictions (Landlock, seccomp) and its limits in one encoded argument.
"""

import ctypes
import marshal
import os
import py_compile
import re
import stat
import sys
from binascii import b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from enum import IntFlag
from functools import cache
from importlib.util import cache_from_source
from itertools import islice
from pathlib import Path
from typing import Any, assert_never

import msgspec

from outrider._posix import is_within, parent_of
from outrider.errors import ConfigurationError
from outrider.processes.launch import GIT_VARIABLES, PINNED_DESCRIPTOR, LaunchRequest, NamespaceJoin
from outrider.processes.sandbox.overlay import OverlayFolders, hides_path, lstat_or_none
from outrider.processes.sandbox.sandbox import (
    Access,
    AccessZones,
    ProxyNetwork,
    SandboxLimits,
    SandboxPolicy,
    access_above,
    find_identity,
    real_path,
    resolve_zones,
)
from outrider.processes.sandbox.seccomp import SyscallFilterOptions, build_filter, detect_architecture

MountedPlace = tuple[bytes, tuple[int, int], bool]  # path, device and inode number, whether it is visible there
Grants = list[tuple[bytes, int]]
Ruleset = tuple[tuple[int, int, int], int, Grants]

PINNED_PLACE = "/dev/shm/workspace"
_CREATE_RULESET, _ASK_VERSION = 444, 1
_FILE_RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 5: 16}  # Landlock version: number of file rights that it supports
_TCP_SINCE = 4
_BOTH_BITS = 0b11  # bind and connect; abstract sockets and signals
SCOPES_SINCE = 6


class LandlockRight(IntFlag):
    """The access rights of Landlock to files (LANDLOCK_ACCESS_FS_*)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_DIR = 1 << 7
    MAKE_FILE = 1 << 8
    MAKE_SOCKET = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_LINK = 1 << 12
    MOVE = 1 << 13
    TRUNCATE = 1 << 14
    DEVICE_CALLS = 1 << 15


READ_RIGHTS = int(LandlockRight.EXECUTE | LandlockRight.READ_FILE | LandlockRight.READ_DIR)
WRITE_RIGHTS = sum(
    right.value for right in LandlockRight if right is not LandlockRight.DEVICE_CALLS
)  # creating device files is not in LandlockRight
DEVICE_RIGHTS = int(
    LandlockRight.READ_FILE
    | LandlockRight.READ_DIR
    | LandlockRight.WRITE_FILE
    | LandlockRight.TRUNCATE
    | LandlockRight.DEVICE_CALLS
)


@cache
def landlock_version() -> int:
    """Returns the Landlock version of the kernel, or 0 if the kernel has no Landlock."""
    if sys.platform != "linux":
        return 0
    supported = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    return max(0, supported)


def build_ruleset(grants: Grants, supported_version: int, *, network: bool) -> Ruleset | None:
    """Builds the ruleset for the init: handled rights, size of the attributes, and grants.

    Without `network`, TCP is denied too.
    """
    if supported_version == 0:
        return None
    rights = max(count for since, count in _FILE_RIGHTS_SINCE.items() if since <= supported_version)
    tcp = _BOTH_BITS if supported_version >= _TCP_SINCE and not network else 0
    scopes = _BOTH_BITS if supported_version >= SCOPES_SINCE else 0
    length = 8 * (1 + (supported_version >= _TCP_SINCE) + (supported_version >= SCOPES_SINCE))
    return ((1 << rights) - 1, tcp, scopes), length, grants


INIT_SCRIPT = str(Path(__file__).with_name("init.py").resolve())
PROXY_PORT = 8118
# Variables of the dynamic loader would also affect bubblewrap and the init, which run before the restrictions apply.
_LOADER_PREFIXES = ("LD_", "GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_")
# Variables that point to programs outside the sandbox: key agents, session buses, displays.
_OUTSIDE_SERVICE_VARIABLES = """
SSH_AUTH_SOCK SSH_AGENT_PID GPG_AGENT_INFO DBUS_SESSION_BUS_ADDRESS DBUS_SYSTEM_BUS_ADDRESS XDG_RUNTIME_DIR
DISPLAY WAYLAND_DISPLAY XAUTHORITY DOCKER_HOST CONTAINER_HOST TMUX STY
"""


class KernelRestrictions(msgspec.Struct, frozen=True, kw_only=True):
    """The restrictions that the init applies to the command: a seccomp filter, a Landlock ruleset and capabilities."""

    seccomp: bytes
    landlock: Ruleset | None
    drop_capabilities: bool = False
    proxy_socket: str = ""
    places: tuple[MountedPlace, ...] = ()


@cache
def find_interpreter() -> str:
    """Returns the real path of the interpreter, outside any virtual environment."""
    if not sys.executable:
        raise ConfigurationError("a sandbox needs a Python interpreter, but sys.executable is not set")
    return os.path.realpath(sys.executable)


@cache
def compile_init_script() -> str:
    """Compiles the init script to bytecode if possible and returns its path. Compiling per command would be slow."""
    try:
        compiled = Path(cache_from_source(INIT_SCRIPT))
        if not compiled.exists() or compiled.stat().st_mtime < Path(INIT_SCRIPT).stat().st_mtime:
            py_compile.compile(INIT_SCRIPT, str(compiled), doraise=True)
    except (OSError, NotImplementedError, py_compile.PyCompileError):
        return INIT_SCRIPT
    return str(compiled)


@cache
def list_runtime_paths() -> tuple[str, ...]:
    """Returns the paths of the interpreter and of Outrider: visible in the sandbox, and never writable."""
    folders = (sys.base_prefix, sys.prefix, str(Path(INIT_SCRIPT).parents[2]))
    return tuple(dict.fromkeys((*map(os.path.realpath, folders), find_interpreter(), compile_init_script())))


def build_init_argv(init_request: bytes) -> tuple[str, ...]:
    """Returns the command line of the init. The request is one base64 argument: the init reads no file or pipe."""
    script, encoded = compile_init_script(), b2a_base64(init_request, newline=False).decode()
    return find_interpreter(), "-I", "-S", script, encoded


def encode_init_request(
    launch: LaunchRequest, limits: SandboxLimits, restrictions: KernelRestrictions, disk: str
) -> bytes:
    """Encodes what the init does: the command, its restrictions and its limits."""
    request: dict[str, Any] = {
        "argv": [os.fsencode(argument) for argument in launch.argv],
        "environment": {name: value for name, value in launch.environment.items() if name.startswith(_LOADER_PREFIXES)},
        "limits": _kernel_limits(limits),
        "sandbox_limits": msgspec.structs.asdict(limits),
        "workdir": os.fsencode(launch.workdir),
        "disk": disk,
        "seccomp": restrictions.seccomp,
        "landlock": restrictions.landlock,
        "drop_capabilities": restrictions.drop_capabilities,
        "proxy_socket": restrictions.proxy_socket,
        "places": restrictions.places,
        "port": PROXY_PORT,
    }
    return marshal.dumps(request)


def outer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that are safe for bubblewrap and the init, which adds loader variables for the command.

    Git in the sandbox ignores what a repository's configuration would execute."""
    dropped = _OUTSIDE_SERVICE_VARIABLES.split()
    passed = (name for name in environment if not name.startswith(_LOADER_PREFIXES) and name not in dropped)
    return {name: environment[name] for name in passed} | GIT_VARIABLES


def _kernel_limits(limits: SandboxLimits) -> list[tuple[str, int]]:
    """Returns the resource limits per process, as a list of RLIMIT name and value."""
    return [
        # Not RLIMIT_AS: language runtimes reserve far more address space than they use.
        ("RLIMIT_DATA", limits.memory),
        ("RLIMIT_FSIZE", limits.file_size),
        ("RLIMIT_NOFILE", limits.open_files),
        ("RLIMIT_CPU", limits.cpu_seconds),
        ("RLIMIT_CORE", 0),
    ]


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
    filters_hosts: bool = True
    accepted: bool = False
    limitations: tuple[str, ...] = ()

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request for bubblewrap with mounts for the policy, and the sandbox init as its program."""
        zones = resolve_zones(policy, (*list_runtime_paths(), *filter(os.path.exists, VISIBLE_RUN_PATHS)))
        if access_above(self.program, zones) == "writable":
            raise ConfigurationError(
                f"sandboxed commands could change {self.program}; install bubblewrap in a system folder"
            )
        if (policy.overlay or policy.layers or policy.outside) and not self.overlays:
            raise ConfigurationError(f"{self.program} cannot mount an overlay here")
        workspace = str(policy.workspace) if policy.exact else os.path.realpath(policy.workspace)
        mounts = list(_zone_mounts(zones, policy, workspace))
        pinned = self._find_pinned(launch, policy, zones)
        size = str(policy.limits.temporary)
        mount_options = (
            *(*NAMESPACE_OPTIONS, *PROCESS_OPTIONS),
            *(() if policy.network == "on" else ("--unshare-net",)),
            *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
            *("--size", size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
            *_fresh_folder_options(policy, zones, size),
        )
        command_options = ("--chdir", str(launch.workdir), "--")
        options = (*mount_options, *(word for mount in mounts for word in mount), *command_options)
        holder_options = (*mount_options, *_pin_workspace(mounts, workspace), *command_options) if pinned else options
        restrictions = _build_restrictions(policy, zones, _list_places(mounts, zones, workspace))
        request = encode_init_request(launch, policy.limits, restrictions, str(policy.workspace))
        return LaunchRequest(
            (*self.prefix, self.program, "--as-pid-1", *options, *build_init_argv(request)),
            _build_environment(launch, policy),
            Path("/"),
            launch.limits,
            join=NamespaceJoin((self.program, *holder_options, self.holder), request, pinned) if self.holder else None,
        )

    def _find_pinned(
        self, launch: LaunchRequest, policy: SandboxPolicy, zones: AccessZones
    ) -> tuple[bytes, tuple[int, int]] | None:
        """Returns the workspace and its identity if the command guard opens it for an overlay. Raises
        ConfigurationError if an exact workspace is not at its path, or cannot be opened by the guard."""
        if not policy.exact:
            return None
        path = str(policy.workspace)
        if path not in zones or (identity := find_identity(path)) is None:
            raise ConfigurationError(f"the workspace {path} was replaced by a link; nothing in it is used")
        if not (policy.overlay or policy.layers):
            return None
        if not self.holder or launch.limits.by_name():
            raise ConfigurationError("commands of this user need a sandbox that can join namespaces")
        return os.fsencode(path), identity


def _pin_workspace(mounts: Sequence[tuple[str, ...]], workspace: str) -> Iterator[str]:
    """Yields the mounts, with the descriptor that the command guard opens as the workspace. The last options make
    bubblewrap close that descriptor, because a command could reach the parent folder through it."""
    number = str(PINNED_DESCRIPTOR)
    for mount in mounts:
        is_lowest = mount[:2] == ("--overlay-src", workspace)
        yield from (mount[0], f"/proc/self/fd/{number}", *mount[2:]) if is_lowest else mount
    yield from ("--ro-bind-fd", number, PINNED_PLACE, "--size", "4096", "--perms", "0555", "--tmpfs", PINNED_PLACE)


def _list_places(mounts: Sequence[tuple[str, ...]], zones: AccessZones, workspace: str) -> tuple[MountedPlace, ...]:
    """Returns what the init checks: that mounts below writable folders are those of the policy, and that hidden files
    are not visible. Raises ConfigurationError if such a mount has just been replaced."""
    places: list[MountedPlace] = []
    for path in [mount[1] for mount in mounts if mount[0] in ("--bind", "--ro-bind") and mount[1] == mount[-1]]:
        if path == workspace or access_above(path, zones) == "writable":
            if (identity := find_identity(path)) is None:
                raise ConfigurationError(f"{path} was replaced while the command started; try again")
            places.append((os.fsencode(path), identity, True))
    for path, access in zones.items():
        if access == "hidden" and not is_within(path, workspace) and (identity := find_identity(path)) is not None:
            places.append((os.fsencode(path), identity, False))
    return tuple(places)


def _fresh_folder_options(policy: SandboxPolicy, zones: AccessZones, size: str) -> Iterator[str]:
    covered = _folders_over_temporary(policy, zones)
    for folder in FRESH_FOLDERS:
        if folder == "/tmp" and policy.temporary and covered is not None:
            yield from ("--bind", str(policy.temporary), folder)
            for inner in covered:
                yield from ("--size", size, "--perms", "0755", "--tmpfs", inner)
        elif (status := lstat_or_none(folder)) is not None and stat.S_ISDIR(status.st_mode):
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
        status = lstat_or_none(f"{policy.temporary}/{folder.rpartition('/')[2]}")
        if folder == "/tmp" or (status is not None and not stat.S_ISDIR(status.st_mode)):
            return None
    return folders


def _zone_mounts(zones: AccessZones, policy: SandboxPolicy, workspace: str) -> Iterator[tuple[str, ...]]:
    """Yields bubblewrap options for each path whose access differs from that of its parent.

    Inside an overlay the folders above a protected path are not pinned: the overlay itself keeps the real ones.
    """
    outside = {os.path.realpath(mount.folder): mount for mount in policy.outside}
    pinned = {} if policy.overlay else _pinned_folders(zones)
    sockets: AccessZones = {
        _socket_folder(path, zones): "hidden"
        for path in _list_bound_sockets()
        if _inherited_access(path, zones) != "hidden"
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
    """Returns the options that mount a path; a hidden folder becomes an empty read-only tmpfs. `join.py` removes those
    of hidden paths that have disappeared."""
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
    paths = [real for name in names if (real := real_path(name))]
    return [path for path in paths if not _is_closed_to_commands(path)] if os.geteuid() == 0 else paths


def _is_closed_to_commands(path: str) -> bool:
    """Returns whether a command of root cannot pass a folder of another user on the path. Commands have no
    capabilities, and bubblewrap has none over files of other users in its namespace: it would fail to mount there."""
    groups = {os.getegid(), *os.getgroups()}
    folder = path
    while folder != "/":
        folder = parent_of(folder)
        status = lstat_or_none(folder)
        if status is not None and status.st_uid != 0:
            search_bit = stat.S_IXGRP if status.st_gid in groups else stat.S_IXOTH
            if not status.st_mode & search_bit:
                return True
    return False


_RUNTIME_FILES = (".pid", ".lock", ".sock", ".socket")
_MAX_RUNTIME_FILES = 100


def _socket_folder(path: str, zones: AccessZones) -> str:
    """Returns the path to hide for a socket: its folder if the folder contains nothing else, otherwise the socket.

    A server that starts while the command runs creates its socket again, and the mount over the old socket does not
    cover the new one.
    """
    folder = parent_of(path)
    if folder == "/" or any(is_within(zone, folder) for zone in zones):
        return path
    try:
        with os.scandir(folder) as entries:
            listed = list(islice(entries, _MAX_RUNTIME_FILES + 1))
        only_sockets = len(listed) <= _MAX_RUNTIME_FILES and all(
            not entry.is_dir(follow_symlinks=False)
            and (entry.name.endswith(_RUNTIME_FILES) or stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode))
            for entry in listed
        )
    except OSError:
        return path
    return folder if only_sockets else path


def _build_restrictions(
    policy: SandboxPolicy, zones: AccessZones, places: tuple[MountedPlace, ...]
) -> KernelRestrictions:
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
        places=places,
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
