"""Rights to files in the words of Landlock, the kernel's list of what a process may open."""

import ctypes
import sys
from enum import IntFlag
from functools import cache

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
