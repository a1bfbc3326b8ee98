"""What the warden is told: the command, its locks and its bounds, as one word of a command line."""

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
from outrider.processes.launch import Launch
from outrider.processes.sandbox.sandbox import Bounds

Grants = list[tuple[bytes, int]]
Ruleset = tuple[tuple[int, int, int], int, Grants]

_CREATE_RULESET, _ASK_VERSION = 444, 1
_FILE_RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 5: 16}  # version: how many rights to files it knows
_TCP_SINCE = 4
_BOTH = 0b11  # binding and connecting; abstract sockets and signals
SCOPES_SINCE = 6


class Right(IntFlag):
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


READING = int(Right.EXECUTE | Right.READ_FILE | Right.READ_DIR)
WRITING = sum(right.value for right in Right if right is not Right.DEVICE_CALLS)  # to make devices has no name here
DEVICES = int(Right.READ_FILE | Right.READ_DIR | Right.WRITE_FILE | Right.TRUNCATE | Right.DEVICE_CALLS)


@cache
def version() -> int:
    """0 where there is no Landlock."""
    if sys.platform != "linux":
        return 0
    found = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    return max(0, found)


def ruleset(grants: Grants, known: int, *, network: bool) -> Ruleset | None:
    """As the warden takes it: what is handled, how long that is, what is granted. Without `network`, no TCP either."""
    if known == 0:
        return None
    rights = max(count for since, count in _FILE_RIGHTS_SINCE.items() if since <= known)
    tcp = _BOTH if known >= _TCP_SINCE and not network else 0
    scopes = _BOTH if known >= SCOPES_SINCE else 0
    length = 8 * (1 + (known >= _TCP_SINCE) + (known >= SCOPES_SINCE))
    return ((1 << rights) - 1, tcp, scopes), length, grants


WARDEN = str(Path(__file__).with_name("init.py").resolve())
DOOR_PORT = 8118
# What steers the dynamic loader would steer bubblewrap and the warden too, which are not locked in yet.
_LOADER = ("LD_", "GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_")
# Ways to programs outside: agents that hold keys, session buses, displays.
_DOORS_OUTSIDE = """
SSH_AUTH_SOCK SSH_AGENT_PID GPG_AGENT_INFO DBUS_SESSION_BUS_ADDRESS DBUS_SYSTEM_BUS_ADDRESS XDG_RUNTIME_DIR
DISPLAY WAYLAND_DISPLAY XAUTHORITY DOCKER_HOST CONTAINER_HOST TMUX STY
"""


class Locks(msgspec.Struct, frozen=True, kw_only=True):
    seccomp: bytes
    landlock: Ruleset | None
    drop_capabilities: bool = False
    door: str = ""


@cache
def interpreter() -> str:
    """The plain interpreter, past any virtual environment."""
    if not sys.executable:
        raise ConfigurationError("a sandbox needs a Python interpreter, and this program does not know its own")
    return os.path.realpath(sys.executable)


@cache
def warden() -> str:
    """Compiled, if it can be: to compile it anew for every command would take longer than all that it does."""
    try:
        compiled = Path(cache_from_source(WARDEN))
        if not compiled.exists() or compiled.stat().st_mtime < Path(WARDEN).stat().st_mtime:
            py_compile.compile(WARDEN, str(compiled), doraise=True)
    except (OSError, NotImplementedError, py_compile.PyCompileError):
        return WARDEN
    return str(compiled)


def runtime() -> tuple[str, ...]:
    """What the warden needs to see, and what the next engine will run: no command may change it."""
    folders = (sys.base_prefix, sys.prefix, str(Path(WARDEN).parents[2]))
    return tuple(dict.fromkeys((*map(os.path.realpath, folders), interpreter(), warden())))


def warden_argv(launch: Launch, bounds: Bounds, locks: Locks, disk: str) -> tuple[str, ...]:
    order: dict[str, Any] = {
        "argv": [os.fsencode(word) for word in launch.argv],
        "environment": {name: value for name, value in launch.environment.items() if name.startswith(_LOADER)},
        "limits": _kernel_limits(bounds),
        "bounds": msgspec.structs.asdict(bounds),
        "disk": disk,
        "seccomp": locks.seccomp,
        "landlock": locks.landlock,
        "drop_capabilities": locks.drop_capabilities,
        "door": locks.door,
        "port": DOOR_PORT,
    }
    return interpreter(), "-I", "-S", warden(), b2a_base64(marshal.dumps(order), newline=False).decode()


def outer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What is safe for the programs that build the sandbox; the rest reaches the command through the warden."""
    dropped = _DOORS_OUTSIDE.split()
    kept = (name for name in environment if not name.startswith(_LOADER) and name not in dropped)
    return {name: environment[name] for name in kept}


def _kernel_limits(bounds: Bounds) -> list[tuple[str, int]]:
    return [
        # Not the address space: runtimes reserve far more of it than they ever use.
        ("RLIMIT_DATA", bounds.memory),
        ("RLIMIT_FSIZE", bounds.file_size),
        ("RLIMIT_NOFILE", bounds.open_files),
        ("RLIMIT_CPU", bounds.cpu_seconds),
        ("RLIMIT_CORE", 0),
    ]
