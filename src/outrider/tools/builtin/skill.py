"""The `skill` tool: loads the instructions of a skill on request."""

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.containment import open_to_read
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolResult

MAX_SKILL_LENGTH = 100_000
_FRONT_MATTER = re.compile(r"\A---\s*\n.*?\n---\s*(?:\n|\Z)", re.DOTALL)


class Skill(msgspec.Struct, frozen=True):
    """A skill file. `path` is its SKILL.md; referenced files are in the same folder.

    `root` is set for a workspace skill: opening the file fails if a symbolic link resolves to a path outside of it.
    """

    name: str
    description: str
    path: Path
    root: Path | None = None


def skill_tool(skills: Sequence[Skill]) -> Tool:
    by_name = {skill.name: skill for skill in skills}

    def skill(name: str) -> ToolResult:
        selected = by_name.get(name.strip())
        if selected is None:
            near = get_close_matches(name, by_name, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ToolFailure(
                f"there is no skill called {name[:100]!r}.{hint} There are: {', '.join(by_name) or 'none'}"
            )
        return ToolResult(
            f"{_skill_body(selected)}\n\n(files of this skill are in {selected.path.parent})", title=selected.name
        )

    listed = "\n".join(f"- {entry.name}: {entry.description}" for entry in skills)
    return Tool(
        skill,
        description=load_prompt(__file__, "skill", skills=listed),
        read_only=True,
        display="read",
        repeatable=True,
        preprocess_args=argument_aliases({"skill": "name", "skill_name": "name"}),
    )


def _open_skill(skill: Skill) -> BinaryIO:
    if skill.root is None:
        return skill.path.open("rb")
    return os.fdopen(open_to_read(str(skill.path), root=str(skill.root), cwd=str(skill.root)), "rb")


def _skill_body(skill: Skill) -> str:
    """Returns the file without the front matter, which the tool description already contains. Raises ToolFailure if it
    is not readable."""
    if not skill.path.is_file():
        raise ToolFailure(f"the skill {skill.name} cannot be read: {skill.path} is not a file (any more)")
    try:
        with _open_skill(skill) as file:
            text = file.read(MAX_SKILL_LENGTH + 1).decode("utf-8", "replace").removeprefix("\ufeff")
    except OSError as error:
        raise ToolFailure(f"the skill {skill.name} cannot be read: {error.strerror or error}") from error
    if len(text) > MAX_SKILL_LENGTH:
        text = f"{text[:MAX_SKILL_LENGTH]}\n\n(cut here: the file is longer)"
    return _FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1).strip()
