"""The scrollable transcript: draws only visible lines, and renders only items that have changed."""

import re
from bisect import bisect_right
from typing import Any, cast

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Static

from outrider.presentation.formats import clean_text, format_count
from outrider.presentation.items import TextItem, ToolCallItem, TranscriptItem
from outrider.tui.rendering.items import MARGIN, ItemBlock
from outrider.tui.rendering.text import (
    indent_lines,
    is_continuation,
    justify_ends,
    render_strip,
    row_margin,
    side_by_side,
    text_line,
    wrap_text,
)
from outrider.tui.theme import DARK, Palette
from outrider.tui.widgets.status import widget_palette

_WORD = re.compile(r"[\w,./?%&#:=+@~-]+")  # as terminals do: paths and addresses are words
_LINE = re.compile(r"\S.*\S|\S")
_MARGINS = ("  ", "▌ ")  # before the lines of texts and outputs, and of the user's messages
_MAX_DRAWN_LINES = 1000  # rows whose drawn strips are cached
LOAD_OLDER_WITHIN = 5  # lines from the top; scrolling this close requests older messages


class TranscriptWidget(ScrollView, can_focus=False):
    """Shows items as rendered blocks. It follows new output while scrolled to the end; after scrolling up, the
    position stays."""

    DEFAULT_CSS = """
    TranscriptWidget {
        display: none; height: 1fr; padding: 0 0 0 1; scrollbar-size-vertical: 1; overflow-y: scroll;
        overflow-x: hidden; background: $background;
    }
    """

    palette: var[Palette] = var(DARK)

    class OlderRequested(Message):
        """The view is near the top: older messages should be loaded."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._blocks: list[ItemBlock] = []
        self._by_id: dict[str, ItemBlock] = {}
        self._gaps: list[int] = []  # empty lines before each block
        self._bottoms: list[int] = []
        self._items: list[TranscriptItem] = []
        self._toggled: TranscriptItem | None = None  # by the last click
        self._width = 0
        self._rendered_for: tuple[int, Palette] | None = None
        self._at_end = True  # whether the view is scrolled to the end
        self._background = Style()
        self._read_until: tuple[ItemBlock, int] | None = None  # the last block and its lines when the user scrolled up
        self.found_line: int | None = None  # the line that a search has found, until the user returns to the end
        self._lines: dict[int, tuple[Strip | None, Strip]] = {}  # rows that were drawn: the strip, and how it was drawn
        self._drawn_for: tuple[object, ...] = ()
        self._drawn_bar: list[Segment] = []

    @property
    def text_width(self) -> int:
        """The width for text; it always reserves the scrollbar, so that its appearance does not change the layout."""
        return self.region.width - self.styles.gutter.width - self.styles.scrollbar_size_vertical - 1

    def show_items(self, items: list[TranscriptItem]) -> None:
        """Renders and shows the items; unchanged items are not rendered again."""
        self._items = items
        self._width = width = self.text_width
        if width <= 0:
            return  # no layout yet; `on_resize` calls again
        before, offset = self._first_in_view(), self.scroll_offset.y
        first_changed = 0 if self._match_blocks(items) or self._rendered_for != (width, self.palette) else None
        self._rendered_for = (width, self.palette)
        for number, block in enumerate(self._blocks):
            # Most blocks of a long conversation are unchanged, so the check must be cheap.
            if (block.item.version != block.version or first_changed == 0) and block.render(width, self.palette):
                first_changed = number if first_changed is None else first_changed
        if first_changed is not None:
            self._measure_blocks(first_changed)
            self._restore_scroll(before)
            if self.scroll_offset.y == offset:
                self._refresh_changed_lines()
            else:
                self.refresh(self.size.region)

    def _refresh_changed_lines(self) -> None:
        """Draws the visible lines that differ from what was drawn: text usually grows at its end."""
        top, height = self.scroll_offset.y, self.size.height
        changed = [
            y
            for y in range(height)
            if (drawn := self._lines.get(top + y)) is None or not _is_same_strip(drawn[0], self._strip_at(top + y))
        ]
        if not self._at_end:
            changed.append(height - 1)  # its marker counts the new lines
        if changed:
            self.refresh(Region(0, changed[0], self.size.width, changed[-1] - changed[0] + 1))

    def expand_all(self, *, expand: bool) -> None:
        for item in self._items:
            item.expanded = expand
            item.touch()

    def notify_style_update(self) -> None:
        """Caches the background style, which is too slow to look up for every line."""
        super().notify_style_update()
        self._background = self.rich_style

    def watch_palette(self) -> None:
        self.show_items(self._items)

    def on_resize(self) -> None:
        self.show_items(self._items)
        if self._at_end:  # a smaller height moves the end out of view
            self._scroll_to_end()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        self._move_scrollbar(new_value)  # before Textual draws it for every change
        super().watch_scroll_y(old_value, new_value)
        self._at_end = new_value >= self.max_scroll_y - 1
        if self._at_end:
            self._read_until = self.found_line = None
        elif self._read_until is None and self._blocks:
            self._read_until = self._blocks[-1], len(self._blocks[-1].strips)
        if new_value < old_value and new_value <= LOAD_OLDER_WITHIN:
            self.post_message(self.OlderRequested())

    def on_click(self, event: events.Click) -> None:
        if self._marker_text() and event.y == self.size.height - 1:
            self.scroll_end(animate=False)
            return
        if event.chain > 1:
            event.prevent_default()  # Textual would select the whole conversation
            if self._toggled is not None:  # by the first click
                self._toggle(self._toggled)
                self._toggled = None
            column = event.x - self.styles.padding.left
            self._select_at(self.scroll_offset.y + event.y, column, line=event.chain > 2)
            return
        block = self._block_at(self.scroll_offset.y + event.y)
        self._toggled = block.item if block is not None and not self.text_selection else None
        if self._toggled is not None:
            self._toggle(self._toggled)

    def _toggle(self, item: TranscriptItem) -> None:
        item.toggle()
        self.show_items(self._items)

    def _select_at(self, row: int, column: int, *, line: bool) -> None:
        """Selects the word or the line at a position."""
        strip = self._strip_at(row)
        if strip is None:
            return
        for match in (_LINE if line else _WORD).finditer(strip.text):
            start = cell_len(strip.text[: match.start()])
            end = start + cell_len(match[0])
            if start <= column < end:
                self.screen.selections = {self: Selection(Offset(start, row), Offset(end, row))}
                return

    def render_lines(self, crop: Region) -> list[Strip]:
        """Returns the visible lines of a region. Textual caches them by their position on the screen, so it would draw
        all of them again when the text moves up by a line; here they are cached by their row."""
        width, background, filters = self.region.width, self.background_colors[1], self.get_line_filters()
        drawn_for = (width, self._background, background, *filters)
        if drawn_for != self._drawn_for or len(self._lines) > _MAX_DRAWN_LINES:
            self._drawn_for, self._lines = drawn_for, {}
        marked = self.size.height - 1 if self._marker_text() else None
        top, selection, margin = self.scroll_offset.y, self.text_selection, self.styles.padding.left

        def draw_line(y: int) -> Strip:
            """Returns a line as the terminal shows it: with margin, full width and the filters of the application."""
            line = Strip.join([Strip.blank(margin, self._background), self.render_line(y)])
            line = line.extend_cell_length(width, self._background)
            for line_filter in filters:
                line = line.apply_filter(line_filter, background)
            return line

        strips: list[Strip] = []
        for y in crop.line_range:
            row = top + y
            strip, drawn = self._strip_at(row), self._lines.pop(row, None)
            if y == marked or row == self.found_line or (selection is not None and selection.get_span(row) is not None):
                strips.append(draw_line(y))
                continue
            if drawn is None or not _is_same_strip(drawn[0], strip):
                drawn = strip, draw_line(y)
            self._lines[row] = drawn
            strips.append(drawn[1])
        return strips if crop.column_span == (0, width) else [strip.crop(*crop.column_span) for strip in strips]

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width = self.size.width
        style = self._background
        if y == self.size.height - 1 and (marker := self._marker_text()):
            return self._render_marker(marker, width)
        strip = self._strip_at(row)
        if strip is None:
            return Strip.blank(width, style)
        if row == self.found_line:
            strip = _highlight(strip, (0, strip.cell_length), self.palette.style_on("panel", bold=True))
        if (selection := self.text_selection) is not None and (span := selection.get_span(row)) is not None:
            strip = _highlight(strip, span, self.palette.style_on("selection"))
        return strip.extend_cell_length(width, style).apply_style(style).apply_offsets(0, row)

    def _marker_text(self) -> str:
        """Returns the mark at the bottom while the user has scrolled up; it counts the new lines."""
        if self._at_end or self._read_until is None or not self._bottoms:
            return ""
        new = self._count_new_lines(*self._read_until)
        return f"↓ {format_count(new, 'new line')} · ctrl+end" if new > 0 else "↓ ctrl+end: to the end"

    def _count_new_lines(self, last_block: ItemBlock, lines: int) -> int:
        """Returns the number of lines below those that existed when the user scrolled up: `lines` of `last_block`."""
        new = 0
        for block, gap in zip(reversed(self._blocks), reversed(self._gaps), strict=False):
            if block.item.id == last_block.item.id:
                return new + max(len(block.strips) - lines, 0)
            new += len(block.strips) + gap
        return new

    def _render_marker(self, marker: str, width: int) -> Strip:
        line = justify_ends(text_line(), text_line(f" {marker} ", self.palette.style_on("panel", "accent")), width - 2)
        return render_strip(line).extend_cell_length(width, self._background).apply_style(self._background)

    def plain_lines(self) -> list[str]:
        """Returns all lines as text, for a search."""
        return [strip.text.strip() if (strip := self._strip_at(y)) else "" for y in range(self.virtual_size.height)]

    def show_line(self, line: int) -> None:
        """Scrolls to a line and highlights it until the user returns to the end."""
        self.scroll_to(y=max(line - self.size.height // 3, 0), animate=False, immediate=True, force=True)
        self.found_line = line
        self.refresh()

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Returns the selected text: the original Markdown of answers that are selected completely, and other lines
        without margins, so that code can be pasted."""
        start = selection.start.transpose if selection.start is not None else (0, 0)
        end = selection.end.transpose if selection.end is not None else (self.virtual_size.height - 1, -1)
        lines: list[str] = []
        row = start[0]
        while row <= end[0]:
            source = self._source_at(row, start, end)
            if source is not None:
                text, rows = source
                lines.append(text)
                row += rows
                continue
            self._append_row(lines, row, selection)
            row += 1
        return "\n".join(lines), "\n"

    def _source_at(self, row: int, start: tuple[int, int], end: tuple[int, int]) -> tuple[str, int] | None:
        """Returns the source and the number of rows of an answer that starts at this row and is selected completely."""
        number = bisect_right(self._bottoms, row)
        if number >= len(self._blocks):
            return None
        block, top = self._blocks[number], self._bottoms[number] - len(self._blocks[number].strips)
        last_row = self._bottoms[number] - 1
        complete = row == top and (row > start[0] or start[1] <= MARGIN) and last_row <= end[0]
        if last_row == end[0] and 0 <= end[1] < len(block.strips[-1].text.rstrip()) if block.strips else True:
            complete = False
        if not complete or type(block.item) is not TextItem or len(block.strips) < 2:
            return None
        return block.item.text.strip("\n"), len(block.strips)

    def _append_row(self, lines: list[str], row: int, selection: Selection) -> None:
        strip, span = self._strip_at(row), selection.get_span(row)
        if strip is None or span is None:
            lines.append("")
            return
        margin = max(row_margin(strip), MARGIN if strip.crop(0, MARGIN).text in _MARGINS else 0)
        start_column, end_column = max(span[0], margin), strip.cell_length if span[1] == -1 else span[1]
        text = strip.crop(start_column, max(end_column, start_column)).text.rstrip()
        if is_continuation(strip) and lines:
            lines[-1] += text
        else:
            lines.append(text)

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def _match_blocks(self, items: list[TranscriptItem]) -> bool:
        """Aligns the blocks with the items and reuses existing ones; returns whether anything changed."""
        if len(items) == len(self._blocks) and all(
            block.item is item for block, item in zip(self._blocks, items, strict=True)
        ):
            return False
        old_blocks = self._by_id
        candidates = [old_blocks[item.id] if item.id in old_blocks else ItemBlock(item) for item in items]
        self._blocks = [
            block if block.item is item else ItemBlock(item) for block, item in zip(candidates, items, strict=True)
        ]
        self._by_id = {block.item.id: block for block in self._blocks}
        return True

    def _measure_blocks(self, start: int = 0) -> None:
        """Computes gaps and positions of the blocks from number `start` on."""
        del self._gaps[start:], self._bottoms[start:]
        before = next((block for block in reversed(self._blocks[:start]) if block.strips), None)
        bottom = self._bottoms[-1] if self._bottoms else 0
        for block in self._blocks[start:]:
            gap = _gap_between(before, block)
            bottom += gap + len(block.strips)
            self._gaps.append(gap)
            self._bottoms.append(bottom)
            before = block if block.strips else before
        height = bottom + 1 if self._bottoms else 0
        self._set_height(height)

    def _set_height(self, height: int) -> None:
        """Sets the height of the content. Textual would lay out the whole screen, but only the scrollbar changes."""
        size: Any = TranscriptWidget.virtual_size  # the reactive attribute of the class, not its value
        self.set_reactive(size, Size(self._width, height))
        self._move_scrollbar(self.max_scroll_y if self._at_end else self.scroll_y)

    def _move_scrollbar(self, position: float) -> None:
        """Sets the values of the scrollbar, and draws it only if it looks different: one more line seldom moves it."""
        bar, kind = self.vertical_scrollbar, cast("Any", ScrollBar)  # its class has the reactive attributes
        bar.set_reactive(kind.window_virtual_size, self.virtual_size.height)
        bar.set_reactive(kind.window_size, self.size.height)
        bar.set_reactive(kind.position, bar.validate_position(position))
        window = bar.window_size if bar.window_size < bar.window_virtual_size else 0  # as the bar calls its renderer
        drawn = ScrollBarRender.render_bar(bar.size.height, bar.window_virtual_size, window, bar.position).segments
        if drawn != self._drawn_bar:
            self._drawn_bar = drawn
            bar.refresh()

    def _first_in_view(self) -> tuple[ItemBlock, int] | None:
        """Returns the block at the top of the view and the line within it."""
        row = self.scroll_offset.y
        number = bisect_right(self._bottoms, row)
        if number >= len(self._bottoms):
            return None
        return self._blocks[number], row - (self._bottoms[number - 1] if number else 0)

    def _restore_scroll(self, before: tuple[ItemBlock, int] | None) -> None:
        if self._at_end:
            self._scroll_to_end()
        elif before is not None and before[0].item.id in self._by_id:
            number = self._blocks.index(self._by_id[before[0].item.id])
            top = self._bottoms[number - 1] if number else 0
            self.scroll_to(y=top + before[1], animate=False, immediate=True, force=True)

    def _scroll_to_end(self) -> None:
        self.scroll_end(animate=False, immediate=True, force=True)

    def _block_at(self, row: int) -> ItemBlock | None:
        number = bisect_right(self._bottoms, row)
        return self._blocks[number] if number < len(self._blocks) else None

    def _strip_at(self, row: int) -> Strip | None:
        number = bisect_right(self._bottoms, row)
        if number >= len(self._blocks):
            return None
        within = row - (self._bottoms[number - 1] if number else 0) - self._gaps[number]
        return self._blocks[number].strips[within] if within >= 0 else None


def _is_same_strip(first: Strip | None, second: Strip | None) -> bool:
    return first is second or (first is not None and second is not None and first == second)


def _gap_between(before: ItemBlock | None, block: ItemBlock) -> int:
    """Returns the number of empty lines between two blocks: one, but none between consecutive one-line tool calls.
    Blocks without lines, such as hidden notices, are not counted."""
    if before is None or not block.strips:
        return 0
    together = isinstance(block.item, ToolCallItem) and isinstance(before.item, ToolCallItem)
    return 0 if together and len(block.strips) == len(before.strips) == 1 else 1


def _highlight(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """Returns the strip with the style above those of its segments: code has a background that would hide a style below
    it."""
    start, end = span
    end = strip.cell_length if end == -1 else min(end, strip.cell_length)
    if start >= end:
        return strip
    selected = strip.crop(start, end)
    segments = [Segment(text, (old_style or Style()) + style, control) for text, old_style, control in selected]
    return Strip.join([strip.crop(0, start), Strip(segments, end - start), strip.crop(end)])


_SUGGESTIONS = (
    ("Explain how this project is structured", "reads and searches files without asking"),
    ("Run the tests and fix what fails", "asks before it applies what a command changed"),
    ("Plan how to add a login page", "shift+tab switches to plan mode, which changes nothing"),
)
# Questions on known topics: the embedded model is given the files that answer them.
_SMALL_MODEL_SUGGESTIONS = (
    ("Explain how this project is put together", "lists and reads files first"),
    ("What are the main classes and functions?", "reads without asking"),
    ("How do I run the tests?", "one topic at a time works best"),
)
_KEY_HINTS = (
    ("tab", "take a suggestion"),
    ("/", "commands"),
    ("@", "mention a file"),
    ("!", "run a command"),
    ("shift+tab", "mode"),
    ("ctrl+o", "model"),
    ("f1", "help"),
)


class WelcomeView(Static):
    """The welcome screen; hidden once the session has items."""

    DEFAULT_CSS = "WelcomeView { height: 1fr; padding: 1 3; content-align: left bottom; }"

    def __init__(self, notices: tuple[str, ...] = (), missing: str = "", *, embedded: bool = False) -> None:
        super().__init__("", id="welcome", markup=False)
        self.notices = notices
        self.embedded = embedded
        self.missing = missing
        self.earlier = 0

    def on_resize(self) -> None:
        self.draw_welcome()

    @property
    def suggestions(self) -> tuple[str, ...]:
        """The prompts that are suggested for the model."""
        return () if self.missing else tuple(prompt for prompt, _ in find_suggestions(embedded=self.embedded))

    def show_ready(self, notices: tuple[str, ...], *, embedded: bool) -> None:
        """Shows the suggestions, because a model is configured now."""
        self.notices, self.missing, self.embedded = notices, "", embedded
        self.draw_welcome()

    def add_notices(self, notices: tuple[str, ...]) -> None:
        if notices:
            self.notices = (*self.notices, *notices)
            self.draw_welcome()

    def show_earlier_count(self, number: int) -> None:
        self.earlier = number
        self.draw_welcome()

    def draw_welcome(self) -> None:
        palette = widget_palette(self)
        width = max(self.size.width, 20)
        lines = welcome_lines(self.notices, self.missing, width, palette, earlier=self.earlier, embedded=self.embedded)
        self.update(Text("\n").join(lines))


def find_suggestions(*, embedded: bool) -> tuple[tuple[str, str], ...]:
    """Returns prompts and notes for the start screen; `embedded` is the small model that runs on this machine."""
    return _SMALL_MODEL_SUGGESTIONS if embedded else _SUGGESTIONS


def welcome_lines(
    notices: tuple[str, ...],
    missing: str,
    width: int,
    palette: Palette,
    *,
    earlier: int = 0,
    embedded: bool = False,
) -> list[Text]:
    """Returns the lines of the welcome screen. `missing` names what must be configured first; then nothing else is
    shown."""
    lines = [text_line("◆ outrider", palette.style("accent", bold=True)), text_line()]
    if missing:
        lines += _paragraph_lines(missing[:1].upper() + missing[1:], width, palette, "text")
        return [*lines, text_line(), *_notice_lines(notices, width, palette)]
    intro = "An agent that works in this folder. Commands run in a sandbox, and it asks about what they changed."
    lines += _paragraph_lines(intro, width, palette, "text")
    lines.append(text_line())
    resume_note = f"{format_count(earlier, 'session')} of this folder"
    for prompt, note in (*find_suggestions(embedded=embedded), *((("/resume", resume_note),) if earlier else ())):
        mark, text = text_line("› ", palette.style("accent")), text_line(prompt, palette.style("text"))
        line = Text.assemble(mark, text, (f"   {note}", palette.style("quiet")))
        lines += [line] if line.cell_len <= width else indent_lines(wrap_text(text, width - 2), mark)
    lines.append(text_line())
    keys = [
        Text.assemble((key, palette.style("accent")), (f" {note}", palette.style("quiet"))) for key, note in _KEY_HINTS
    ]
    return [*lines, *side_by_side(keys, width), *_notice_lines(notices, width, palette)]


def _paragraph_lines(text: str, width: int, palette: Palette, style: str) -> list[Text]:
    return [
        line for row in clean_text(text).split("\n") for line in wrap_text(text_line(row, palette.style(style)), width)
    ]


def _notice_lines(notices: tuple[str, ...], width: int, palette: Palette) -> list[Text]:
    rows = [row for notice in notices for row in _paragraph_lines(f"! {notice}", width, palette, "warn")]
    return [text_line(), *rows] if rows else []
