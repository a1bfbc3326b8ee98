"""How a process ended, in values and in words."""

import signal
from typing import Literal, assert_never

import msgspec

Cause = Literal["exited", "signaled", "memory", "killed", "timeout", "lost"]


class Ending(msgspec.Struct, frozen=True):
    """`exit_code` is None when a signal ended the process; `signal` is the signal's name."""

    cause: Cause
    exit_code: int | None = None
    signal: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.cause == "exited" and self.exit_code == 0

    @property
    def words(self) -> str:
        match self.cause:
            case "exited":
                return f"exit code {self.exit_code}{_by_shell(self.exit_code or 0)}"
            case "signaled":
                return f"killed by {self.signal}"
            case "memory":
                return "killed (memory)"
            case "killed":
                return "killed"
            case "timeout":
                return "killed after its time limit"
            case "lost":
                return "lost: the process that watched over it was killed, and it with it"
            case _:
                assert_never(self.cause)


def ending_of(code: int, *, out_of_memory: bool, because: Literal["killed", "timeout"] | None) -> Ending:
    """`code` is negative for a signal; `because` says that the end was asked for, which explains any signal."""
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    cause: Cause = "signaled" if code < 0 else "exited"
    if because is not None:
        cause = because
    elif killed and out_of_memory:
        cause = "memory"
    return Ending(cause, code if code >= 0 else None, signal_name(-code) if code < 0 else None)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"


def _by_shell(code: int) -> str:
    """A shell says with 128 and more that a signal ended what it ran."""
    name = signal_name(code - 128) if 128 < code < 192 else ""
    return f" ({name})" if name.startswith("SIG") else ""
