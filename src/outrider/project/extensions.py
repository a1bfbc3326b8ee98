"""What the user and a trusted workspace add to a session: notes for the system prompt, skills, servers, other words."""

import datetime
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from outrider.processes.launch import child_environment
from outrider.project.trust import INSTRUCTIONS, SKILL_FILE, Project, WorkspaceTrust, find_project, skill_files
from outrider.tools.tool import Tool
from outrider.types.messages import Message

if TYPE_CHECKING:
    from outrider.project.mcp import Servers
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


OURS = "{ours}"


class UserPaths(msgspec.Struct, frozen=True):
    """Where the user's own things lie, and which workspaces are trusted."""

    home: Path
    instructions: Path
    skills: Path
    trust: Path


class WorkspaceExtensions:
    """Asked once for each session. `prompts` are the user's own words by name, in the place of ours."""

    def __init__(
        self,
        own: UserPaths,
        environ: Mapping[str, str],
        prompts: Mapping[str, str],
        servers: "Servers | None" = None,
    ) -> None:
        self._own = own
        self._environ = environ
        self.prompts = prompts
        self.servers = servers

    def notes(self, workspace: Path) -> str:
        trust = self._trust(workspace)
        return notes_on(
            trust.project, self._own.instructions, trusted=trust.trusted, today=datetime.datetime.now().date()
        )

    def environment(self, workspace: Path) -> dict[str, str]:
        """What commands get. A workspace that is not trusted does not bring programs in the place of the system's."""
        trust = self._trust(workspace)
        return child_environment(self._environ, outside=None if trust.trusted else trust.project.root)

    def skills(self, workspace: Path) -> list[Tool]:
        trust = self._trust(workspace)
        skills = find_skills(trust.project, self._own.skills, self._own.home, trusted=trust.trusted)
        if not skills:
            return []
        from outrider.tools.builtin.skill import skill_tool

        return [skill_tool(skills)]

    def reword(self, tools: Iterable[Tool]) -> None:
        """A prompt of the user's that has a tool's name is what models read of it; `{ours}` in it is what we say."""
        for tool in tools:
            if tool.name in self.prompts:
                tool.description = self.prompts[tool.name].replace(OURS, tool.description)

    def _trust(self, workspace: Path) -> WorkspaceTrust:
        return WorkspaceTrust(find_project(workspace, self._own.home), self._own.trust)


def noted(messages: Iterable[Message]) -> str | None:
    """The notes that a session began with; they stay the same to its end."""
    return next((message.system for message in messages if message.system is not None), None)
