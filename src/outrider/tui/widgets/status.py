"""The quiet lines around the composer: what goes on now, what waits, and where one is."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
from rich.text import Text
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from outrider.tui.conversation import Activity
from outrider.tui.rendering.text import clean_line, count, cut, elapsed, ends, line, money
from outrider.tui.theme import Palette, palette_named
from outrider.types.agents import Mode


class Frame(Horizontal):
    DEFAULT_CSS = """
    Frame { height: auto; margin: 0 1; padding: 0 1; border: round $faint; background: $background; }
    Frame:focus-within { border: round $primary 60%; }
    Frame.-plan:focus-within { border: round $secondary 70%; }
    Frame.-background:focus-within { border: round $warning; }
    Frame.-chat:focus-within { border: round $quiet; }
    """

    def show(self, mode: Mode) -> None:
        for known in ("plan", "background", "chat"):
            self.set_class(known == mode, f"-{known}")


def palette_of(widget: Widget) -> Palette:
    return palette_named(theme_of(widget))


def theme_of(widget: Widget) -> str:
    return widget.app.theme  # pyright: ignore[reportUnknownMemberType]  an App may return anything


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MODES = {"chat": "quiet", "plan": "link", "agent": "accent", "background": "warn"}
_FULL, _NEARLY = 0.9, 0.7


class ActivityLine(Static):
    """While something is waited for: since when, how many tokens, what it has cost so far."""

    DEFAULT_CSS = "ActivityLine { height: 1; padding: 0 2; }"

    def __init__(self) -> None:
        super().__init__("", id="activity", markup=False)
        self._turn = 0

    def show(self, activity: Activity, *, spent_before: Decimal | None) -> None:
        palette = palette_of(self)
        if not activity.busy:
            self.update("")
            return
        self._turn += 1
        left = Text(end="")
        left.append(f"{_SPINNER[self._turn % len(_SPINNER)]} ", palette.style("accent"))
        word = "waits for you" if activity.asking else activity.retrying or activity.word
        left.append(clean_line(word, 80), palette.style("warn" if activity.retrying or activity.asking else "text"))
        left.append(f" · {elapsed(activity.seconds)}", palette.style("quiet"))
        if activity.tokens:
            left.append(f" · {count(activity.tokens)} tokens", palette.style("quiet"))
        if activity.spent is not None and spent_before is not None and activity.spent > spent_before:
            left.append(f" · {money(activity.spent - spent_before)}", palette.style("quiet"))
        right = line("esc interrupts", palette.style("faint"))
        self.update(ends(left, right, max(self.size.width, 10)))


class WaitingLines(Static):
    """Input that has been said and not yet been taken."""

    DEFAULT_CSS = "WaitingLines { height: auto; max-height: 4; padding: 0 2; display: none; }"

    def __init__(self) -> None:
        super().__init__("", id="waiting", markup=False)

    def show(self, waiting: Sequence[tuple[str, str]]) -> None:
        """Pairs of how it will be delivered and what it says; the last one can be taken back."""
        palette = palette_of(self)
        self.display = bool(waiting)
        text = Text(no_wrap=True, overflow="ellipsis", end="")
        for number, (delivery, words) in enumerate(waiting):
            text.append("\n" if number else "")
            text.append("↳ next step  " if delivery == "steer" else "↳ after this  ", palette.style("link"))
            text.append(clean_line(words, 200), palette.style("quiet"))
            text.append("  ↑ takes it back" if number == len(waiting) - 1 else "", palette.style("faint"))
        self.update(text)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What the last line of the screen tells."""

    mode: str
    model: str
    agent: str
    context: int = 0
    context_limit: int | None = None
    cost: Decimal | None = None
    answers: int = 0
    workspace: Path
    home: Path


class StatusLine(Static):
    DEFAULT_CSS = "StatusLine { height: 1; padding: 0 2; }"

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._standing: Standing | None = None
        self._shown: tuple[Standing, int, str] | None = None

    def show(self, standing: Standing) -> None:
        self._standing = standing
        seen = (standing, self.size.width, theme_of(self))
        if self.size.width and seen != self._shown:
            self._shown = seen
            self.update(status_text(standing, self.size.width, palette_of(self)))

    def on_resize(self) -> None:
        if self._standing is not None:
            self.show(self._standing)


def status_text(standing: Standing, width: int, palette: Palette) -> Text:
    """On a narrow screen the folder goes first, then the model's provider."""
    left = Text(end="")
    left.append(standing.mode, palette.style(_MODES.get(standing.mode, "text"), bold=True))
    left.append(f"  {clean_line(standing.model) or 'no model'}", palette.style("text"))
    left.append(f"  {clean_line(standing.agent, 30)}", palette.style("quiet"))
    right = _usage(standing, palette)
    place = clean_line(_short(standing.workspace, standing.home), 120)
    if left.cell_len + right.cell_len + len(place) + 5 <= width:
        right.append(f"  {place}", palette.style("quiet"))
    return ends(left, right, width) if right.cell_len + 14 < width else cut(left, width)


def _usage(standing: Standing, palette: Palette) -> Text:
    text = Text(end="")
    if not standing.answers:
        return text
    if standing.context_limit:
        share = standing.context / standing.context_limit
        colour = "bad" if share > _FULL else "warn" if share > _NEARLY else "quiet"
        text.append(f"{share:.0%} of {count(standing.context_limit)}", palette.style(colour))
    elif standing.context:
        text.append(f"{count(standing.context)} tokens", palette.style("quiet"))
    if standing.cost is not None:
        text.append(f"  {money(standing.cost)}", palette.style("quiet"))
    return text


def _short(path: Path, home: Path) -> str:
    try:
        return f"~/{path.relative_to(home)}".rstrip("/.")
    except ValueError:
        return str(path)
