"""Brings the state of the conversation onto the widgets, at most once a frame."""

from decimal import Decimal
from typing import TypeVar

from textual.app import App
from textual.widget import Widget

from outrider.tui.helm import Helm
from outrider.tui.rendering.palette import palette_named
from outrider.tui.widgets.footers import ActivityLine, Standing, StatusLine, WaitingLines
from outrider.tui.widgets.frame import Frame
from outrider.tui.widgets.side_panel import SidePanel, has_something
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

    def draw(self, helm: Helm) -> None:
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

    def _draw_conversation(self, helm: Helm) -> None:
        entries = helm.conversation.entries
        transcript, welcome = self._one(Transcript), self._one(Welcome)
        begun = bool(entries or helm.session_id)
        transcript.display, welcome.display = begun, not begun
        transcript.palette = palette_named(self._app.theme)
        transcript.show(entries)
        self._one(WaitingLines).show([(item.delivery, item.text) for item in helm.waiting])
        self._one(StatusLine).show(standing(helm))
        self._one(Frame).show(helm.mode)

    def _draw_side(self, helm: Helm) -> None:
        beside, panel = helm.conversation.beside, self._one(SidePanel)
        wanted = has_something(beside) if self.side is None else self.side
        panel.display = wanted and self._app.size.width >= WIDE_ENOUGH
        if panel.display:
            panel.show(beside)

    def _side_open(self) -> bool:
        return bool(self._one(SidePanel).display)

    def _one(self, kind: type[W]) -> W:
        return self._app.screen_stack[0].query_one(kind)


def standing(helm: Helm) -> Standing:
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
