"""Undo and redo of what tools did to files: loaded with the first call that may do something to them."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.sessions.snapshots.changes import FILE, Caller, ChangeSet, Origin, forget_sessions, sessions_in, shed
    from outrider.sessions.snapshots.images import Snapshot, name_of
    from outrider.sessions.snapshots.restore import Direction, FileAction, Report
    from outrider.sessions.snapshots.snapshots import Snapshots

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
        "outrider.sessions.snapshots.changes": "Caller ChangeSet Origin FILE forget_sessions sessions_in shed",
        "outrider.sessions.snapshots.images": "Snapshot name_of",
        "outrider.sessions.snapshots.snapshots": "Snapshots",
        "outrider.sessions.snapshots.restore": "Direction FileAction Report",
    },
)
