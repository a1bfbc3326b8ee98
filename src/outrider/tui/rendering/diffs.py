"""Changes of files as people review them: coloured, with line numbers, without the noise of headers."""

import re
from collections.abc import Iterator

from rich.text import Text

from outrider.tui.rendering.lines import clean, line, padded, wrapped
from outrider.tui.rendering.palette import Palette

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_SIGNS = {"+": ("added", "good"), "-": ("removed", "bad")}


def diff(text: str, width: int, palette: Palette) -> list[Text]:
    """A unified diff; several files are told apart by their names."""
    rows = clean(text).split("\n")
    names = [row for row in rows if row.startswith("+++ ")]
    lines: list[Text] = []
    old = new = 0
    for row in rows:
        if found := _HUNK.match(row):
            if lines and lines[-1].plain.strip() != "":
                lines.append(line("   ⋮", palette.style("faint")))
            old, new = int(found[1]), int(found[2])
        elif row.startswith("--- ") or row.startswith("+++ "):
            if row.startswith("+++ ") and len(names) > 1:
                lines.append(line(row[4:], palette.style("quiet", bold=True)))
        else:
            lines += _row(row, old if row.startswith("-") else new, width, palette)
            old += not row.startswith("+")
            new += not row.startswith("-")
    return lines


def replaced(old: str, new: str, width: int, palette: Palette) -> list[Text]:
    """One text in place of another, before anybody knows at which line."""
    gone = [f"-{row}" for row in clean(old).removesuffix("\n").split("\n")] if old else []
    come = [f"+{row}" for row in clean(new).removesuffix("\n").split("\n")] if new else []
    return [piece for row in (*gone, *come) for piece in _row(row, None, width, palette)]


def patch(text: str, width: int, palette: Palette) -> list[Text]:
    """A patch as the model wrote it, coloured by the first character of each line."""
    lines: list[Text] = []
    for row in clean(text).split("\n"):
        if row.startswith(("***", "@@", "diff ", "index ", "--- ", "+++ ")):
            lines += wrapped(line(row, palette.style("quiet")), width)
        else:
            lines += _row(row, None, width, palette)
    return lines


def _row(row: str, number: int | None, width: int, palette: Palette) -> Iterator[Text]:
    sign = row[:1] or " "
    ground, colour = _SIGNS.get(sign, ("background", "quiet"))
    gutter = "" if number is None else f"{number:>4} "
    room = max(width - len(gutter) - 2, 8)
    for place, piece in enumerate(wrapped(line(row[1:]), room)):
        mark = Text.assemble(
            (gutter if place == 0 else " " * len(gutter), palette.style("faint")),
            (f"{sign} " if place == 0 else "  ", palette.style(colour)),
            end="",
        )
        body = Text.assemble(mark, (piece.plain, palette.style("text" if sign in _SIGNS else "quiet")), end="")
        yield padded(body, width, palette.on(ground)) if sign in _SIGNS else body
