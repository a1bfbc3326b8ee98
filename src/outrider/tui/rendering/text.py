"""Lines of styled text: made from any text safely, wrapped, indented, and turned into what a terminal gets."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from io import StringIO

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from outrider.permissions.redaction.terminal import for_terminal

TAB = 4
# Only asked how wide characters are and what styles mean; nothing is ever printed on it.
CONSOLE = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=200)


def clean(text: str) -> str:
    """Text from a model, a tool or a file, as a screen may show it: no control sequences, no tabs."""
    return for_terminal(text.replace("\r\n", "\n")).expandtabs(TAB)


def clean_line(text: str, most: int = 400) -> str:
    """The same, on one line."""
    return for_terminal(" ".join(text[: most * 2].split()), keep_lines=False)[:most]


def line(text: str = "", style: Style | str = "") -> Text:
    return Text(text, style, no_wrap=True, end="")


def wrapped(text: Text, width: int) -> list[Text]:
    """Words stay whole where they fit; anything longer than a line is cut."""
    if text.cell_len <= width and "\n" not in text.plain:
        return [text]
    return list(text.wrap(CONSOLE, max(width, 1), overflow="fold", no_wrap=False))


def cut(text: Text, width: int) -> Text:
    if text.cell_len > width:
        text = text.copy()
        text.truncate(max(width, 1), overflow="ellipsis")
    return text


def indented(lines: Iterable[Text], first: Text, rest: Text | None = None) -> list[Text]:
    """Lines behind a mark; those after the first stand behind `rest`, or as far in."""
    rest = line(" " * first.cell_len) if rest is None else rest
    return [Text.assemble(first if number == 0 else rest, found, end="") for number, found in enumerate(lines)]


def ends(left: Text, right: Text, width: int) -> Text:
    """One line with something at both ends; the left one gives way."""
    room = width - right.cell_len - 1
    if room < min(left.cell_len, 12):
        return cut(left, width)
    left = cut(left, room)
    return Text.assemble(left, " " * (width - left.cell_len - right.cell_len), right, end="")


def side_by_side(pieces: Iterable[Text], width: int, gap: int = 3) -> list[Text]:
    """As many on a line as fit; none of them is broken."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + gap + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * gap, piece, end="")
        else:
            lines.append(piece)
    return lines


def padded(text: Text, width: int, style: Style) -> Text:
    """A line on a ground of its own, as wide as all of it."""
    padding = max(width - text.cell_len, 0)
    whole = Text.assemble(text, " " * padding, end="")
    whole.stylize_before(style)
    return whole


def strip_of(text: Text) -> Strip:
    return Strip(list(text.render(CONSOLE)), text.cell_len)


def strips_of(lines: Iterable[Text]) -> list[Strip]:
    return [strip_of(found) for found in lines]


def tail(lines: Sequence[str], most: int) -> tuple[int, Sequence[str]]:
    """The last lines, and how many came before them."""
    hidden = max(len(lines) - most, 0)
    return hidden, lines[hidden:]


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)}m {int(seconds % _MINUTE):02}s"
    return f"{int(seconds // _HOUR)}h {int(seconds % _HOUR // _MINUTE):02}m"


def elapsed(seconds: float) -> str:
    """Of something that still goes on: whole seconds, since more would only flicker."""
    return f"{int(seconds)}s" if seconds < _MINUTE else duration(seconds)


def count(number: int) -> str:
    if number < 1000:
        return str(number)
    if number < 1_000_000:
        return f"{number / 1000:.1f}k" if number < 100_000 else f"{number // 1000}k"
    return f"{number / 1_000_000:.1f}M"


def money(cost: Decimal | None) -> str:
    """Unknown is said as such; it is never zero."""
    if cost is None:
        return "cost unknown"
    if cost and cost < Decimal("0.01"):
        return f"${cost:.4f}"
    return f"${cost:.2f}"


def age(seconds: float) -> str:
    for size, word in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {word}{'' if number == 1 else 's'} ago"
    return "just now"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
