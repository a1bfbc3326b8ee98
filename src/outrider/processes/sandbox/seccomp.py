"""Builds the seccomp filter of a confined command as a BPF program.

The filter denies system calls that bypass namespaces and file rights: memory of other processes, key rings, mounts, new
namespaces, kernel modules, clocks, terminal input. It allows all others, so that compilers and tests run normally.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from functools import cache
from typing import Literal

import msgspec

Architecture = Literal["x86_64", "aarch64"]

# The newest system call that was reviewed. Newer ones fail with ENOSYS, as on an older kernel.
NEWEST_SYSCALL = 469

_DENIED = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise move_pages migrate_pages keyctl add_key
    request_key bpf perf_event_open userfaultfd lookup_dcookie unshare setns mount umount2 pivot_root chroot
    move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr open_by_handle_at fanotify_init
    quotactl quotactl_fd swapon swapoff acct kexec_load kexec_file_load init_module finit_module delete_module reboot
    syslog vhangup nfsservctl settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname iopl ioperm
    modify_ldt uselib io_uring_setup io_uring_enter io_uring_register
"""

# Calls on resources that namespaces isolate; denied if there are no namespaces.
_SHARED_RESOURCES = """
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink setpriority
    ioprio_set
"""

# Landlock does not check these calls. Without bubblewrap they are denied unless the workspace is writable.
_METADATA = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr
    fsetxattr removexattr lremovexattr fremovexattr setxattrat removexattrat file_setattr
"""

_SAME_EVERYWHERE = """
    io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431
    fsmount 432 fspick 433 clone3 435 pidfd_getfd 438 process_madvise 440 mount_setattr 442 quotactl_fd 443
    openat2 437 open_tree_attr 467 fchmodat2 452 setxattrat 463 removexattrat 466 file_setattr 469
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
    lremovexattr 198 fremovexattr 199 utimes 235 fchownat 260 futimesat 261 fchmodat 268 utimensat 280 open 2 creat 85
    mknod 133 openat 257 mknodat 259
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
    lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 mknodat 33 openat 56
"""


def _parse_numbers(text: str) -> dict[str, int]:
    tokens = (text + _SAME_EVERYWHERE).split()
    return {name: int(number) for name, number in zip(tokens[::2], tokens[1::2], strict=True)}


SYSCALL_NUMBERS: dict[Architecture, dict[str, int]] = {
    "x86_64": _parse_numbers(_X86_64),
    "aarch64": _parse_numbers(_AARCH64),
}
METADATA_SYSCALLS = frozenset(_METADATA.split())
DENIED_SYSCALLS = frozenset(_DENIED.split())
SHARED_RESOURCE_SYSCALLS = frozenset(_SHARED_RESOURCES.split())


_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_AUDIT: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_NEW_NAMESPACES = 0x7E020000
_SET_IDS = 0o6000
_CREATES_FILE = 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE that O_DIRECTORY lacks
_MODE_ARGUMENTS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_OPEN_FLAG_ARGUMENTS = {"open": 1, "openat": 2}  # the mode is the next argument
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
# TIOCSTI (insert input into a terminal), TIOCLINUX and TIOCCONS (console), TIOCSETD (line discipline).
_TERMINAL_IOCTLS = (0x5412, 0x541C, 0x541D, 0x5423)


def detect_architecture() -> Architecture | None:
    """Returns the machine's architecture, or None if there is no filter for it."""
    name = platform.machine()
    return name if name in ("x86_64", "aarch64") else None


class SyscallFilterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the filter may allow because something else confines it."""

    namespaces: bool = True  # the command runs in its own namespaces
    sockets: bool = True
    metadata: bool = True  # modes, owners, times and attributes of files
    set_ids: bool = True  # programs that run with the rights of their owner or group


@cache
def build_filter(architecture: Architecture, options: SyscallFilterOptions) -> bytes:
    """Builds the filter program for an architecture."""
    numbers = SYSCALL_NUMBERS[architecture]
    denied = DENIED_SYSCALLS
    denied |= frozenset() if options.namespaces else SHARED_RESOURCE_SYSCALLS
    denied |= frozenset() if options.metadata else METADATA_SYSCALLS
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        # System calls of another ABI (32 bit) have other numbers and would match the wrong rules.
        _instruction(_EQUAL, _AUDIT[architecture], then=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_GREATER, NEWEST_SYSCALL, otherwise=1),
        _return_errno(errno.ENOSYS),
        *_on_syscall(
            numbers["clone3"], [_return_errno(errno.ENOSYS)]
        ),  # the flags of clone3 are in memory, which BPF cannot read; libc falls back to clone
        *_on_syscall(
            numbers["clone"],
            [_load_argument(0), _instruction(_ANY_BIT, _NEW_NAMESPACES, otherwise=1), _return_errno(errno.EPERM)],
        ),
        *_on_syscall(numbers["ioctl"], [_load_argument(1), *_deny_values(_TERMINAL_IOCTLS)]),
        *_on_syscall(numbers["socket"], _check_socket_family(sockets=options.sockets)),
    ]
    if not options.namespaces:
        program += _on_syscall(
            numbers["prlimit64"], [_load_argument(0), _instruction(_EQUAL, 0, then=1), _return_errno(errno.EPERM)]
        )
    for name in sorted(denied & numbers.keys()):
        program += _on_syscall(numbers[name], [_return_errno(errno.EPERM)])
    if not options.set_ids:  # after the calls that are denied as a whole, because each branch ends with a verdict
        program += _deny_set_ids(numbers)
    return b"".join([*program, _instruction(_RETURN, _ALLOW)])


def _deny_set_ids(numbers: dict[str, int]) -> list[bytes]:
    """Denies modes with the setuid or setgid bit for new and existing files."""
    check = [_instruction(_ANY_BIT, _SET_IDS, otherwise=1), _return_errno(errno.EPERM)]
    # The mode of openat2 is in memory, which BPF cannot read; programs fall back to openat.
    program = _on_syscall(numbers["openat2"], [_return_errno(errno.ENOSYS)])
    for name, argument in _MODE_ARGUMENTS.items():
        if name in numbers:
            program += _on_syscall(numbers[name], [_load_argument(argument), *check])
    for name, flags in _OPEN_FLAG_ARGUMENTS.items():
        if name in numbers:
            creates = _instruction(_ANY_BIT, _CREATES_FILE, otherwise=len(check) + 1)
            program += _on_syscall(numbers[name], [_load_argument(flags), creates, _load_argument(flags + 1), *check])
    return program


def _check_socket_family(*, sockets: bool) -> list[bytes]:
    """Allows Unix, IPv4 and IPv6 sockets, and netlink queries; returns an error for all other families."""
    if not sockets:
        return [_return_errno(errno.EACCES)]
    allow, refuse = _instruction(_RETURN, _ALLOW), _return_errno(errno.EAFNOSUPPORT)
    return [
        _load_argument(0),
        *(
            instruction
            for family in (_UNIX, _INET, _INET6)
            for instruction in (_instruction(_EQUAL, family, otherwise=1), allow)
        ),
        *(_instruction(_EQUAL, _NETLINK, then=1), refuse),
        # Allow only NETLINK_ROUTE: queries of addresses and routes.
        *(_load_argument(2), _instruction(_EQUAL, 0, then=1), refuse),
    ]


def _on_syscall(number: int, verdict: list[bytes]) -> list[bytes]:
    """Emits a branch for one system call. It ends with a verdict, so the number stays loaded for the next branch."""
    return [_instruction(_EQUAL, number, otherwise=len(verdict) + 1), *verdict, _instruction(_RETURN, _ALLOW)]


def _deny_values(values: Iterable[int]) -> list[bytes]:
    """Returns EPERM if the loaded argument has one of the values."""
    return [
        instruction
        for value in values
        for instruction in (_instruction(_EQUAL, value, otherwise=1), _return_errno(errno.EPERM))
    ]


def _load_argument(argument: int) -> bytes:
    """Loads the lower 32 bits of an argument; the kernel ignores the upper half of these arguments."""
    return _instruction(_LOAD, _ARGUMENTS + 8 * argument)


def _return_errno(number: int) -> bytes:
    return _instruction(_RETURN, _REFUSE | number)


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
