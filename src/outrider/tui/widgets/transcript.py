"""The conversation on the screen: only the lines in view are drawn, only what has changed is made anew."""

from bisect import bisect_right
from itertools import accumulate

from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from outrider.tui.entries import Entry, ToolCallEntry
from outrider.tui.rendering.entry import Block
from outrider.tui.theme import DARK, Palette

TOP = 5  # lines from the top at which older messages are wanted


class Transcript(ScrollView, can_focus=True):
    """Stays at the end while it is there; somebody who scrolled up is left alone."""

    DEFAULT_CSS = """
    Transcript {
        display: none; height: 1fr; padding: 0 0 0 1; scrollbar-size-vertical: 1; overflow-y: scroll;
        overflow-x: hidden; background: $background;
    }
    """

    palette: var[Palette] = var(DARK)

    class OlderWanted(Message):
        """The top is near: older messages should be loaded."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._blocks: list[Block] = []
        self._by_id: dict[str, Block] = {}
        self._bottoms: list[int] = []
        self._entries: list[Entry] = []
        self._width = 0
        self._follows = True  # whether somebody looks at the end
        self._ground = Style()

    @property
    def room(self) -> int:
        """Columns for text: the same whether or not there is anything to scroll."""
        return self.region.width - self.styles.gutter.width - self.styles.scrollbar_size_vertical - 1

    def show(self, entries: list[Entry]) -> None:
        """The entries as they are now. Cheap when little has changed."""
        self._entries = entries
        self._width = width = self.room
        if width <= 0:
            return  # the screen is not laid out yet; `on_resize` follows
        before = self._first_in_view()
        changed = self._match(entries)
        for block in self._blocks:
            changed = block.render(width, self.palette) or changed
        if changed:
            self._measure()
            self._keep_place(before)
            self.refresh()

    def unfold_all(self, *, unfold: bool) -> None:
        for entry in self._entries:
            entry.unfolded = unfold
            entry.touch()

    def notify_style_update(self) -> None:
        """The ground is looked up once and not for every line."""
        super().notify_style_update()
        self._ground = self.rich_style

    def watch_palette(self) -> None:
        self.show(self._entries)

    def on_resize(self) -> None:
        self.show(self._entries)
        if self._follows:  # the end went out of view when the height became less
            self._to_end()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follows = new_value >= self.max_scroll_y - 1
        if new_value < old_value and new_value <= TOP:
            self.post_message(self.OlderWanted())

    def on_click(self, event: events.Click) -> None:
        block = self._block_at(self.scroll_offset.y + event.y)
        if block is not None and not self.text_selection:
            block.entry.toggle()
            self.show(self._entries)

    def render_line(self, y: int) -> Strip:
        place = self.scroll_offset.y + y
        width = self.size.width
        style = self._ground
        strip = self._strip_at(place)
        if strip is None:
            return Strip.blank(width, style)
        if (selection := self.text_selection) is not None and (span := selection.get_span(place)) is not None:
            strip = _selected(strip, span, self.screen.get_component_rich_style("screen--selection"))
        return strip.extend_cell_length(width, style).apply_style(style).apply_offsets(0, place)

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = [found.text.rstrip() if (found := self._strip_at(y)) else "" for y in range(self.virtual_size.height)]
        return selection.extract("\n".join(rows)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def _match(self, entries: list[Entry]) -> bool:
        """Blocks for these entries, in their order; those that are there stay."""
        if len(entries) == len(self._blocks) and all(
            block.entry is entry for block, entry in zip(self._blocks, entries, strict=True)
        ):
            return False
        known = self._by_id
        found = [known[entry.id] if entry.id in known else Block(entry) for entry in entries]
        self._blocks = [
            block if block.entry is entry else Block(entry) for block, entry in zip(found, entries, strict=True)
        ]
        self._by_id = {block.entry.id: block for block in self._blocks}
        return True

    def _measure(self) -> None:
        heights = (self._gap(number) + len(block.strips) for number, block in enumerate(self._blocks))
        self._bottoms = list(accumulate(heights))
        height = self._bottoms[-1] + 1 if self._bottoms else 0
        self.virtual_size = Size(self._width, height)

    def _gap(self, number: int) -> int:
        """An empty line between entries; short calls that follow each other stand together."""
        block = self._blocks[number]
        if number == 0 or not block.strips:
            return 0
        before = self._blocks[number - 1]
        together = isinstance(block.entry, ToolCallEntry) and isinstance(before.entry, ToolCallEntry)
        return 0 if together and len(block.strips) == len(before.strips) == 1 else 1

    def _first_in_view(self) -> tuple[Block, int] | None:
        """The block at the top of the view, and how far into it."""
        place = self.scroll_offset.y
        number = bisect_right(self._bottoms, place)
        if number >= len(self._bottoms):
            return None
        return self._blocks[number], place - (self._bottoms[number - 1] if number else 0)

    def _keep_place(self, before: tuple[Block, int] | None) -> None:
        if self._follows:
            self._to_end()
        elif before is not None and before[0].entry.id in self._by_id:
            number = self._blocks.index(self._by_id[before[0].entry.id])
            top = self._bottoms[number - 1] if number else 0
            self.scroll_to(y=top + before[1], animate=False, immediate=True, force=True)

    def _to_end(self) -> None:
        self.scroll_end(animate=False, immediate=True, force=True)

    def _block_at(self, place: int) -> Block | None:
        number = bisect_right(self._bottoms, place)
        return self._blocks[number] if number < len(self._blocks) else None

    def _strip_at(self, place: int) -> Strip | None:
        number = bisect_right(self._bottoms, place)
        if number >= len(self._blocks):
            return None
        within = place - (self._bottoms[number - 1] if number else 0) - self._gap(number)
        return self._blocks[number].strips[within] if within >= 0 else None


def _selected(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    start, end = span
    end = strip.cell_length if end == -1 else min(end, strip.cell_length)
    if start >= end:
        return strip
    return Strip.join([strip.crop(0, start), strip.crop(start, end).apply_style(style), strip.crop(end)])
