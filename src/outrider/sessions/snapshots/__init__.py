"""Undo and redo of what tools did to files: loaded with the first call that may do something to them."""

from typing import TYPE_CHECKING

from outrider.lazy import lazy_names

if TYPE_CHECKING:
    from outrider.sessions.snapshots.changes import Caller, ChangeSet, Origin
    from outrider.sessions.snapshots.images import Snapshot
    from outrider.sessions.snapshots.objects import name_of
    from outrider.sessions.snapshots.snapshot import Snapshots
    from outrider.sessions.snapshots.tidying import FILE, forget_sessions, sessions_in, shed
    from outrider.sessions.snapshots.undoing import Direction, FileAction, Report

__all__ = [
    "FILE",
    "Caller",
    "ChangeSet",
    "Direction",
    "FileAction",
    "Origin",
    "Report",
    "Snapshot",
    "Snapshots",
    "forget_sessions",
    "name_of",
    "sessions_in",
    "shed",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.sessions.snapshots.changes": "Caller ChangeSet Origin",
        "outrider.sessions.snapshots.images": "Snapshot",
        "outrider.sessions.snapshots.objects": "name_of",
        "outrider.sessions.snapshots.snapshot": "Snapshots",
        "outrider.sessions.snapshots.tidying": "FILE forget_sessions sessions_in shed",
        "outrider.sessions.snapshots.undoing": "Direction FileAction Report",
    },
)
