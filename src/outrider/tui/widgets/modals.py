"""A list to choose from, filtered as one types."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from outrider.tui.rendering.markdown import markdown
from outrider.tui.rendering.text import clean, clean_line
from outrider.tui.widgets.status import palette_of

MOST = 200


class Item(msgspec.Struct, frozen=True):
    value: str
    label: str
    note: str = ""


class Picker(ModalScreen[str | None]):
    """Gives the value that was chosen, or None."""

    DEFAULT_CSS = """
    Picker { align: center middle; background: $background 60%; }
    Picker > Vertical {
        width: 84; max-width: 96%; height: auto; max-height: 80%; padding: 1 2; background: $surface;
        border: round $faint; border-title-color: $primary;
    }
    Picker Input, Picker Input:focus {
        border: none; height: 1; padding: 0 2; background: $surface; margin-bottom: 1;
    }
    Picker OptionList {
        border: none; background: $surface; height: auto; max-height: 20; padding: 0; scrollbar-size-vertical: 1;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Picker OptionList:focus { border: none; }
    """

    def __init__(self, title: str, items: Sequence[Item], current: str = "") -> None:
        super().__init__()
        self._title = title
        self._items = items
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            yield Input(placeholder="type to filter", id="filter")
            yield OptionList(id="options", markup=False)

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def on_input_submitted(self) -> None:
        options = self.query_one(OptionList)
        found = options.highlighted_option
        self.dismiss(found.id if found is not None else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        match event.key:
            case "escape":
                self.dismiss(None)
            case "down":
                options.action_cursor_down()
            case "up":
                options.action_cursor_up()
            case "pagedown":
                options.action_page_down()
            case "pageup":
                options.action_page_up()
            case _:
                return
        event.stop()
        event.prevent_default()

    def _fill(self, typed: str) -> None:
        words = typed.lower().split()
        shown = [item for item in self._items if all(word in f"{item.label} {item.note}".lower() for word in words)]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(self._text(item), id=item.value) for item in shown[:MOST]])
        place = next((number for number, item in enumerate(shown) if item.value == self._current), 0)
        options.highlighted = place if shown else None

    def _text(self, item: Item) -> Text:
        palette = palette_of(self)
        mark = "● " if item.value == self._current else "  "
        text = Text()
        text.append(mark, palette.style("accent"))
        text.append(clean_line(item.label, 200), palette.style("text"))
        text.append(f"  {clean_line(item.note, 200)}" if item.note else "", palette.style("quiet"))
        return text


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
