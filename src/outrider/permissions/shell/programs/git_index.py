"""Checks the file names in git's index, which `git ls-files` prints, for names that a shell or xargs would change."""

import re
from pathlib import Path

from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.workspace_config import find_git_folder, read_index_entries

# Path segments of plain characters. git quotes any other character, and a shell splits or expands some of them.
_PLAIN_PATH = re.compile(r"(?!-)[A-Za-z0-9_.,+=@%^~#:()-]+(?:/[A-Za-z0-9_.,+=@%^~#:()-]+)*")
_SPECIAL_SEGMENTS = frozenset({".", "..", ".git"})


def reject_unsafe_index(cwds: tuple[str, ...]) -> None:
    """Raises NotProvenSafe if a name in the index of one of these folders is not a plain relative path."""
    for cwd in cwds:
        folder = find_git_folder(Path(cwd))
        if folder is None:
            continue
        if any(folder.glob("sharedindex.*")):
            raise NotProvenSafe("the index of the git repository is in a format that is not understood")
        for entry in read_index_entries(folder / "index"):
            if entry is None:
                raise NotProvenSafe("the index of the git repository is in a format that is not understood")
            name = entry[0]
            if not _PLAIN_PATH.fullmatch(name) or not _SPECIAL_SEGMENTS.isdisjoint(name.split("/")):
                raise NotProvenSafe(f"the name {name!r} in the git index would be split or expanded")
