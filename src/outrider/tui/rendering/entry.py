"""An entry as strips for the screen, remembered until it changes."""

from rich.text import Text
from textual.strip import Strip

from outrider.tui.entries import (
    AssistantEntry,
    CommandEntry,
    Entry,
    NoticeEntry,
    ReasoningEntry,
    ToolCallEntry,
    UserEntry,
)
from outrider.tui.rendering.markdown import Flow, markdown
from outrider.tui.rendering.text import (
    clean,
    clean_line,
    cut,
    duration,
    indented,
    line,
    padded,
    plural,
    strips_of,
    tail,
    wrapped,
)
from outrider.tui.rendering.tool_calls import OUTPUT_LINES, UNFOLDED_LINES, call_lines
from outrider.tui.theme import Palette
from outrider.types.parts import FilePart

MARGIN = 2
_NOTES = {"quiet": "─", "good": "✓", "warn": "!", "bad": "✗"}
_SAID_LINES = 60
_WORTH_SAYING = 0.1  # seconds


class Block:
    """An entry's place on the screen: its strips for a width and a palette, made anew only when it has changed."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.strips: list[Strip] = []
        self._made: tuple[int, int, Palette] | None = None
        self._flow: Flow | None = None

    def render(self, width: int, palette: Palette) -> bool:
        """Whether anything is different now."""
        made = (self.entry.version, width, palette)
        if made == self._made:
            return False
        if self._made is not None and self._made[1:] != made[1:]:
            self._flow = None
        self._made = made
        self.strips = self._strips(width, palette)
        return True

    def _strips(self, width: int, palette: Palette) -> list[Strip]:
        entry = self.entry
        if type(entry) is AssistantEntry:
            return self._flowing(entry, width, palette)
        return strips_of(lines_of(entry, width, palette))

    def _flowing(self, entry: AssistantEntry, width: int, palette: Palette) -> list[Strip]:
        if self._flow is None:
            self._flow = Flow(width, palette, MARGIN)
        strips = self._flow.lines(entry.text)
        if not entry.open:
            self._flow = None
        return strips


def lines_of(entry: Entry, width: int, palette: Palette) -> list[Text]:
    match entry:
        case UserEntry():
            return _said(entry, width, palette)
        case ReasoningEntry():
            return _thought(entry, width, palette)
        case AssistantEntry():
            return indented(markdown(entry.text, max(width - MARGIN, 8), palette), line(" " * MARGIN))
        case ToolCallEntry():
            return call_lines(entry, width, palette)
        case NoticeEntry():
            return _note(entry, width, palette)
        case CommandEntry():
            return _ran(entry, width, palette)
        case _:
            return []


def _said(entry: UserEntry, width: int, palette: Palette) -> list[Text]:
    """On a ground of its own, so that one finds one's own words again."""
    ground = palette.on("panel")
    words = Text(clean(entry.text).strip("\n"), palette.style("text"), end="")
    rows = wrapped(words, max(width - 3, 8))
    hidden = len(rows) - _SAID_LINES
    if hidden > 1 and not entry.unfolded:
        rows = [*rows[:_SAID_LINES], line(f"… {plural(hidden, 'more line')}", palette.style("quiet"))]
    rows += [line(f"◫ {name_of(file)}", palette.style("link")) for file in entry.files]
    bar = line("▌ ", palette.style("accent"))
    return [padded(found, width, ground) for found in indented(rows, bar, bar)]


def _thought(entry: ReasoningEntry, width: int, palette: Palette) -> list[Text]:
    spent = f" for {duration(entry.seconds)}" if entry.seconds and entry.seconds > _WORTH_SAYING else ""
    unfolded = bool(entry.unfolded)
    label = "thinking…" if entry.open else f"thought{spent}"
    head = line(f"{'▾' if unfolded else '▸'} {label}", palette.style("quiet", italic=True))
    if unfolded:
        text = Text(clean(entry.text).strip(), palette.style("quiet", italic=True), end="")
        bar = line("  ")
        return [head, *indented(wrapped(text, max(width - 2, 8)), bar, bar)]
    if entry.open:
        last = clean_line(entry.text.strip().rsplit("\n", 1)[-1][-width:])
        head = Text.assemble(head, "  ", (last, palette.style("faint", italic=True)), end="")
    return [cut(head, width)]


def _note(entry: NoticeEntry, width: int, palette: Palette) -> list[Text]:
    colour = entry.kind
    mark = line(f"{_NOTES[entry.kind]} ", palette.style(colour))
    text = Text(clean(entry.text), palette.style("quiet" if colour == "quiet" else colour), end="")
    lines = indented(wrapped(text, max(width - 2, 8)), mark)
    if entry.body and entry.unfolded is not False and (entry.unfolded or colour != "quiet"):
        lines += indented(markdown(entry.body, max(width - 2, 8), palette), line("  "), line("  "))
    return lines


def _ran(entry: CommandEntry, width: int, palette: Palette) -> list[Text]:
    command = Text(clean(entry.command), palette.style("text", bold=True), end="")
    lines = indented(wrapped(command, max(width - 2, 8)), line("! ", palette.style("accent")))
    hidden, rows = tail(
        clean(entry.text).rstrip("\n").split("\n"), UNFOLDED_LINES if entry.unfolded else 2 * OUTPUT_LINES
    )
    output = [piece for row in rows for piece in wrapped(line(row, palette.style("quiet")), max(width - 2, 8))]
    if hidden:
        output.insert(0, line(f"… {plural(hidden, 'line')} above", palette.style("faint")))
    if entry.exit != "":
        words = "runs; esc ends it" if entry.exit is None else clean_line(entry.exit)
        output.append(line(words, palette.style("accent" if entry.exit is None else "faint")))
    return lines + indented(output, line("  "), line("  "))


def name_of(file: FilePart) -> str:
    return clean_line(file.filename or file.url.partition(",")[0] or file.mime, 120)
