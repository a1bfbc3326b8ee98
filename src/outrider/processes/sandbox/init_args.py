"""Builds the command line of the sandbox init: the command, its restrictions and its limits in one encoded argument."""

import ctypes
import marshal
import os
import py_compile
import sys
from binascii import b2a_base64
from collections.abc import Mapping
from enum import IntFlag
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import ConfigurationError
from outrider.processes.launch import GIT_VARIABLES, LaunchRequest
from outrider.processes.sandbox.sandbox import SandboxLimits

Grants = list[tuple[bytes, int]]
Ruleset = tuple[tuple[int, int, int], int, Grants]

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
    """Returns the Landlock version of the kernel, 0 if there is none."""
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
