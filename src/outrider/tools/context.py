"""The context object that each tool call receives: session, workspace and a progress callback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """An update of a running call: new output, a new title or more metadata."""

    output: str = ""
    title: str | None = None
    metadata: dict[str, Any] = {}


def _ignore_progress(progress: Progress) -> None:
    """Default progress callback: discards the value."""


class ToolContext(msgspec.Struct, frozen=True):
    """Context of one call. A tool function receives it through a parameter of this type, which is not part of the
    schema."""

    session_id: str = ""
    call_id: str = ""
    agent: str = ""
    workspace: Path = Path()
    report: Callable[[Progress], None] = _ignore_progress
