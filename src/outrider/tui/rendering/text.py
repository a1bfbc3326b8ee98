"""Styled text lines: cleaning of untrusted text, wrapping, indenting, conversion to strips; number and time formats."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from io import StringIO

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from outrider.permissions.redaction.terminal import sanitize_for_terminal

TAB_SIZE = 4
# Rich needs a console to wrap text and resolve styles; nothing is printed on it.
CONSOLE = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=200)


def clean_text(text: str) -> str:
    """Return untrusted text (from a model, tool or file) without control sequences and tabs."""
    return sanitize_for_terminal(text.replace("\r\n", "\n")).expandtabs(TAB_SIZE)


def clean_line(text: str, max_chars: int = 400) -> str:
    """Return untrusted text on one line, cleaned and truncated."""
    return sanitize_for_terminal(" ".join(text[: max_chars * 2].split()), keep_lines=False)[:max_chars]


def text_line(text: str = "", style: Style | str = "") -> Text:
    """Return a text that does not wrap and has no line end."""
    return Text(text, style, no_wrap=True, end="")


def wrap_text(text: Text, width: int) -> list[Text]:
    """Wrap at word boundaries; a word longer than a line is broken."""
    if text.cell_len <= width and "\n" not in text.plain:
        return [text]
    return list(text.wrap(CONSOLE, max(width, 1), overflow="fold", no_wrap=False))


def truncate_line(text: Text, width: int) -> Text:
    """Return the line cut to `width` columns, with an ellipsis."""
    if text.cell_len > width:
        text = text.copy()
        text.truncate(max(width, 1), overflow="ellipsis")
    return text


def indent_lines(lines: Iterable[Text], first: Text, rest: Text | None = None) -> list[Text]:
    """Prefix the first line with `first` and the others with `rest` (default: spaces of the same width)."""
    rest = text_line(" " * first.cell_len) if rest is None else rest
    return [Text.assemble(first if number == 0 else rest, found, end="") for number, found in enumerate(lines)]


def justify_ends(left: Text, right: Text, width: int) -> Text:
    """Return one line with a left and a right text; the left one is truncated if needed."""
    room = width - right.cell_len - 1
    if room < min(left.cell_len, 12):
        return truncate_line(left, width)
    left = truncate_line(left, room)
    return Text.assemble(left, " " * (width - left.cell_len - right.cell_len), right, end="")


def side_by_side(pieces: Iterable[Text], width: int, gap: int = 3) -> list[Text]:
    """Arrange the texts in rows, as many per row as fit, without breaking any."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + gap + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * gap, piece, end="")
        else:
            lines.append(piece)
    return lines


def pad_line(text: Text, width: int, style: Style) -> Text:
    """Pad a line to `width` and apply a background style."""
    padding = max(width - text.cell_len, 0)
    padded = Text.assemble(text, " " * padding, end="")
    padded.stylize_before(style)
    return padded


def render_strip(text: Text) -> Strip:
    return Strip(list(text.render(CONSOLE)), text.cell_len)


def render_strips(lines: Iterable[Text]) -> list[Strip]:
    return [render_strip(found) for found in lines]


def last_lines(lines: Sequence[str], max_lines: int) -> tuple[int, Sequence[str]]:
    """Return the number of hidden lines and the last lines."""
    hidden = max(len(lines) - max_lines, 0)
    return hidden, lines[hidden:]


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def format_duration(seconds: float) -> str:
    """Format a duration: 1.2s, 45s, 3m 05s, 2h 10m."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)}m {int(seconds % _MINUTE):02}s"
    return f"{int(seconds // _HOUR)}h {int(seconds % _HOUR // _MINUTE):02}m"


def format_elapsed(seconds: float) -> str:
    """Format the time of a running operation in whole seconds; fractions would flicker."""
    return f"{int(seconds)}s" if seconds < _MINUTE else format_duration(seconds)


def format_count(number: int) -> str:
    """Format a number: 950, 12.3k, 1.5M."""
    if number < 1000:
        return str(number)
    if number < 1_000_000:
        return f"{number / 1000:.1f}k" if number < 100_000 else f"{number // 1000}k"
    return f"{number / 1_000_000:.1f}M"


def format_cost(cost: Decimal | None) -> str:
    """Format a cost; an unknown cost must not look like zero."""
    if cost is None:
        return "cost unknown"
    if cost and cost < Decimal("0.01"):
        return f"${cost:.4f}"
    return f"${cost:.2f}"


def format_age(seconds: float) -> str:
    """Format an age in seconds: `5 minutes ago`."""
    for size, word in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {word}{'' if number == 1 else 's'} ago"
    return "just now"


def format_plural(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
