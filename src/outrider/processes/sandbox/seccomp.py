"""The filter of system calls that a confined command lives under, written as the kernel's own little programs.

What it refuses reaches past namespaces and file rights: other processes' memory, key rings, mounts, new namespaces,
modules, clocks, terminals. Everything else passes, so that compilers and tests run as usual.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from typing import Literal

import msgspec

Architecture = Literal["x86_64", "aarch64"]

# The last one that was read and judged. Newer ones are answered like an older kernel would.
NEWEST = 469

_FAR_REACHING = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise move_pages migrate_pages keyctl add_key
    request_key bpf perf_event_open userfaultfd lookup_dcookie unshare setns mount umount2 pivot_root chroot
    move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr open_by_handle_at fanotify_init
    quotactl quotactl_fd swapon swapoff acct kexec_load kexec_file_load init_module finit_module delete_module reboot
    syslog vhangup nfsservctl settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname iopl ioperm
    modify_ldt uselib io_uring_setup io_uring_enter io_uring_register
"""

# What namespaces keep apart has to be refused where there are none.
_UNSHARED = """
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink setpriority
    ioprio_set
"""

# Landlock does not look at these. Where it stands alone, they are refused unless there is something to write.
_METADATA = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr
    fsetxattr removexattr lremovexattr fremovexattr setxattrat removexattrat file_setattr
"""

_SAME_EVERYWHERE = """
    io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431
    fsmount 432 fspick 433 clone3 435 pidfd_getfd 438 process_madvise 440 mount_setattr 442 quotactl_fd 443
    open_tree_attr 467 fchmodat2 452 setxattrat 463 removexattrat 466 file_setattr 469
"""

_X86_64 = """
    ioctl 16 shmget 29 shmat 30 shmctl 31 socket 41 clone 56 semget 64 semop 65 semctl 66 msgget 68 msgsnd 69
    msgrcv 70 msgctl 71 ptrace 101 syslog 103 uselib 134 setpriority 141 vhangup 153 modify_ldt 154 pivot_root 155
    adjtimex 159 chroot 161 acct 163 settimeofday 164 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169
    sethostname 170 setdomainname 171 iopl 172 ioperm 173 init_module 175 delete_module 176 quotactl 179
    nfsservctl 180 lookup_dcookie 212 semtimedop 220 clock_settime 227 mq_open 240 mq_unlink 241 kexec_load 246
    add_key 248 request_key 249 keyctl 250 ioprio_set 251 migrate_pages 256 unshare 272 move_pages 279
    perf_event_open 298 fanotify_init 300 prlimit64 302 open_by_handle_at 304 clock_adjtime 305 setns 308
    process_vm_readv 310 process_vm_writev 311 kcmp 312 finit_module 313 kexec_file_load 320 bpf 321 userfaultfd 323
    chmod 90 fchmod 91 chown 92 fchown 93 lchown 94 utime 132 setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197
    lremovexattr 198 fremovexattr 199 utimes 235 fchownat 260 futimesat 261 fchmodat 268 utimensat 280
"""

_AARCH64 = """
    lookup_dcookie 18 ioctl 29 ioprio_set 30 umount2 39 mount 40 pivot_root 41 nfsservctl 42 chroot 51 vhangup 58
    quotactl 60 acct 89 unshare 97 kexec_load 104 init_module 105 delete_module 106 clock_settime 112 syslog 116
    ptrace 117 setpriority 140 reboot 142 sethostname 161 setdomainname 162 settimeofday 170 adjtimex 171 mq_open 180
    mq_unlink 181 msgget 186 msgctl 187 msgrcv 188 msgsnd 189 semget 190 semctl 191 semtimedop 192 semop 193
    shmget 194 shmctl 195 shmat 196 socket 198 add_key 217 request_key 218 keyctl 219 clone 220 swapon 224 swapoff 225
    migrate_pages 238 move_pages 239 perf_event_open 241 prlimit64 261 fanotify_init 262 open_by_handle_at 265
    clock_adjtime 266 setns 268 process_vm_readv 270 process_vm_writev 271 kcmp 272 finit_module 273 bpf 280
    userfaultfd 282 kexec_file_load 294 fchmod 52 fchmodat 53 fchownat 54 fchown 55 utimensat 88 setxattr 5
    lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16
"""


def _table(text: str) -> dict[str, int]:
    words = (text + _SAME_EVERYWHERE).split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


NUMBERS: dict[Architecture, dict[str, int]] = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}
METADATA = frozenset(_METADATA.split())
FAR_REACHING = frozenset(_FAR_REACHING.split())
UNSHARED = frozenset(_UNSHARED.split())


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
