"""The welcome screen of a new session: what the agent does, example prompts and key hints."""

from rich.text import Text
from textual.widgets import Static

from outrider.presentation.formats import clean_text, format_count
from outrider.tui.rendering.text import indent_lines, side_by_side, text_line, wrap_text
from outrider.tui.theme import Palette
from outrider.tui.widgets.status import widget_palette

_SUGGESTIONS = (
    ("Explain how this project is structured", "reads and searches files without asking"),
    ("Run the tests and fix what fails", "asks about what a command changed before it counts"),
    ("Plan how to add a login page", "shift+tab switches to plan mode, which changes nothing"),
)
_KEY_HINTS = (
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

    def __init__(self, notices: tuple[str, ...] = (), missing: str = "") -> None:
        super().__init__("", id="welcome", markup=False)
        self.notices = notices
        self.missing = missing
        self.earlier = 0

    def on_resize(self) -> None:
        self.draw_welcome()

    def show_ready(self, notices: tuple[str, ...]) -> None:
        """Show the suggestions, because a model is configured now."""
        self.notices, self.missing = notices, ""
        self.draw_welcome()

    def show_earlier_count(self, number: int) -> None:
        self.earlier = number
        self.draw_welcome()

    def draw_welcome(self) -> None:
        palette = widget_palette(self)
        lines = welcome_lines(self.notices, self.missing, max(self.size.width, 20), palette, earlier=self.earlier)
        self.update(Text("\n").join(lines))


def welcome_lines(
    notices: tuple[str, ...], missing: str, width: int, palette: Palette, *, earlier: int = 0
) -> list[Text]:
    """Return the lines of the welcome screen; with a `missing` text, show only what must be configured first."""
    lines = [text_line("◆ outrider", palette.style("accent", bold=True)), text_line()]
    if missing:
        lines += _paragraph_lines(missing[:1].upper() + missing[1:], width, palette, "text")
        return [*lines, text_line(), *_notice_lines(notices, width, palette)]
    intro = "An agent that works in this folder. Commands run in a sandbox, and it asks about what they changed."
    lines += _paragraph_lines(intro, width, palette, "text")
    lines.append(text_line())
    known = f"{format_count(earlier, 'session')} of this folder"
    for prompt, note in (*_SUGGESTIONS, *((("/resume", known),) if earlier else ())):
        mark, text = text_line("› ", palette.style("accent")), text_line(prompt, palette.style("text"))
        both = Text.assemble(mark, text, (f"   {note}", palette.style("quiet")))
        lines += [both] if both.cell_len <= width else indent_lines(wrap_text(text, width - 2), mark)
    lines.append(text_line())
    keys = [
        Text.assemble((key, palette.style("accent")), (f" {note}", palette.style("quiet"))) for key, note in _KEY_HINTS
    ]
    return [*lines, *side_by_side(keys, width), *_notice_lines(notices, width, palette)]


def _paragraph_lines(text: str, width: int, palette: Palette, style: str) -> list[Text]:
    return [
        piece
        for row in clean_text(text).split("\n")
        for piece in wrap_text(text_line(row, palette.style(style)), width)
    ]


def _notice_lines(notices: tuple[str, ...], width: int, palette: Palette) -> list[Text]:
    rows = [piece for notice in notices for piece in _paragraph_lines(f"! {notice}", width, palette, "warn")]
    return [text_line(), *rows] if rows else []
