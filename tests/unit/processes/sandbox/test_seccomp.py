"""The filter of system calls, run word for word as the kernel would."""

import errno
import struct

import pytest

from outrider.processes.sandbox.seccomp import (
    DENIED_SYSCALLS,
    METADATA_SYSCALLS,
    SHARED_RESOURCE_SYSCALLS,
    SYSCALL_NUMBERS,
    Architecture,
    SyscallFilterOptions,
    build_filter,
)

ALLOW, KILL = "allow", "kill"
AUDIT: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ARCHITECTURES: list[Architecture] = ["x86_64", "aarch64"]
HARMLESS: dict[Architecture, tuple[int, ...]] = {
    "x86_64": (0, 1, 2, 9, 39, 59, 60, 62, 257, 424, 437),
    "aarch64": (63, 64, 56, 222, 172, 221, 93, 129, 424, 437),
}
FREE = SyscallFilterOptions()


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> str | int:
    """What the kernel would answer; an error's number where it refuses."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    context = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    instructions = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at, loaded = 0, 0
    while True:
        code, then, otherwise, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                loaded = struct.unpack_from("=I", context, value)[0]
            case 0x15 | 0x25 | 0x45:
                holds = {0x15: loaded == value, 0x25: loaded > value, 0x45: bool(loaded & value)}[code]
                at += then if holds else otherwise
            case 0x06:
                return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(value, value & 0xFFFF)
            case _:
                raise AssertionError(f"unknown word {code:#x}")


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return request.param


def ask(architecture: Architecture, freedom: SyscallFilterOptions, call: str | int, *arguments: int) -> str | int:
    number = SYSCALL_NUMBERS[architecture][call] if isinstance(call, str) else call
    return verdict(build_filter(architecture, freedom), AUDIT[architecture], number, *arguments)


def test_calls_that_reach_far_are_refused_and_plain_ones_pass(architecture: Architecture):
    known = SYSCALL_NUMBERS[architecture].keys()
    assert {name: ask(architecture, FREE, name) for name in DENIED_SYSCALLS & known} == dict.fromkeys(
        DENIED_SYSCALLS & known, errno.EPERM
    )
    assert {ask(architecture, FREE, number) for number in HARMLESS[architecture]} == {ALLOW}


def test_calls_of_another_architecture_end_the_process(architecture: Architecture):
    program = build_filter(architecture, FREE)
    assert verdict(program, 0x40000003, 20) == KILL
    assert verdict(program, AUDIT["aarch64" if architecture == "x86_64" else "x86_64"], 1) == KILL


def test_unlisted_system_calls_are_not_implemented(architecture: Architecture):
    assert ask(architecture, FREE, 470) == errno.ENOSYS
    assert ask(architecture, FREE, 0x40000000 + 39) == errno.ENOSYS


@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespace_is_made_by_clone(architecture: Architecture, flag: int):
    assert ask(architecture, FREE, "clone", flag | 17) == errno.EPERM
    assert ask(architecture, FREE, "clone", 0x3D0F00) == ALLOW
    assert ask(architecture, FREE, "clone3", 0) == errno.ENOSYS


@pytest.mark.parametrize("request_number", [0x5412, 0x541C, 0x541D, 0x5423])
def test_terminals_are_not_tricked_by_any_upper_half(architecture: Architecture, request_number: int):
    assert ask(architecture, FREE, "ioctl", 0, request_number) == errno.EPERM
    assert ask(architecture, FREE, "ioctl", 0, request_number | 7 << 32) == errno.EPERM
    assert ask(architecture, FREE, "ioctl", 0, 0x5401) == ALLOW


def test_only_usual_sockets_are_opened(architecture: Architecture):
    families = {family: ask(architecture, FREE, "socket", family, 1, 0) for family in range(46)}
    assert {family for family, answer in families.items() if answer == ALLOW} == {1, 2, 10, 16}
    assert ask(architecture, FREE, "socket", 16, 3, 15) == errno.EAFNOSUPPORT
    assert ask(architecture, FREE, "socket", 2, 2, 17) == ALLOW


def test_without_sockets_there_are_none(architecture: Architecture):
    assert {ask(architecture, SyscallFilterOptions(sockets=False), "socket", family) for family in range(46)} == {
        errno.EACCES
    }


def test_what_namespaces_would_keep_apart_is_refused_without_them(architecture: Architecture):
    shared = SyscallFilterOptions(namespaces=False)
    assert {ask(architecture, shared, name) for name in SHARED_RESOURCE_SYSCALLS} == {errno.EPERM}
    assert {ask(architecture, FREE, name) for name in SHARED_RESOURCE_SYSCALLS} == {ALLOW}
    assert ask(architecture, shared, "prlimit64", 0) == ALLOW
    assert ask(architecture, shared, "prlimit64", 4711) == errno.EPERM
    assert ask(architecture, FREE, "prlimit64", 4711) == ALLOW


def test_metadata_of_files_can_be_left_alone(architecture: Architecture):
    known = METADATA_SYSCALLS & SYSCALL_NUMBERS[architecture].keys()
    assert {ask(architecture, SyscallFilterOptions(metadata=False), name) for name in known} == {errno.EPERM}
    assert {ask(architecture, FREE, name) for name in known} == {ALLOW}


def test_no_two_calls_share_a_number(architecture: Architecture):
    numbers = SYSCALL_NUMBERS[architecture]
    assert len(set(numbers.values())) == len(numbers)
