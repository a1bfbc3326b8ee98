"""Which MCP servers may be started: the user's own, and those of a trusted workspace that were approved as written."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from outrider.app.workspace.trust import SERVERS, WorkspaceTrust, server_items
from outrider.tools.mcp.config import ServerConfig
from outrider.tools.mcp.reading import ConfigFile, read_config

USERS = "the user"


class ChosenServers(msgspec.Struct, frozen=True):
    """`origins` says where each server comes from, by its name; `notices` why others may not be started."""

    servers: tuple[ServerConfig, ...] = ()
    origins: dict[str, str] = {}
    notices: tuple[str, ...] = ()


def choose_servers(
    own: Mapping[str, dict[str, Any]],
    source: str,
    trust: WorkspaceTrust,
    environ: Mapping[str, str],
    keys: Collection[str],
) -> ChosenServers:
    """`own` are the user's, from `source`. `keys` are variables that hold keys for models: a workspace's server does
    not get to see them, whatever it writes."""
    users = users_servers(own, source, environ)
    entries, notices = _workspaces(trust, set(own))
    visible = {name: value for name, value in environ.items() if name not in keys}
    theirs = read_config(msgspec.json.encode({"mcpServers": entries}), visible, str(SERVERS))
    place = str(trust.project.root)
    return ChosenServers(
        servers=(*users.servers, *theirs.servers),
        origins={one.name: USERS for one in users.servers} | {one.name: place for one in theirs.servers},
        notices=(*theirs.problems, *notices),
    )


def users_servers(own: Mapping[str, dict[str, Any]], source: str, environ: Mapping[str, str]) -> ConfigFile:
    """The user's own configuration, which has the form of `.mcp.json` under another name."""
    found = read_config(msgspec.json.encode({"mcpServers": own}), environ, source)
    return msgspec.structs.replace(
        found, problems=tuple(text.replace(": mcpServers.", ": mcp.") for text in found.problems)
    )


def _workspaces(trust: WorkspaceTrust, taken: set[str]) -> tuple[dict[str, Any], list[str]]:
    entries: dict[str, Any] = {}
    notices: list[str] = []
    trusted = trust.trusted
    for item in server_items(trust.project):
        if not trusted:
            notices.append(f"{item.name} is not started: this workspace is not trusted")
        elif not trust.approves(item):
            notices.append(f"{item.name} is not started: it is new or has changed, and was not approved as it is now")
        elif item.key in taken:
            notices.append(f"{item.name} is not started: a server of your own has that name")
        else:
            entries[item.key] = msgspec.json.decode(item.approved_as)
    return entries, notices
