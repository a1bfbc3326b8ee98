"""The table of CLI commands. A command's parser and implementation are imported only when it is used."""

from typing import NamedTuple


class CommandSpec(NamedTuple):
    """One command. `declare` is the path, as `module:function`, of the function that declares its arguments."""

    name: str
    summary: str
    declare: str


COMMANDS = tuple(
    CommandSpec(name, summary, f"outrider.cli.arguments:declare_{name.replace('-', '_')}")
    for name, summary in (
        ("run", "run one prompt without the terminal application and print the answer"),
        ("sessions", "list, show, search, fork, export, share and delete sessions"),
        ("undo", "revert the file changes of the last turn"),
        ("redo", "apply the file changes again that undo reverted"),
        ("what-if", "rerun a session from one of its steps with another model, agent or result"),
        ("trace", "show every step of a session, as a tree or an HTML page"),
        ("stats", "show cost and tokens by day, model, agent and tool"),
        ("models", "list available models with limits and prices; download local models"),
        ("config", "show the settings and where each value comes from"),
        ("permissions", "show, explain and test permission rules; revoke stored approvals"),
        ("trust", "allow a folder's own configuration to take effect"),
        ("distrust", "stop trusting a folder"),
        ("doctor", "check keys, sandbox, store and terminal, and suggest fixes"),
        ("serve", "serve the engine and a web page over HTTP, on this machine by default"),
        ("acp", "run as an Agent Client Protocol agent for an editor, on stdio"),
        ("mcp", "run as an MCP server for other agents, on stdio"),
        ("jobs", "submit and manage background runs, which continue after the terminal closes"),
        ("worker", "execute submitted background runs, on one or several machines"),
        ("completion", "print a completion script for bash, zsh or fish"),
    )
)


def find_command(name: str) -> CommandSpec | None:
    """Return the command with this name, or None."""
    return next((command for command in COMMANDS if command.name == name), None)
