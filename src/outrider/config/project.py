"""A project's own settings: they count once the user trusts the workspace, and then only where they are stricter."""

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import get_args

import msgspec

from outrider.config.file import AgentTable, ConfigFile, ReadFile, RulesTable, lower_of, read_text
from outrider.config.paths import Folders
from outrider.project.trust import CONFIGURATION, LARGEST, WorkspaceTrust, find_project
from outrider.types.agents import Agent, Limits, Mode

MOST_NAMED = 5
# What a project may say at all. Models, providers, addresses, hosts, servers and allow rules are the user's to give.
_ALLOWED = {"mode", "rules", "limits", "agents"}
_ALLOWED_OF_AGENTS = {"role", "instructions", "mode", "tools", "permissions", "limits"}
_UNBOUNDED = Limits(turns=None, depth=sys.maxsize, parallel_calls=sys.maxsize)


class Rights(msgspec.Struct, frozen=True):
    """What both the user and a project have a say in."""

    mode: Mode
    rules: RulesTable
    limits: Limits


def read_project(workspace: Path, folders: Folders) -> ReadFile:
    """Nothing without trust. A file that cannot be understood is an error: it may have wanted to forbid something."""
    trust = WorkspaceTrust(find_project(workspace, folders.home), folders.trust)
    if not trust.trusted:
        return ReadFile(ConfigFile(), tuple(_ignored(trust.names())))
    waiting = tuple(
        f"{item.name} does not count: it is new or has changed since you trusted" for item in trust.waiting()
    )
    path = trust.project.root / CONFIGURATION
    if not os.path.lexists(path):
        return ReadFile(ConfigFile(), waiting)
    content = trust.project.read(path, LARGEST)
    if content is None:
        reason = f"{path} does not count: it leads outside the workspace, or is no file"
        return ReadFile(ConfigFile(), (*waiting, reason))
    found = read_text(content, str(path))
    return ReadFile(found.content, (*waiting, *found.notices, *_overreaching(found.content, path)))


def _ignored(names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        listed = ", ".join(names[:MOST_NAMED])
        yield f"this workspace is not trusted, so what it brings does not count ({listed}{more}); see `outrider trust`"


def ceiling_of(project: ConfigFile) -> Rights:
    """The most that a project leaves of anybody's rights."""
    rules = RulesTable(ask=project.rules.ask, deny=project.rules.deny)
    return Rights(project.mode or "background", rules, project.limits.over(_UNBOUNDED))


def tightened(user: Rights, ceiling: Rights) -> Rights:
    rules = RulesTable(
        allow=user.rules.allow,
        ask=tuple(dict.fromkeys((*user.rules.ask, *ceiling.rules.ask))),
        deny=tuple(dict.fromkeys((*user.rules.deny, *ceiling.rules.deny))),
    )
    return Rights(_stricter(user.mode, ceiling.mode), rules, lower_of(user.limits, ceiling.limits))


def project_agents(project: ConfigFile, taken: Collection[str]) -> dict[str, AgentTable]:
    """The agents that a project adds: they think with the user's model and are allowed nothing of their own."""
    return {
        name: AgentTable(
            role=table.role,
            instructions=table.instructions,
            mode=table.mode,
            tools=table.tools,
            permissions=RulesTable(ask=table.permissions.ask, deny=table.permissions.deny),
            limits=table.limits,
        )
        for name, table in project.agents.items()
        if name not in taken
    }


def held(agent: Agent, by: Rights) -> Agent:
    """The agent with no looser mode and no higher limits than these."""
    limits = lower_of(agent.limits, by.limits)
    return msgspec.structs.replace(agent, mode=_stricter(agent.mode, by.mode), limits=limits)


def _overreaching(file: ConfigFile, path: Path) -> Iterator[str]:
    defaults, of_agents = ConfigFile(), AgentTable()
    for name in ConfigFile.__struct_fields__:
        if name not in _ALLOWED and getattr(file, name) != getattr(defaults, name):
            yield f"{path}: {name} does not count here, only in your own configuration"
    if file.rules.allow:
        yield f"{path}: rules.allow does not count here: a project may only be stricter"
    for agent, table in file.agents.items():
        for name in AgentTable.__struct_fields__:
            if name not in _ALLOWED_OF_AGENTS and getattr(table, name) != getattr(of_agents, name):
                yield f"{path}: agents.{agent}.{name} does not count here, only in your own configuration"


def _stricter(one: Mode, other: Mode) -> Mode:
    """Modes are listed from the strictest to the loosest."""
    order: tuple[Mode, ...] = get_args(Mode)
    return order[min(order.index(one), order.index(other))]
