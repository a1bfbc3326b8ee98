"""What agents are told about the place they work in: a few lines on the surroundings, then instruction files.

The text is made once, when a session begins, and kept with it: a system prompt stays the same to its end."""

import datetime
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from outrider.app.workspace.project import Project
from outrider.app.workspace.trust import INSTRUCTIONS

BUDGET = 32 * 1024  # bytes of all instruction files together
LONGEST_PATH = 300
_HARMLESS_PATH = re.compile(r"[A-Za-z0-9._/~+@-]+")
_BRANCH = re.compile(rb"ref: refs/heads/([A-Za-z0-9._/+-]{1,100})\n?")


def notes_on(project: Project, own: Path, *, trusted: bool, today: datetime.date) -> str:
    """`own` is the user's own instruction file. Of a workspace that is not trusted, nothing speaks here: not its files,
    not its branches, and not the name of a folder that could be read as words."""
    sections = [_surroundings(project, trusted=trusted, today=today)]
    sections += _instructions(project, own, trusted=trusted)
    return "\n\n".join(sections)


def _surroundings(project: Project, *, trusted: bool, today: datetime.date) -> str:
    lines = [f"Today is {today.isoformat()}; the system is {_system()}."]
    folder = str(project.folder)
    if len(folder) <= LONGEST_PATH and (trusted or _HARMLESS_PATH.fullmatch(folder)):
        branch = _branch(project) if trusted else ""
        lines.append(f"The workspace is {json.dumps(folder)}{f', on the git branch {branch}' if branch else ''}.")
    return "\n".join(lines)


def _system() -> str:
    found = os.uname()  # what `platform` says too, though that takes longer to load than everything else here
    return f"{found.sysname} {found.machine}"


def _instructions(project: Project, own: Path, *, trusted: bool) -> Iterator[str]:
    left = BUDGET
    for source, content in _files(project, own, trusted=trusted):
        text = content[:left].decode("utf-8", "replace").removeprefix("\ufeff").strip()
        cut = "\n(cut here: the instructions are too long)" if len(content) > left else ""
        if text:
            yield f"# Instructions from {source}\n{text}{cut}"
        left -= min(left, len(content))
        if not left:
            return


def _files(project: Project, own: Path, *, trusted: bool) -> Iterator[tuple[str, bytes]]:
    """The user's first, then from the root of the project to the working directory: what comes later is nearer."""
    if own.is_file():
        with own.open("rb") as file:
            yield "the user", file.read(BUDGET + 1)
    for folder in project.folders() if trusted else ():
        content = project.read(folder / INSTRUCTIONS, BUDGET + 1)
        if content is not None:
            yield str((folder / INSTRUCTIONS).relative_to(project.root)), content


def _branch(project: Project) -> str:
    """Read, not asked of git: that would obey the repository's configuration."""
    found = _BRANCH.fullmatch(project.read(project.root / ".git" / "HEAD", 200) or b"")
    return found[1].decode() if found else ""
