"""Renders transcript items as strips (Textual's line segments) and caches them until the item changes."""

import sys
from collections.abc import Sequence
from typing import assert_never

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from outrider.presentation.formats import clean_line, clean_text, format_count, format_duration
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    NoticeItem,
    NoticeLevel,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    file_name,
    file_summary,
)
from outrider.tui.rendering.markdown import MarkdownStream, markdown_lines
from outrider.tui.rendering.text import (
    indent_lines,
    last_lines,
    pad_line,
    render_strips,
    text_line,
    truncate_line,
    wrap_text,
)
from outrider.tui.rendering.tool_calls import EXPANDED_LINES, OUTPUT_LINES, call_lines
from outrider.tui.theme import Palette

MARGIN = 2
_NOTICE_MARKS: dict[NoticeLevel, tuple[str, str]] = {
    "detail": ("·", "quiet"),
    "info": ("─", "quiet"),
    "success": ("✓", "good"),
    "warning": ("!", "warn"),
    "error": ("✗", "bad"),
}
_MAX_USER_LINES, _EXPANDED_USER_LINES = 60, 2000
_MIN_SHOWN_SECONDS = 0.1  # seconds


class ItemBlock:
    """The rendered strips of one item, cached by item version, width and palette."""

    def __init__(self, item: TranscriptItem) -> None:
        self.item = item
        self.strips: list[Strip] = []
        self.version = -1  # of the item that `strips` show
        self._rendered_for: tuple[int, int, Palette] | None = None
        self._stream: MarkdownStream | None = None

    def render(self, width: int, palette: Palette) -> bool:
        """Renders the item if needed; returns whether the strips changed."""
        rendered_for = (self.item.version, width, palette)
        if rendered_for == self._rendered_for:
            return False
        if self._rendered_for is not None and self._rendered_for[1:] != rendered_for[1:]:
            self._stream = None
        self._rendered_for = rendered_for
        self.version = self.item.version
        self.strips = self._render_strips(width, palette)
        return True

    def _render_strips(self, width: int, palette: Palette) -> list[Strip]:
        item = self.item
        if type(item) is TextItem and not item.withdrawn:
            return self._render_streaming(item, width, palette)
        return render_strips(item_lines(item, width, palette))

    def _render_streaming(self, item: TextItem, width: int, palette: Palette) -> list[Strip]:
        if self._stream is None:
            self._stream = MarkdownStream(width, palette, MARGIN)
        strips = self._stream.render(item.text)
        if not item.streaming:
            self._stream = None
        return strips


def item_lines(item: TranscriptItem, width: int, palette: Palette) -> list[Text]:
    """Returns the rendered lines of an item; those of a failed attempt are struck out."""
    lines = _item_lines(item, width, palette)
    if item.withdrawn:
        for line in lines:
            line.stylize(Style(strike=True, dim=True))
    return lines


def _item_lines(item: TranscriptItem, width: int, palette: Palette) -> list[Text]:
    match item:
        case UserItem():
            return _user_lines(item, width, palette)
        case ReasoningItem():
            return _reasoning_lines(item, width, palette)
        case TextItem():
            return indent_lines(markdown_lines(item.text, max(width - MARGIN, 8), palette), text_line(" " * MARGIN))
        case ToolCallItem():
            return call_lines(item, width, palette)
        case FileItem():
            return [truncate_line(text_line(f"  ◫ {file_summary(item.part)}", palette.style("link")), width)]
        case NoticeItem():
            return _notice_lines(item, width, palette)
        case CommandItem():
            return _command_lines(item, width, palette)
        case _:
            assert_never(item)


def _user_lines(item: UserItem, width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a user message on a colored background, so that it is easy to find while scrolling."""
    background = palette.style_on("panel")
    room, max_lines = max(width - 3, 8), _EXPANDED_USER_LINES if item.expanded else _MAX_USER_LINES
    source = item.text.strip("\r\n")
    # Only the part that can be visible is wrapped, because a paste may have megabytes.
    visible = source[: (max_lines + 2) * room]
    rows = wrap_text(Text(clean_text(visible), palette.style("text"), end=""), room)
    hidden = len(rows) - max_lines + source.count("\n", len(visible))
    if hidden > 1:
        rows = [*rows[:max_lines], text_line(f"… {format_count(hidden, 'more line')}", palette.style("quiet"))]
    rows += [text_line(f"◫ {file_name(file)}", palette.style("link")) for file in item.files]
    bar = text_line("▌ ", palette.style("accent"))
    return [pad_line(line, width, background) for line in indent_lines(rows, bar, bar)]


def _reasoning_lines(item: ReasoningItem, width: int, palette: Palette) -> list[Text]:
    duration = f" for {format_duration(item.seconds)}" if item.seconds and item.seconds > _MIN_SHOWN_SECONDS else ""
    expanded = bool(item.expanded)
    label = "thinking…" if item.streaming else f"thought{duration}"
    head = text_line(f"{'▾' if expanded else '▸'} {label}", palette.style("quiet", italic=True))
    if expanded:
        text = Text(clean_text(item.text).strip(), palette.style("quiet", italic=True), end="")
        bar = text_line("  ")
        return [head, *indent_lines(wrap_text(text, max(width - 2, 8)), bar, bar)]
    if item.streaming:
        last_line = clean_line(item.text.strip().rsplit("\n", 1)[-1][-width:])
        head = Text.assemble(head, "  ", (last_line, palette.style("faint", italic=True)), end="")
    return [truncate_line(head, width)]


def _notice_lines(item: NoticeItem, width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a notice; a `detail` notice is hidden until the user expands it."""
    if item.level == "detail" and not item.expanded:
        return []
    sign, colour = _NOTICE_MARKS[item.level]
    text = Text(clean_text(item.text), palette.style(colour), end="")
    lines = indent_lines(wrap_text(text, max(width - 2, 8)), text_line(f"{sign} ", palette.style(colour)))
    if item.body and (item.expanded or (item.expanded is None and item.level != "info")):
        lines += indent_lines(markdown_lines(item.body, max(width - 2, 8), palette), text_line("  "), text_line("  "))
    return lines


def _command_lines(item: CommandItem, width: int, palette: Palette) -> list[Text]:
    command = Text(clean_text(item.command), palette.style("text", bold=True), end="")
    lines = indent_lines(wrap_text(command, max(width - 2, 8)), text_line("! ", palette.style("accent")))
    text = clean_text(item.output).rstrip("\n")
    hidden, rows = last_lines(text.split("\n") if text else [], EXPANDED_LINES if item.expanded else 2 * OUTPUT_LINES)
    output = [line for row in rows for line in wrap_text(text_line(row, palette.style("quiet")), max(width - 2, 8))]
    if hidden:
        output.insert(0, text_line(f"… {format_count(hidden, 'line')} above", palette.style("faint")))
    if item.exit_status != "":
        status = "running; esc cancels" if item.exit_status is None else clean_line(item.exit_status)
        output.append(text_line(status, palette.style("accent" if item.exit_status is None else "faint")))
    return lines + indent_lines(output, text_line("  "), text_line("  "))


def print_items(items: Sequence[TranscriptItem], palette: Palette) -> None:
    """Prints a conversation to the terminal, where it stays after the application has ended."""
    console = Console(file=sys.stdout, highlight=False)
    for item in items:
        if lines := item_lines(item, max(console.width - 1, 20), palette):
            console.print(Text("\n").join(lines), soft_wrap=True)
            console.print()
