"""What every call has: where it belongs, where it works, and a way to tell how it goes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """News of a running call: a piece of output, a better title, more metadata."""

    output: str = ""
    title: str | None = None
    metadata: dict[str, Any] = {}


def _tell_nobody(progress: Progress) -> None:
    """For calls that nobody watches."""


class ToolContext(msgspec.Struct, frozen=True):
    """A tool function gets it by declaring a parameter of this type; the model never sees that parameter."""

    session_id: str = ""
    call_id: str = ""
    agent: str = ""
    workspace: Path = Path()
    report: Callable[[Progress], None] = _tell_nobody
