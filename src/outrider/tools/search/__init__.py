"""Finding files and text, with or without ripgrep, under the same rules: loaded with the first search."""

from typing import TYPE_CHECKING

from outrider.lazy import lazy_names

if TYPE_CHECKING:
    from outrider.tools.search.finding import find_hits
    from outrider.tools.search.listing import list_files
    from outrider.tools.search.pattern import path_pattern

__all__ = ["find_hits", "list_files", "path_pattern"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.tools.search.finding": "find_hits",
        "outrider.tools.search.listing": "list_files",
        "outrider.tools.search.pattern": "path_pattern",
    },
)
