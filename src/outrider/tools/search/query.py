"""What to search for, and what was found."""

from collections.abc import Callable
from typing import Literal

import msgspec

MOST_HITS = 20_000
LONGEST_LINE = 500

OutputMode = Literal["content", "files_with_matches", "count"]


class Query(msgspec.Struct, frozen=True):
    pattern: str
    mode: OutputMode
    glob: str | None = None
    type: str | None = None
    ignore_case: bool = False
    context: int = 0
    multiline: bool = False


class Scope(msgspec.Struct, frozen=True):
    """Where to search: below `target` in an open folder, whose path is `path`; only in files that are `wanted`."""

    folder: int
    path: str
    target: str
    wanted: Callable[[str], bool]


class Hit(msgspec.Struct, frozen=True):
    """`line` is 0 for a whole file; then `text` is the count of its matching lines, or empty."""

    path: str
    line: int
    text: str
    matches: bool
