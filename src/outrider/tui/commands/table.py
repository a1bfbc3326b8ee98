"""The slash commands, in the order in which they are listed."""

from outrider.tui.commands import changes, choices, forking, reports, sessions
from outrider.tui.commands.stage import Command, Stage
from outrider.tui.composer.completion import Choice


async def _help(stage: Stage, _: str) -> None:
    stage.read("Help", reports.help_text(COMMANDS))


async def _quit(stage: Stage, _: str) -> None:
    stage.leave()


COMMANDS: list[Command] = [
    Command("help", "keys and commands", _help),
    Command("new", "begin a new session", sessions.new),
    Command("resume", "go on with an earlier session of this folder", sessions.resume, "[ID]"),
    Command("sessions", "find a session of any folder", sessions.sessions, "[WORDS]"),
    Command("continue", "let a turn go on that was cut off", sessions.go_on),
    Command("fork", "branch off a copy, whole or up to something you said", forking.fork, "[TITLE]"),
    Command("undo", "take back the last changes of files", changes.undo),
    Command("redo", "make changes again that were taken back", changes.redo),
    Command("compact", "replace what was said by a summary, to make room", changes.compact),
    Command("mode", "chat, plan, agent or background", choices.mode, "[MODE]"),
    Command("model", "choose the model", choices.model, "[PROVIDER/MODEL]"),
    Command("agents", "choose the agent", choices.agents, "[NAME]"),
    Command("share", "write the session as one HTML page", sessions.share),
    Command("export", "write the session as JSON", sessions.export),
    Command("cost", "tokens and money of this session", reports.cost),
    Command("trace", "what was done, as a tree", reports.trace),
    Command("processes", "what runs in the background; end it", reports.show_processes),
    Command("permissions", "what is allowed; take it back", reports.permissions),
    Command("theme", "dark or light, remembered; auto follows the terminal", choices.theme, "[LOOK]"),
    Command("clear", "empty the screen", sessions.clear),
    Command("quit", "leave; everything is stored", _quit),
]
CHOICES = tuple(Choice(f"/{command.name}", command.note) for command in COMMANDS)


def find(text: str) -> tuple[Command, str] | None:
    """The command that a line calls, and what follows its name; unambiguous beginnings count."""
    name, _, rest = text.removeprefix("/").partition(" ")
    exact = [command for command in COMMANDS if command.name == name]
    found = exact or [command for command in COMMANDS if command.name.startswith(name)]
    return (found[0], rest.strip()) if len(found) == 1 else None
