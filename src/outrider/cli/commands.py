"""Every command with its one line of help; what is behind one is loaded when the command is used."""

from typing import NamedTuple


class Command(NamedTuple):
    """`declare` is where its parser is told what it takes, written as module:function."""

    name: str
    summary: str
    declare: str


COMMANDS = tuple(
    Command(name, summary, f"outrider.cli.{declare}")
    for name, summary, declare in (
        ("run", "work on one prompt without a screen, and print the answer", "run.command:run"),
        ("sessions", "list, read, search, fork, export, share and delete sessions", "sessions.command:sessions"),
        ("undo", "take back what the last turn did to files", "sessions.command:undo"),
        ("redo", "do again what undo took back", "sessions.command:redo"),
        ("what-if", "run a session on from one of its steps, with something otherwise", "sessions.command:what_if"),
        ("trace", "show what a session did, step by step: as a tree, or as a page", "looking.command:trace"),
        ("stats", "cost and tokens by day, model, agent and tool", "looking.command:stats"),
        ("models", "the models that can be used here, their limits and prices", "looking.command:models"),
        ("config", "show the settings, and where each of them comes from", "looking.command:config"),
        ("permissions", "what may run unasked: rules, answers that still hold, and why", "rights.command:permissions"),
        ("trust", "let a folder's own configuration count", "rights.command:trust"),
        ("distrust", "stop trusting a folder", "rights.command:distrust"),
        ("doctor", "check keys, sandbox, store and terminal, with a remedy for each", "looking.command:doctor"),
        ("serve", "serve the engine and a web page over HTTP, on this machine only", "serving.command:serve"),
        ("acp", "work for an editor that speaks the Agent Client Protocol, on stdio", "serving.command:acp"),
        ("mcp", "work for other agents, as an MCP server on stdio", "serving.command:mcp"),
        ("jobs", "runs that go on when the terminal is closed: submit, list, show, answer", "jobs.command:jobs"),
        ("worker", "carry on the runs that were submitted, here or on many machines", "jobs.command:worker"),
        ("completion", "completion for bash, zsh or fish", "completion.command:completion"),
    )
)


def command_named(name: str) -> Command | None:
    return next((command for command in COMMANDS if command.name == name), None)
