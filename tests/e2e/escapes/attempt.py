"""One attempt to leave the sandbox: a script, and where it must succeed without a sandbox (proof that it is real)."""

from dataclasses import dataclass, field
from typing import Literal

User = Literal["root", "ordinary"]
BOTH: frozenset[User] = frozenset({"root", "ordinary"})
ROOT: frozenset[User] = frozenset({"root"})
ORDINARY: frozenset[User] = frozenset({"ordinary"})
NO_USER: frozenset[User] = frozenset()


@dataclass(frozen=True)
class Attempt:
    """`control` names the users as which it must have an effect without a sandbox; none if that would harm."""

    name: str
    script: str
    control: frozenset[User] = BOTH
    users: frozenset[User] = BOTH
    writable: bool = True
    bounds: dict[str, float] = field(default_factory=dict[str, float])
    seconds: float = 60.0
    kill_after: float = 0.0  # the parent is killed with SIGKILL after so many seconds
    landlock: bool = True  # whether the fallback must hold it, too; what it cannot is among its gaps


# Imported by the scripts that name them: loading them all takes as long as the sandbox.
_MODULES = "fcntl mmap pty resource signal socket stat struct subprocess termios threading"


def program_of(attempt: Attempt) -> str:
    used = [name for name in _MODULES.split() if f"{name}." in attempt.script]
    calls_libc = any(word in attempt.script for word in ("libc", "ctypes", "call("))
    return "".join(f"import {name}\n" for name in used) + PRELUDE + LIBC * calls_libc + attempt.script


# The start of every script. An effect that only the script can see is reported with `escaped`.
PRELUDE = """
import errno, os, sys, time
E = os.environ
WS, OUT, HOME, SECRET, DATA, MARK = (E[n] for n in ("WS", "OUT", "HOME", "SECRET", "DATA", "MARK"))
VICTIM, ENVIRONMENT_AT = int(E["VICTIM"]), int(E["ENVIRONMENT_AT"])
def escaped(): print("ESCAPED", flush=True)
def root_of(pid): return os.path.join("/proc", str(pid), "root")
def put(path, text="changed"):
    with open(path, "w") as file: file.write(text)
def show(path):
    with open(path, errors="replace") as file: print(file.read())
def number(x86_64, aarch64):
    return {"x86_64": x86_64, "aarch64": aarch64}[os.uname().machine]
"""

LIBC = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def syscall(number, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in (number, *arguments)]
    result = libc.syscall(*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""
