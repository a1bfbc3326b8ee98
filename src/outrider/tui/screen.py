"""What commands may do with the screen: choose from a list, show a page, tell, ask, leave."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import msgspec
from textual.app import App
from textual.widget import Widget

from outrider.tui.composer import Composer
from outrider.tui.controller import SessionController
from outrider.tui.dialogs import ChoicePanel, DialogQueue, Key
from outrider.tui.entries import NoteKind
from outrider.tui.rendering.text import clean
from outrider.tui.theme import Look, ThemePreference, name_of, palette_named
from outrider.tui.widgets.modals import Drawn, Editor, Item, Picker, Reader
from outrider.tui.widgets.side_panel import SidePanel, has_something
from outrider.tui.widgets.status import ActivityLine, Frame, Standing, StatusLine, WaitingLines
from outrider.tui.widgets.transcript import Transcript
from outrider.tui.widgets.welcome import Welcome

W = TypeVar("W", bound=Widget)

FRAME = 1 / 30
_SLOW = 3  # frames between two turns of the spinner
_SECOND = 30  # frames between two looks at what runs beside
WIDE_ENOUGH = 96  # columns from which on there is room beside the conversation


class Drawing:
    """`dirty` is set by whoever changed something."""

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._frame = 0
        self._spent: Decimal | None = Decimal(0)
        self._was_busy = False
        self.dirty = True
        self.side: bool | None = None  # what the user chose; None: shown while there is something

    def draw(self, helm: SessionController) -> None:
        self._frame += 1
        busy = helm.conversation.activity.busy
        if busy and not self._was_busy:
            self._spent = helm.conversation.activity.spent
        if self.dirty:
            self._draw_conversation(helm)
        if self.dirty or (busy and self._frame % _SLOW == 0):
            self._one(ActivityLine).show(helm.conversation.activity, spent_before=self._spent)
        if self.dirty or (self._side_open() and self._frame % _SECOND == 0):
            self._draw_side(helm)
        self.dirty = False
        self._was_busy = busy

    def _draw_conversation(self, helm: SessionController) -> None:
        entries = helm.conversation.entries
        transcript, welcome = self._one(Transcript), self._one(Welcome)
        begun = bool(entries or helm.session_id)
        transcript.display, welcome.display = begun, not begun
        transcript.palette = palette_named(self._app.theme)
        transcript.show(entries)
        self._one(WaitingLines).show([(item.delivery, item.text) for item in helm.waiting])
        self._one(StatusLine).show(standing(helm))
        self._one(Frame).show(helm.mode)

    def _draw_side(self, helm: SessionController) -> None:
        beside, panel = helm.conversation.beside, self._one(SidePanel)
        wanted = has_something(beside) if self.side is None else self.side
        panel.display = wanted and self._app.size.width >= WIDE_ENOUGH
        if panel.display:
            panel.show(beside)

    def _side_open(self) -> bool:
        return bool(self._one(SidePanel).display)

    def _one(self, kind: type[W]) -> W:
        return self._app.screen_stack[0].query_one(kind)


def standing(helm: SessionController) -> Standing:
    activity = helm.conversation.activity
    return Standing(
        mode=helm.mode,
        model=f"{helm.model.provider}/{helm.model.model}",
        agent=helm.agent,
        context=activity.context,
        context_limit=helm.context_limit,
        cost=activity.spent,
        answers=activity.answers,
        workspace=helm.workspace,
        home=helm.settings.home,
    )


async def _nothing() -> None:
    """Nobody asks before the engine is open."""


class TuiScreen:
    """The `Stage` of the application. The helm comes once the engine is open."""

    def __init__(self, app: App[int], drawing: Drawing, looks: ThemePreference) -> None:
        self._app = app
        self._drawing = drawing
        self._looks = looks
        self.opened: SessionController | None = None
        self.ask_open: Callable[[], Awaitable[None]] = _nothing

    @property
    def helm(self) -> SessionController:
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
        return await self.one(DialogQueue).ask(ChoicePanel(title, text, keys))

    async def confirm(self, title: str, text: str, yes: str) -> bool:
        answer, _ = await self.choose(title, text, (Key("y", "yes", yes), Key("n", "no", "no")))
        return answer == "yes"

    async def shown(self) -> None:
        await self.one(DialogQueue).leave()
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


class ScreenApi(Protocol):
    @property
    def helm(self) -> SessionController: ...

    async def pick(self, title: str, items: Sequence[Item], current: str = "") -> str | None:
        """What somebody chose of a list."""
        ...

    def read(self, title: str, text: str | Drawn) -> None:
        """Show a page to read: Markdown, or lines that are drawn for a width."""
        ...

    def tell(self, text: str, kind: NoteKind = "quiet", body: str = "") -> None:
        """A line in the conversation, which is not stored."""
        ...

    async def confirm(self, title: str, text: str, yes: str) -> bool: ...

    async def edit(self, title: str, text: str) -> str | None:
        """A text as somebody left it, or None."""
        ...

    async def choose(self, title: str, text: str, keys: Sequence[Key]) -> tuple[str, str]:
        """The answer to a question in place of the composer, and words that came with it."""
        ...

    async def shown(self) -> None:
        """Another session is on the screen: questions of the one before go, its own are asked."""
        ...

    def redraw(self) -> None: ...

    def offer(self, text: str) -> None:
        """Put words into the composer, to be changed and said."""
        ...

    def switch_look(self, look: Look | None) -> None:
        """None stands for the other one."""
        ...

    def leave(self) -> None: ...


Run = Callable[[ScreenApi, str], Coroutine[Any, Any, None]]


class Command(msgspec.Struct, frozen=True):
    """`argument` says what may follow the name."""

    name: str
    note: str
    run: Run
    argument: str = ""
