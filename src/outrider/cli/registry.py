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
        ("run", "work on one prompt without a screen, and print the answer", "arguments:run"),
        ("sessions", "list, read, search, fork, export, share and delete sessions", "arguments:sessions"),
        ("undo", "take back what the last turn did to files", "arguments:undo"),
        ("redo", "do again what undo took back", "arguments:redo"),
        ("what-if", "run a session on from one of its steps, with something otherwise", "arguments:what_if"),
        ("trace", "show what a session did, step by step: as a tree, or as a page", "arguments:trace"),
        ("stats", "cost and tokens by day, model, agent and tool", "arguments:stats"),
        ("models", "the models that can be used here, their limits and prices", "arguments:models"),
        ("config", "show the settings, and where each of them comes from", "arguments:config"),
        ("permissions", "what may run unasked: rules, answers that still hold, and why", "arguments:permissions"),
        ("trust", "let a folder's own configuration count", "arguments:trust"),
        ("distrust", "stop trusting a folder", "arguments:distrust"),
        ("doctor", "check keys, sandbox, store and terminal, with a remedy for each", "arguments:doctor"),
        ("serve", "serve the engine and a web page over HTTP, on this machine only", "arguments:serve"),
        ("acp", "work for an editor that speaks the Agent Client Protocol, on stdio", "arguments:acp"),
        ("mcp", "work for other agents, as an MCP server on stdio", "arguments:mcp"),
        ("jobs", "runs that go on when the terminal is closed: submit, list, show, answer", "arguments:jobs"),
        ("worker", "carry on the runs that were submitted, here or on many machines", "arguments:worker"),
        ("completion", "completion for bash, zsh or fish", "arguments:completion"),
    )
)


def command_named(name: str) -> Command | None:
    return next((command for command in COMMANDS if command.name == name), None)


DONE = 0
FAILED = 1
USAGE = 2
NOT_APPROVED = 3  # a call was refused, since nobody was there to approve it
LIMIT = 4
PROVIDER = 5
INTERRUPTED = 130
