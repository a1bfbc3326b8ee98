"""Patches as models write them, and their way into files: loaded with the first patch."""

from typing import TYPE_CHECKING

from outrider.lazy import lazy_names

if TYPE_CHECKING:
    from outrider.tools.patches.patch import read_patch
    from outrider.tools.patches.placing import apply_hunks
    from outrider.tools.patches.wish import AddFile, DeleteFile, UpdateFile, Wish

__all__ = ["AddFile", "DeleteFile", "UpdateFile", "Wish", "apply_hunks", "read_patch"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.tools.patches.patch": "read_patch",
        "outrider.tools.patches.placing": "apply_hunks",
        "outrider.tools.patches.wish": "AddFile DeleteFile UpdateFile Wish",
    },
)
