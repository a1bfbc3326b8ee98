"""Commands about sessions: begin, find, go on, hand on."""

from time import time

from outrider.app.archive.archive import StoredSession
from outrider.app.archive.sharing import shared_page
from outrider.app.views.sessions import was_cut_off
from outrider.errors import OutriderError, SessionInUseError
from outrider.tui.commands.stage import Stage
from outrider.tui.rendering.words import age
from outrider.tui.widgets.picker import Item

MOST = 100
_SHORT = 8  # the end of an id tells sessions apart, its beginning is the time


async def new(stage: Stage, _: str) -> None:
    stage.helm.begin_anew()
    await stage.shown()


async def resume(stage: Stage, name: str) -> None:
    """By name, or by choosing one of this folder's sessions."""
    helm = stage.helm
    if name:
        await open_session(stage, (await helm.archive.find(name)).id)
        return
    found = await helm.archive.sessions(MOST, workspace=helm.bridge.folder)
    chosen = await stage.pick("Sessions of this folder", [_item(session) for session in found], helm.session_id)
    if chosen:
        await open_session(stage, chosen)


async def sessions(stage: Stage, words: str) -> None:
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


async def open_session(stage: Stage, session_id: str) -> None:
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


async def go_on(stage: Stage, _: str) -> None:
    if stage.helm.session_id:
        await stage.helm.go_on()


async def share(stage: Stage, _: str) -> None:
    """One page that can be sent to somebody, in this folder."""
    helm = stage.helm
    if not helm.session_id:
        stage.tell("there is nothing to share yet", "warn")
        return
    path = helm.workspace / f"outrider-{helm.session_id[-_SHORT:]}.html"
    path.write_text(await shared_page(helm.archive, helm.session_id), encoding="utf-8")
    stage.tell(f"the session as one page: {path}", "good")


async def export(stage: Stage, _: str) -> None:
    helm = stage.helm
    if not helm.session_id:
        stage.tell("there is nothing to export yet", "warn")
        return
    path = helm.workspace / f"outrider-{helm.session_id[-_SHORT:]}.json"
    path.write_bytes(await helm.archive.export(helm.session_id))
    stage.tell(f"everything that is stored: {path}", "good")


async def clear(stage: Stage, _: str) -> None:
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
