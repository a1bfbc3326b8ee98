"""The first screen of a new conversation: what this can do, and how to begin."""

from rich.text import Text
from textual.widgets import Static

from outrider.tui.rendering.text import clean, indented, line, plural, side_by_side, wrapped
from outrider.tui.theme import Palette
from outrider.tui.widgets.status import palette_of

_TRIES = (
    ("Explain how this project is put together", "it reads files and searches, unasked"),
    ("Run the tests and mend what fails", "commands and changes are shown to you first"),
    ("Plan how to add a login page", "shift+tab goes to plan mode, which changes nothing"),
)
_KEYS = (
    ("/", "commands"),
    ("@", "names a file"),
    ("!", "runs a command"),
    ("shift+tab", "mode"),
    ("ctrl+o", "model"),
    ("f1", "help"),
)


class Welcome(Static):
    DEFAULT_CSS = "Welcome { height: 1fr; padding: 1 3; content-align: left bottom; }"

    def __init__(self, notices: tuple[str, ...] = (), missing: str = "") -> None:
        super().__init__("", id="welcome", markup=False)
        self.notices = notices
        self.missing = missing
        self.earlier = 0

    def on_resize(self) -> None:
        self.draw()

    def tell_earlier(self, number: int) -> None:
        self.earlier = number
        self.draw()

    def draw(self) -> None:
        palette = palette_of(self)
        lines = welcome_lines(self.notices, self.missing, max(self.size.width, 20), palette, earlier=self.earlier)
        self.update(Text("\n").join(lines))


def welcome_lines(
    notices: tuple[str, ...], missing: str, width: int, palette: Palette, *, earlier: int = 0
) -> list[Text]:
    lines = [line("◆ outrider", palette.style("accent", bold=True)), line()]
    if missing:
        lines += _paragraph(missing[:1].upper() + missing[1:], width, palette, "text")
        return [*lines, line(), *_notices(notices, width, palette)]
    intro = "An agent that works in this folder. It asks before it changes anything or runs what could do harm."
    lines += _paragraph(intro, width, palette, "text")
    lines.append(line())
    known = f"{plural(earlier, 'session')} of this folder"
    for words, note in (*_TRIES, *((("/resume", known),) if earlier else ())):
        mark, text = line("› ", palette.style("accent")), line(words, palette.style("text"))
        both = Text.assemble(mark, text, (f"   {note}", palette.style("quiet")))
        lines += [both] if both.cell_len <= width else indented(wrapped(text, width - 2), mark)
    lines.append(line())
    keys = [Text.assemble((key, palette.style("accent")), (f" {note}", palette.style("quiet"))) for key, note in _KEYS]
    return [*lines, *side_by_side(keys, width), *_notices(notices, width, palette)]


def _paragraph(text: str, width: int, palette: Palette, style: str) -> list[Text]:
    return [piece for row in clean(text).split("\n") for piece in wrapped(line(row, palette.style(style)), width)]


def _notices(notices: tuple[str, ...], width: int, palette: Palette) -> list[Text]:
    rows = [piece for notice in notices for piece in _paragraph(f"! {notice}", width, palette, "warn")]
    return [line(), *rows] if rows else []
