"""The configuration file of a project. It is read only if the user trusts the workspace, and it can only make
permissions stricter."""

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from outrider.config.file import AgentTable, ConfigFile, ParsedConfig, RulesTable, parse_config, stricter_limits
from outrider.config.paths import AppFolders
from outrider.project.trust import CONFIG_FILE, MAX_FILE_BYTES, WorkspaceTrust, find_project
from outrider.types.agents import Agent, Limits
from outrider.types.modes import MODES, Mode

MAX_LISTED_NAMES = 5
# The keys that a project file may set. Models, providers, addresses, hosts, servers and allow rules could send data
# to a third party or run programs, so only the user can set them.
_ALLOWED_KEYS = {"mode", "rules", "limits", "agents"}
_ALLOWED_AGENT_KEYS = {"role", "instructions", "mode", "tools", "permissions", "limits"}
_NO_LIMITS = Limits(turns=None, depth=sys.maxsize, parallel_calls=sys.maxsize)


class PermissionSettings(msgspec.Struct, frozen=True):
    """The settings that the user and a project can both restrict."""

    mode: Mode
    rules: RulesTable
    limits: Limits


def read_project_config(workspace: Path, folders: AppFolders) -> ParsedConfig:
    """Read the project's file if the workspace is trusted. Raises ConfigurationError for an invalid file instead of
    ignoring it, because it may contain deny rules."""
    trust = WorkspaceTrust(find_project(workspace, folders.home), folders.trust_file)
    if not trust.trusted:
        return ParsedConfig(ConfigFile(), tuple(_untrusted_notice(trust.list_names())))
    waiting = tuple(
        f"{item.name} is ignored: it is new or has changed since you trusted" for item in trust.unapproved_items()
    )
    path = trust.project.root / CONFIG_FILE
    if not os.path.lexists(path):
        return ParsedConfig(ConfigFile(), waiting)
    content = trust.project.read_file(path, MAX_FILE_BYTES)
    if content is None:
        reason = f"{path} is ignored: it is a link to a path outside the workspace, or not a regular file"
        return ParsedConfig(ConfigFile(), (*waiting, reason))
    found = parse_config(content, str(path))
    return ParsedConfig(found.content, (*waiting, *found.notices, *_disallowed_keys(found.content, path)))


def _untrusted_notice(names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
        listed = ", ".join(names[:MAX_LISTED_NAMES])
        yield f"this workspace is not trusted, so its files are ignored ({listed}{more}); see `outrider trust`"


def project_ceiling(project: ConfigFile) -> PermissionSettings:
    """Return the loosest permissions that a project file allows."""
    rules = RulesTable(ask=project.rules.ask, deny=project.rules.deny)
    return PermissionSettings(project.mode or "background", rules, project.limits.apply_to(_NO_LIMITS))


def tighten_permissions(user: PermissionSettings, ceiling: PermissionSettings) -> PermissionSettings:
    """Return the user's permissions, restricted by the project's."""
    rules = RulesTable(
        allow=user.rules.allow,
        ask=tuple(dict.fromkeys((*user.rules.ask, *ceiling.rules.ask))),
        deny=tuple(dict.fromkeys((*user.rules.deny, *ceiling.rules.deny))),
    )
    return PermissionSettings(
        _stricter_mode(user.mode, ceiling.mode), rules, stricter_limits(user.limits, ceiling.limits)
    )


def project_agents(project: ConfigFile, taken: Collection[str]) -> dict[str, AgentTable]:
    """Return the agents that a project adds. They use the user's model and cannot have allow rules."""
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


def restrict_agent(agent: Agent, by: PermissionSettings) -> Agent:
    """Return the agent with a mode and limits that are at least as strict as the given ones."""
    limits = stricter_limits(agent.limits, by.limits)
    return msgspec.structs.replace(agent, mode=_stricter_mode(agent.mode, by.mode), limits=limits)


def _disallowed_keys(file: ConfigFile, path: Path) -> Iterator[str]:
    defaults, of_agents = ConfigFile(), AgentTable()
    for name in ConfigFile.__struct_fields__:
        if name not in _ALLOWED_KEYS and getattr(file, name) != getattr(defaults, name):
            yield f"{path}: {name} is ignored here; set it in your own configuration"
    if file.rules.allow:
        yield f"{path}: rules.allow is ignored here: a project can only make rules stricter"
    for agent, table in file.agents.items():
        for name in AgentTable.__struct_fields__:
            if name not in _ALLOWED_AGENT_KEYS and getattr(table, name) != getattr(of_agents, name):
                yield f"{path}: agents.{agent}.{name} is ignored here; set it in your own configuration"


def _stricter_mode(one: Mode, other: Mode) -> Mode:
    """Return the stricter mode. `MODES` lists the strictest one first."""
    return MODES[min(MODES.index(one), MODES.index(other))]
