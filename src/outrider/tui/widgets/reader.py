"""A page to read over the conversation: help, costs, a trace, a list of rules."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.tui.rendering.lines import clean
from outrider.tui.rendering.markdown import markdown
from outrider.tui.widgets.look import palette_of

Drawn = Callable[[int], str]
"""Lines for a width."""


class Reader(ModalScreen[None]):
    """Markdown; or lines as they are, drawn for the width that there is (a tree, a log)."""

    DEFAULT_CSS = """
    Reader { align: center middle; background: $background 60%; }
    Reader > VerticalScroll {
        width: 100; max-width: 96%; height: auto; max-height: 90%; padding: 1 2; background: $surface;
        border: round $faint; border-title-color: $primary; border-subtitle-color: $quiet; scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "close")]

    def __init__(self, title: str, text: str | Drawn) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "esc closes"
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        palette = palette_of(self)
        width = max(self.query_one(VerticalScroll).scrollable_content_region.width, 20)
        if isinstance(self._text, str):
            shown = Text("\n").join(markdown(self._text, width, palette))
        else:
            shown = Text(clean(self._text(width)), palette.style("text"), no_wrap=True)
        self.query_one(Static).update(shown)
