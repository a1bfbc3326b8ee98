"""The slash commands, in the order in which they are listed."""

from collections.abc import Sequence
from itertools import pairwise
from time import time
from typing import Literal, get_args

import msgspec

from outrider.engine.archive import StoredSession, shared_page
from outrider.engine.frontend import was_cut_off
from outrider.engine.session_trace import stored_trace
from outrider.errors import OutriderError, SessionInUseError
from outrider.tui.completion import Choice
from outrider.tui.entries import UserEntry, entries_of
from outrider.tui.rendering.text import age, count, money, plural
from outrider.tui.screen import Command, ScreenApi
from outrider.tui.theme import Look
from outrider.tui.widgets.modals import Item
from outrider.types.agents import Mode
from outrider.types.messages import Message
from outrider.types.parts import ModelRef

_MOST_SHOWN = 30
_DONE = {"undo": "taken back", "redo": "made again"}


async def undo(stage: ScreenApi, _: str) -> None:
    await _move(stage, "undo")


async def redo(stage: ScreenApi, _: str) -> None:
    await _move(stage, "redo")


async def compact(stage: ScreenApi, _: str) -> None:
    if not stage.helm.session_id:
        stage.tell("there is nothing to shorten yet")
        return
    stage.tell("what was said so far is being summarised")
    part = await stage.helm.engine.compact(stage.helm.session_id)
    if part is None:
        stage.tell("there is nothing to shorten yet")
    elif part.tokens_before and part.tokens_after:
        stage.tell(f"{count(part.tokens_before)} tokens became {count(part.tokens_after)}", "good")


async def _move(stage: ScreenApi, direction: Literal["undo", "redo"]) -> None:
    """Every file is shown with what would happen to it before anything does."""
    if not stage.helm.session_id:
        stage.tell(f"there is nothing to {direction} yet")
        return
    changes = stage.helm.engine.file_changes(stage.helm.session_id)
    found = await changes.preview(direction)
    if found.off or not found.changed:
        stage.tell(found.off or "every file was changed since by somebody else, or is as it should be", "warn")
        return
    shown = "\n\n".join(
        f"**{one.action}** `{one.path}`" + (f"\n\n```diff\n{one.diff}\n```" if one.diff else "")
        for one in found.actions[:_MOST_SHOWN]
    )
    if not await stage.confirm(f"{direction.capitalize()} {plural(len(found.changed), 'file')}?", shown, direction):
        return
    done = await (changes.undo() if direction == "undo" else changes.redo())
    left = f"; left alone: {', '.join(done.conflicts + done.doubtful)}" if done.conflicts or done.doubtful else ""
    stage.tell(f"{_DONE[direction]}: {', '.join(done.changed) or 'nothing'}{left}", "warn" if left else "good")


MODES: dict[Mode, str] = {
    "chat": "talks only; no tools",
    "plan": "reads and looks around, changes nothing, ends with a plan",
    "agent": "works, and asks before it changes or runs something",
    "background": "works without asking, inside a sandbox",
}

_NEXT: dict[Mode, Mode] = {"agent": "plan", "plan": "chat", "chat": "agent", "background": "agent"}


async def mode(stage: ScreenApi, name: str) -> None:
    wanted = name or await stage.pick("Mode", [Item(mode, mode, note) for mode, note in MODES.items()], stage.helm.mode)
    for known in get_args(Mode):
        if known == wanted:
            await stage.helm.set_mode(known)
            stage.redraw()
            return
    if wanted:
        stage.tell(f"no mode is called {wanted}; there are {', '.join(MODES)}", "warn")


def next_mode(current: Mode) -> Mode:
    """What a key leads to. Work without questions is chosen by its name, not by one press too many."""
    return _NEXT[current]


async def model(stage: ScreenApi, name: str) -> None:
    helm = stage.helm
    current = f"{helm.model.provider}/{helm.model.model}"
    chosen = name or await stage.pick("Model", await _models(stage, current), current)
    if not chosen:
        return
    provider, _, rest = chosen.partition("/")
    known = helm.bridge.providers
    if provider not in known or not rest:
        stage.tell(f"write PROVIDER/MODEL, with a provider of: {', '.join(known)}", "warn")
        return
    await helm.set_model(ModelRef(provider, rest))
    stage.redraw()


async def agents(stage: ScreenApi, name: str) -> None:
    helm = stage.helm
    items = [
        Item(agent.name, agent.name, agent.role or f"{agent.provider}/{agent.model}") for agent in helm.settings.agents
    ]
    chosen = name or await stage.pick("Agent", items, helm.agent)
    if chosen and chosen in helm.agents():
        await helm.set_agent(chosen)
        stage.redraw()
    elif chosen:
        stage.tell(f"no agent is called {chosen}; there are {', '.join(helm.agents())}", "warn")


async def theme(stage: ScreenApi, name: str) -> None:
    for look in get_args(Look):
        if look == name:
            stage.switch_look(look)
            return
    if name:
        stage.tell(f"no look is called {name}; there are {', '.join(get_args(Look))}", "warn")
    else:
        stage.switch_look(None)


async def _models(stage: ScreenApi, current: str) -> list[Item]:
    """Those in use first, then all that are listed for the providers that can be reached."""
    helm = stage.helm
    used = [f"{agent.provider}/{agent.model}" for agent in helm.settings.agents]
    return [Item(name, name) for name in dict.fromkeys((current, *used, *await helm.bridge.models()))]


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


async def cost(stage: ScreenApi, _: str) -> None:
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


async def trace(stage: ScreenApi, _: str) -> None:
    helm = stage.helm
    if not helm.session_id:
        stage.tell("there is no trace yet")
        return
    found = await stored_trace(helm.archive, helm.session_id)
    stage.read("Trace", found.format_tree)


async def show_processes(stage: ScreenApi, _: str) -> None:
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


async def permissions(stage: ScreenApi, _: str) -> None:
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


MOST = 100
_SHORT = 8  # the end of an id tells sessions apart, its beginning is the time


async def new(stage: ScreenApi, _: str) -> None:
    stage.helm.begin_anew()
    await stage.shown()


async def resume(stage: ScreenApi, name: str) -> None:
    """By name, or by choosing one of this folder's sessions."""
    helm = stage.helm
    if name:
        await open_session(stage, (await helm.archive.find(name)).id)
        return
    found = await helm.archive.sessions(MOST, workspace=helm.bridge.folder)
    chosen = await stage.pick("Sessions of this folder", [_item(session) for session in found], helm.session_id)
    if chosen:
        await open_session(stage, chosen)


async def sessions(stage: ScreenApi, words: str) -> None:
    """Of every folder; with words, those in which they were said."""
    helm = stage.helm
    if words:
        hits = await helm.archive.search(words, limit=MOST)
        items = list(
            {hit.session_id: Item(hit.session_id, hit.title or "untitled", hit.snippet) for hit in hits}.values()
        )
    else:
        items = [_item(session, folder=True) for session in await helm.archive.sessions(MOST)]
    chosen = await stage.pick(f"Sessions with “{words}”" if words else "All sessions", items, helm.session_id)
    if chosen:
        await open_session(stage, chosen)


async def open_session(stage: ScreenApi, session_id: str) -> None:
    """One that is open elsewhere is taken over only if the user says so."""
    try:
        await stage.helm.show(session_id, changed=stage.redraw)
    except SessionInUseError as error:
        stage.redraw()
        text = f"{error.message}\n\nTaking it over ends what runs there."
        if await stage.confirm("This session is open elsewhere", text, "take it over"):
            await stage.helm.show(session_id, take_over=True)
        else:
            stage.helm.begin_anew()
    await stage.shown()
    busy = stage.helm.conversation.activity.busy
    if stage.helm.session_id and not busy and was_cut_off(stage.helm.engine.live[session_id].session):
        stage.tell("the last turn was cut off; /continue lets it go on, or say something else", "warn")


async def go_on(stage: ScreenApi, _: str) -> None:
    if stage.helm.session_id:
        await stage.helm.go_on()


async def share(stage: ScreenApi, _: str) -> None:
    """One page that can be sent to somebody, in this folder."""
    helm = stage.helm
    if not helm.session_id:
        stage.tell("there is nothing to share yet", "warn")
        return
    path = helm.workspace / f"outrider-{helm.session_id[-_SHORT:]}.html"
    path.write_text(await shared_page(helm.archive, helm.session_id), encoding="utf-8")
    stage.tell(f"the session as one page: {path}", "good")


async def export(stage: ScreenApi, _: str) -> None:
    helm = stage.helm
    if not helm.session_id:
        stage.tell("there is nothing to export yet", "warn")
        return
    path = helm.workspace / f"outrider-{helm.session_id[-_SHORT:]}.json"
    path.write_bytes(await helm.archive.export(helm.session_id))
    stage.tell(f"everything that is stored: {path}", "good")


async def clear(stage: ScreenApi, _: str) -> None:
    """An empty screen; the session goes on, and scrolling up brings it back."""
    conversation = stage.helm.conversation
    conversation.forget_first(len(conversation.entries))
    stage.helm.first = not conversation.session_id
    stage.redraw()


def words_of(error: OutriderError) -> str:
    return f"{type(error).__name__}: {error.message}"


def _item(session: StoredSession, *, folder: bool = False) -> Item:
    used = session.time.updated / 1000 if session.time else 0
    note = f"{age(max(time() - used, 0))} · {session.id[-_SHORT:]}"
    return Item(session.id, session.title or "untitled", f"{note} · {session.workspace_directory}" if folder else note)


_WHOLE = "whole"


class Place(msgspec.Struct, frozen=True):
    """Something that was said, by the message that came before it: a copy ends there."""

    before: str
    text: str
    when: int


async def fork(stage: ScreenApi, title: str) -> None:
    helm = stage.helm
    if helm.session_id not in helm.engine.live:
        stage.tell("there is nothing to fork yet", "warn")
        return
    places = {place.before: place for place in places_of(await helm.transcript())}
    chosen = await stage.pick("Fork: what the copy holds", _items(list(places.values()))) if places else _WHOLE
    if chosen is None:
        return
    place = places.get(chosen)
    made = await helm.archive.fork(helm.session_id, at=place.before if place else None, title=title or None)
    await open_session(stage, made.id)
    stage.tell("a fork: the session that it came from stays as it is", "good")
    if place is not None:
        stage.offer(place.text)


def places_of(messages: Sequence[Message]) -> list[Place]:
    """Newest first. A copy up to the first words would be empty, and is a new session."""
    found: list[Place] = []
    for before, message in pairwise(messages):
        said = next((entry for entry in entries_of(message) if isinstance(entry, UserEntry)), None)
        if message.role == "user" and said is not None:
            found.append(Place(before.id, said.text, message.time.created if message.time else 0))
    return found[::-1]


def _items(places: Sequence[Place]) -> list[Item]:
    now = time()
    until = [Item(place.before, f"all before: {place.text}", age(max(now - place.when / 1000, 0))) for place in places]
    return [Item(_WHOLE, "everything so far"), *until]


async def _help(stage: ScreenApi, _: str) -> None:
    stage.read("Help", help_text(COMMANDS))


async def _quit(stage: ScreenApi, _: str) -> None:
    stage.leave()


COMMANDS: list[Command] = [
    Command("help", "keys and commands", _help),
    Command("new", "begin a new session", new),
    Command("resume", "go on with an earlier session of this folder", resume, "[ID]"),
    Command("sessions", "find a session of any folder", sessions, "[WORDS]"),
    Command("continue", "let a turn go on that was cut off", go_on),
    Command("fork", "branch off a copy, whole or up to something you said", fork, "[TITLE]"),
    Command("undo", "take back the last changes of files", undo),
    Command("redo", "make changes again that were taken back", redo),
    Command("compact", "replace what was said by a summary, to make room", compact),
    Command("mode", "chat, plan, agent or background", mode, "[MODE]"),
    Command("model", "choose the model", model, "[PROVIDER/MODEL]"),
    Command("agents", "choose the agent", agents, "[NAME]"),
    Command("share", "write the session as one HTML page", share),
    Command("export", "write the session as JSON", export),
    Command("cost", "tokens and money of this session", cost),
    Command("trace", "what was done, as a tree", trace),
    Command("processes", "what runs in the background; end it", show_processes),
    Command("permissions", "what is allowed; take it back", permissions),
    Command("theme", "dark or light, remembered; auto follows the terminal", theme, "[LOOK]"),
    Command("clear", "empty the screen", clear),
    Command("quit", "leave; everything is stored", _quit),
]
CHOICES = tuple(Choice(f"/{command.name}", command.note) for command in COMMANDS)


def find(text: str) -> tuple[Command, str] | None:
    """The command that a line calls, and what follows its name; unambiguous beginnings count."""
    name, _, rest = text.removeprefix("/").partition(" ")
    exact = [command for command in COMMANDS if command.name == name]
    found = exact or [command for command in COMMANDS if command.name.startswith(name)]
    return (found[0], rest.strip()) if len(found) == 1 else None
