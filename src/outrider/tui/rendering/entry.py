"""Renders transcript entries as strips (Textual's line segments) and caches them until the entry changes."""

from rich.text import Text
from textual.strip import Strip

from outrider.tui.entries import (
    AssistantEntry,
    CommandEntry,
    NoticeEntry,
    ReasoningEntry,
    ToolCallEntry,
    TranscriptEntry,
    UserEntry,
)
from outrider.tui.rendering.markdown import MarkdownStream, markdown_lines
from outrider.tui.rendering.text import (
    clean_line,
    clean_text,
    format_duration,
    format_plural,
    indent_lines,
    last_lines,
    pad_line,
    render_strips,
    text_line,
    truncate_line,
    wrap_text,
)
from outrider.tui.rendering.tool_calls import OUTPUT_LINES, UNFOLDED_LINES, call_lines
from outrider.tui.theme import Palette
from outrider.types.parts import FilePart

MARGIN = 2
_NOTICE_MARKS = {"quiet": "─", "good": "✓", "warn": "!", "bad": "✗"}
_MAX_USER_LINES = 60
_MIN_SHOWN_SECONDS = 0.1  # seconds


class EntryBlock:
    """The rendered strips of one entry, cached by entry version, width and palette."""

    def __init__(self, entry: TranscriptEntry) -> None:
        self.entry = entry
        self.strips: list[Strip] = []
        self._rendered_for: tuple[int, int, Palette] | None = None
        self._stream: MarkdownStream | None = None

    def render(self, width: int, palette: Palette) -> bool:
        """Render the entry if needed; returns whether the strips changed."""
        rendered_for = (self.entry.version, width, palette)
        if rendered_for == self._rendered_for:
            return False
        if self._rendered_for is not None and self._rendered_for[1:] != rendered_for[1:]:
            self._stream = None
        self._rendered_for = rendered_for
        self.strips = self._render_strips(width, palette)
        return True

    def _render_strips(self, width: int, palette: Palette) -> list[Strip]:
        entry = self.entry
        if type(entry) is AssistantEntry:
            return self._render_streaming(entry, width, palette)
        return render_strips(entry_lines(entry, width, palette))

    def _render_streaming(self, entry: AssistantEntry, width: int, palette: Palette) -> list[Strip]:
        if self._stream is None:
            self._stream = MarkdownStream(width, palette, MARGIN)
        strips = self._stream.render(entry.text)
        if not entry.open:
            self._stream = None
        return strips


def entry_lines(entry: TranscriptEntry, width: int, palette: Palette) -> list[Text]:
    """Return the rendered lines of an entry."""
    match entry:
        case UserEntry():
            return _user_lines(entry, width, palette)
        case ReasoningEntry():
            return _reasoning_lines(entry, width, palette)
        case AssistantEntry():
            return indent_lines(markdown_lines(entry.text, max(width - MARGIN, 8), palette), text_line(" " * MARGIN))
        case ToolCallEntry():
            return call_lines(entry, width, palette)
        case NoticeEntry():
            return _notice_lines(entry, width, palette)
        case CommandEntry():
            return _command_lines(entry, width, palette)
        case _:
            return []


def _user_lines(entry: UserEntry, width: int, palette: Palette) -> list[Text]:
    """Return the lines of a user message on a colored background, so that it is easy to find while scrolling."""
    background = palette.style_on("panel")
    text = Text(clean_text(entry.text).strip("\n"), palette.style("text"), end="")
    rows = wrap_text(text, max(width - 3, 8))
    hidden = len(rows) - _MAX_USER_LINES
    if hidden > 1 and not entry.unfolded:
        rows = [*rows[:_MAX_USER_LINES], text_line(f"… {format_plural(hidden, 'more line')}", palette.style("quiet"))]
    rows += [text_line(f"◫ {file_label(file)}", palette.style("link")) for file in entry.files]
    bar = text_line("▌ ", palette.style("accent"))
    return [pad_line(found, width, background) for found in indent_lines(rows, bar, bar)]


def _reasoning_lines(entry: ReasoningEntry, width: int, palette: Palette) -> list[Text]:
    spent = f" for {format_duration(entry.seconds)}" if entry.seconds and entry.seconds > _MIN_SHOWN_SECONDS else ""
    unfolded = bool(entry.unfolded)
    label = "thinking…" if entry.open else f"thought{spent}"
    head = text_line(f"{'▾' if unfolded else '▸'} {label}", palette.style("quiet", italic=True))
    if unfolded:
        text = Text(clean_text(entry.text).strip(), palette.style("quiet", italic=True), end="")
        bar = text_line("  ")
        return [head, *indent_lines(wrap_text(text, max(width - 2, 8)), bar, bar)]
    if entry.open:
        last = clean_line(entry.text.strip().rsplit("\n", 1)[-1][-width:])
        head = Text.assemble(head, "  ", (last, palette.style("faint", italic=True)), end="")
    return [truncate_line(head, width)]


def _notice_lines(entry: NoticeEntry, width: int, palette: Palette) -> list[Text]:
    colour = entry.kind
    mark = text_line(f"{_NOTICE_MARKS[entry.kind]} ", palette.style(colour))
    text = Text(clean_text(entry.text), palette.style("quiet" if colour == "quiet" else colour), end="")
    lines = indent_lines(wrap_text(text, max(width - 2, 8)), mark)
    if entry.body and entry.unfolded is not False and (entry.unfolded or colour != "quiet"):
        lines += indent_lines(markdown_lines(entry.body, max(width - 2, 8), palette), text_line("  "), text_line("  "))
    return lines


def _command_lines(entry: CommandEntry, width: int, palette: Palette) -> list[Text]:
    command = Text(clean_text(entry.command), palette.style("text", bold=True), end="")
    lines = indent_lines(wrap_text(command, max(width - 2, 8)), text_line("! ", palette.style("accent")))
    hidden, rows = last_lines(
        clean_text(entry.text).rstrip("\n").split("\n"), UNFOLDED_LINES if entry.unfolded else 2 * OUTPUT_LINES
    )
    output = [piece for row in rows for piece in wrap_text(text_line(row, palette.style("quiet")), max(width - 2, 8))]
    if hidden:
        output.insert(0, text_line(f"… {format_plural(hidden, 'line')} above", palette.style("faint")))
    if entry.exit_text != "":
        status = "running; esc cancels" if entry.exit_text is None else clean_line(entry.exit_text)
        output.append(text_line(status, palette.style("accent" if entry.exit_text is None else "faint")))
    return lines + indent_lines(output, text_line("  "), text_line("  "))


def file_label(file: FilePart) -> str:
    return clean_line(file.filename or file.url.partition(",")[0] or file.mime, 120)
