"""What is started: a program with its arguments, its environment, its folder and its limits."""

import marshal
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from outrider.errors import ProcessError


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a command may use at most; the kernel refuses or ends what asks for more. Sizes in bytes.

    `processes` counts all of the user's, also those of other programs."""

    memory: int | None = None
    cpu_seconds: int | None = None
    file_size: int | None = None
    open_files: int | None = None
    processes: int | None = None

    def by_name(self) -> list[tuple[str, int]]:
        names = {
            "RLIMIT_AS": self.memory,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }
        return [(name, most) for name, most in names.items() if most is not None]


def nothing_to_say() -> str:
    return ""


class Launch(msgspec.Struct, frozen=True):
    """`afterwards` is asked when nothing of the command is alive: it tidies up, and says what must be known.
    `session_id` names who starts it, for whoever wraps it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: Path
    limits: ResourceLimits = ResourceLimits()
    afterwards: Callable[[], str] = nothing_to_say
    session_id: str = ""

    def encode(self) -> bytes:
        """As the keeper reads it. What no system could start raises ProcessError."""
        try:
            request = {
                "argv": [_encoded(word) for word in self.argv],
                "environment": {_encoded(name): _encoded(value) for name, value in self.environment.items()},
                "workdir": _encoded(str(self.workdir)),
                "limits": self.limits.by_name(),
            }
        except UnicodeEncodeError as error:
            raise ProcessError(f"the command cannot be started: {error}") from error
        body = marshal.dumps(request)
        return len(body).to_bytes(4, "big") + body


Wrap = Callable[[Launch], Launch]
"""The last word before a start. A sandbox answers with a launch of its own program, which starts the given one."""


def unwrapped(launch: Launch) -> Launch:
    return launch


_BASH = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/opt/homebrew/bin/bash")
_NO_BASH = "there is no bash on this machine; commands are judged as bash reads them, so no other shell runs them"


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """A text is for bash, which reads none of the user's start-up files; a sequence is a program as it stands."""
    if not isinstance(command, str):
        return tuple(command)
    return (find_bash(), "--noprofile", "--norc", "-c", command)


def find_bash(places: Sequence[str] = _BASH, search_path: str | None = None) -> str:
    """The system's own before any other: a folder that a workspace can write to may stand in the search path."""
    own = (place for place in places if os.access(place, os.X_OK))
    found = next(own, None) or _on_path("bash", search_path)
    if found is None or not Path(found).is_absolute():
        raise ProcessError(_NO_BASH)
    return found


def _on_path(program: str, search_path: str | None) -> str | None:
    from shutil import which  # brings every kind of archive along, and few machines need it here

    return which(program, path=search_path)


def _encoded(word: str) -> bytes:
    if "\0" in word:
        raise ProcessError("the command cannot be started: it contains a NUL character")
    return os.fsencode(word)
