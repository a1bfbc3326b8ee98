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
# A small model answers narrow requests better, and needs the request to say that it should look first.
_SMALL_MODEL_SUGGESTIONS = (
    ("List the files here, read the most important ones and say what each is for", "reads without asking"),
    ("Run the tests and fix what fails", "asks about what a command changed before it counts"),
    ("Read README.md and say how to start this program", "one file at a time works best"),
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
        """Show the suggestions, because a model is configured now."""
        self.notices, self.missing, self.embedded = notices, "", embedded
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
    """Return prompts and notes for the start screen; `embedded` is the small model that runs on this machine."""
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
    """Return the lines of the welcome screen; with a `missing` text, show only what must be configured first."""
    lines = [text_line("◆ outrider", palette.style("accent", bold=True)), text_line()]
    if missing:
        lines += _paragraph_lines(missing[:1].upper() + missing[1:], width, palette, "text")
        return [*lines, text_line(), *_notice_lines(notices, width, palette)]
    intro = "An agent that works in this folder. Commands run in a sandbox, and it asks about what they changed."
    lines += _paragraph_lines(intro, width, palette, "text")
    lines.append(text_line())
    known = f"{format_count(earlier, 'session')} of this folder"
    for prompt, note in (*find_suggestions(embedded=embedded), *((("/resume", known),) if earlier else ())):
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
