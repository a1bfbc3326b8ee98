"""A text to change before it counts: a plan, for example."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import TextArea

from outrider.tui.rendering.lines import clean


class Editor(ModalScreen[str | None]):
    """Gives the text as it was left, or None where nothing shall happen."""

    DEFAULT_CSS = """
    Editor { align: center middle; background: $background 60%; }
    Editor > Vertical {
        width: 100; max-width: 96%; height: 80%; padding: 0 1; background: $background;
        border: round $primary 60%; border-title-color: $primary; border-subtitle-color: $quiet;
    }
    Editor TextArea { border: none; background: $background; height: 1fr; &:focus { border: none; } }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "accept", priority=True),
        Binding("escape", "dismiss", priority=True),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "ctrl+s accepts · esc goes back"
            yield TextArea(clean(self._text), soft_wrap=True, highlight_cursor_line=False)

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    def action_accept(self) -> None:
        self.dismiss(self.query_one(TextArea).text)
