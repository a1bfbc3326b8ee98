"""What commands may do with the screen: choose from a list, show a page, tell, ask, leave."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from textual.app import App
from textual.widget import Widget

from outrider.tui.asking.asking import Asking
from outrider.tui.asking.panel import Key
from outrider.tui.asking.questions import ChoicePanel
from outrider.tui.composer.composer import Composer
from outrider.tui.conversation.entries import NoteKind
from outrider.tui.drawing import Drawing
from outrider.tui.helm import Helm
from outrider.tui.looks import Look, Looks
from outrider.tui.rendering.lines import clean
from outrider.tui.rendering.palette import name_of
from outrider.tui.widgets.editor import Editor
from outrider.tui.widgets.picker import Item, Picker
from outrider.tui.widgets.reader import Drawn, Reader
from outrider.tui.widgets.welcome import Welcome

W = TypeVar("W", bound=Widget)


async def _nothing() -> None:
    """Nobody asks before the engine is open."""


class Scene:
    """The `Stage` of the application. The helm comes once the engine is open."""

    def __init__(self, app: App[int], drawing: Drawing, looks: Looks) -> None:
        self._app = app
        self._drawing = drawing
        self._looks = looks
        self.opened: Helm | None = None
        self.ask_open: Callable[[], Awaitable[None]] = _nothing

    @property
    def helm(self) -> Helm:
        assert self.opened is not None, "nothing is commanded before the engine is open"
        return self.opened

    def one(self, kind: type[W]) -> W:
        """A widget of the conversation's own screen, whatever lies over it."""
        return self._app.screen_stack[0].query_one(kind)

    async def pick(self, title: str, items: Sequence[Item], current: str = "") -> str | None:
        return await self._app.push_screen_wait(Picker(title, items, current))

    def read(self, title: str, text: str | Drawn) -> None:
        self._app.push_screen(Reader(title, text))

    def tell(self, text: str, kind: NoteKind = "quiet", body: str = "") -> None:
        if self.opened is None:
            self._app.notify(clean(text), severity="error", markup=False, timeout=30)
            return
        self.opened.conversation.note(text, kind, body)
        self.redraw()

    async def edit(self, title: str, text: str) -> str | None:
        return await self._app.push_screen_wait(Editor(title, text))

    async def choose(self, title: str, text: str, keys: Sequence[Key]) -> tuple[str, str]:
        return await self.one(Asking).ask(ChoicePanel(title, text, keys))

    async def confirm(self, title: str, text: str, yes: str) -> bool:
        answer, _ = await self.choose(title, text, (Key("y", "yes", yes), Key("n", "no", "no")))
        return answer == "yes"

    async def shown(self) -> None:
        await self.one(Asking).leave()
        if self.helm.session_id:
            await self.ask_open()
        self.redraw()

    def redraw(self) -> None:
        self._drawing.dirty = True

    def offer(self, text: str) -> None:
        self.one(Composer).set(text)

    def switch_look(self, look: Look | None) -> None:
        self._looks.choose(look or ("light" if self._looks.palette.dark else "dark"))
        self._app.theme = name_of(self._looks.palette)
        self.one(Welcome).draw()
        self.redraw()

    def leave(self) -> None:
        self._app.exit(0)
