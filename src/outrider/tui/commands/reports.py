"""Commands that tell: help, cost, the trace, processes, permissions."""

from outrider.app.archive.traces import stored_trace
from outrider.tui.commands.stage import Command, Stage
from outrider.tui.rendering.words import count, money, plural
from outrider.tui.widgets.picker import Item

KEYS = (
    ("Enter", "send; while the agent works it steers: read before its next step"),
    ("Tab", "while the agent works: send it after this turn"),
    ("Shift+Enter, Alt+Enter, Ctrl+J", "a new line"),
    ("Esc", "interrupt"),
    ("↑ ↓", "what you said before"),
    ("Shift+Tab", "the next mode: agent, plan, chat; /mode background works without asking"),
    ("Ctrl+O · Ctrl+G", "choose the model · the agent"),
    ("Ctrl+R", "unfold or fold reasoning and outputs; a click does it for one"),
    ("Ctrl+B", "show or hide what runs beside"),
    ("PageUp, PageDown", "scroll; older messages are loaded at the top"),
    ("Ctrl+C", "copy what is selected, clear what you wrote; twice: quit"),
)


def help_text(commands: list[Command]) -> str:
    keys = "\n".join(f"| {key} | {note} |" for key, note in KEYS)
    names = "\n".join(f"| `/{command.name}` {command.argument} | {command.note} |" for command in commands)
    return (
        f"## Keys\n\n| key | what it does |\n|---|---|\n{keys}\n\n"
        f"## Commands\n\n| command | what it does |\n|---|---|\n{names}\n\n"
        "`@path` names a file (images and PDFs go along), `!command` runs a command yourself; its output goes "
        "along with what you say next."
    )


async def cost(stage: Stage, _: str) -> None:
    helm = stage.helm
    if not helm.session_id:
        stage.tell("nothing was used yet")
        return
    rows: list[str] = []
    for row in await helm.archive.usage("model", session_id=helm.session_id):
        tokens = row.tokens
        unpriced = f"{plural(row.unpriced, 'answer')} without a known price" if row.unpriced else ""
        price = " and ".join(filter(None, [money(row.cost) if row.cost or not unpriced else "", unpriced]))
        rows.append(
            f"| {row.key} | {row.messages} | {count(tokens.prompt)} | {count(tokens.cache.read)} | "
            f"{count(tokens.output + tokens.reasoning)} | {price} |"
        )
    table = "| model | answers | sent | from cache | written | cost |\n|---|---|---|---|---|---|\n" + "\n".join(rows)
    stage.read("Cost of this session", table)


async def trace(stage: Stage, _: str) -> None:
    helm = stage.helm
    if not helm.session_id:
        stage.tell("there is no trace yet")
        return
    found = await stored_trace(helm.archive, helm.session_id)
    stage.read("Trace", found.format_tree)


async def show_processes(stage: Stage, _: str) -> None:
    """Choosing one that runs ends it."""
    helm = stage.helm
    found = await helm.bridge.processes(helm.session_id)
    if not found:
        stage.tell("no process runs in the background")
        return
    items = [Item(one.id, one.command, one.ending.words if one.ending else f"runs, pid {one.pid}") for one in found]
    chosen = await stage.pick("Processes (Enter ends one)", items)
    if chosen and await helm.bridge.end_process(helm.session_id, chosen):
        stage.tell("the process was ended", "good")


async def permissions(stage: Stage, _: str) -> None:
    """What was allowed for longer than once; choosing one takes it back."""
    helm = stage.helm
    answers = await helm.archive.answers()
    if not answers:
        stage.tell("nothing is allowed for longer than once; rules stand in your configuration")
        return
    items = [Item(one.id, f"{one.tool}  {_subject(one.input)}", one.scope) for one in answers]
    chosen = await stage.pick("Allowed (Enter takes it back)", items)
    if chosen:
        await helm.bridge.revoke(chosen)
        stage.tell("taken back: it will be asked again", "good")


def _subject(given: dict[str, object]) -> str:
    return next((str(value) for name in ("command", "file_path", "url") if (value := given.get(name))), str(given))
