"""The filter of system calls that a confined command lives under, written as the kernel's own little programs.

What it refuses reaches past namespaces and file rights: other processes' memory, key rings, mounts, new namespaces,
modules, clocks, terminals. Everything else passes, so that compilers and tests run as usual.
"""

import errno
import platform
import struct
from collections.abc import Iterable

import msgspec

from outrider.processes.sandbox.locks.syscalls import FAR_REACHING, METADATA, NEWEST, NUMBERS, UNSHARED, Architecture

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_AUDIT: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_NEW_NAMESPACES = 0x7E020000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
# Pushing characters into a terminal, driving the console, changing a line's discipline.
_TERMINAL_TRICKS = (0x5412, 0x541C, 0x541D, 0x5423)


def machine() -> Architecture | None:
    """None where no filter can be written."""
    name = platform.machine()
    return name if name in ("x86_64", "aarch64") else None


class Freedom(msgspec.Struct, frozen=True, kw_only=True):
    """What else keeps a command in, so that the filter need not."""

    namespaces: bool = True  # of its own
    sockets: bool = True
    metadata: bool = True  # modes, owners, times and attributes of files


def filter_for(architecture: Architecture, freedom: Freedom) -> bytes:
    numbers = NUMBERS[architecture]
    refused = FAR_REACHING
    refused |= frozenset() if freedom.namespaces else UNSHARED
    refused |= frozenset() if freedom.metadata else METADATA
    program = [
        _op(_LOAD, _ARCHITECTURE),
        # A call in another width has other numbers, and would pass under a wrong name.
        _op(_EQUAL, _AUDIT[architecture], then=1),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
        _op(_GREATER, NEWEST, otherwise=1),
        _refuse(errno.ENOSYS),
        *_when(numbers["clone3"], [_refuse(errno.ENOSYS)]),  # its flags cannot be seen; programs go back to clone
        *_when(numbers["clone"], [_load(0), _op(_ANY_BIT, _NEW_NAMESPACES, otherwise=1), _refuse(errno.EPERM)]),
        *_when(numbers["ioctl"], [_load(1), *_refuse_values(_TERMINAL_TRICKS)]),
        *_when(numbers["socket"], _families(sockets=freedom.sockets)),
    ]
    if not freedom.namespaces:
        program += _when(numbers["prlimit64"], [_load(0), _op(_EQUAL, 0, then=1), _refuse(errno.EPERM)])
    for name in sorted(refused & numbers.keys()):
        program += _when(numbers[name], [_refuse(errno.EPERM)])
    return b"".join([*program, _op(_RETURN, _ALLOW)])


def _families(*, sockets: bool) -> list[bytes]:
    if not sockets:
        return [_refuse(errno.EACCES)]
    allow, refuse = _op(_RETURN, _ALLOW), _refuse(errno.EAFNOSUPPORT)
    return [
        _load(0),
        *(word for family in (_UNIX, _INET, _INET6) for word in (_op(_EQUAL, family, otherwise=1), allow)),
        *(_op(_EQUAL, _NETLINK, then=1), refuse),
        # Of netlink only questions about addresses and routes.
        *(_load(2), _op(_EQUAL, 0, then=1), refuse),
    ]


def _when(number: int, then: list[bytes]) -> list[bytes]:
    """Every branch ends in a verdict, so the number is still loaded for what follows."""
    return [_op(_EQUAL, number, otherwise=len(then) + 1), *then, _op(_RETURN, _ALLOW)]


def _refuse_values(values: Iterable[int]) -> list[bytes]:
    return [word for value in values for word in (_op(_EQUAL, value, otherwise=1), _refuse(errno.EPERM))]


def _load(argument: int) -> bytes:
    """The lower half: the kernel itself looks at no more of these arguments."""
    return _op(_LOAD, _ARGUMENTS + 8 * argument)


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _REFUSE | number)


def _op(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
