"""Undo and redo of file changes by tools. Modules load lazily, with the first tool call that may change files."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.sessions.snapshots.changes import (
        DATABASE_NAME,
        ChangeOrigin,
        ChangeSet,
        ParentCall,
        enforce_total_quota,
        forget_sessions,
        tracked_sessions,
    )
    from outrider.sessions.snapshots.restore import Direction, FileAction, RestoreReport
    from outrider.sessions.snapshots.scanner import FileState, WorkspaceSnapshot, content_hash
    from outrider.sessions.snapshots.tracker import ChangeTracker

__all__ = [
    "DATABASE_NAME",
    "ChangeOrigin",
    "ChangeSet",
    "ChangeTracker",
    "Direction",
    "FileAction",
    "FileState",
    "ParentCall",
    "RestoreReport",
    "WorkspaceSnapshot",
    "content_hash",
    "enforce_total_quota",
    "forget_sessions",
    "tracked_sessions",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.sessions.snapshots.changes": """
            DATABASE_NAME ChangeOrigin ChangeSet ParentCall enforce_total_quota forget_sessions tracked_sessions
        """,
        "outrider.sessions.snapshots.scanner": "FileState WorkspaceSnapshot content_hash",
        "outrider.sessions.snapshots.tracker": "ChangeTracker",
        "outrider.sessions.snapshots.restore": "Direction FileAction RestoreReport",
    },
)
