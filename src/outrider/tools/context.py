"""The context object that each tool call receives: session, workspace and a progress callback."""

from collections.abc import Awaitable, Callable
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


async def _wait_for_nothing() -> None:
    """Default of `wait_for_answer`: the call cannot outlive its process."""


class ToolContext(msgspec.Struct, frozen=True):
    """Context of one call. A tool function receives it through a parameter of this type, which is not part of the
    schema.

    `wait_for_answer` stores that the call has done its work and only waits for the user's answer: after a crash it is
    run again instead of reported as interrupted. `is_suspended` returns whether a cancelled call will be run again when
    its session is reopened.
    """

    session_id: str = ""
    call_id: str = ""
    agent: str = ""
    workspace: Path = Path()
    report: Callable[[Progress], None] = _ignore_progress
    wait_for_answer: Callable[[], Awaitable[None]] = _wait_for_nothing
    is_suspended: Callable[[], bool] = lambda: False
