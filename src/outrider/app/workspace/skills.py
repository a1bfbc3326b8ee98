"""Finds skills: folders with a SKILL.md whose front matter says what it is good for."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.app.workspace.project import Project
from outrider.app.workspace.trust import SKILL_FILE, skill_files

if TYPE_CHECKING:
    from outrider.tools.builtin.skill import Skill

MOST = 50
LONGEST = 500  # characters of a description: every request carries them all
FRONT = 8_000
USERS_FOLDERS = (Path(".agents/skills"), Path(".claude/skills"))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_KEY = re.compile(r"^(name|description):[ \t]*(.*)$")


def find_skills(project: Project, own: Path, home: Path, *, trusted: bool) -> "tuple[Skill, ...]":
    """The user's own first: a project cannot put its own in the place of one of them."""
    found: dict[str, Skill] = {}
    for skill in (*_users(own, home), *(_projects(project) if trusted else ())):
        found.setdefault(skill.name, skill)
    return tuple(found.values())[:MOST]


def _users(own: Path, home: Path) -> "Iterator[Skill]":
    folders = (own, *(home / name for name in USERS_FOLDERS))
    for path in (path for folder in folders for path in sorted(folder.glob(f"*/{SKILL_FILE}"))):
        with suppress(OSError), path.open("rb") as file:
            yield from _skill(path, file.read(FRONT))


def _projects(project: Project) -> "Iterator[Skill]":
    for path in skill_files(project):
        content = project.read(path, FRONT)
        if content is not None:
            yield from _skill(path, content, project.root)


def _skill(path: Path, content: bytes, root: Path | None = None) -> "Iterator[Skill]":
    """None where the front matter does not say what the skill is good for."""
    said = front_matter(content.decode("utf-8", "replace"))
    name = said.get("name") or path.parent.name
    description = " ".join(said.get("description", "").split())[:LONGEST]
    if description and _NAME.fullmatch(name):
        from outrider.tools.builtin.skill import Skill

        yield Skill(name, description, path, root)


def front_matter(text: str) -> dict[str, str]:
    """Name and description from the YAML between two lines of dashes; texts over several lines are joined."""
    lines = text.removeprefix("\ufeff").splitlines()
    said: dict[str, str] = {}
    if not lines or lines[0].strip() != "---":
        return said
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return {name: _unquoted(value.strip()) for name, value in said.items()}
        if found := _KEY.match(line):
            key, first = found[1], found[2].strip()
            said[key] = "" if first in {">", "|", ">-", "|-", ">+", "|+"} else first
        elif line[:1] in (" ", "\t") and key:
            said[key] += f"\n{line.strip()}"
        elif line.strip():
            key = ""
    return {}


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return value.partition(" #")[0].rstrip()
