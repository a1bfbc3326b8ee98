"""Modal screens: a filtered list to pick from, a page to read, a text editor, a secret to type, and a progress."""

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

from outrider.presentation.formats import clean_line, clean_text, is_editable
from outrider.tui.driver import run_own_binding
from outrider.tui.rendering.markdown import markdown_lines
from outrider.tui.rendering.text import text_line, wrap_text
from outrider.tui.widgets.status import widget_palette

MAX_OPTIONS = 200
PICKER_WIDTH = 84


class TextField(Input):
    """A field of one line that handles keys in their order. The lines of a paste are joined."""

    async def _on_key(self, event: events.Key) -> None:
        await run_own_binding(self, event)

    def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.replace(clean_line(" ".join(event.text.split()), 10_000), *self.selection)


class TextEditor(TextArea):
    """A field of many lines that handles keys in their order."""

    async def _on_key(self, event: events.Key) -> None:
        await run_own_binding(self, event)


class PickerItem(msgspec.Struct, frozen=True):
    """One item of a picker: its value, label and note; `detail` is shown below them and wraps."""

    value: str
    label: str
    note: str = ""
    detail: str = ""


class PickerScreen(ModalScreen[str | None]):
    """A list that is filtered while the user types; returns the picked value, or None."""

    DEFAULT_CSS = """
    PickerScreen { align: center middle; background: $background 60%; }
    PickerScreen > Vertical {
        width: 84; max-width: 96%; height: auto; max-height: 80%; padding: 1 2; background: $surface;
        border: round $faint; border-title-color: $primary;
    }
    PickerScreen Input, PickerScreen Input:focus {
        border: none; height: 1; padding: 0 2; background: $surface; margin-bottom: 1;
    }
    PickerScreen OptionList {
        border: none; background: $surface; height: auto; max-height: 20; padding: 0; scrollbar-size-vertical: 1;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    PickerScreen OptionList:focus { border: none; }
    """

    def __init__(self, title: str, items: Sequence[PickerItem], current: str = "") -> None:
        super().__init__()
        self._title = title
        self._items = items
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            yield TextField(placeholder="type to filter", id="filter")
            yield OptionList(id="options", markup=False)

    def on_mount(self) -> None:
        self._filter_items("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter_items(event.value)

    def on_input_submitted(self) -> None:
        options = self.query_one(OptionList)
        option = options.highlighted_option
        self.dismiss(option.id if option is not None else None)

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

    def _filter_items(self, typed: str) -> None:
        terms = typed.lower().split()
        texts = [f"{item.label} {item.note} {item.detail}".lower() for item in self._items]
        matches = [number for number, text in enumerate(texts) if all(term in text for term in terms)]
        phrase = " ".join(terms)
        matches.sort(key=lambda number: phrase not in texts[number])  # the typed phrase first
        items = [self._items[number] for number in matches]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(self._item_text(item), id=item.value) for item in items[:MAX_OPTIONS]])
        index = next((number for number, item in enumerate(items) if item.value == self._current), 0)
        options.highlighted = index if items else None

    def _item_text(self, item: PickerItem) -> Text:
        palette = widget_palette(self)
        mark = "● " if item.value == self._current else "  "
        text = Text()
        text.append(mark, palette.style("accent"))
        text.append(clean_line(item.label, 200), palette.style("text"))
        text.append(f"  {clean_line(item.note, 200)}" if item.note else "", palette.style("quiet"))
        width = max(min(PICKER_WIDTH, self.size.width * 96 // 100) - 8, 20)
        for line in wrap_text(text_line(clean_line(item.detail, 2000), palette.style("quiet")), width):
            if line.plain:
                text.append("\n    ").append_text(line)
        return text


WidthRenderer = Callable[[int], str]
"""Renders text for a width in columns."""


class PageScreen(ModalScreen[None]):
    """A page of Markdown, or of preformatted lines (a tree, a log) rendered for the available width."""

    DEFAULT_CSS = """
    PageScreen { align: center middle; background: $background 60%; }
    PageScreen > VerticalScroll {
        width: 100; max-width: 96%; height: auto; max-height: 90%; padding: 1 2; background: $surface;
        border: round $faint; border-title-color: $primary; border-subtitle-color: $quiet; scrollbar-size: 0 1;
        scrollbar-gutter: stable;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "close")]

    def __init__(self, title: str, text: str | WidthRenderer) -> None:
        super().__init__()
        self._title = title
        self.text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "esc: close"
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_page)

    def _draw_page(self) -> None:
        palette = widget_palette(self)
        width = max(self.query_one(VerticalScroll).scrollable_content_region.width, 20)
        if isinstance(self.text, str):
            content = Text("\n").join(markdown_lines(self.text, width, palette))
        else:
            content = Text(clean_text(self.text(width)), palette.style("text"), no_wrap=True)
        self.query_one(Static).update(content)


class EditorScreen(ModalScreen[str | None]):
    """A text editor; returns the edited text, or None if cancelled."""

    DEFAULT_CSS = """
    EditorScreen { align: center middle; background: $background 60%; }
    EditorScreen > Vertical {
        width: 100; max-width: 96%; height: 80%; padding: 0 1; background: $background;
        border: round $primary 60%; border-title-color: $primary; border-subtitle-color: $quiet;
    }
    EditorScreen TextArea { border: none; background: $background; height: 1fr; &:focus { border: none; } }
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
            box.border_subtitle = "ctrl+s: accept · esc: cancel"
            # With its tabs: they are part of the text that is returned.
            text = self._text if is_editable(self._text) else clean_text(self._text)
            yield TextEditor(text, soft_wrap=True, highlight_cursor_line=False)

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    def action_accept(self) -> None:
        self.dismiss(self.query_one(TextArea).text)


_BOX_CSS = """
{name} {{ align: center middle; background: $background 60%; }}
{name} > Vertical {{
    width: 84; max-width: 96%; height: auto; padding: 1 2; background: $surface;
    border: round $faint; border-title-color: $primary; border-subtitle-color: $quiet;
}}
{name} Input, {name} Input:focus {{ border: none; height: 1; padding: 0; background: $surface; }}
"""


class SecretScreen(ModalScreen[str | None]):
    """A field whose text is not shown; returns it, or None if cancelled."""

    DEFAULT_CSS = _BOX_CSS.format(name="SecretScreen")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", priority=True)]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "enter: accept · esc: cancel"
            yield TextField(password=True, placeholder="paste or type; it is not shown")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class ProgressScreen(ModalScreen[None]):
    """Shows the progress of a download until it is dismissed. `stopped` is set when the user cancels."""

    DEFAULT_CSS = _BOX_CSS.format(name="ProgressScreen")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", priority=True)]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self.stopped = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "esc: stop; it continues there later"
            yield Static("starting…", id="bar", markup=False)
            yield Static("", id="text", markup=False)

    def show_progress(self, share: float, text: str) -> None:
        palette = widget_palette(self)
        width = max(min(PICKER_WIDTH, self.size.width * 96 // 100) - 8, 10)
        full = round(min(max(share, 0.0), 1.0) * width)
        bar = Text.assemble(("█" * full, palette.style("accent")), ("░" * (width - full), palette.style("faint")))
        self.query_one("#bar", Static).update(bar)
        self.query_one("#text", Static).update(Text(clean_line(text, 300), palette.style("quiet")))

    def action_stop(self) -> None:
        self.stopped = True
