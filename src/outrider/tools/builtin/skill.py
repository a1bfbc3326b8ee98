"""Loads instructions for a kind of work on demand."""

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.safe_open import open_to_read
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside

LARGEST = 100_000
_FRONT_MATTER = re.compile(r"\A---\s*\n.*?\n---\s*(?:\n|\Z)", re.DOTALL)


class Skill(msgspec.Struct, frozen=True):
    """`path` is its SKILL.md; files that it names lie in the same folder. One that belongs to a workspace has its
    `root`, and is read only as long as no link leads out of there."""

    name: str
    description: str
    path: Path
    root: Path | None = None


def skill_tool(skills: Sequence[Skill]) -> Tool:
    by_name = {skill.name: skill for skill in skills}

    def skill(name: str) -> ToolResult:
        found = by_name.get(name.strip())
        if found is None:
            near = get_close_matches(name, by_name, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ToolFailure(
                f"there is no skill called {name[:100]!r}.{hint} There are: {', '.join(by_name) or 'none'}"
            )
        return ToolResult(f"{_body(found)}\n\n(files of this skill are in {found.path.parent})", title=found.name)

    listed = "\n".join(f"- {one.name}: {one.description}" for one in skills)
    return Tool(
        skill,
        description=prompt_beside(__file__, skills=listed),
        read_only=True,
        repeatable=True,
        preprocess_args=argument_aliases({"skill": "name", "skill_name": "name"}),
    )


def _open(skill: Skill) -> BinaryIO:
    if skill.root is None:
        return skill.path.open("rb")
    return os.fdopen(open_to_read(str(skill.path), root=str(skill.root), cwd=str(skill.root)), "rb")


def _body(skill: Skill) -> str:
    """Without the front matter, which the model has seen as the description."""
    if not skill.path.is_file():
        raise ToolFailure(f"the skill {skill.name} cannot be read: {skill.path} is no file (any more)")
    try:
        with _open(skill) as file:
            text = file.read(LARGEST + 1).decode("utf-8", "replace").removeprefix("\ufeff")
    except OSError as error:
        raise ToolFailure(f"the skill {skill.name} cannot be read: {error.strerror or error}") from error
    if len(text) > LARGEST:
        text = f"{text[:LARGEST]}\n\n(cut here: the file is longer)"
    return _FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1).strip()
