"""What the user and a trusted workspace add to a session: notes for the system prompt, skills, servers, other words."""

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from outrider.app.workspace.instructions import notes_on
from outrider.app.workspace.project import find_project
from outrider.app.workspace.skills import find_skills
from outrider.app.workspace.trust import WorkspaceTrust
from outrider.processes.environment import child_environment
from outrider.tools.tool import Tool
from outrider.types.messages import Message

if TYPE_CHECKING:
    from outrider.app.workspace.servers import Servers

OURS = "{ours}"


class OwnFiles(msgspec.Struct, frozen=True):
    """Where the user's own things lie, and which workspaces are trusted."""

    home: Path
    instructions: Path
    skills: Path
    trust: Path


class Belongings:
    """Asked once for each session. `prompts` are the user's own words by name, in the place of ours."""

    def __init__(
        self,
        own: OwnFiles,
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
